"""Work for several spaces at a time. Most of it is waiting: for Spark to plan and to start tasks, and for a table's log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import or_
from typing import Final, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_Result = TypeVar("_Result")

_THREADS: Final = 4
_ASKED_AT_ONCE: Final = 100
"""Number of spaces whose events are counted by one query."""


def each(step: Callable[[str], _Result], spaces: Collection[str]) -> list[_Result]:
    """Run a step for each space, and return the results in the order of the spaces."""
    if not spaces:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(spaces))) as threads:
        return list(threads.map(step, spaces))


def count_unmerged(events: DataFrame, merged: Mapping[str, int], up_to: int) -> dict[str, int]:
    """Return the number of each space's events after the seq in `merged`, and up to the seq `up_to`."""
    found = dict.fromkeys(merged, 0)
    spaces = [(F.col("space") == space) & (F.col("seq") > seq) for space, seq in merged.items()]
    for some in (spaces[first : first + _ASKED_AT_ONCE] for first in range(0, len(spaces), _ASKED_AT_ONCE)):
        unmerged = events.where(reduce(or_, some) & (F.col("seq") <= up_to))
        found |= {row["space"]: row["count"] for row in unmerged.groupBy("space").count().collect()}
    return found
