"""Kafka's Java clients, which are in the jars of Spark's connector: topics, their ends and ids, without a Spark job."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.contract.source import Topics


@dataclass(frozen=True)
class Identity:
    """The cluster's id, and the ids of topics by their names. A topic that is created again has another id.

    Empty where brokers don't tell.
    """

    cluster: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)


_PARTITION: Final = re.compile(r"Partition\(topic = ([^, ]+), partition = ([0-9]+),")
_LISTS_MAX: Final = 3
"""Number of lists of partitions that are kept beside a new one: in each batch the ends of the same few are asked for."""


class KafkaClient:
    """Clients with a job's options. They connect when they are first used."""

    def __init__(self, session: SparkSession, topics: Topics) -> None:
        """`topics` names the cluster, and has the options for the clients."""
        self._jvm: Any = session.sparkContext._jvm
        self._topics = topics
        self._consumer: Any = None
        self._is_of_space: dict[str, bool] = {}
        self._places: dict[frozenset[tuple[str, int]], Any] = {}

    def names(self) -> set[str]:
        """Return the names of all topics that the job may see."""
        return set(str(self._jvm.java.lang.String.join("\n", self._connected().listTopics().keySet())).split())

    def of_spaces(self) -> list[str]:
        """Return the topics that the job's stream reads, without control topics. Some may be another daemon's."""
        under = [topic for topic in self.names() if topic.startswith(f"{self._topics.prefix}.")]
        # A cluster can have thousands of topics, and each question to Java takes half a millisecond, in every batch.
        if new := [topic for topic in under if topic not in self._is_of_space]:
            matcher = self._jvm.java.util.regex.Pattern.compile(self._topics.pattern())
            self._is_of_space |= {topic: bool(matcher.matcher(topic).matches()) for topic in new}
        return [topic for topic in under if self._is_of_space[topic]]

    def ends(self, topics: Collection[str]) -> dict[tuple[str, int], int]:
        """Return the ends of the partitions of those topics that exist, including records of open transactions."""
        wanted = set(topics)
        places = frozenset(place for place in self._partitions() if place[0] in wanted)
        if places not in self._places:
            self._places = {**dict(list(self._places.items())[-_LISTS_MAX:]), places: self._java_list(places)}
        return dict(map(_end, _entries(self._connected().endOffsets(self._places[places]))))

    def _partitions(self) -> list[tuple[str, int]]:
        listed = str(self._connected().listTopics().toString())
        return [(topic, int(partition)) for topic, partition in _PARTITION.findall(listed)]

    def _java_list(self, places: Iterable[tuple[str, int]]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for place in places:
            found.add(self._jvm.org.apache.kafka.common.TopicPartition(*place))
        return found

    def identity(self, topics: Collection[str]) -> Identity:
        """Return the cluster's id and the ids of those topics that exist."""
        wanted = self._jvm.java.util.ArrayList()
        for topic in self.names().intersection(topics):
            wanted.add(topic)
        with self._admin() as admin:
            cluster = admin.describeCluster().clusterId().get()
            described = dict(admin.describeTopics(wanted).allTopicNames().get())
        ids = {str(topic): str(one.topicId().toString()) for topic, one in described.items()}
        zero = str(self._jvm.org.apache.kafka.common.Uuid.ZERO_UUID.toString())
        return Identity(str(cluster or ""), {topic: one for topic, one in ids.items() if one != zero})

    def _settings(self) -> Any:
        settings = self._jvm.java.util.HashMap()
        for name, value in self._topics.kafka_options.items():
            if name.startswith("kafka."):
                settings.put(name.removeprefix("kafka."), value)
        settings.put("bootstrap.servers", self._topics.bootstrap_servers)
        return settings

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(self._settings())
        try:
            yield admin
        finally:
            admin.close()

    def _connected(self) -> Any:
        """Return a consumer that also sees uncommitted records: records that will be committed later belong to the ends."""
        if self._consumer is None:
            settings = self._settings()
            bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
            settings.put("key.deserializer", bytes_)
            settings.put("value.deserializer", bytes_)
            self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        return self._consumer


def _entries(found: Any) -> list[str]:
    """Return the entries of a Java map as `key=value`, with one question to Java for all of them. No text may have a comma."""
    return [entry for entry in str(found.toString()).strip("{}").split(", ") if entry]


def _end(entry: str) -> tuple[tuple[str, int], int]:
    """Return a partition and its end, written as `topic-partition=end`; a topic's name can have a dash, too."""
    place, _, end = entry.rpartition("=")
    topic, _, partition = place.rpartition("-")
    return (topic, int(partition)), int(end)
