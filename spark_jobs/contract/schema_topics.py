"""The records of schema topics, which tell whose a prefix is (owner.py) and which shards write under it (fleet.py).

Reading topics is a Spark job. Both ask at a job's start, and again whenever these topics may have new records, so what has been
read is kept as long as the topics end where they did then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.kafka_client import KafkaClient
from spark_jobs.contract.source import Contents, Topics

REFUSED: Final = "AuthorizationException"
"""Kafka's error where the job's user lacks a right."""


def schema_records(
    session: SparkSession, topics: Topics, client: KafkaClient, wanted: Collection[str]
) -> Mapping[str, Sequence[str]]:
    """Return the values of schema topics by topic, in order; none of a topic that doesn't exist or may not be read."""
    kept = topics.known.schema_records
    # The ends before the records: a later record is found by its topic's end the next time.
    ends = {topic: Contents(tuple(sorted(places))) for topic, places in _by_topic(client.ends(wanted)).items()}
    new = [topic for topic in wanted if topic in ends and (topic not in kept or kept[topic].ends != ends[topic].ends)]
    for topic, values in _read(session, replace(topics, skip_unreadable=False), new).items():
        kept[topic] = replace(ends[topic], values=values)
    return {topic: kept[topic].values if topic in ends and topic in kept else () for topic in wanted}


def _by_topic(ends: Mapping[tuple[str, int], int]) -> Mapping[str, Sequence[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for (topic, partition), end in ends.items():
        found.setdefault(topic, []).append((partition, end))
    return found


def _read(session: SparkSession, topics: Topics, named: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the values of those topics that may be read, all of them in one Spark job if possible."""
    if not named:
        return {}
    columns = ("topic", "partition", "offset", F.col("value").cast("string").alias("text"))
    try:
        rows = topics.read(session, *named).where("value is not null").select(*columns).collect()
    except (PySparkException, Py4JError) as error:
        if REFUSED not in str(error):
            raise
        each = (_read(session, topics, [topic]) for topic in named) if len(named) > 1 else ()
        return {topic: values for found in each for topic, values in found.items()}
    found: dict[str, list[str]] = {topic: [] for topic in named}
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found[row["topic"]].append(row["text"])
    return found
