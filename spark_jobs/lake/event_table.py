"""A Delta table with one row per event, to which each batch is appended once.

The cost of an append doesn't depend on the table's size. Each event is written exactly once as long as the checkpoint is kept,
because Delta accepts each batch of a query only once. If the checkpoint is lost, a new query reads from the beginning. It then
looks up the events whose `seq` isn't above the highest one in the table, and writes only missing ones. If the stream itself
repeats events (`kafka.delivery = "at_least_once"`), the query can look up all events.

The table belongs to the query that began last. An earlier query that is still running would write each event a second time, so it
ends. Queries for other spaces may share the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import tables
from spark_jobs.errors import JobError
from spark_jobs.lake import delta_log

_QUERY: Final = "tarantool_cdc.query"
PREFIX: Final = "tarantool_cdc.prefix"
"""Table property with the prefix of the daemon whose events the table has."""
_KNOWN_SEQ: Final = "tarantool_cdc.known_seq"
_SPACES: Final = "tarantool_cdc.spaces"
"""Table property with the `--spaces` of the query to which the table belongs."""


def table_is_gone(table: tables.Table) -> JobError:
    """Return the error for a table to which earlier batches of the same checkpoint were written, and which isn't there."""
    return JobError(
        f"The table at {table} is gone, but earlier batches of this checkpoint were written to it. Put the table back where it "
        "was, or start from the beginning with an empty --checkpoint."
    )


class EventTable:
    """Table of events to which the batches of one query at a time are appended."""

    def __init__(
        self,
        session: SparkSession,
        path: tables.Table,
        prefix: str,
        partition_by: Sequence[str],
        *,
        spaces: str = ".*",
        looks_for_all: bool = False,
        gets_columns: bool = False,
        may_begin_late: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Name the table, and create nothing yet.

        `spaces` is the regular expression of `--spaces` for the query's events. With `looks_for_all` each event is looked up in
        the table before it is written. With `gets_columns` rows may have columns that the table lacks. With `may_begin_late` the
        table may be created after a query's first batch. A new table gets `properties`.
        """
        self.path = path
        self._session = session
        self._prefix = prefix
        self._partition_by = tuple(partition_by)
        self._spaces = spaces
        self._looks_for_all = looks_for_all
        self._gets_columns = gets_columns
        self._may_begin_late = may_begin_late
        self._properties = properties or {}
        self._known_seq: dict[str, int | None] = {}

    def append(self, rows: DataFrame, batch: int, query: str) -> None:
        """Append a micro-batch of a query; `rows` must have all of the table's columns.

        Raises JobError if the table has another daemon's events, if it is gone, or if another query has taken it over.
        """
        if query not in self._known_seq:
            self._check_there(batch)
            self._known_seq = {query: self._adopt(rows, query)}
        else:
            self._check_own(query)
        known = self._known_seq[query]
        if self._looks_for_all:
            rows = self._missing(rows.dropDuplicates(["seq"]), None)
        elif known is not None and not rows.where(F.col("seq") <= known).isEmpty():
            rows = self._missing(rows, known)
        tables.append_once(
            rows,
            self.path,
            partition_by=self._partition_by,
            application=query,
            batch=batch,
            gets_columns=self._gets_columns,
        )

    def _check_there(self, batch: int) -> None:
        """Raise JobError if the table of earlier batches is gone, because their events would never be read again."""
        if batch and not self._may_begin_late and not self._is_there():
            raise table_is_gone(self.path)

    def _check_own(self, query: str) -> None:
        """Raise JobError if the table is gone, or if another query for the same events has taken it over."""
        found = self._properties_now()
        if found is None:
            raise table_is_gone(self.path)
        if found.get(_QUERY) != query and found.get(_SPACES) == self._spaces:
            raise JobError(
                f"Another job, or this job with another --checkpoint, has begun to write the same events to the table at "
                f"{self.path}, which would then have them twice. Run only one of the two; the rows in the table stay unchanged."
            )

    def _properties_now(self) -> Mapping[str, str] | None:
        """Return the table's properties; None if there is no table any more."""
        if isinstance(self.path, tables.CatalogTable):
            return tables.describe(self._session, self.path)[0] if self._is_there() else None
        found = delta_log.state(self._session, self.path)
        return None if found is None else found.properties

    def _adopt(self, rows: DataFrame, query: str) -> int | None:
        """Make the table belong to this query; return the highest seq that other queries may have written, or None."""
        if isinstance(self.path, tables.CatalogTable):
            tables.create(self._session, self.path, rows.schema, self._properties, partition_by=self._partition_by)
        elif not self._is_there():
            # Delta's own function to create a table would fail if the folder already contains other tables.
            empty = self._session.createDataFrame([], rows.schema).write.format("delta").partitionBy(*self._partition_by)
            empty.options(**self._properties).mode("append").save(self.path)
        found, _ = tables.describe(self._session, self.path)
        if found.get(PREFIX, self._prefix) != self._prefix:
            raise JobError(
                f"The table at {self.path} holds the events of the prefix {found[PREFIX]!r}, whose seq is independent of that of "
                f"{self._prefix!r}. Choose another --path."
            )
        if found.get(_QUERY) == query:
            return int(found[_KNOWN_SEQ]) if found.get(_KNOWN_SEQ) else None
        known: int | None = tables.read(self._session, self.path).agg(F.max("seq")).collect()[0][0]
        seq = "" if known is None else str(known)
        changed = {PREFIX: self._prefix, _QUERY: query, _KNOWN_SEQ: seq, _SPACES: self._spaces}
        tables.set_properties(self._session, self.path, changed)
        return known

    def _is_there(self) -> bool:
        if isinstance(self.path, tables.CatalogTable):
            return tables.exists(self._session, self.path)
        # Delta's own function would treat every folder inside a table as that table.
        return delta_log.state(self._session, self.path) is not None

    def _missing(self, rows: DataFrame, known: int | None) -> DataFrame:
        """Return the rows whose event isn't in the table. The table has no events with a seq above `known`."""
        same = [*self._partition_by, "seq"]
        written = tables.read(self._session, self.path).select(*same)
        if known is not None:
            written = written.where(F.col("seq") <= known)
        return rows.join(written, same, "left_anti")
