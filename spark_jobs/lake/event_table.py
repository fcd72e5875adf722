"""A Delta table with one row per event, to which batches are appended, each once.

Nothing in that depends on the table's size. Exactly once as long as the checkpoint is kept: Delta takes a batch of a query only
once. A lost checkpoint makes a new query that reads from the beginning; then events whose `seq` is not above the highest that
the table had are looked up in it and written only if they are missing. A stream that itself repeats events
(`kafka.delivery = "at_least_once"`) can have all of them looked up.

The table is that query's which has begun last: one before it that is still running would write each event a second time, so it
ends. Queries of other spaces may share the table.
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
"""The property that says whose events a table has."""
_KNOWN_SEQ: Final = "tarantool_cdc.known_seq"
_SPACES: Final = "tarantool_cdc.spaces"
"""Of which spaces that query's events are, as `--spaces` says it."""


class EventTable:
    """See the module."""

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
        """`spaces` are those whose events come, as `--spaces` says it; `looks_for_all` looks for each event in the table before
        it is written; with `gets_columns` rows may bring columns that the table lacks; with `may_begin_late` it may be made later
        than with a query's first batch; a new table gets these properties.
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
        """Append a micro-batch of a query; each has all of the table's columns. Raises JobError for another daemon's table."""
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
        """Raises JobError if the table is gone that earlier batches made: what they brought would never come again."""
        if batch and not self._may_begin_late and not self._is_there():
            raise JobError(
                f"The table at {self.path} is gone, and the checkpoint goes on behind batch {batch - 1}, written to it. "
                "Put the table back where it was, or begin anew with an empty --checkpoint."
            )

    def _check_own(self, query: str) -> None:
        """Raises JobError if another query of the same events has made the table its own since."""
        found = self._properties_now()
        if found.get(_QUERY) != query and found.get(_SPACES) == self._spaces:
            raise JobError(
                f"Another job has begun to write the same events to the table at {self.path}, or this one again with another "
                "--checkpoint: it would have them twice. Run only one of the two; what is in the table stays as it is."
            )

    def _properties_now(self) -> Mapping[str, str]:
        if isinstance(self.path, tables.CatalogTable):
            return tables.describe(self._session, self.path)[0]
        found = delta_log.state(self._session, self.path)
        return {} if found is None else found.properties

    def _adopt(self, rows: DataFrame, query: str) -> int | None:
        """Make the table this query's; the highest seq that others may have written, if there is one."""
        if isinstance(self.path, tables.CatalogTable):
            tables.create(self._session, self.path, rows.schema, self._properties, partition_by=self._partition_by)
        elif not self._is_there():
            # Delta's own function to make a table would find the folder not empty: of other tables in it.
            empty = self._session.createDataFrame([], rows.schema).write.format("delta").partitionBy(*self._partition_by)
            empty.options(**self._properties).mode("append").save(self.path)
        found, _ = tables.describe(self._session, self.path)
        if found.get(PREFIX, self._prefix) != self._prefix:
            raise JobError(
                f"The table at {self.path} holds the events of {found[PREFIX]!r}, whose seq is counted apart from that of "
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
        # Delta's own function takes every folder in a table for the table.
        return delta_log.state(self._session, self.path) is not None

    def _missing(self, rows: DataFrame, known: int | None) -> DataFrame:
        """The rows whose event the table doesn't have; those above `known` surely aren't there."""
        same = [*self._partition_by, "seq"]
        written = tables.read(self._session, self.path).select(*same)
        if known is not None:
            written = written.where(F.col("seq") <= known)
        return rows.join(written, same, "left_anti")
