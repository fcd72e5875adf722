"""What a job is to the program that runs it.

A job turns micro-batches of Kafka records into something outside. To add one: write a module with a `Job`, and name it in
`run.JOBS`.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.source import Topics


class Sink(ABC):
    """Takes the micro-batches of one query, in order; the last one may come again after a failure."""

    @abstractmethod
    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """Take one batch.

        `records` has the columns of Spark's Kafka source; `query` is the same as long as the checkpoint is the same.
        Raises JobError.
        """


class Job(ABC):
    """A job's name, its options, and how its sink is made."""

    name: ClassVar[str]
    summary: ClassVar[str]
    control_topics: ClassVar[tuple[str, ...]] = ()
    """Control topics (without prefix) whose records must wake the job too."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options that only this job has."""

    @abstractmethod
    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """The sink for these options. Raises JobError."""
