"""What a job is to the program that runs it.

A `Job` turns micro-batches of Kafka records into something outside, until it is stopped; a `Task` does one thing and ends. To
add one: write a module with it, and name it in `run.JOBS` or `run.TASKS`. What its options give, beside its own:

    options.path, .location    where its tables are, if `has_tables`; `location` knows tables of a catalog too (tables.py), which
                               is for jobs with `takes_catalog`, whose `path` is None with --catalog. The others have a path
                               even then, in which they keep everything (registered.py)
    options.checkpoint         a job's checkpoint
    type=setting, type=secret  of options.py, for NAME=VALUE and for a value that no message may show: both read @FILE and $NAME

What a sink can't take, it hands to `self.dead_letters`: see `DeadLetters`. Records that aren't change events never reach it that
way: the program takes them out of the batch (run.py), so a sink just parses.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.errors import JobError
from spark_jobs.source import Topics

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
"""Of what `DeadLetters.take` takes, for `createDataFrame`."""

_QUERY_PROPERTY: Final = "sql.streaming.queryId"


def query_of_batch(session: SparkSession) -> str:
    """In a batch of a stream, the id of its query: it lives in the checkpoint, so another checkpoint is another query."""
    # Java's thread of the query carries it.
    query: str | None = session.sparkContext.getLocalProperty(_QUERY_PROPERTY)
    if query is None:
        raise JobError("Spark gives no id of the query.")
    return query


class DeadLetters(ABC):
    """Where a sink puts a record that it can't take, such as a document that a search engine refuses.

    With --on-error fail there is no such place: the first such record ends the job. With --on-error dead-letter it is kept in a
    Delta table with all that it takes to look at it and to send it again, exactly once however often its batch is repeated.
    """

    count: int = 0
    """How many since the start; repeated ones are counted again."""

    @abstractmethod
    def take(self, records: DataFrame) -> int:
        """Keep records (REFUSED_SCHEMA; timestamp, key and value may be null), each before its batch is done; how many.

        `sentence` says what is wrong, with the coordinates, and what is to be done. Raises JobError with the first one's
        sentence if the job is to end.
        """


class FailAtOnce(DeadLetters):
    """--on-error fail."""

    def take(self, records: DataFrame) -> int:
        """As `DeadLetters.take`."""
        for first in records.orderBy("topic", "partition", "offset").limit(1).collect():
            raise JobError(first["sentence"])
        return 0


class Sink(ABC):
    """Takes the micro-batches of one query, in order; the last one may come again after a failure."""

    dead_letters: DeadLetters = FailAtOnce()
    """Set by the program before the first batch."""

    @abstractmethod
    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """Take one batch.

        `records` has the columns of Spark's Kafka source; `query` is the same as long as the checkpoint is the same.
        Raises JobError.
        """

    def counts(self) -> Mapping[str, int]:
        """What a sink counts for the metrics, by names that are always the same."""
        return {}

    def tables(self) -> Mapping[str, str]:
        """The paths of tables for readers, by what they are called in a catalog; some may not be made yet."""
        return {}

    def finish(self) -> int:
        """With --available-now, once all that was there is written: the exit status. Raises JobError."""
        return 0

    def check(self) -> None:  # noqa: B027 - most sinks do nothing beside their batches
        """Asked every second, whether batches come or not: raises what has failed beside them."""

    def close(self) -> None:  # noqa: B027 - most sinks do nothing beside their batches
        """Once the query has ended, however it has: end what is done beside the batches. Raises JobError."""


class Job(ABC):
    """A job's name, its options, and how its sink is made."""

    name: ClassVar[str]
    summary: ClassVar[str]
    control_topics: ClassVar[tuple[str, ...]] = ()
    """Control topics (without prefix) whose records must wake the job too."""
    has_tables: ClassVar[bool] = True
    """Whether it writes tables of its own, and gets --path."""
    takes_catalog: ClassVar[bool] = False
    """Whether it makes tables of a catalog by itself: it uses `options.location` and not `options.path`. Of any other job the
    tables that its sink names (`Sink.tables`) are given names there."""

    reads_tables: ClassVar[bool] = False
    """Whether it can read a table of events (`--changes`) and no Kafka."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options that only this job has."""

    def prepare(self, session: SparkSession, options: argparse.Namespace) -> None:  # noqa: B027 - most need nothing
        """Complete the options before anything is made of them. Raises JobError."""

    def stream(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> DataFrame:  # noqa: ARG002
        """What it reads: records with the columns of Spark's Kafka source, unless the sink takes others."""
        return topics.stream(session, self.control_topics)

    def place(self, options: argparse.Namespace) -> str:
        """What a checkpoint belongs to beside the job and the prefix: where its tables are."""
        return str(options.location) if self.has_tables else ""

    @abstractmethod
    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """The sink for these options. Raises JobError."""


class Task(ABC):
    """Something that is done once, in one session: it reads what is there, and ends. It has no common options but Spark's."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options; `add_table_options` and `add_kafka_options` of options.py add what jobs have."""

    @abstractmethod
    def run(self, session: SparkSession, options: argparse.Namespace) -> int:
        """Do it; the exit status. Raises JobError."""
