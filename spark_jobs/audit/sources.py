"""Sources of job `audit`: the topics of a daemon, or the table of events that a job `changes` has made from them.

Both provide the same frames of changes. They differ in the other available data, and in what a missing seq means: Kafka
has everything that was published, while a table may still get the seq later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit.facts import SOURCE_FIELDS, slim
from spark_jobs.contract import control_topics
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.event_table import SHARDS
from spark_jobs.tables import delta
from spark_jobs.tables.formats import format_of
from spark_jobs.tables.found import PREFIX
from spark_jobs.tables.places import Table, beside

CONTROL_TOPICS: Final = ("transaction", "snapshot")

Places = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition, as Spark writes them."""


class Source(Protocol):
    """Access to events and other data of one kind of source."""

    knows_transactions: ClassVar[bool]
    """Whether the source contains the transactions' ENDs."""
    is_final: ClassVar[bool]
    """Whether a seq that the source doesn't have now will never arrive."""

    def changes(self, records: DataFrame) -> DataFrame:
        """Return the records that the stream has read, reduced for the audit (facts.slim)."""

    def numbers(self, offsets: Places) -> DataFrame:
        """Return the `seq` of all events that may not have been read, at least those from these offsets on."""

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """Return all existing snapshot records, with their positions."""

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the same, if the stream doesn't read snapshot records; otherwise nothing."""

    def first_offsets(self) -> Places:
        """Return the first offsets of the partitions that have been read."""

    def lacking(self, what: str, *, are_several: bool) -> str:
        """Return a phrase that `what` is missing."""


class TopicSource:
    """Source that reads the topics."""

    knows_transactions: ClassVar[bool] = True
    is_final: ClassVar[bool] = True

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        *,
        first_offsets: Callable[[], Places] = dict,
        read_behind: Callable[[Places], DataFrame] | None = None,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """`first_offsets` returns the offsets at which the query began.

        `read_behind` returns Kafka's records from given offsets on, `read_topic` all records of a topic.
        """
        self.first_offsets = first_offsets
        self._topics = topics
        self._read_behind = read_behind or (lambda offsets: topics.read_behind(session, offsets))
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._control = [topics.control(name) for name in CONTROL_TOPICS]

    def changes(self, records: DataFrame) -> DataFrame:
        """See `Source.changes`. One pass reads events and control records."""
        told = control_topics.with_value_as_key(records, self._control)
        return slim(parse(told, source_fields=SOURCE_FIELDS, control=self._control, names=self._topics.names))

    def numbers(self, offsets: Places) -> DataFrame:
        """See `Source.numbers`."""
        events = parse(self._read_behind(offsets), source_fields=(), names=self._topics.names)
        return events.select(F.col("source.seq").alias("seq"))

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots`."""
        return list(enumerate(map(json.loads, control_topics.values(self._read_topic(self._control[1])))))

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots_beside`."""
        return []

    def lacking(self, what: str, *, are_several: bool) -> str:
        """See `Source.lacking`."""
        return f"{what} {'are' if are_several else 'is'} on no topic"


class TableSource:
    """Source that reads the table of a job `changes`, with `_control` beside it."""

    knows_transactions: ClassVar[bool] = False
    is_final: ClassVar[bool] = False

    def __init__(self, session: SparkSession, table: Table) -> None:
        """Name the table. Raises JobError if Spark can't read its format."""
        self._session = session
        self._table = table
        self._format = format_of(session, table) or delta

    def prefix(self) -> str:
        """Return the topic prefix of the table's events. Raises JobError if there is no such table."""
        state = self._format.state(self._session, self._table)
        if state is not None and SHARDS in state.properties:
            raise JobError(
                f"The table in {self._table} has the events of a fleet, with numbers that the job `changes` has given them. Audit"
                " the topics: start `audit` with --bootstrap-servers and the fleet's --prefix."
            )
        found = None if state is None else state.properties.get(PREFIX)
        if found is None or not self._has_offsets():
            raise JobError(
                f"There is no table of events in {self._table} that --changes can use: that is one which a job `changes` has"
                " written. (The one that a job `current` keeps for itself has fewer columns.)"
            )
        return found

    def _has_offsets(self) -> bool:
        """Return whether all events have their offsets. Those of a job `current` lack them, at least those of newer versions."""
        rows = self._read()
        return "kafka_offset" in rows.columns and rows.where("kafka_offset is null").isEmpty()

    def stream(self, topics: Topics, checkpoint: str) -> DataFrame:
        """Stream events of the chosen spaces as they are appended, in complete commits, so that partitions are read in order."""
        found = self._format.stream(self._session, self._table, checkpoint)
        return found.where(F.col("kafka_topic").rlike(topics.pattern()))

    def _read(self) -> DataFrame:
        return self._format.read(self._session, self._table)

    def changes(self, records: DataFrame) -> DataFrame:
        """See `Source.changes`."""
        source = ("space_id", "seq", "replica_id", "lsn", "schema_version", "server_version", "snapshot_id")
        return slim(
            records.select(
                *("op", "key", "before", "after"),
                F.struct(F.col("space").alias("table"), *source).alias("source"),
                F.struct(F.col("transaction_id").alias("id"), "total_order").alias("transaction"),
                *(F.col(f"kafka_{name}").alias(name) for name in ("topic", "partition", "offset")),
            )
        )

    def numbers(self, offsets: Places) -> DataFrame:  # noqa: ARG002 - a table is read completely
        """See `Source.numbers`."""
        return self._read().select("seq")

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots`."""
        control = beside(self._table, "_control")
        if self._format.state(self._session, control) is None:
            return []
        rows = self._format.read(self._session, control).where("kind = 'snapshot'").select("position", "value").collect()
        return sorted(((int(row["position"]), json.loads(row["value"])) for row in rows), key=lambda record: record[0])

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots_beside`."""
        return self.snapshots()

    def first_offsets(self) -> Places:
        """See `Source.first_offsets`; the table's lowest offsets."""
        first = F.min("kafka_offset").alias("first")
        found: dict[str, dict[str, int]] = {}
        for row in self._read().groupBy("kafka_topic", "kafka_partition").agg(first).collect():
            found.setdefault(row["kafka_topic"], {})[str(row["kafka_partition"])] = row["first"]
        return found

    def lacking(self, what: str, *, are_several: bool) -> str:
        """See `Source.lacking`."""
        return f"{what} {'are' if are_several else 'is'} not in the table {self._table}"


def completed(records: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the COMPLETED records among snapshot records."""
    return [record for _, record in records if record["status"] == "COMPLETED"]


def first_offsets_in(session: SparkSession, checkpoint: str) -> Places:
    """Return the offsets at which the query began, from its checkpoint, where Spark stores them."""
    text = session.read.text(f"{checkpoint.rstrip('/')}/sources/0/0", wholetext=True).collect()[0][0]
    start = text.find("{")
    if start < 0:
        raise JobError(
            f"The checkpoint {checkpoint} doesn't contain the offsets at which the query began. Choose a new --checkpoint."
        )
    offsets: Places = json.loads(text[start:])
    return offsets
