"""The daemon's topics in Kafka: which there are, how many partitions they have, and making those that are missing."""

from __future__ import annotations

import threading
import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc import topics
from cdc.config import KafkaSection
from cdc.errors import ConnectionLostError, PublishAborted, PublishError

ADMIN_TIMEOUT_SECONDS: Final = 10.0

_CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    # A record comes with every commit: small segments and eager compaction keep what a start has to read small.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


def list_topics(admin: AdminClient, bootstrap_servers: str) -> dict[str, int]:
    """Topics and their numbers of partitions. Raises ConnectionLostError before librdkafka says it in its own way."""
    try:
        found = admin.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics
    except KafkaException as error:
        raise ConnectionLostError(
            f"Kafka can't be reached at {bootstrap_servers}: {error.args[0].str()}",
            "Check kafka.bootstrap_servers, and that the brokers run.",
        ) from error
    return {name: len(topic.partitions) for name, topic in found.items()}


class TopicAdmin:
    """Makes sure that topics exist, with sensible settings, before anything is written to them."""

    def __init__(self, config: KafkaSection, admin: AdminClient, is_stopping: threading.Event) -> None:
        self._config = config
        self._admin = admin
        self._is_stopping = is_stopping
        self._partitions: dict[str, int] = {}

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic that has been made sure of."""
        return self._partitions[topic]

    def ensure(self, wanted: list[str]) -> None:
        """Create what is missing of these topics. Raises PublishAborted while Kafka is away, PublishError for good."""
        for topic in wanted:
            if topic in self._partitions:
                continue
            count = self._existing_partitions(topic)
            if count is None and self._config.create_topics:
                self._create(topic)
                count = self._await_topic(topic)
            if count is None:
                raise PublishError(
                    f"the topic {topic} doesn't exist, or this daemon may not see it",
                    "Create it, or allow the daemon to (kafka.create_topics = true); grant it DESCRIBE, WRITE and CREATE.",
                )
            self._partitions[topic] = count

    def _existing_partitions(self, topic: str) -> int | None:
        # Asked for all topics, not for this one: a broker may create what is asked for by name, with its own settings.
        try:
            return list_topics(self._admin, self._config.bootstrap_servers).get(topic)
        except ConnectionLostError as error:
            raise PublishAborted(error.message, error.hint) from error

    def _create(self, topic: str) -> None:
        suffix = topic.removeprefix(self._config.topic_prefix + ".")
        settings = {"max.message.bytes": str(self._config.message_bytes_max)}
        if suffix == topics.CHECKPOINT:
            settings |= _CHECKPOINT_CONFIG
        elif suffix == topics.SCHEMA:
            settings["cleanup.policy"] = "compact"
        new = NewTopic(
            topic,
            num_partitions=1 if suffix in topics.CONTROL else self._config.partitions,
            replication_factor=self._config.replication_factor,
            config=settings,
        )
        try:
            self._admin.create_topics([new], operation_timeout=ADMIN_TIMEOUT_SECONDS)[topic].result()
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # A cluster whose brokers are just starting or ending says so with the code of a replication factor that is wrong.
            is_early = cause.code() == KafkaError.INVALID_REPLICATION_FACTOR and "fenced" in cause.str()
            if is_early or cause.retriable() or cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise PublishAborted(f"the topic {topic} can't be created: {cause.str()}") from error
            raise PublishError(
                f"the topic {topic} can't be created: {cause.str()}",
                "Create it, grant this daemon's principal CREATE, or correct kafka.partitions and kafka.replication_factor.",
            ) from error

    def _await_topic(self, topic: str) -> int | None:
        """A topic that was just created is known to its broker a little later."""
        deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS
        while time.monotonic() < deadline and not self._is_stopping.wait(0.02):
            count = self._existing_partitions(topic)
            if count:
                return count
        return None
