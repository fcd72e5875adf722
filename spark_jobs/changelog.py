"""Job `changelog`: every event as a row of one append-only Delta table, partitioned by space and date (event_table.py).

With --typed each space has a table of its own, with its rows typed as well (typed_events.py).
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.envelope import parse
from spark_jobs.job import Job, Sink
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, event_rows
from spark_jobs.lake.event_table import EventTable
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.source import Topics
from spark_jobs.tables import Table

_PARTITIONS: Final = ("space", "date")


class Changelog(Job):
    """See the module."""

    name = "changelog"
    summary = "append every event to one Delta table, partitioned by space and date, or to one per space with typed rows"
    takes_catalog = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument(
            "--typed",
            action="store_true",
            help="write one table per space instead of one for all, with its rows typed by their fields beside the texts",
        )

    def place(self, options: argparse.Namespace) -> str:
        """As `Job.place`; either kind of tables has been given other events than the other."""
        return f"{options.location} --typed" if options.typed else str(options.location)

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """As `Job.sink`."""
        always = options.deduplicate == "always"
        if options.typed:
            return TypedEventsSink(session, topics, options.location, always=always)
        return ChangelogSink(session, options.location.only(self.name), topics.prefix, spaces=topics.spaces, always=always)


class ChangelogSink(Sink):
    """Appends batches, each once."""

    def __init__(self, session: SparkSession, path: Table, prefix: str, *, spaces: str = ".*", always: bool = False) -> None:
        """`spaces` as `--spaces` says it; `always` looks for each event in the table first."""
        self._table = EventTable(session, path, prefix, _PARTITIONS, spaces=spaces, looks_for_all=always)

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """As `Sink.write`."""
        self._table.append(event_rows(parse(records), CHANGELOG_COLUMNS), batch, query)


def add_deduplicate(parser: argparse.ArgumentParser) -> None:
    """The option that all jobs with a table of events have."""
    parser.add_argument(
        "--deduplicate",
        choices=("restart", "always"),
        default="restart",
        help="look for events in the table before appending them: only those that a lost checkpoint may bring again"
        " (restart), or all, for a daemon that delivers at least once (always); default: %(default)s",
    )
