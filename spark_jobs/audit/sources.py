"""What job `audit` looks at: the topics of a daemon, or the table of events that a job `changes` has made of them.

Both give the same frames of changes. They differ in what is to be had beside them, and in who is asked for a number that is
missing: Kafka has all that was published, while a table may still be given what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import control_topics, tables
from spark_jobs.audit.facts import SOURCE_FIELDS, slim
from spark_jobs.envelope import parse
from spark_jobs.errors import JobError
from spark_jobs.lake import delta_log
from spark_jobs.lake.event_table import PREFIX
from spark_jobs.source import Topics

CONTROL_TOPICS: Final = ("transaction", "snapshot")

Places = Mapping[str, Mapping[str, int]]
"""Topic → partition → offset, as Spark writes it."""

_ALL: Final = str(2**31 - 1)


class Source(Protocol):
    """Where events are, and what is known beside them."""

    knows_transactions: ClassVar[bool]
    """Whether transactions' ENDs are among what it reads."""
    is_final: ClassVar[bool]
    """Whether a number that it hasn't got will never come."""

    def changes(self, records: DataFrame) -> DataFrame:
        """Of what the stream has read, what the audit needs (facts.slim)."""

    def numbers(self, offsets: Places) -> DataFrame:
        """The `seq` of all events that may not have been read, at least those from these offsets on."""

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """All records of snapshots that there are, with their places."""

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """The same, if these aren't among what the stream reads."""

    def first_offsets(self) -> Places:
        """Where the partitions begin that have been read."""

    def lacking(self, what: str, *, are_several: bool) -> str:
        """That numbers are missing, in words."""


class TopicSource:
    """The topics."""

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
        """`first_offsets` tells where the query began; `read_behind` gives what Kafka has from these offsets on, `read_topic`
        all records of a topic.
        """
        self.first_offsets = first_offsets
        self._read_behind = read_behind or (lambda offsets: topics.read_behind(session, offsets))
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._control = [topics.control(name) for name in CONTROL_TOPICS]

    def changes(self, records: DataFrame) -> DataFrame:
        """As `Source.changes`; one pass reads events and control records."""
        told = control_topics.packed(records, self._control)
        return slim(parse(told, source_fields=SOURCE_FIELDS, control=self._control))

    def numbers(self, offsets: Places) -> DataFrame:
        """As `Source.numbers`."""
        return parse(self._read_behind(offsets), source_fields=()).select(F.col("source.seq").alias("seq"))

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """As `Source.snapshots`."""
        return list(enumerate(map(json.loads, control_topics.values(self._read_topic(self._control[1])))))

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """As `Source.snapshots_beside`."""
        return []

    def lacking(self, what: str, *, are_several: bool) -> str:
        """As `Source.lacking`."""
        return f"{what} {'are' if are_several else 'is'} on no topic"


class TableSource:
    """The table of a job `changes`, with `_control` beside it."""

    knows_transactions: ClassVar[bool] = False
    is_final: ClassVar[bool] = False

    def __init__(self, session: SparkSession, path: str) -> None:
        """At this path."""
        self._session = session
        self._path = path

    def prefix(self) -> str:
        """Whose events it has. Raises JobError if there is no such table."""
        state = delta_log.state(self._session, self._path)
        found = None if state is None else state.properties.get(PREFIX)
        if found is None or state is None or "kafka_offset" not in tables.read(self._session, self._path).columns:
            raise JobError(f"There is no table of events in {self._path}: --changes is the --path of a job `changes`.")
        return found

    def stream(self, topics: Topics) -> DataFrame:
        """Events of the chosen spaces, as they are appended; whole commits, so that each partition is read in order."""
        # What `maintain` takes out of the table has been read. The first batch is the table as it is, whatever that takes:
        # its files tell nothing of the order in which they were written.
        reader = self._session.readStream.format("delta").option("skipChangeCommits", "true").option("maxFilesPerTrigger", _ALL)
        return reader.load(self._path).where(F.col("kafka_topic").rlike(f"^(?:{topics.pattern()})$"))

    def changes(self, records: DataFrame) -> DataFrame:
        """As `Source.changes`."""
        source = ("space_id", "seq", "replica_id", "lsn", "schema_version", "server_version", "snapshot_id")
        return slim(
            records.select(
                *("op", "key", "before", "after"),
                F.struct(F.col("space").alias("table"), *source).alias("source"),
                F.struct(F.col("transaction_id").alias("id"), "total_order").alias("transaction"),
                *(F.col(f"kafka_{name}").alias(name) for name in ("topic", "partition", "offset")),
            )
        )

    def numbers(self, offsets: Places) -> DataFrame:  # noqa: ARG002 - a table is read as a whole
        """As `Source.numbers`."""
        return tables.read(self._session, self._path).select("seq")

    def snapshots(self) -> list[tuple[int, dict[str, Any]]]:
        """As `Source.snapshots`."""
        path = f"{self._path}/_control"
        if delta_log.state(self._session, path) is None:
            return []
        rows = tables.read(self._session, path).where("kind = 'snapshot'").select("position", "value").collect()
        return sorted(((int(row["position"]), json.loads(row["value"])) for row in rows), key=lambda record: record[0])

    def snapshots_beside(self) -> list[tuple[int, dict[str, Any]]]:
        """As `Source.snapshots_beside`."""
        return self.snapshots()

    def first_offsets(self) -> Places:
        """As `Source.first_offsets`: of what the table has."""
        first = F.min("kafka_offset").alias("first")
        found: dict[str, dict[str, int]] = {}
        for row in tables.read(self._session, self._path).groupBy("kafka_topic", "kafka_partition").agg(first).collect():
            found.setdefault(row["kafka_topic"], {})[str(row["kafka_partition"])] = row["first"]
        return found

    def lacking(self, what: str, *, are_several: bool) -> str:
        """As `Source.lacking`."""
        return f"{what} {'are' if are_several else 'is'} not in the table {self._path}"


def completed(records: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of records of snapshots, the ends."""
    return [record for _, record in records if record["status"] == "COMPLETED"]
