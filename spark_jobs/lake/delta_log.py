"""What a Delta table's log says of it, without a Spark job: version, properties, and which transactions of whom it has taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession


@dataclass(frozen=True)
class TableState:
    """A version of a table; `transactions` tells the highest number that each application has written with."""

    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]


def state(session: SparkSession, path: str, version: int | None = None) -> TableState | None:
    """The table as it is now, or was in a version; None if there is no table."""
    jvm: Any = session.sparkContext._jvm
    none = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
    snapshot = log.update(False, none, none) if version is None else log.getSnapshotAt(version, none, none)
    if snapshot.version() < 0:
        return None
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    properties = dict(as_java(snapshot.metadata().configuration()))
    return TableState(snapshot.version(), properties, dict(as_java(snapshot.transactions())))
