"""What a Delta table's log says of it, without a Spark job: version, properties, and which transactions of whom it has taken."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession


class TableState:
    """A version of a table; what else is known of it is asked for when it is needed, as it costs time."""

    def __init__(self, session: SparkSession, snapshot: Any) -> None:
        """`snapshot` is Delta's."""
        self.version: int = snapshot.version()
        self._snapshot = snapshot
        jvm: Any = session.sparkContext._jvm
        self._as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava

    @property
    def identity(self) -> tuple[str, int]:
        """What no other version of a table has, at any path."""
        return str(self._snapshot.metadata().id()), self.version

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self._as_java(self._snapshot.metadata().configuration()))

    @cached_property
    def transactions(self) -> Mapping[str, int]:
        """The highest number that each application has written with."""
        # The checksum beside each commit has them, as long as they are few; else Delta reads the log, which is a Spark job.
        checksum = self._snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else checksum
        if known.isEmpty():
            return dict(self._as_java(self._snapshot.transactions()))
        return {found.appId(): int(found.version()) for found in self._as_java(known.get())}


def state(session: SparkSession, path: str, version: int | None = None) -> TableState | None:
    """The table as it is now, or was in a version; None if there is no table."""
    jvm: Any = session.sparkContext._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    snapshot = log.update(False, none, none) if version is None else log.getSnapshotAt(version, none, none)
    return None if snapshot.version() < 0 else TableState(session, snapshot)


def state_at(session: SparkSession, path: str, seconds: float) -> TableState | None:
    """The table as it was at a time (seconds since 1970); None if there was none, or the log doesn't reach back so far."""
    jvm: Any = session.sparkContext._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    if log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty()).version() < 0:
        return None
    moment = jvm.java.sql.Timestamp(int(seconds * 1000))
    # The last one and the first one are answers too, and only versions that can still be read.
    commit = log.history().getActiveCommitAtTime(moment, jvm.scala.Option.empty(), True, True, True)
    return state(session, path, commit.version()) if commit.timestamp() <= moment.getTime() else None
