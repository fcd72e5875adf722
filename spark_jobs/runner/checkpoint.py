"""Ownership of checkpoints: each belongs to one job and one place.

With the checkpoint of another job, a job would skip the records that the other one has read. A file in the checkpoint therefore
names its owner. Another file has the tables that a job with one table per space has made: if one of them is gone, its events
would be missing from a table that the job makes in its place. For the same reason `search_index` keeps notes of its indexes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables.spark_checkpoint import BEGUN, DONE, end_of_batch, last_batch
from spark_jobs.tables.state_files import read_whole, write_whole

_FILE: Final = "tarantool_cdc.json"
_TABLES_FILE: Final = "tarantool_cdc_tables.json"
_METADATA_FILE: Final = "metadata"
"""Spark's own file with the query's id."""


def claim(session: SparkSession, path: str, owner: dict[str, str]) -> None:
    """Write the owner into a checkpoint that doesn't name one yet. Raises JobError if the checkpoint has another owner."""
    if not check_owner(session, path, owner):
        write_whole(session, _file(session, path, _FILE), json.dumps(owner))


def check_owner(session: SparkSession, path: str, owner: dict[str, str]) -> bool:
    """Return whether the checkpoint names this owner; False if it names none yet. Raises JobError if it has another owner."""
    found = _read(session, _file(session, path, _FILE))
    if found is None:
        return False
    differing = [name for name in owner if found.get(name) != owner[name]]
    if differing:
        said, given = (", ".join(f"{name} {known.get(name)!r}" for name in differing) for known in (found, owner))
        raise JobError(
            f"The checkpoint {path} belongs to {said}, not to {given}. With it this job would skip the records that the other "
            f"one has read. Choose another --checkpoint; if the tables and their checkpoint were moved, delete {_FILE} in it."
        )
    return True


class CheckpointFile:
    """File of JSON that a job keeps in its checkpoint."""

    def __init__(self, session: SparkSession, path: str, name: str) -> None:
        """Name the file, in the checkpoint at the path."""
        self._session = session
        self._file = _file(session, path, name)

    def read(self) -> Any:
        """Return the file's value; None if there is none."""
        return _read(self._session, self._file)

    def write(self, value: Any) -> None:
        """Replace the file's value."""
        write_whole(self._session, self._file, json.dumps(value))


class MadeTables:
    """Tables that the batches of a checkpoint have made, by their names, kept in the checkpoint.

    Each has the number of its last write (`lanes.number`). A table of a lower number is an older copy.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        """Read the names and numbers in the checkpoint at the path. Those of earlier versions are names alone."""
        self._session = session
        self._file = _file(session, path, _TABLES_FILE)
        found = _read(session, self._file) or {}
        self._numbers: dict[str, int] = found if isinstance(found, dict) else dict.fromkeys(found, 0)

    @property
    def numbers(self) -> Mapping[str, int]:
        """The numbers of their last writes by the names of all of them."""
        return self._numbers

    def add(self, numbers: Mapping[str, int]) -> None:
        """Note tables that have been made, or have been written to."""
        self._numbers = {**self._numbers, **numbers}
        write_whole(self._session, self._file, json.dumps(self._numbers))


class Notes:
    """Texts by name that a job keeps in its checkpoint, in a file of their own."""

    def __init__(self, session: SparkSession, path: str, file: str) -> None:
        """Read the notes in the checkpoint at the path."""
        self._session = session
        self._file = _file(session, path, file)
        found = _read(session, self._file)
        self.is_new = found is None
        """Whether nothing has been noted yet."""
        self.texts: dict[str, str] = found or {}
        self.place = f"{path.rstrip('/')}/{file}"

    def note(self, texts: Mapping[str, str]) -> None:
        """Add notes, or replace those of the same names."""
        merged = {**self.texts, **texts}
        if self.is_new or merged != self.texts:
            write_whole(self._session, self._file, json.dumps(merged))
            self.texts, self.is_new = merged, False


def query_id(session: SparkSession, path: str) -> str | None:
    """Return the id of the query to which a checkpoint belongs (`job.query_of_batch`); None if no query has begun."""
    found = _read(session, _file(session, path, _METADATA_FILE))
    return None if found is None else str(found["id"])


def last_done_batch(session: SparkSession, path: str) -> int | None:
    """Return the number of the last batch that is done; None if there is none."""
    return last_batch(session, path, DONE)


def has_begun_batch(session: SparkSession, path: str) -> bool:
    """Return whether a batch was begun but not completed. The next start repeats it, up to the same offsets."""
    begun, done = last_batch(session, path, BEGUN), last_batch(session, path, DONE)
    return begun is not None and (done is None or begun > done)


def last_begun_batch(session: SparkSession, path: str) -> int | None:
    """Return the number of the last batch that was begun; None if there is none."""
    return last_batch(session, path, BEGUN)


def offsets_of_batch(session: SparkSession, path: str, batch: int) -> dict[tuple[str, int], int]:
    """Return the offsets at which a batch's records end, by topic and partition. Spark writes them before the batch begins.

    It is empty if the query doesn't read Kafka.
    """
    return {
        (topic, int(partition)): end
        for topic, ends in end_of_batch(session, path, batch).items()
        if isinstance(ends, dict)
        for partition, end in ends.items()
    }


def _file(session: SparkSession, path: str, name: str) -> Any:
    """Return the path (one of Hadoop's) of a file in a checkpoint."""
    jvm: Any = session.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.Path(path, name)


def _read(session: SparkSession, file: Any) -> Any:
    """Return the JSON value in a file; None if there is no file or an incomplete one."""
    files = file.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    text = read_whole(session, file) if files.exists(file) else None
    return None if text is None else json.loads(text)
