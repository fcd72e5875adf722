"""State that a sink keeps from batch to batch, in files: one text per batch, on the file system of the tables.

A text is written before its batch counts as done, so a repeated batch finds the text of the first time. If the process ends while
it writes a file, or the disk is full, the file that was there before stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_jobs.tables.location import Location


def state_folder(location: Location, checkpoint: str, name: str) -> str:
    """Return the folder for a job's state: beside its tables, or in the checkpoint if a catalog has these."""
    return f"{checkpoint.rstrip('/')}/{name}" if location.path is None else f"{location.path.rstrip('/')}/{name}"


class StateFiles:
    """State files in one folder. Of each query the last two are kept."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        """Name the folder. The first file creates it."""
        self._session = session
        jvm: Any = session.sparkContext._jvm
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._folder.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())

    def write(self, query: str, batch: int, text: str) -> None:
        """Write the state after a batch, and delete the query's files except the last two. `text` is JSON."""
        write_whole(self._session, self._path(self._folder, _name(query, batch)), text)
        for name in self._names(query)[:-2]:
            self._files.delete(self._path(self._folder, name), False)

    def read(self, query: str) -> Iterator[tuple[int, str]]:
        """Yield the numbers and the texts of a query's batches, the last one first. Incomplete files are skipped."""
        for name in reversed(self._names(query)):
            text = read_whole(self._session, self._path(self._folder, name))
            if text is not None:
                yield int(name.rpartition(".")[2]), text

    def _names(self, query: str) -> list[str]:
        if not self._files.exists(self._folder):
            return []
        names = (str(status.getPath().getName()) for status in self._files.listStatus(self._folder))
        return sorted(name for name in names if name.startswith(f"{query}."))


def _name(query: str, batch: int) -> str:
    return f"{query}.{batch:012d}"


def write_whole(session: SparkSession, path: Any, text: str) -> None:
    """Write a file (`path` is one of Hadoop's) in one step: until all of it is written, what was there before stays."""
    jvm: Any = session.sparkContext._jvm
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    classes = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    manager = classes.CheckpointFileManager.create(path.getParent(), configuration)
    manager.mkdirs(path.getParent())
    stream = manager.createAtomic(path, True)
    try:
        stream.write(bytearray(text.encode()))
        stream.close()
    except BaseException:
        stream.cancel()
        raise


def read_whole(session: SparkSession, path: Any) -> str | None:
    """Return the JSON in a file; None if the file is incomplete."""
    files = path.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    stream = files.open(path)
    try:
        text = bytes(stream.readAllBytes()).decode()
        json.loads(text)
    except ValueError:
        return None
    except Py4JJavaError as error:
        if "ChecksumException" in str(error.java_exception.toString()):
            return None
        raise
    finally:
        stream.close()
    return text
