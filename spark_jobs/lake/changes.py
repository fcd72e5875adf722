"""Job `changes`: appends every event as a row to one Delta table, partitioned by space, as a source for other tables.

The job reads and parses the records of a batch once, and appends them. The cost doesn't depend on the size of a table. Beside the
events the job keeps the records of the control topics (control.py). Only the step that reads the records (`parse`, then
`event_rows`) knows how they are encoded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.delta.codegen import varying
from spark_jobs.lake.change_rows import CHANGES_COLUMNS, DATE, SOURCE_FIELDS_OF_CHANGES, event_rows
from spark_jobs.lake.changelog import add_deduplicate
from spark_jobs.lake.control import KINDS, ControlTable
from spark_jobs.lake.event_table import AppendRules, EventTable
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.watermark import Ends, distance
from spark_jobs.runner.job import Job, Sink

_PROPERTIES: Final = {
    # Delta skips files by the minimum and maximum of these columns. The long texts, which come first, need no such statistics.
    "delta.dataSkippingStatsColumns": "seq,space_id,op,schema_version,source_ts,batch",
}


_FEW: Final = 10_000
"""Number of records up to which a batch is small: one task per Kafka partition would then take longer than the records do."""


class Changes(Job):
    """The job `changes`: its options and its sink."""

    name = "changes"
    summary = "append every event to one Delta table, partitioned by space, as a source for other tables"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument("--partition-by-date", action="store_true", help="partition by the day (UTC) of the change as well")

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> ChangesSink:
        """See `Job.sink`."""
        return ChangesSink(
            session,
            topics,
            options.path,
            KafkaPositions(session, topics, options.checkpoint),
            always=options.deduplicate == "always",
            by_date=options.partition_by_date,
        )


class ChangesSink(Sink):
    """Sink that appends each batch to the table of events once."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: str,
        positions: Positions,
        *,
        always: bool = False,
        by_date: bool = False,
        may_begin_late: bool = False,
    ) -> None:
        """Set the sink up.

        With `always` it looks up each event in the table before writing it. With `by_date` the table is also partitioned by day.
        `may_begin_late` is that of `EventTable`.
        """
        self._columns = {**CHANGES_COLUMNS, "date": DATE} if by_date else CHANGES_COLUMNS
        partitions = ("space", "date") if by_date else ("space",)
        self._table = EventTable(
            session,
            path,
            topics.prefix,
            partitions,
            spaces=topics.spaces,
            rules=AppendRules(looks_for_all=always, may_begin_late=may_begin_late),
            properties=_PROPERTIES,
        )
        self._topics = topics
        self._control_topics = [topics.control(kind) for kind in KINDS]
        self._positions = positions
        self._path = path
        self._control = ControlTable(session, path)
        self._control_ends: Ends | None = None
        self._read: tuple[int, Ends] | None = None

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return {Changes.name: self._path}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        # Written before the events, so that the table has no event whose form is missing.
        ends = self._positions.ends(KINDS)
        if ends != self._control_ends:
            self._control.write(self._positions.control_records())
            self._control_ends = ends
        if self._is_small(batch):
            records = records.coalesce(records.sparkSession.sparkContext.defaultParallelism)
        records = records.where(~F.col("topic").isin(*self._control_topics))
        events = parse(records, source_fields=SOURCE_FIELDS_OF_CHANGES, names=self._topics.names)
        self._table.append(event_rows(events, self._columns, varying(batch).alias("batch")), batch, query)

    def _is_small(self, batch: int) -> bool:
        """Return whether a batch has few records. It is False for a run's first batch, as only the end of a batch is known."""
        before, read = self._read, self._positions.read_up_to(batch)
        self._read = batch, read
        return before is not None and before[0] == batch - 1 and distance(before[1], read) <= _FEW
