"""Values that no column of their field can hold: a decimal with more digits than its column, a date that Spark doesn't know.

Such a column is null, and the row's text in the same table has the value exactly (field_types.py). A job counts these values
while it writes them, or ends with an error that names the first one. A field whose column is text, or has a text beside it, has
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, Final, TypeVar

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.field_types import EXACT, STRING, SUFFIXES

_Column = TypeVar("_Column")

_COUNT: Final = "unfit values"
"""Name of a column in between. No column of a form can have a name with a space."""


def may_lack(kinds: Iterable[tuple[_Column, tuple[str, str]]]) -> dict[_Column, str]:
    """Return the fields of those columns of a form that can't hold every value of their field, by column.

    `kinds` are the columns with their field and kind (`Form.columns_of_fields`).
    """
    columns = list(kinds)
    exact = {one for _, (one, kind) in columns if kind == EXACT}
    return {name: one for name, (one, kind) in columns if kind not in (STRING, *SUFFIXES) and one not in exact}


@dataclass
class UnfitValues:
    """What one write does with such values. With `fails` the first one ends it."""

    fails: bool = False
    _seen: list[Observation] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """Whether rows have columns that may lack a value."""
        return bool(self._seen)

    def checked(self, rows: DataFrame, lacks: Mapping[str, Column], guarded: str, place: Column) -> DataFrame:
        """Return rows that are checked as they are computed.

        `lacks` has the condition that a row has such a value, by the name of the column. An error, in which `place` says which
        row it is, comes with the values of the column `guarded`.
        """
        if not lacks:
            return rows
        if not self.fails:
            count = reduce(add, (F.when(is_lacking, 1).otherwise(0) for is_lacking in lacks.values()))
            self._seen.append(Observation())
            return rows.withColumn(_COUNT, count).observe(self._seen[-1], F.sum(_COUNT).alias(_COUNT)).drop(_COUNT)
        first = F.coalesce(*(F.when(is_lacking, F.lit(name)) for name, is_lacking in lacks.items()))
        return rows.withColumn(
            guarded, F.when(first.isNotNull(), F.raise_error(_sentence(place, first))).otherwise(F.col(guarded))
        )

    def look(self, rows: DataFrame) -> None:
        """Count those of checked rows now: what a MERGE does in a session of its own isn't told to the session of its rows."""
        rows.agg(F.count("*")).collect()

    def count(self) -> int:
        """Return how many there were in what has been written. Rows that the table had already don't count."""
        found = 0
        for one in self._seen:
            java: Any = one._jo
            found += (one.get[_COUNT] or 0) if java.future().isCompleted() else 0
        return found


def _sentence(place: Column, name: Column) -> Column:
    """Return what the operator is told: without the value, as no message shows values of rows."""
    remedy = "With --unfit-values null the column is null there, and the row's text has the value."
    return F.concat(place, F.lit(" has a value that the column "), name, F.lit(f" can't hold. {remedy}"))
