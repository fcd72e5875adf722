"""Ownership of checkpoints: each belongs to one job and one place.

With the checkpoint of another job, a job would skip the records that the other one has read. A file in the checkpoint therefore
names its owner.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.state_files import read_whole, write_whole

_FILE: Final = "tarantool_cdc.json"
_BEGUN, _DONE = "offsets", "commits"
"""Spark's own folders in a checkpoint. Each has a file per batch: of batches that were begun, and of batches that are done."""


def claim(session: SparkSession, path: str, owner: dict[str, str]) -> None:
    """Write the owner into a checkpoint that doesn't name one yet. Raises JobError if the checkpoint has another owner."""
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(path, _FILE)
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    text = read_whole(session, place) if files.exists(place) else None
    if text is None:
        write_whole(session, place, json.dumps(owner))
        return
    found = json.loads(text)
    differing = [name for name in owner if found.get(name) != owner[name]]
    if differing:
        said, given = (", ".join(f"{name} {known.get(name)!r}" for name in differing) for known in (found, owner))
        raise JobError(
            f"The checkpoint {path} belongs to {said}, not to {given}. With it this job would skip the records that the other "
            f"one has read. Choose another --checkpoint; if the tables and their checkpoint were moved, delete {_FILE} in it."
        )


def has_begun_batch(session: SparkSession, path: str) -> bool:
    """Return whether a batch was begun but not completed. The next start repeats it, up to the same offsets."""
    return _newest(session, f"{path}/{_BEGUN}") > _newest(session, f"{path}/{_DONE}")


def _newest(session: SparkSession, folder: str) -> int:
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(folder)
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(place):
        return -1
    names = [status.getPath().getName() for status in files.listStatus(place)]
    return max((int(name) for name in names if name.isdecimal()), default=-1)
