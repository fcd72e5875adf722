"""What the feeds have in common: a job that reads its daemon's topics, or the table of a fleet's events."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.feeds.fleet_table import FleetTable
from spark_jobs.runner.job import Job
from spark_jobs.tables.places import table_at


class Feed(Job):
    """A job that keeps something outside of Spark as the rows are, and has no tables of its own."""

    control_topics = ("schema", "snapshot")
    has_tables = False
    reads_tables = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        parser.add_argument(
            "--changes",
            metavar="PATH|NAME",
            help="of a fleet with shared topics: read the table that a job `changes` writes; omit --bootstrap-servers and"
            " --prefix",
        )

    def prepare(self, session: SparkSession, options: argparse.Namespace) -> None:
        """See `Job.prepare`."""
        if options.changes is not None:
            options.changes = FleetTable(session, table_at(session, options.changes))
            options.bootstrap_servers, options.prefix = "", options.changes.prefix()

    def place(self, options: argparse.Namespace) -> str:
        """See `Job.place`."""
        return "" if options.changes is None else str(options.changes)

    def stream(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> DataFrame:
        """See `Job.stream`."""
        table: FleetTable | None = options.changes
        return super().stream(session, topics, options) if table is None else table.stream(topics, options.checkpoint)

    @staticmethod
    def forms(options: argparse.Namespace) -> Callable[[str], DataFrame] | None:
        """Return what reads a schema topic in the place of Kafka; None if the topics are read from there."""
        table: FleetTable | None = options.changes
        return None if table is None else table.forms
