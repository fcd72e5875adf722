"""The rows that one batch adds to a fleet's table, part by part as its plan says (fleet_plan.py)."""

from __future__ import annotations

from functools import reduce
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.fleet_forms import FleetForms
from spark_jobs.lake import fleet_frames as frames
from spark_jobs.lake.fleet_plan import Emptied, Events


class FleetRows:
    """Rows of a batch. What it keeps in memory is freed at the end of its context."""

    def __init__(self, waiting: DataFrame, table: DataFrame | None, forms: FleetForms) -> None:
        """`waiting` are the events that aren't in the table yet, `table` are those of earlier batches. `forms` may get more."""
        self._waiting = waiting
        self._table = table
        self._forms = forms
        self._steps: list[Events] = []
        self._removed: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for frame in self._removed:
            frame.unpersist()

    def add(self, events: Events) -> None:
        """Add events."""
        self._steps.append(events)

    def remove(self, removal: Emptied, base: int) -> int:
        """Add a `d` for each row that a removal finds after the parts so far, and return their number."""
        is_needed = (F.col("space") == removal.space) | F.endswith("space", F.lit("._bucket"))
        before = [frame.where(is_needed) for frame in self._removed]
        before.append(frames.numbered(self._changes().where(is_needed), self._steps, self._forms))
        if self._table is not None:
            before.append(self._table.where(is_needed).select(*frames.COLUMNS))
        truncation = None
        if not removal.is_sweep:
            is_it = (F.col("shard") == removal.shard) & (F.col("seq") == removal.at) & (F.col("op") == "t")
            truncation = self._waiting.where(is_it).limit(1)
        found = frames.removed(reduce(DataFrame.unionByName, before), removal, base, truncation).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        self._removed.append(found)
        return found.count()

    def read(self) -> DataFrame:
        """Return all events that have been read: those in the table, and those that aren't in it yet, with their shards' seqs."""
        return self._waiting if self._table is None else self._waiting.unionByName(self._table.select(*frames.COLUMNS))

    def frame(self) -> DataFrame:
        """Return all rows."""
        parts = [frames.numbered(self._changes(), self._steps, self._forms), *self._removed]
        return reduce(DataFrame.unionByName, parts)

    def _changes(self) -> DataFrame:
        return self._waiting.where("op <> 't'")
