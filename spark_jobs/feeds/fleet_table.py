"""The table of a fleet's events as the source of a feed: the events of all shards in one order, as messages of one daemon.

The fleet's topics can't be the source. A document has the `seq` of its change as its version, and seqs of two shards can't be
compared; and a truncation concerns the rows of one shard, which no message names. The table of a job `changes` has numbers of its
own for all events, and a `d` for each row that a truncation or a sweep has removed.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.event_table import SHARDS
from spark_jobs.tables import delta
from spark_jobs.tables.formats import format_of
from spark_jobs.tables.found import PREFIX
from spark_jobs.tables.places import Table, beside

_TEXTS = ("before", "after", "patch", "upsert")


class FleetTable:
    """The table of a job `changes` over a fleet, and the forms beside it."""

    def __init__(self, session: SparkSession, table: Table) -> None:
        """Name the table. Raises JobError if Spark can't read its format."""
        self._session = session
        self._table = table
        self._format = format_of(session, table) or delta

    def __str__(self) -> str:
        return f"--changes {self._table}"

    def prefix(self) -> str:
        """Return the prefix of the fleet. Raises JobError if it isn't the table of one."""
        state = self._format.state(self._session, self._table)
        if state is None or SHARDS not in state.properties or PREFIX not in state.properties:
            raise JobError(
                f"There is no table of a fleet's events in {self._table} that --changes can use: that is one which a job"
                " `changes` has written from topics that shards share. The events of one daemon are read from its topics: start"
                " the job with --bootstrap-servers and --prefix."
            )
        return state.properties[PREFIX]

    def identity(self) -> str:
        """Return the table's id: each table has numbers of its own for the same events."""
        state = self._format.state(self._session, self._table)
        assert state is not None  # `prefix` has found it
        return state.identity[0]

    def stream(self, topics: Topics, checkpoint: str) -> DataFrame:
        """Stream the events of the chosen spaces as messages, with the columns of Spark's Kafka source."""
        rows = self._format.stream(self._session, self._table, checkpoint)
        return as_messages(rows.where(F.col("kafka_topic").rlike(topics.pattern())))

    def forms(self, _topic: str) -> DataFrame:
        """Return the forms, by the fleet's numbers, as the records of a schema topic; no events need an earlier version of it."""
        kept = self._format.read(self._session, beside(self._table, "_control")).where("kind = 'schema'")
        return kept.select(F.lit(0).alias("partition"), F.col("position").alias("offset"), "value")


def as_messages(rows: DataFrame) -> DataFrame:
    """Return rows of the table as messages with the columns of Spark's Kafka source, and with the fleet's numbers.

    A `d` of a removed row is in the place of the row's last message.
    """
    source = F.to_json(
        F.struct(F.col("daemon").alias("name"), F.col("space").alias("table"), "space_id", "seq", "schema_version")
    )
    texts = [F.concat(F.lit(f'"{name}":'), F.coalesce(F.col(name), F.lit("null"))) for name in _TEXTS]
    value = F.concat(F.lit('{"op":"'), "op", F.lit('",'), F.concat_ws(",", *texts), F.lit(',"source":'), source, F.lit("}"))
    return rows.select(
        F.col("key").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        *(F.col(f"kafka_{name}").alias(name) for name in ("topic", "partition", "offset", "timestamp")),
        F.lit(0).alias("timestampType"),
    )
