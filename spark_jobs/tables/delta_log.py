"""A Delta table's state from its log, without a Spark job: version, properties, and the applications' transaction numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession


class TableState:
    """A version of a table. Its other properties are read only when they are needed, because that takes time."""

    def __init__(self, session: SparkSession, snapshot: Any) -> None:
        """Read the version of `snapshot`, Delta's Java object for a version of the table."""
        self.version: int = snapshot.version()
        self._snapshot = snapshot
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
