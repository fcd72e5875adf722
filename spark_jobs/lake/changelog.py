"""Job `changelog`: appends every event as a row to one Delta table, partitioned by space and date (event_table.py).

With --typed the job writes one table per space, which also has typed columns for the rows (typed_events.py).
"""

from __future__ import annotations

import argparse
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.delta.tables import Table
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, event_rows
from spark_jobs.lake.event_table import AppendRules, EventTable
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.runner.checkpoint import MadeTables
from spark_jobs.runner.job import Job, Sink

_PARTITIONS: Final = ("space", "date")


class Changelog(Job):
    """The job `changelog`: its options and its sink."""

    name = "changelog"
    summary = "append every event to one Delta table, partitioned by space and date, or to one per space with typed rows"
    takes_catalog = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument(
            "--typed",
            action="store_true",
            help="write one table per space instead of one for all; beside the texts, it has typed columns for the fields of"
            " the rows",
        )

    def place(self, options: argparse.Namespace) -> str:
        """See `Job.place`. A checkpoint with --typed differs from one without: the two kinds of tables have different events."""
        return f"{options.location} --typed" if options.typed else str(options.location)

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """See `Job.sink`."""
        always = options.deduplicate == "always"
        if options.typed:
            made = MadeTables(session, options.checkpoint)
            return TypedEventsSink(session, topics, options.location, made, always=always)
        place = options.location.only(self.name)
        return ChangelogSink(session, place, topics.prefix, spaces=topics.spaces, always=always, topics=topics)


class ChangelogSink(Sink):
    """Sink that appends each batch to the table once."""

    def __init__(
        self,
        session: SparkSession,
        path: Table,
        prefix: str,
        *,
        spaces: str = ".*",
        always: bool = False,
        topics: Topics | None = None,
    ) -> None:
        """Set the sink up. `spaces` is the regular expression of `--spaces`; `topics` tell whose events count.

        With `always` the sink looks up each event in the table before writing it.
        """
        self._topics = topics
        self._table = EventTable(session, path, prefix, _PARTITIONS, spaces=spaces, rules=AppendRules(looks_for_all=always))

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        names = None if self._topics is None else self._topics.names
        self._table.append(event_rows(parse(records, names=names), CHANGELOG_COLUMNS), batch, query)


def add_deduplicate(parser: argparse.ArgumentParser) -> None:
    """Add --deduplicate, which all jobs with a table of events have."""
    parser.add_argument(
        "--deduplicate",
        choices=("restart", "always"),
        default="restart",
        help="look up events in the table before appending them: only events that may be read again after a lost checkpoint"
        " (restart), or all events, for a daemon that delivers at least once (always); default: %(default)s",
    )
