"""The jobs `changes` and `changelog`: they append every event to Delta tables.

Both are one job with two names, whose tables have different columns: those of `changes` are the source for other tables, those of
the changelog are the complete envelope. Beside its events `changes` keeps the records of the control topics (control.py).
With --typed, either job writes one table per space instead, whose rows have typed columns, too (typed_events.py).

The job reads and parses the records of a batch once, and appends them. The cost doesn't depend on the size of a table. Only the
step that reads the records (`parse`, then `event_rows`) knows how they are encoded.
"""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.avro_envelope import read_again
from spark_jobs.contract.envelope import SOURCE, parse
from spark_jobs.contract.source import Topics
from spark_jobs.lake.change_rows import (
    CHANGELOG_COLUMNS,
    CHANGES_COLUMNS,
    COLUMNS_OF_READERS,
    DATE,
    SKIPS_BY,
    SOURCE_FIELDS_OF_CHANGES,
    SOURCE_FIELDS_OF_READERS,
    event_rows,
    members_of,
)
from spark_jobs.lake.control import KINDS, ControlTable, scaled_records, without_control
from spark_jobs.lake.event_table import USUAL_RULES, AppendRules, EventTable
from spark_jobs.lake.fleet_changes import FleetChangesSink
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.lake.watermark import Ends, distance
from spark_jobs.runner.checkpoint import MadeTables
from spark_jobs.runner.job import Job, Sink
from spark_jobs.runner.options import add_decimal_scale, add_unfit_values
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables import delta
from spark_jobs.tables.codegen import varying
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import Table
from spark_jobs.tables.state_files import state_folder


@dataclass(frozen=True)
class Layout:
    """The columns of a table of events."""

    columns: Mapping[str, str]
    """The columns, with their SQL expressions over a parsed event."""
    source_fields: Collection[str]
    """Fields of `source` that the columns need beside those that are always parsed."""
    partition_by: tuple[str, ...]
    skips_by: tuple[str, ...] = ()
    """Columns by whose values readers skip files. The long texts, which come first, need no such statistics."""


CHANGES: Final = Layout(CHANGES_COLUMNS, SOURCE_FIELDS_OF_CHANGES, ("space",), SKIPS_BY)
CHANGES_OF_READERS: Final = Layout(
    {name: CHANGES_COLUMNS[name] for name in COLUMNS_OF_READERS}, SOURCE_FIELDS_OF_READERS, ("space",), SKIPS_BY
)
CHANGES_BY_DATE: Final = Layout({**CHANGES_COLUMNS, "date": DATE}, SOURCE_FIELDS_OF_CHANGES, ("space", "date"), SKIPS_BY)
CHANGELOG: Final = Layout(CHANGELOG_COLUMNS, SOURCE.names, ("space", "date"))
CHANGELOG_OF_FLEET: Final = Layout({**CHANGELOG_COLUMNS, "shard": "source.shard"}, SOURCE.names, ("space", "date"))

_SMALL_BATCH: Final = 10_000
"""Number of records up to which a batch is small: one task per Kafka partition would then take longer than the records do."""


class Events(Job):
    """A job that appends every event: its options, and its sink with --typed."""

    def takes_fleet(self, options: argparse.Namespace) -> bool:
        """See `Job.takes_fleet`. Typed tables have the forms of one daemon."""
        return not options.typed

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_deduplicate(parser)
        add_decimal_scale(parser)
        add_unfit_values(parser)
        parser.add_argument(
            "--typed",
            action="store_true",
            help="write one table per space instead of one for all, partitioned by date; beside the texts, it has typed columns"
            " for the fields of the rows",
        )

    def place(self, options: argparse.Namespace) -> str:
        """See `Job.place`. A checkpoint with --typed differs from one without: the two kinds of tables have different events."""
        return f"{options.location} --typed" if options.typed else str(options.location)

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """See `Job.sink`."""
        always = options.deduplicate == "always"
        if options.typed:
            made = MadeTables(session, options.checkpoint)
            unfit = UnfitCounts("after", fails=options.unfit_values == "fail")
            return TypedEventsSink(session, topics, options.location, made, always=always, unfit=unfit)
        return self.untyped(session, topics, options, AppendRules(looks_for_all=always))

    @abstractmethod
    def untyped(self, session: SparkSession, topics: Topics, options: argparse.Namespace, rules: AppendRules) -> Sink:
        """Create the sink without --typed."""


