"""Ends of partitions, and last stable offsets. Both are requested after every commit, so the requests have to be cheap.

clients      are kept, as a new one costs as much as a hundred requests, but are replaced after an error: a client keeps using
             an outdated partition leader. (Its requests carry the leader's epoch. A broker that knows a newer epoch refuses
             them, so an outdated leader leads to no answer rather than to a wrong one.)
consumers    ask for many partitions at a fifth of an admin client's cost
counts       of partitions are requested again after one second. A partition that somebody adds is ignored for that long.
             If many counts are due, one request fetches all topics of the cluster, as requests for single topics are sent
             one after the other
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, Final

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from cdc.errors import ConnectionLostError
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import reading_error
from cdc.stream.commits.unseen import Place

TIMEOUT_SECONDS: Final = 5.0
"""Time limit for an answer. A daemon that is stopping waits that long, too."""
COUNTS_SECONDS: Final = 1.0
"""Time for which a partition count stays valid."""
SINGLE_TOPICS_MAX: Final = 10
"""Maximum number of topics that are requested one by one. The cluster may have thousands of other topics."""

_WHAT: Final = "the ends of Kafka's partitions can't be asked for"


class Ends:
    """Client for partition ends, for one thread at a time.

    Methods that ask Kafka raise ConnectionLostError while Kafka doesn't answer.
    """

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._consumers: dict[str, Consumer] = {}
        # By topic: its number of partitions, and the time until which that number is valid.
        self._counts: dict[str, tuple[int, float]] = {}

    def reset_clients(self) -> None:
        """After an error: close the clients, and request leaders and partition counts again."""
        self._counts.clear()
        while self._consumers:
            _, consumer = self._consumers.popitem()
            consumer.close()

    def written(self, topics: Iterable[str]) -> tuple[dict[Place, int], list[str]]:
        """Return the ends of these topics' partitions, uncommitted messages included, and the topics that Kafka doesn't know."""
        now = time.monotonic()
        topics = list(topics)
        due = [topic for topic in topics if now >= self._counts.get(topic, (0, 0.0))[1]]
        for topic, count in self._count(due).items():
            self._counts[topic] = count, now + COUNTS_SECONDS if count else 0.0
        counts = {topic: self._counts[topic][0] for topic in topics}
        places = [(topic, number) for topic, count in counts.items() for number in range(count)]
        return self._ask("read_uncommitted", places), [topic for topic, count in counts.items() if not count]

    def committed(self, places: Collection[Place]) -> dict[Place, int]:
        """Return the last stable offsets of these partitions."""
        return self._ask("read_committed", places)

    def _count(self, topics: Collection[str]) -> dict[str, int]:
        found: dict[str, Any] = {}
        try:
            for asked in topics if len(topics) <= SINGLE_TOPICS_MAX else [None]:
                found |= self._consumer("read_uncommitted").list_topics(asked, TIMEOUT_SECONDS).topics
        except KafkaException as error:
            raise reading_error(error.args[0], _WHAT) from error
        counts: dict[str, int] = {}
        for topic in topics:
            refusal = found[topic].error if topic in found else None
            if refusal is not None and refusal.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise reading_error(refusal, f"{_WHAT} ({topic})")
            counts[topic] = len(found[topic].partitions) if topic in found else 0
        return counts

    def _ask(self, isolation: str, places: Collection[Place]) -> dict[Place, int]:
        if not places:
            return {}
        try:
            wanted = [TopicPartition(topic, number, OFFSET_END) for topic, number in places]
            found = self._consumer(isolation).offsets_for_times(wanted, TIMEOUT_SECONDS)
        except KafkaException as error:
            raise reading_error(error.args[0], _WHAT) from error
        for answer in found:
            if answer.error is not None:
                raise reading_error(answer.error, f"{_WHAT} ({answer.topic}, partition {answer.partition})")
            if answer.offset < 0:
                raise ConnectionLostError(f"{_WHAT} ({answer.topic}, partition {answer.partition}: no offset was returned)")
        return {(answer.topic, answer.partition): answer.offset for answer in found}

    def _consumer(self, isolation: str) -> Consumer:
        consumer = self._consumers.get(isolation)
        if consumer is None:
            consumer = self._consumers[isolation] = self._clients.consumer(isolation)
        consumer.poll(0)  # otherwise its error reports would accumulate
        return consumer
