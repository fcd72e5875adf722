"""What Spark's own files in a checkpoint say: which batches were begun, and are done, and up to which offsets."""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

BEGUN: Final = "offsets"
DONE: Final = "commits"
"""Folders in a checkpoint. Each has a file per batch: of batches that were begun, and of batches that are done."""


def last_batch(session: SparkSession, path: str, folder: str) -> int | None:
    """Return the number of the last batch that has a file in a folder of the checkpoint at the path; None if there is none."""
    jvm: Any = session.sparkContext._jvm
    place = jvm.org.apache.hadoop.fs.Path(f"{path}/{folder}")
    files = place.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(place):
        return None
    names = [str(status.getPath().getName()) for status in files.listStatus(place)]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def end_of_batch(session: SparkSession, path: str, batch: int) -> Any:
    """Return where the records of a batch end, in the form of the query's source. Spark writes that before the batch begins."""
    jvm: Any = session.sparkContext._jvm
    file = jvm.org.apache.hadoop.fs.Path(f"{path}/{BEGUN}/{batch}")
    stream = file.getFileSystem(session.sparkContext._jsc.hadoopConfiguration()).open(file)
    try:
        lines = bytes(stream.readAllBytes()).decode().splitlines()
    finally:
        stream.close()
    return json.loads(lines[-1])
