"""Job `changes`: every event as a row of one append-only Delta table, partitioned by space, for other tables to be made of.

The records of a batch are read and parsed once, and appended; nothing in that depends on how large a table is. Beside them the
job keeps what the control topics tell (control.py). What reads the records, `event_rows` of `parse`, is the only part that knows
how they are encoded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.changelog import add_deduplicate
from spark_jobs.codegen import varying
from spark_jobs.envelope import parse
from spark_jobs.job import Job, Sink
from spark_jobs.lake.change_rows import CHANGES_COLUMNS, DATE, SOURCE_FIELDS_OF_CHANGES, event_rows
from spark_jobs.lake.control import KINDS, ControlTable
from spark_jobs.lake.event_table import EventTable
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.watermark import Ends, distance
from spark_jobs.source import Topics

_PROPERTIES: Final = {
    # Files are chosen by these; of the long texts, which come first, no smallest and greatest is wanted.
    "delta.dataSkippingStatsColumns": "seq,space_id,op,schema_version,source_ts,batch",
}


_FEW: Final = 10_000
"""So many records of a batch take less time than the tasks do, of which there would be one for each partition of Kafka."""


class Changes(Job):
    """See the module."""

    name = "changes"
    summary = "append every event to one Delta table, partitioned by space, for other tables to be made of"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument("--partition-by-date", action="store_true", help="partition by the day (UTC) of the change as well")

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> ChangesSink:
        """As `Job.sink`."""
        return ChangesSink(
            session,
            topics,
            options.path,
            KafkaPositions(session, topics, options.checkpoint),
            always=options.deduplicate == "always",
            by_date=options.partition_by_date,
        )


class ChangesSink(Sink):
    """Appends batches, each once."""

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
        """`always` looks for each event in the table first; `by_date` partitions by day too; `may_begin_late` as `EventTable`."""
        self._columns = {**CHANGES_COLUMNS, "date": DATE} if by_date else CHANGES_COLUMNS
        partitions = ("space", "date") if by_date else ("space",)
        self._table = EventTable(
            session,
            path,
            topics.prefix,
            partitions,
            spaces=topics.spaces,
            looks_for_all=always,
            may_begin_late=may_begin_late,
            properties=_PROPERTIES,
        )
        self._control_topics = [topics.control(kind) for kind in KINDS]
        self._positions = positions
        self._path = path
        self._control = ControlTable(session, path)
        self._control_ends: Ends | None = None
        self._read: tuple[int, Ends] | None = None

    def tables(self) -> Mapping[str, str]:
        """As `Sink.tables`."""
        return {Changes.name: self._path}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """As `Sink.write`."""
        # First, so that no event is there whose form isn't.
        ends = self._positions.ends(KINDS)
        if ends != self._control_ends:
            self._control.write(self._positions.control_records())
            self._control_ends = ends
        if self._is_small(batch):
            records = records.coalesce(records.sparkSession.sparkContext.defaultParallelism)
        events = parse(records.where(~F.col("topic").isin(*self._control_topics)), source_fields=SOURCE_FIELDS_OF_CHANGES)
        self._table.append(event_rows(events, self._columns, varying(batch).alias("batch")), batch, query)

    def _is_small(self, batch: int) -> bool:
        """Whether a batch has few records; not of the first one, as only the end of a batch is known."""
        before, read = self._read, self._positions.read_up_to(batch)
        self._read = batch, read
        return before is not None and before[0] == batch - 1 and distance(before[1], read) <= _FEW
