"""What stands beside the events: the topics of forms and of snapshots, which are small and are read whole.

`<prefix>.schema` is read by forms.py; what a record of `<prefix>.snapshot` says is read here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError


@dataclass(frozen=True, slots=True)
class Sweep:
    """Of a space, rows up to the seq `up_to` are gone if the snapshot didn't repeat them; with 0 it says nothing of that."""

    space_id: int
    space: str
    up_to: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of a snapshot: `seq` was the last one given out before."""

    seq: int
    ts_ms: int
    spaces: tuple[Sweep, ...]

    @property
    def sweeps(self) -> list[Sweep]:
        """Those that say that rows are gone."""
        return [space for space in self.spaces if space.up_to > 0]


def values(records: DataFrame) -> list[str]:
    """The values of a topic's records, in order."""
    found = records.where(F.col("value").isNotNull()).select("partition", "offset", F.col("value").cast("string").alias("text"))
    # Sorted here, as what they are read into is here too; for Spark it would be one more job.
    return [row["text"] for row in sorted(found.collect(), key=lambda row: (row["partition"], row["offset"]))]


def completed(texts: Iterable[str], topic: str) -> list[Completed]:
    """The ends of snapshots among the topic's records. Raises JobError for what is no record of it."""
    found = []
    for text in texts:
        try:
            record: dict[str, Any] = json.loads(text)
            if record["status"] == "COMPLETED":
                spaces = (Sweep(space["space_id"], space["space"], space["sweep_seq"]) for space in record["spaces"])
                found.append(Completed(record["seq"], record["ts_ms"], tuple(spaces)))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"The topic {topic} holds something that is no snapshot record: {text[:300]}") from error
    return found


def swept(texts: Iterable[str], topic: str, by: Literal["space", "space_id"]) -> dict[Any, int]:
    """Per space, by its name or its number: up to which seq rows are gone that a completed snapshot didn't repeat.

    Raises as `completed`.
    """
    found: dict[Any, int] = {}
    for ended in completed(texts, topic):
        for space in ended.spaces:
            key = getattr(space, by)
            found[key] = max(space.up_to, found.get(key, -1))
    return found


def packed(records: DataFrame, control: Collection[str]) -> DataFrame:
    """Records whose values from these topics stand in `key`: `parse` leaves a control record nothing else that is its own."""
    return records.withColumn("key", F.when(F.col("topic").isin(*control), F.col("value")).otherwise(F.col("key")))
