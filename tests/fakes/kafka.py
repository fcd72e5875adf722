"""A cluster as its clients see it, that fails when it is told to: what publishers are tested with where no broker can be had to.

It knows topics, transactions with fencing and a time-out, and deliveries that are refused. What is committed is in `records`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdc.kafka.broker_limits import BrokerLimits
from cdc.kafka.clients import KafkaClients

Record = tuple[str, int | None, bytes | None, bytes | None]
"""Topic, the partition if one was named, key and value."""

FENCED = KafkaError(KafkaError._FENCED, "Producer fenced by newer instance", fatal=True)
NOT_NOW = KafkaError(KafkaError._STATE, "Operation not valid in state AbortableError")


@dataclass
class Cluster:
    """The state that all clients share, and the faults that they meet."""

    partitions: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    attempts: int = 0
    """Messages that were sent, whatever became of them."""
    timeout_seconds: float = 900.0
    """How long a transaction may be open."""
    refuse: Callable[[Record], KafkaError | None] = lambda _: None
    """What becomes of a message outside of transactions."""
    fail_commit: Callable[[], KafkaError | None] = lambda: None
    """What becomes of a commit."""
    is_open: bool = False
    """Whether a transaction is."""
    created_within: list[str] = field(default_factory=list)
    """Topics that were made while one was open."""
    epochs: itertools.count[int] = field(default_factory=itertools.count)
    epoch: int = -1

    def topics(self, *_: object, **__: object) -> object:
        """Metadata of everything."""
        return SimpleNamespace(
            topics={
                topic: SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None)
                for topic, count in self.partitions.items()
            },
            brokers={1: None},
        )

    def values(self, topic: str) -> list[bytes | None]:
        """What a reader of committed records finds in a topic."""
        return [value for found, _, _, value in self.records if found == topic]


class FakeProducer:
    """A transactional producer, or an idempotent one that reports failures."""

    def __init__(self, cluster: Cluster, on_failure: Callable[[KafkaError | None, Any], None] | None = None) -> None:
        self._cluster = cluster
        self._on_failure = on_failure
        self._queue: list[Record] = []
        self._epoch = -1
        self._began_at: float | None = None

    def init_transactions(self, _: float) -> None:
        """Fence whoever was before."""
        self._epoch = self._cluster.epoch = next(self._cluster.epochs)

    def begin_transaction(self) -> None:
        """It is open from here on."""
        self._check()
        self._began_at = time.monotonic()
        self._cluster.is_open = True

    def produce(self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int | None = None) -> None:
        """Queue a message."""
        if self._on_failure is None:
            self._check()
        self._cluster.attempts += 1
        self._queue.append((topic, partition, key, value))

    def commit_transaction(self, _: float) -> None:
        """All or nothing."""
        self._check()
        error = self._cluster.fail_commit()
        if error is not None:
            raise KafkaException(error)
        self._cluster.records += self._queue
        self._queue, self._began_at = [], None
        self._cluster.is_open = False

    def abort_transaction(self, _: float) -> None:
        """Nothing."""
        self._check()
        self._queue, self._began_at = [], None
        self._cluster.is_open = False

    def poll(self, _: float) -> int:
        """Nothing happens by itself."""
        return 0

    def flush(self, _: float) -> int:
        """Deliver what waits, or report that it can't be."""
        if self._on_failure is not None:
            queue, self._queue = self._queue, []
            for record in queue:
                error = self._cluster.refuse(record)
                if error is None:
                    self._cluster.records.append(record)
                else:
                    self._on_failure(error, None)
        return 0

    def purge(self, **_: bool) -> None:
        """Throw away what waits, which is reported."""
        queue, self._queue = self._queue, []
        if self._on_failure is not None:
            for _record in queue:
                self._on_failure(KafkaError(KafkaError._PURGE_QUEUE), None)

    def list_topics(self, *_: object) -> object:
        """As for everybody."""
        return self._cluster.topics()

    def _check(self) -> None:
        if self._began_at is not None and time.monotonic() >= self._began_at + self._cluster.timeout_seconds:
            # The coordinator has aborted it, and fenced whoever thinks that it is open.
            self._cluster.epoch = next(self._cluster.epochs)
        if self._epoch != self._cluster.epoch:
            raise KafkaException(FENCED)


class FakeAdmin:
    """Topics, and ends of partitions where nothing is ever open."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.list_topics = cluster.topics

    def create_topics(self, new: list[Any], **_: object) -> dict[str, Future[None]]:
        """At once."""
        self._cluster.created_within += [topic.topic for topic in new if self._cluster.is_open]
        self._cluster.partitions |= {topic.topic: topic.num_partitions for topic in new}
        return {topic.topic: _done(None) for topic in new}

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: object) -> dict[TopicPartition, Future[Any]]:
        """As if each record of a topic was in each of its partitions."""
        return {place: _done(SimpleNamespace(offset=len(self._cluster.values(place.topic)))) for place in wanted}

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        """Nobody may ask."""
        return {resource: _done({}) for resource in resources}


class FakeConsumer:
    """Reads one partition of a topic to its end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._messages: list[Any] = []

    def list_topics(self, *_: object) -> object:
        """As for everybody."""
        return self._cluster.topics()

    def assign(self, places: list[TopicPartition]) -> None:
        """What there is now, and its end."""
        for place in places:
            found = [(key, value) for topic, _, key, value in self._cluster.records if topic == place.topic]
            self._messages += [_message(place, key, value) for key, value in found]
            self._messages.append(_message(place, None, None, KafkaError(KafkaError._PARTITION_EOF)))

    def poll(self, _: float) -> Any:
        """The next."""
        return self._messages.pop(0) if self._messages else None

    def close(self) -> None:
        """Nothing to let go."""


class FakeClients:
    """What makes them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def admin(self) -> FakeAdmin:
        """Of this cluster."""
        return FakeAdmin(self.cluster)

    def consumer(self, _: str) -> FakeConsumer:
        """Of what is committed."""
        return FakeConsumer(self.cluster)

    def transaction_timeout_ms(self, _: BrokerLimits) -> int:
        """As the cluster has it."""
        return int(self.cluster.timeout_seconds * 1000)

    def transactional(self, _: object, __: int) -> FakeProducer:
        """With the one name that there is."""
        return FakeProducer(self.cluster)

    def idempotent(self, _: object, on_failure: Callable[[KafkaError | None, Any], None]) -> FakeProducer:
        """With reports."""
        return FakeProducer(self.cluster, on_failure)


def clients(cluster: Cluster) -> KafkaClients:
    """For a publisher."""
    return cast(KafkaClients, FakeClients(cluster))


def _message(place: TopicPartition, key: bytes | None, value: bytes | None, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(
        error=lambda: error, key=lambda: key, value=lambda: value, topic=lambda: place.topic, partition=lambda: place.partition
    )


def _done(result: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(result)
    return future