class Changes(Events):
    """The job `changes`."""

    name = "changes"
    summary = "append every event to one table, partitioned by space, as a source for other tables"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        super().add_options(parser)
        parser.add_argument("--partition-by-date", action="store_true", help="partition by the day (UTC) of the change as well")

    def takes_fleet(self, options: argparse.Namespace) -> bool:
        """See `Job.takes_fleet`. The table of a fleet is searched by space."""
        return super().takes_fleet(options) and not options.partition_by_date

    def untyped(self, session: SparkSession, topics: Topics, options: argparse.Namespace, rules: AppendRules) -> Sink:
        """See `Events.untyped`."""
        layout = CHANGES_BY_DATE if options.partition_by_date else CHANGES
        positions = KafkaPositions(session, topics, options.checkpoint)
        path: Table = options.location.only(self.name)
        if topics.shards:
            state = state_folder(options.location, options.checkpoint, "_plan")
            return FleetChangesSink(session, topics, path, positions, state, options.location.format)
        return ChangesSink(session, topics, path, positions, layout=layout, rules=rules, table_format=options.location.format)


class Changelog(Events):
    """The job `changelog`."""

    name = "changelog"
    summary = "append every event to one table, partitioned by space and date, or to one per space with typed rows"
    takes_catalog = True

    def untyped(self, session: SparkSession, topics: Topics, options: argparse.Namespace, rules: AppendRules) -> EventsSink:
        """See `Events.untyped`."""
        table = options.location.only(self.name)
        layout = CHANGELOG_OF_FLEET if topics.shards else CHANGELOG
        rules = replace(rules, identity=("shard", "seq")) if topics.shards else rules
        return EventsSink(session, topics, table, layout=layout, rules=rules, table_format=options.location.format)


class EventsSink(Sink):
    """Sink that appends each batch to one table of events, once."""

    reads_avro = True

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: Table,
        *,
        layout: Layout,
        rules: AppendRules = USUAL_RULES,
        table_format: TableFormat = delta,
    ) -> None:
        """Name the table, and create nothing yet."""
        self._topics = topics
        self._layout = layout
        self._table = EventTable(
            session,
            path,
            topics.prefix,
            layout.partition_by,
            spaces=topics.spaces,
            rules=replace(rules, skips_by=layout.skips_by, observes_seq=True),
            table_format=table_format,
        )

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        own = without_control(records, self._topics)
        read_again(own, self._topics.schemas, lambda: self._table.append(self._rows(own, batch), batch, query))

    @property
    def knows_seq(self) -> bool:
        """See `Sink.knows_seq`. To observe a column takes less time than to search for the `seq` in each message."""
        return True

    def newest_seq(self) -> int | None:
        """See `Sink.newest_seq`."""
        return self._table.newest_seq

    def _rows(self, records: DataFrame, batch: int) -> DataFrame:  # noqa: ARG002 - ChangesSink numbers the rows
        """Return a batch's rows for the table."""
        return event_rows(self._parsed(records), self._layout.columns)

    def _parsed(self, records: DataFrame) -> DataFrame:
        return parse(
            records,
            source_fields=self._layout.source_fields,
            names=self._topics.names,
            wanted=members_of(self._layout.columns),
            schemas=self._topics.schemas,
        )


class ChangesSink(EventsSink):
    """The same sink for a table from which other tables are made.

    Its rows have the batch's number, and it keeps the records of the control topics.
    """

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: Table,
        positions: Positions,
        *,
        layout: Layout = CHANGES,
        rules: AppendRules = USUAL_RULES,
        table_format: TableFormat = delta,
    ) -> None:
        """Set the sink up."""
        super().__init__(session, topics, path, layout=layout, rules=rules, table_format=table_format)
        self._positions = positions
        self._path = path
        self._control = ControlTable(session, path, table_format)
        self._control_ends: Ends | None = None
        self._read: tuple[int, Ends] | None = None

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return {Changes.name: self._path} if isinstance(self._path, str) else {}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        # Written before the events, so that the table has no event whose form is missing.
        ends = self._positions.ends(KINDS)
        if ends != self._control_ends:
            control = self._positions.control_records()
            self._control.write(scaled_records(control, self._topics.scales, is_first=self._control_ends is None))
            self._control_ends = ends
        if self._is_small(batch):
            records = records.coalesce(records.sparkSession.sparkContext.defaultParallelism)
        super().write(records, batch, query)

    def _rows(self, records: DataFrame, batch: int) -> DataFrame:
        return event_rows(self._parsed(records), self._layout.columns, varying(batch).alias("batch"))

    def _is_small(self, batch: int) -> bool:
        """Return whether a batch has few records. It is False for a run's first batch, as only the end of a batch is known."""
        before, read = self._read, self._positions.read_up_to(batch)
        self._read = batch, read
        return before is not None and before[0] == batch - 1 and distance(before[1], read) <= _SMALL_BATCH


def add_deduplicate(parser: argparse.ArgumentParser) -> None:
    """Add --deduplicate, which all jobs with a table of events have."""
    parser.add_argument(
        "--deduplicate",
        choices=("restart", "always"),
        default="restart",
        help="look up events in the table before appending them: only events that may be read again after a lost checkpoint"
        " (restart), or all events, for a daemon that delivers at least once (always); default: %(default)s",
    )
