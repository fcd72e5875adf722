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
from spark_jobs.lake.event_table import PREFIX
from spark_jobs.tables import delta
from spark_jobs.tables.formats import check_delta

CONTROL_TOPICS: Final = ("transaction", "snapshot")

Places = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition, as Spark writes them."""

_ALL: Final = str(2**31 - 1)


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

    def __init__(self, session: SparkSession, path: str) -> None:
        """`path` is the table's path."""
        self._session = session
        self._path = path

    def prefix(self) -> str:
        """Return the topic prefix of the table's events. Raises JobError if there is no such table."""
        check_delta(self._session, self._path, "audit --changes")
        state = delta.state(self._session, self._path)
        found = None if state is None else state.properties.get(PREFIX)
        if found is None or not self._has_offsets():
            raise JobError(
                f"There is no table of events in {self._path} that --changes can use: that is one which a job `changes` has"
                " written. (The one that a job `current` keeps for itself has fewer columns.)"
            )
        return found

    def _has_offsets(self) -> bool:
        """Return whether all events have their offsets. Those of a job `current` lack them, at least those of newer versions."""
        rows = delta.read(self._session, self._path)
        return "kafka_offset" in rows.columns and rows.where("kafka_offset is null").isEmpty()

    def stream(self, topics: Topics) -> DataFrame:
        """Stream events of the chosen spaces as they are appended, in complete commits, so that partitions are read in order."""
        # Rows that `maintain` removes from the table have been read before. The first batch is the complete table, whatever its
        # size, because its files don't show the order in which they were written.
        reader = self._session.readStream.format("delta").option("skipChangeCommits", "true").option("maxFilesPerTrigger", _ALL)
        return reader.load(self._path).where(F.col("kafka_topic").rlike(topics.pattern()))

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
        return delta.read(self._session, self._path).select("seq")

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots`."""
        path = f"{self._path}/_control"
        if delta.state(self._session, path) is None:
            return []
        rows = delta.read(self._session, path).where("kind = 'snapshot'").select("position", "value").collect()
        return sorted(((int(row["position"]), json.loads(row["value"])) for row in rows), key=lambda record: record[0])

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """See `Source.snapshots_beside`."""
        return self.snapshots()

    def first_offsets(self) -> Places:
        """See `Source.first_offsets`; the table's lowest offsets."""
        first = F.min("kafka_offset").alias("first")
        found: dict[str, dict[str, int]] = {}
        for row in delta.read(self._session, self._path).groupBy("kafka_topic", "kafka_partition").agg(first).collect():
            found.setdefault(row["kafka_topic"], {})[str(row["kafka_partition"])] = row["first"]
        return found

    def lacking(self, what: str, *, are_several: bool) -> str:
        """See `Source.lacking`."""
        return f"{what} {'are' if are_several else 'is'} not in the table {self._path}"


def completed(records: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the COMPLETED records among snapshot records."""
    return [record for _, record in records if record["status"] == "COMPLETED"]
