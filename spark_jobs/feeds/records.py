"""What the feeds have in common: topics read as a whole, and records that are given up."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import Refused
from spark_jobs.job import DeadLetters
from spark_jobs.source import Topics


def values(records: DataFrame) -> list[str]:
    """The values of a topic's records, in order."""
    found = records.where(F.col("value").isNotNull()).select("partition", "offset", F.col("value").cast("string").alias("text"))
    return [row["text"] for row in sorted(found.collect(), key=lambda row: (row["partition"], row["offset"]))]


def chosen(session: SparkSession, topics: Topics, spaces: Iterable[str]) -> set[str]:
    """Those of the spaces that the job was asked for."""
    # By Java, as Kafka's consumer matches them.
    matches = getattr(session.sparkContext._jvm, "java.util.regex.Pattern").matches
    return {space for space in spaces if matches(topics.pattern(), topics.of_space(space))}


def sweeps(read_topic: Callable[[str], DataFrame], topic: str) -> dict[int, int]:
    """By space_id: up to which seq rows are gone that a completed snapshot didn't repeat. Raises JobError."""
    found: dict[int, int] = {}
    for text in values(read_topic(topic)):
        for space_id, _, seq in swept(text, topic):
            found[space_id] = max(seq, found.get(space_id, -1))
    return {space_id: seq for space_id, seq in found.items() if seq > 0}


def swept(text: str, topic: str) -> list[tuple[int, str, int]]:
    """Of a record of the snapshot topic: space_id, name and sweep_seq of each space. Raises JobError."""
    try:
        record = json.loads(text)
        ended = record["spaces"] if record["status"] == "COMPLETED" else []
        return [(space["space_id"], space["space"], space["sweep_seq"]) for space in ended]
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"The topic {topic} holds something that is no snapshot record: {text[:300]}") from error


def give_up(letters: DeadLetters, session: SparkSession, records: DataFrame, refused: Sequence[Refused]) -> None:
    """Hand records of a batch over to the dead letters, with all that Kafka has of them. Raises JobError."""
    if not refused:
        return
    rows: Collection[tuple[str, int, int, str]] = [(*one.place, one.sentence) for one in refused]
    sentences = session.createDataFrame(list(rows), "topic string, partition int, offset bigint, sentence string")
    found = records.join(F.broadcast(sentences), ["topic", "partition", "offset"])
    letters.take(found.select("topic", "partition", "offset", "timestamp", "key", "value", "sentence"))
