"""The seqs up to which merged events have been removed from the lake's own table of events, by space.

They are kept beside the events, in `_forgotten`. `maintain` records them before it removes the events, so that a view that still
needs such events can raise an error (fresh_view.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import Table, beside

_COLUMNS: Final = "space string, seq bigint"

_READ: Final[dict[Table, tuple[tuple[str, int], dict[str, int]]]] = {}
"""Cache of each table's contents, with the version that was read. The tables change rarely, and each read of a space asks."""


class ForgottenTable:
    """Table with a row for each space of which events have been removed."""

    def __init__(self, session: SparkSession, changes: Table, table_format: TableFormat) -> None:
        """Name the table. `changes` is the table of events."""
        self.path = beside(changes, "_forgotten")
        self._session = session
        self._format = table_format

    def create(self) -> None:
        """Create an empty table, unless there is one."""
        if self._format.state(self._session, self.path) is None:
            self._format.create(self._session, self.path, self._session.createDataFrame([], _COLUMNS).schema, {})

    def seqs(self) -> dict[str, int]:
        """Return, by space, the seq up to which events have been removed."""
        state = self._format.state(self._session, self.path)
        if state is None:
            return {}
        known = _READ.get(self.path)
        if known is None or known[0] != state.identity:
            rows = self._format.read(self._session, self.path, state.version).collect()
            known = _READ[self.path] = (state.identity, {row["space"]: row["seq"] for row in rows})
        return dict(known[1])

    def record(self, seqs: Mapping[str, int]) -> None:
        """Record, by space, the seq up to which events are about to be removed."""
        self.create()
        known = self.seqs()
        highest = {space: max(seqs.get(space, -1), known.get(space, -1)) for space in {*seqs, *known}}
        if highest != known:
            self._format.overwrite(self._session.createDataFrame(list(highest.items()), _COLUMNS).coalesce(1), self.path)
