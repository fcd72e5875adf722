"""Kafka's Java clients, which are in the jars of Spark's connector: topics, their ends and ids, without a Spark job."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.contract.source import Topics


@dataclass(frozen=True)
class Identity:
    """The cluster's id, and the ids of topics by their names. A topic that is created again has another id.

    Empty where brokers don't tell.
    """

    cluster: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)


class KafkaClient:
    """Clients with a job's options. They connect when they are first used."""

    def __init__(self, session: SparkSession, topics: Topics) -> None:
        """`topics` names the cluster, and has the options for the clients."""
        self._jvm: Any = session.sparkContext._jvm
        self._topics = topics
        self._consumer: Any = None

    def partitions(self) -> dict[str, list[int]]:
        """Return the partitions of all topics that the job may see."""
        found = dict(self._connected().listTopics())
        return {str(topic): [int(one.partition()) for one in partitions] for topic, partitions in found.items()}

    def of_spaces(self) -> list[str]:
        """Return the topics that the job's stream reads, without control topics. Some may be another daemon's."""
        matcher = self._jvm.java.util.regex.Pattern.compile(self._topics.pattern())
        return [topic for topic in self.partitions() if matcher.matcher(topic).matches()]

    def ends(self, topics: Collection[str]) -> dict[tuple[str, int], int]:
        """Return the ends of the partitions of those topics that exist, including records of open transactions."""
        places = self._jvm.java.util.ArrayList()
        for topic, partitions in self.partitions().items():
            if topic in topics:
                for partition in partitions:
                    places.add(self._jvm.org.apache.kafka.common.TopicPartition(topic, partition))
        found = dict(self._connected().endOffsets(places))
        return {(str(place.topic()), int(place.partition())): int(end) for place, end in found.items()}

    def identity(self, topics: Collection[str]) -> Identity:
        """Return the cluster's id and the ids of those topics that exist."""
        known = self.partitions()
        wanted = self._jvm.java.util.ArrayList()
        for topic in topics:
            if topic in known:
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
