"""A Delta table's state from its log, without a Spark job: version, properties, and the applications' transaction numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from pyspark.sql import SparkSession

_WRITTEN: Final = ("WRITE", "MERGE", "CREATE", "REPLACE", "CLONE", "CONVERT")
"""Beginnings of the names of operations after which nothing matters that was done to a table before."""
_PUT_BACK: Final = "RESTORE"


class TableState:
    """A version of a table. Its other properties are read only when they are needed, because that takes time."""

    def __init__(self, session: SparkSession, snapshot: Any) -> None:
        """Read the version of `snapshot`, Delta's Java object for a version of the table."""
        self.version: int = snapshot.version()
        self._session = session
        self._snapshot = snapshot
        self._commits: dict[int, dict[str, Any]] = {}
        jvm: Any = session.sparkContext._jvm
        self._as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava

    @property
    def identity(self) -> tuple[str, int]:
        """The table's id and the version: unique among all versions of all tables, at any path."""
        return str(self._snapshot.metadata().id()), self.version

    @property
    def previous_version(self) -> int | None:
        """The version before this one; None if this is the first one."""
        return self.version - 1 if self.version else None

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self._as_java(self._snapshot.metadata().configuration()))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""
        return tuple(self._snapshot.schema().fieldNames())

    @cached_property
    def transactions(self) -> Mapping[str, int]:
        """The highest transaction number of each application that has written to the table."""
        # The checksum beside each commit contains them as long as they are few. Otherwise Delta reads the log, with a Spark job.
        checksum = self._snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if known.isEmpty():
            return dict(self._as_java(self._snapshot.transactions()))
        return {found.appId(): int(found.version()) for found in self._as_java(known.get())}

    @cached_property
    def put_back_from(self) -> int | None:
        """See `TableState.put_back_from` in format.py. Delta puts rows and properties back, but leaves the numbers."""
        content, newest = (self._last_written(follows=follows) for follows in (True, False))
        return newest if newest > content else None

    def _last_written(self, *, follows: bool) -> int:
        """Return the last version in which rows were written; if it `follows` restorations, of those that are there now."""
        version = self.version
        while version >= 0 and (done := self._commit(version)) and not _kind(done).startswith(_WRITTEN):
            if follows and _kind(done) == _PUT_BACK:
                # A table that was put back by a time doesn't tell to which version. Then it counts as one that lacks rows.
                version = int(done["operationParameters"].get("version") or -1)
            else:
                version -= 1
        return version

    def _commit(self, version: int) -> dict[str, Any]:
        """Return what a commit says of itself; nothing if it has been removed from the log, or says nothing."""
        if version in self._commits:
            return self._commits[version]
        jvm: Any = self._session.sparkContext._jvm
        file = jvm.org.apache.hadoop.fs.Path(self._snapshot.path(), f"{version:020d}.json")
        files = file.getFileSystem(self._session.sparkContext._jsc.hadoopConfiguration())
        if not files.exists(file):
            return {}
        reader = jvm.java.io.BufferedReader(jvm.java.io.InputStreamReader(files.open(file)))
        try:
            # Delta writes it first.
            found = self._commits[version] = dict(json.loads(reader.readLine()).get("commitInfo", {}))
            return found
        finally:
            reader.close()


def _kind(commit: Mapping[str, Any]) -> str:
    return str(commit.get("operation"))


def state(session: SparkSession, path: str, version: int | None = None) -> TableState | None:
    """Return the table's present state, or its state in a version; None if there is no table."""
    jvm: Any = session.sparkContext._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    snapshot = log.update(False, none, none) if version is None else log.getSnapshotAt(version, none, none, False)
    return None if snapshot.version() < 0 else TableState(session, snapshot)


def state_at(session: SparkSession, path: str, seconds: float) -> TableState | None:
    """Return the table's state at a time (seconds since 1970); None if it didn't exist, or its log doesn't reach back so far."""
    jvm: Any = session.sparkContext._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    if log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()).version() < 0:
        return None
    moment = jvm.java.sql.Timestamp(int(seconds * 1000))
    # The arguments allow the last commit and the first commit as answers, and only versions that can still be read.
    commit = log.history().getActiveCommitAtTime(moment, jvm.scala.Option.empty(), True, True, True)
    return state(session, path, commit.version()) if commit.timestamp() <= moment.getTime() else None
