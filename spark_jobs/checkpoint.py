"""A checkpoint is one job's, for one place: with another's, a job would pass over what the other has read.

So a file in it says whose it is.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError

_FILE: Final = "tarantool_cdc.json"
_BEGUN, _DONE = "offsets", "commits"
"""Spark's own folders in a checkpoint, with a file for each batch."""


def claim(session: SparkSession, path: str, owner: dict[str, str]) -> None:
    """Write into a checkpoint whose it is, if it doesn't say. Raises JobError if it is another's."""
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path, _FILE)
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(place):
        stream = files.create(place, True)
        stream.write(bytearray(json.dumps(owner).encode()))
        stream.close()
        return
    stream = files.open(place)
    found = json.loads(bytes(stream.readAllBytes()))
    stream.close()
    differing = [name for name in owner if found.get(name) != owner[name]]
    if differing:
        said, given = (", ".join(f"{name} {known.get(name)!r}" for name in differing) for known in (found, owner))
        raise JobError(
            f"The checkpoint {path} belongs to {said}, not to {given}: what that has read, this would never get. Choose another "
            f"--checkpoint; if the tables were moved and the checkpoint goes with them, delete {_FILE} in it."
        )


def has_begun_batch(session: SparkSession, path: str) -> bool:
    """Whether a batch was begun that isn't done: the next start repeats it, up to the offsets that it had."""
    return _newest(session, f"{path}/{_BEGUN}") > _newest(session, f"{path}/{_DONE}")


def _newest(session: SparkSession, folder: str) -> int:
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(folder)
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(place):
        return -1
    names = [status.getPath().getName() for status in files.listStatus(place)]
    return max((int(name) for name in names if name.isdecimal()), default=-1)
