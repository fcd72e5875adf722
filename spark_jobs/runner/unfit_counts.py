"""How many values a job has written that no column of their field can hold (contract/unfit_values.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.runner.output import tell


@dataclass
class UnfitCounts:
    """Counts since the start, by space. With `fails` a job ends at the first such value instead.

    `text` is the column that has the rows' texts. Several threads may write at a time, but each space is written by one.
    """

    text: str = "_row"
    fails: bool = False
    _found: Counter[str] = field(default_factory=Counter)

    def for_write(self) -> UnfitValues:
        """Return what checks the values of one write."""
        return UnfitValues(self.fails)

    def add(self, space: str, written: UnfitValues) -> None:
        """Add what has been written to a space's table, and tell of it."""
        if found := written.count():
            self._found[space] += found
            tell(f"{found} values of {space} don't fit their columns, which are null there; `{self.text}` has them.")

    def metrics(self) -> Mapping[str, int]:
        """Return the count for `Sink.counts`."""
        return {"unfit_values": self._found.total()}
