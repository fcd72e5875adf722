"""Results of a query's batch, from the progress that Spark reports: one line of the log, and the values of the metrics.

Spark observes the newest `seq` and the newest time while it reads the records, without an additional pass. The `seq` is cut out
of the message after its field name, without parsing JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_OBSERVED: Final = "tarantool_cdc"
# The last occurrence is the one in `source`: members after `source` have no `seq`; the rows before it may have one.
_SEQ: Final = "try_cast(substring_index(substring_index(cast(value as string), ',\"seq\":', -1), ',', 1) as bigint)"


@dataclass(frozen=True)
class Batch:
    """A completed batch. None stands for an unknown value."""

    number: int
    records: int | None
    seconds: float
    seq: int | None
    behind_seconds: float | None
    behind_records: int | None
    topics: tuple[str, ...] = ()
    """Topics that the stream reads, as far as they exist by this batch; none if it doesn't read Kafka."""

    def line(self, job: str) -> str:
        """Return the batch's line for the log."""
        rate = None if self.records is None else self.records / self.seconds if self.seconds else 0.0
        shown: dict[str, object] = {
            "batch": self.number,
            "records": self.records,
            "seconds": f"{self.seconds:.1f}",
            "records_per_second": None if rate is None else f"{rate:.0f}",
            "seq": self.seq,
            "behind_seconds": None if self.behind_seconds is None else f"{self.behind_seconds:.1f}",
            "behind_records": self.behind_records,
        }
        return f"{job}: {' '.join(f'{name}={value}' for name, value in shown.items() if value is not None)}"


def observed(records: DataFrame, *, knows_seq: bool = False) -> DataFrame:
    """Return the records of a stream (Kafka or a table of events), with their newest `seq` and time observed by Spark.

    If the sink `knows_seq` better (`Sink.newest_seq`), only the time is.
    """
    seq, time = (_SEQ, "timestamp") if "value" in records.columns else ("seq", "kafka_timestamp")
    seq = "cast(null as bigint)" if knows_seq else seq
    return records.observe(_OBSERVED, F.max(F.expr(seq)).alias("seq"), F.max(time).cast("double").alias("newest"))


def batch_of(progress: str) -> Batch | None:
    """Return the batch in a progress report (JSON) of Spark; None if the trigger had nothing to do."""
    found: dict[str, Any] = json.loads(progress)
    if "addBatch" not in found["durationMs"]:
        return None
    seconds = found["durationMs"]["triggerExecution"] / 1000
    seen = found.get("observedMetrics", {}).get(_OBSERVED, {})
    source = found["sources"][0]
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    records = found["numInputRows"]
    if not ends and not records:
        records = None  # `current --changes` only learns from the stream that the table has new events, and reads the table
    elif ends:
        # Spark counts a record each time the sink reads it. The offsets also count transaction markers.
        records = min(records, _distance(_offsets(source.get("startOffset")), ends))
    ended = datetime.fromisoformat(found["timestamp"]).timestamp() + seconds
    newest = seen.get("newest")
    return Batch(
        number=found["batchId"],
        records=records,
        seconds=seconds,
        seq=seen.get("seq"),
        behind_seconds=None if newest is None else max(0.0, ended - newest),
        behind_records=_distance(ends, latest) if latest else None,
        topics=tuple(sorted({topic for topic, _ in ends})),
    )


def _offsets(found: object) -> Mapping[tuple[str, str], int]:
    if isinstance(found, str):
        found = json.loads(found)
    if not isinstance(found, dict):
        return {}  # the source isn't Kafka
    return {
        (topic, partition): offset
        for topic, partitions in found.items()
        if isinstance(partitions, dict)
        for partition, offset in partitions.items()
    }


def _distance(start: Mapping[tuple[str, str], int], end: Mapping[tuple[str, str], int]) -> int:
    return sum(max(0, offset - start.get(place, 0)) for place, offset in end.items())
