"""Dead letters of the feeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.feeds.bulk import Refused
from spark_jobs.runner.job import DeadLetters


def give_up(letters: DeadLetters, session: SparkSession, records: DataFrame, refused: Sequence[Refused]) -> None:
    """Pass refused records of a batch to the dead letters, with everything that Kafka has of them. Raises JobError."""
    if not refused:
        return
    rows: Collection[tuple[str, int, int, str]] = [(*one.place, one.sentence) for one in refused]
    sentences = session.createDataFrame(list(rows), "topic string, partition int, offset bigint, sentence string")
    found = records.join(F.broadcast(sentences), ["topic", "partition", "offset"])
    letters.take(found.select("topic", "partition", "offset", "timestamp", "key", "value", "sentence"))
