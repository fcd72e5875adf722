"""Events that wait for older ones (order.py), and the state that tells which.

<path>/_held     the events, as they were read; a batch that has none doesn't write to it
<path>/_order    the state after each batch, in files. A repeated batch finds its own, and so processes the same events again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError
from spark_jobs.lake.positions import Positions
from spark_jobs.materialize.order import Order, Partition
from spark_jobs.tables.codegen import varying
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import Table
from spark_jobs.tables.state_files import StateFiles

_QUERY: Final = "query"
_BATCH: Final = "batch"


class HeldEvents:
    """Division of a job's events into those to process now and those that wait."""

    def __init__(
        self, session: SparkSession, table: Table, table_format: TableFormat, state_path: str, positions: Positions | None
    ) -> None:
        """Name the table and the folder for the state. Without `positions` no event waits."""
        self._session = session
        self._table = table
        self._format = table_format
        self._files = StateFiles(session, state_path)
        self._positions = positions

    def divide(self, rows: DataFrame, batch: int, query: str) -> tuple[DataFrame, DataFrame]:
        """Return the events to process in this batch, and those of its own records that come late.

        `rows` are the events that the batch has read. Events that must wait are stored. An event is late if later ones have been
        processed before.
        """
        found = rows.groupBy("kafka_topic", "kafka_partition").agg(F.max("seq").alias("last"), F.min("seq").alias("first"))
        ranges = found.collect()
        order, before = self._order({(row[0], row[1]): row["last"] for row in ranges}, batch, query)
        late = rows.where(F.col("seq") <= before if any(row["first"] <= before for row in ranges) else F.lit(False))
        ready = rows
        if any(row["last"] > order.complete for row in ranges):
            waiting = rows.where(F.col("seq") > order.complete).withColumns({_QUERY: F.lit(query), _BATCH: varying(batch)})
            append = self._format.append_once
            append(waiting, self._table, partition_by=(), application=query, batch=batch, gets_columns=True)
            ready = rows.where(F.col("seq") <= order.complete)
        if order.complete > before and self._format.exists(self._session, self._table):
            released = (F.col("seq") > before) & (F.col("seq") <= order.complete)
            stored = self._format.read(self._session, self._table)
            own = stored.where((F.col(_QUERY) == query) & (F.col(_BATCH) < batch) & released)
            ready = ready.unionByName(own.drop(_QUERY, _BATCH), allowMissingColumns=True).select(*rows.columns)
        return ready, late

    def clean(self, batch: int, query: str) -> None:
        """Delete events that batches before this one have processed.

        Later ones of another query stay: if its checkpoint is used again, that query has read them already.
        """
        if self._format.exists(self._session, self._table):
            _, before = self._stored(batch, query) or (Order(), -1)
            self._format.delete(self._session, self._table, f"seq <= {before}")

    def _order(self, found: Mapping[Partition, int], batch: int, query: str) -> tuple[Order, int]:
        """Return the state after the batch, and what was complete before it."""
        known = self._stored(batch, query)
        if known is not None:
            return known
        former = next((Order.from_json(text)[0] for number, text in self._files.read(query) if number < batch), Order())
        if self._positions is None:
            order = former.after(found, {}, {})
        else:
            # The ends are asked for after the batch has been read.
            order = former.after(found, self._positions.read_up_to(batch), self._positions.ends())
        self._files.write(query, batch, order.to_json(former))
        return order, former.complete

    def _stored(self, batch: int, query: str) -> tuple[Order, int] | None:
        return next((Order.from_json(text) for number, text in self._files.read(query) if number == batch), None)


def check_order(late: DataFrame, stored: DataFrame, table: DataFrame) -> None:
    """Raise JobError if a late event changes a row of which a newer change has been processed, and isn't in the table.

    `stored` are the last rows (STORED_SCHEMA), `table` the events that the job has written. A DELETE is left out: if it found no
    row, it isn't in the table.
    """
    own = late.where((F.col("op") != "d") & F.col("key").isNotNull() & (F.col("after").isNotNull() | F.col("upsert").isNotNull()))
    newer = stored.select("space_id", "key", F.col("seq").alias("later"))
    missing = own.join(table.select("seq"), "seq", "left_anti").join(newer, ["space_id", "key"])
    wrong = missing.where("later > seq").orderBy("seq").limit(1).collect()
    for row in wrong:
        raise JobError(
            f"topic {row['kafka_topic']}, partition {row['kafka_partition']}, offset {row['kafka_offset']}: the change of seq "
            f"{row['seq']} in space {row['space']!r} was read after the one of seq {row['later']} of the same row had been "
            "processed, so the row can't be computed any more. This happens when a topic becomes visible late (rights, --spaces) "
            "whose space was renamed. Start the job from the beginning with another --path and another --checkpoint."
        )
