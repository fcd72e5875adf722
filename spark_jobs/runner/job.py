"""The interfaces that jobs implement for the program that runs them.

A `Job` writes micro-batches of Kafka records to some place until it is stopped. A `Task` runs once and ends. To add one, write a
module with it, and add it to `run.JOBS` or `run.TASKS`. Beside its own options it can use:

    options.path, .location    where its tables are, if `has_tables`. `location` also supports tables of a catalog (location.py),
                               for jobs with `takes_catalog`; their `path` is None with --catalog. Other jobs have a path even
                               then, and keep everything in it (registered.py)
    options.checkpoint         a job's checkpoint
    type=setting, type=secret  of options.py, for NAME=VALUE and for a value that no message may show: both read @FILE and $NAME

A sink passes records that it can't process to `self.dead_letters` (see `DeadLetters`). It needn't do so for records that aren't
change events: the program removes these from the batch (run.py), so a sink only has to parse.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError

REFUSED_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("sentence", StringType()),
    ]
)
"""Schema of the records that `DeadLetters.take` accepts, for `createDataFrame`."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"


def query_of_batch(session: SparkSession) -> str:
    """Return the id of the query whose batch is running. The checkpoint holds the id, so another checkpoint is another query.

    Raises JobError outside of a batch.
    """
    # Spark sets it as a property of the query's Java thread.
    query: str | None = session.sparkContext.getLocalProperty(_QUERY_PROPERTY)
    if query is None:
        raise JobError("Spark reports no id of the query.")
    return query


class DeadLetters(ABC):
    """Destination for records that a sink can't process, such as a document that a search engine refuses.

    With --on-error fail the first such record ends the job. With --on-error dead-letter a table keeps the record, with
    everything needed to examine it and to send it again. Each record is there exactly once, however often its batch is repeated.
    """

    count: int = 0
    """Number of dead letters since the start. Repeated ones are counted again."""

    @abstractmethod
    def take(self, records: DataFrame) -> int:
        """Keep records, and return their number. The records are stored before their batch counts as done.

        `records` has REFUSED_SCHEMA; timestamp, key and value may be null. Its `sentence` says what is wrong, with topic,
        partition and offset, and what to do. If the job shall end, raises JobError with the sentence of the first record.
        """


class FailAtOnce(DeadLetters):
    """Dead letters with --on-error fail: the first record ends the job."""

    def take(self, records: DataFrame) -> int:
        """See `DeadLetters.take`."""
        for first in records.orderBy("topic", "partition", "offset").limit(1).collect():
            raise JobError(first["sentence"])
        return 0


class Sink(ABC):
    """Receiver of the micro-batches of one query, in order. After a failure the last batch may be repeated."""

    dead_letters: DeadLetters = FailAtOnce()
    """Destination for refused records. The program sets it before the first batch."""
    reads_avro: ClassVar[bool] = False
    """Whether `write` gets records as they are in Kafka. Otherwise those in Avro are converted to JSON before."""

    @abstractmethod
    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """Write one batch. Raises JobError.

        `records` has the columns of Spark's Kafka source. `query` stays the same as long as the checkpoint stays the same.
        """

    @property
    def knows_seq(self) -> bool:
        """Whether `newest_seq` tells the newest `seq` of each batch. Otherwise it is searched for in records in JSON."""
        return False

    def newest_seq(self) -> int | None:
        """Return the newest `seq` of the last batch, if the sink knows it."""
        return None

    def counts(self) -> Mapping[str, int]:
        """Return the sink's own counts for the metrics, by name. The names never change."""
        return {}

    def tables(self) -> Mapping[str, str]:
        """Return the paths of the tables for readers, by their names in a catalog. Some may not exist yet."""
        return {}

    def finish(self) -> int:
        """Finish a run with --available-now after all records have been written, and return the exit status. Raises JobError."""
        return 0

    def check(self) -> None:  # noqa: B027 - most sinks do nothing beside their batches
        """Raise the error of work that failed beside the batches. Called every second, even without new batches."""

    def close(self) -> None:  # noqa: B027 - most sinks do nothing beside their batches
        """End the work beside the batches. Called after the query has ended, also after a failure. Raises JobError."""


class Job(ABC):
    """A job: its name, its options, and how its sink is created."""

    name: ClassVar[str]
    summary: ClassVar[str]
    control_topics: ClassVar[tuple[str, ...]] = ()
    """Control topics (without prefix) that belong to the job's stream, so that their records start a batch too."""
    has_tables: ClassVar[bool] = True
    """Whether the job writes tables of its own, and has the option --path."""
    takes_catalog: ClassVar[bool] = False
    """Whether the job itself creates Delta tables in a catalog, with `options.location` instead of `options.path`. For any other
    job the program registers the tables that the sink names (`Sink.tables`) in the catalog. Iceberg's tables can't be registered
    by their paths: with them each job creates its tables in the catalog."""
    reads_tables: ClassVar[bool] = False
    """Whether the job can read a table of events (`--changes`) instead of Kafka."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options that only this job has."""

    def takes_fleet(self, options: argparse.Namespace) -> bool:  # noqa: ARG002 - most jobs don't
        """Return whether the job can read topics that the shards of a fleet share (`topics.shards`). Otherwise it is refused."""
        return False

    def prepare(self, session: SparkSession, options: argparse.Namespace) -> None:  # noqa: B027 - most need nothing
        """Complete the options before the program uses them. Raises JobError."""

    def stream(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> DataFrame:  # noqa: ARG002
        """Return the stream to read: records with the columns of Spark's Kafka source, unless the sink accepts others."""
        return topics.stream(session, self.control_topics)

    def place(self, options: argparse.Namespace) -> str:
        """Return the place to which a checkpoint belongs, beside the job and the prefix: the location of the job's tables."""
        return str(options.location) if self.has_tables else ""

    @abstractmethod
    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """Create the sink for these options. Raises JobError."""


class Task(ABC):
    """A command that runs once in one session, on the present data, and ends. Its only common options are Spark's."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the task's options. `add_table_options` and `add_kafka_options` of options.py add those of jobs."""

    @abstractmethod
    def run(self, session: SparkSession, options: argparse.Namespace) -> int:
        """Run the task, and return the exit status. Raises JobError."""
