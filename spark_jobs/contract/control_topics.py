"""The control topics beside the events, with forms and snapshots. They are small, and the jobs read them completely.

forms.py reads `<prefix>.schema`; this module reads the records of `<prefix>.snapshot`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError

ENDED: Final = ("COMPLETED", "ABORTED")
"""Values of `status` after which no row of the snapshot follows."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The sweep of a space at the end of a snapshot.

    Rows up to the seq `up_to` that the snapshot didn't repeat are gone. With 0 the snapshot sweeps no rows.
    """

    space_id: int
    space: str
    up_to: int


@dataclass(frozen=True, slots=True)
class Completed:
    """The end of a snapshot, or of a request for rows that was cut off, which has no `spaces`.

    `seq` is the last one that the daemon assigned before it.
    """

    seq: int
    ts_ms: int
    spaces: tuple[Sweep, ...]

    @property
    def sweeps(self) -> list[Sweep]:
        """The spaces of which rows are gone."""
        return [space for space in self.spaces if space.up_to > 0]


def values(records: DataFrame) -> list[str]:
    """Return the values of a topic's records, in the order of partition and offset, without null values."""
    found = records.where(F.col("value").isNotNull()).select("partition", "offset", F.col("value").cast("string").alias("text"))
    # Sorted in this process, which needs all values anyway. Sorting them in Spark would be one more job.
    return [row["text"] for row in sorted(found.collect(), key=lambda row: (row["partition"], row["offset"]))]


def completed(texts: Iterable[str], topic: str) -> list[Completed]:
    """Return the ends of snapshots among the values of the snapshot topic. Raises JobError for a value of another kind."""
    found = []
    for text in texts:
        try:
            record: dict[str, Any] = json.loads(text)
            if record["status"] in ENDED:
                spaces = (Sweep(space["space_id"], space["space"], space["sweep_seq"]) for space in record["spaces"])
                found.append(Completed(record["seq"], record["ts_ms"], tuple(spaces)))
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(f"The topic {topic} holds something that is no snapshot record: {text[:300]}") from error
    return found


def started(texts: Iterable[str]) -> list[int]:
    """Return the seqs before the first rows of snapshots, among the values of the snapshot topic, which `completed` accepts."""
    records = map(json.loads, texts)
    return [record["seq"] for record in records if record["status"] == "STARTED"]


def swept(texts: Iterable[str], topic: str, by: Literal["space", "space_id"]) -> dict[Any, int]:
    """Return, by the name or the number of each space, the seq up to which completed snapshots swept its rows.

    Rows up to this seq are gone unless a completed snapshot repeated them. Raises JobError like `completed`.
    """
    found: dict[Any, int] = {}
    for ended in completed(texts, topic):
        for space in ended.spaces:
            key = getattr(space, by)
            found[key] = max(space.up_to, found.get(key, -1))
    return found


def with_value_as_key(records: DataFrame, control: Collection[str]) -> DataFrame:
    """Return the records, with the value of each record of the topics `control` in its `key`.

    `envelope.parse` keeps no other content of a control record.
    """
    return records.withColumn("key", F.when(F.col("topic").isin(*control), F.col("value")).otherwise(F.col("key")))
