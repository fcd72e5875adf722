"""A cluster as its clients see it, that fails when it is told to: what publishers are tested with where no broker can be had to.

It knows topics, transactions with fencing and a time-out, deliveries that are refused, and commits that some topics don't show.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is documented

from cdc.kafka.broker_limits import BrokerLimits
from cdc.kafka.clients import Complain, KafkaClients

Record = tuple[str, int | None, bytes | None, bytes | None]
"""Topic, the partition if one was named, key and value."""

FENCED = KafkaError(KafkaError._FENCED, "Producer fenced by newer instance", fatal=True)
NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, retriable=True)
SILENCE_SECONDS = 0.01
"""How long a call waits for an answer that doesn't come."""


@dataclass
class Cluster:
    """The state that all clients share, and the faults that they meet."""

    partitions: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    """What is committed."""
    reads: list[str] = field(default_factory=list)
    """Topics that consumers have begun to read, in order."""
    hidden: set[str] = field(default_factory=set)
    """Topics that are there, and that no client may see."""
    leave_out: Counter[str] = field(default_factory=Counter)
    """Topics that so many of the next commits leave out (see cdc.kafka.hanging)."""
    hanging: dict[str, int] = field(default_factory=dict)
    """Such topics, and how many of their records readers of committed messages can reach."""
    others: dict[str, int] = field(default_factory=dict)
    """Topics where another producer's transaction is open, and in front of which record readers of committed messages stay."""
    complain: Complain = lambda _: None
    """Tells the newest transactional producer's owner of trouble with a broker."""
    can_tell: bool = True
    """Whether ends of partitions can be asked for."""
    attempts: int = 0
    """Messages that were sent, whatever became of them."""
    timeout_seconds: float = 900.0
    """How long a transaction may be open."""
    refuse: Callable[[Record], KafkaError | None] = lambda _: None
    """What becomes of a message; in a transaction its commit tells."""
    lost_answers: int = 0
    """How many of the next commits come through, but the answer doesn't."""
    is_silent: bool = False
    """Whether nothing answers."""
    client_count: int = 0
    stranded_count: int = 0
    """So many of the first clients find no broker any more (see cdc.kafka.reach)."""
    without_ends: set[str] = field(default_factory=set)
    """Topics for whose partitions an answer comes that says neither where they end nor what is wrong."""
    slow: set[str] = field(default_factory=set)
    """Topics where messages outside of transactions arrive only when they are waited for."""
    fail_commit: Callable[[], KafkaError | None] = lambda: None
    """What becomes of a commit."""
    fail_abort: Callable[[], KafkaError | None] = lambda: None
    """What becomes of an abort."""
    is_open: bool = False
    """Whether a transaction is."""
    expired: Counter[str] = field(default_factory=Counter)
    """How many of a topic's first records are gone."""
    cluster_id: str | None = "the cluster"
    topic_ids: dict[str, str] = field(default_factory=dict)
    """Ids of topics that were created again."""
    created_within: list[str] = field(default_factory=list)
    """Topics that were made while one was open."""
    epochs: itertools.count[int] = field(default_factory=itertools.count)
    epoch: int = -1

    def expire(self, topic: str, count: int) -> None:
        """The first records of a topic are gone."""
        self.expired[topic] = count

    def strand(self) -> None:
        """All clients that there are find no broker from here on."""
        self.stranded_count = self.client_count

    def topics(self, topic: str | None = None, *_: object, **__: object) -> object:
        """Metadata of everything, or of one topic."""
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = {
            name: SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None) for name, count in self.partitions.items()
        }
        if topic is not None:
            found = {topic: found.get(topic, SimpleNamespace(partitions={}, error=unknown))}
        return SimpleNamespace(topics=found, brokers={1: None}, cluster_id=self.cluster_id)

    def written(self, topic: str) -> list[Record]:
        """What a topic holds."""
        return [record for record in self.records if record[0] == topic]

    def reachable(self, topic: str) -> list[Record]:
        """What a reader of committed records finds in a topic."""
        bounds = [bound[topic] for bound in (self.hanging, self.others) if topic in bound]
        return self.written(topic)[: min(bounds, default=None)]

    def values(self, topic: str) -> list[bytes | None]:
        """The values of what such a reader finds."""
        return [value for _, _, _, value in self.reachable(topic)]

    def end(self, queue: list[Record], *, commit: bool) -> None:
        """A transaction ends, and with it what hangs in its topics."""
        for topic in {record[0] for record in queue}:
            before = self.written(topic)
            if commit and self.leave_out[topic] > 0:
                self.leave_out[topic] -= 1
                self.hanging.setdefault(topic, len(before))
            elif topic in self.hanging:
                reachable = self.hanging.pop(topic)
                if not commit:
                    self.records = [record for record in self.records if record[0] != topic] + before[:reachable]
        if commit:
            self.records += queue


class FakeClient:
    """What all of them are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._number = cluster.client_count
        cluster.client_count += 1

    @property
    def _is_unheard(self) -> bool:
        """Whether nothing answers it."""
        return self._cluster.is_silent or self._is_stranded

    @property
    def _is_stranded(self) -> bool:
        return self._number < self._cluster.stranded_count

    def list_topics(self, topic: str | None = None, *_: object, **__: object) -> object:
        """As for everybody."""
        self._await_answer(KafkaError(KafkaError._TRANSPORT) if self._is_stranded else NO_ANSWER)
        return self._cluster.topics(topic)

    def _await_answer(self, error: KafkaError = NO_ANSWER) -> None:
        if self._is_unheard:
            time.sleep(SILENCE_SECONDS)
            raise KafkaException(error)


class FakeProducer(FakeClient):
    """A transactional producer, or an idempotent one that reports failures."""

    def __init__(self, cluster: Cluster, on_failure: Callable[[KafkaError | None, Any], None] | None = None) -> None:
        super().__init__(cluster)
        self._on_failure = on_failure
        self._queue: list[Record] = []
        self._epoch = -1
        self._began_at: float | None = None
        # Whether the transaction has been committed, and that is still to be told.
        self._is_unanswered = False

    def init_transactions(self, _: float) -> None:
        """Fence whoever was before."""
        self._epoch = self._cluster.epoch = next(self._cluster.epochs)

    def begin_transaction(self) -> None:
        """It is open from here on."""
        self._check()
        self._began_at = time.monotonic()
        self._cluster.is_open = True

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        on_delivery: Callable[[KafkaError | None, Any], None] | None = None,
    ) -> None:
        """Queue a message; `on_delivery` is told at once whether anybody hears of it."""
        if self._on_failure is None:
            self._check()
        self._cluster.attempts += 1
        self._queue.append((topic, partition, key, value))
        if on_delivery is not None:
            on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT) if self._is_unheard else None, None)

    def commit_transaction(self, _: float) -> None:
        """All or nothing."""
        self._check()
        self._await_answer()
        if self._is_unanswered:
            self._is_unanswered = False
            return
        error = self._cluster.fail_commit()
        if error is not None:
            raise KafkaException(error)
        for refused in filter(None, map(self._cluster.refuse, self._queue)):
            raise KafkaException(KafkaError(refused.code(), txn_requires_abort=True))
        self._cluster.end(self._queue, commit=True)
        self._queue, self._began_at = [], None
        self._cluster.is_open = False
        if self._cluster.lost_answers:
            self._cluster.lost_answers -= 1
            self._is_unanswered = True
            raise KafkaException(NO_ANSWER)

    def abort_transaction(self, _: float) -> None:
        """Nothing."""
        self._check()
        self._await_answer()
        error = self._cluster.fail_abort()
        if error is not None:
            raise KafkaException(error)
        self._cluster.end(self._queue, commit=False)
        self._queue, self._began_at = [], None
        self._cluster.is_open = False

    def poll(self, _: float) -> int:
        """What is outside of transactions arrives by itself, but for the slow topics."""
        if not self._is_unheard:
            self._deliver([record for record in self._queue if record[0] not in self._cluster.slow])
        return 0

    def flush(self, _: float) -> int:
        """Deliver what waits, or report that it can't be."""
        if self._is_unheard:
            time.sleep(SILENCE_SECONDS)
            return len(self._queue)
        self._deliver(self._queue)
        return 0

    def _deliver(self, records: list[Record]) -> None:
        if self._on_failure is not None:
            self._queue = [record for record in self._queue if record not in records]
            for record in records:
                error = self._cluster.refuse(record)
                if error is None:
                    self._cluster.records.append(record)
                else:
                    self._report(record, error)

    def purge(self, **_: bool) -> None:
        """Throw away what waits, which is reported."""
        queue, self._queue = self._queue, []
        if self._on_failure is not None:
            for record in queue:
                self._report(record, KafkaError(KafkaError._PURGE_QUEUE))

    def _report(self, record: Record, error: KafkaError) -> None:
        assert self._on_failure is not None
        topic, partition, key, value = record
        self._on_failure(error, _message(TopicPartition(topic, partition or 0), key, value))

    def _check(self) -> None:
        if self._began_at is not None and time.monotonic() >= self._began_at + self._cluster.timeout_seconds:
            # The coordinator has aborted it, and fenced whoever thinks that it is open.
            self._cluster.epoch = next(self._cluster.epochs)
        if self._epoch != self._cluster.epoch:
            raise KafkaException(FENCED)


class FakeAdmin(FakeClient):
    """Topics, and ends of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.refusals: list[KafkaError] = []
        self.troubles: dict[str, str] = {}

    def poll(self, _: float) -> int:
        """It complains of nothing."""
        return 0

    def describe_topics(self, names: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        """Each by its name: also those that this client may not see are told of, by a refusal."""
        cluster = self._cluster
        unknown, hidden = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return {
            topic: _done(SimpleNamespace(topic_id=cluster.topic_ids.get(topic, topic)))
            if topic in cluster.partitions
            else _failed(hidden if topic in cluster.hidden else unknown)
            for topic in names.topic_names
        }

    def create_topics(self, new: list[Any], **_: object) -> dict[str, Future[None]]:
        """At once, or not at all."""
        if self._is_unheard:
            time.sleep(SILENCE_SECONDS)
            return {topic.topic: _failed(NO_ANSWER) for topic in new}
        exists = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)
        found = {name: _failed(exists) for topic in new if (name := topic.topic) in self._cluster.partitions}
        made = [topic for topic in new if topic.topic not in found]
        self._cluster.created_within += [topic.topic for topic in made if self._cluster.is_open]
        self._cluster.partitions |= {topic.topic: topic.num_partitions for topic in made}
        return found | {topic.topic: _done(None) for topic in made}

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], *, isolation_level: IsolationLevel, **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        """As if each record of a topic was in each of its partitions."""
        cluster = self._cluster
        if not cluster.can_tell:
            return {place: _failed(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)) for place in wanted}
        ask = cluster.reachable if isolation_level is IsolationLevel.READ_COMMITTED else cluster.written
        # A record's time isn't kept, so what is asked for by a time is everything.
        earliest = type(OffsetSpec.earliest()), type(OffsetSpec.for_timestamp(0))  # type: ignore[no-untyped-call]
        return {
            place: _done(
                SimpleNamespace(offset=cluster.expired[place.topic] if type(spec) in earliest else len(ask(place.topic)))
            )
            for place, spec in wanted.items()
        }

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        """Nobody may ask."""
        return {resource: _done({}) for resource in resources}


class FakeConsumer(FakeClient):
    """Reads one partition of a topic to its end."""

    def __init__(self, cluster: Cluster, isolation: str) -> None:
        super().__init__(cluster)
        self._read = cluster.reachable if isolation == "read_committed" else cluster.written
        self._messages: list[Any] = []
        # By topic: how many of its records are in `_messages`, or were.
        self._later: dict[str, int] = {}

    def offsets_for_times(self, places: list[TopicPartition], _: float) -> list[Any]:
        """The ends, as if each record of a topic was in each of its partitions."""
        self._await_answer()
        assert all(place.offset == OFFSET_END for place in places)
        error = None if self._cluster.can_tell else KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [
            SimpleNamespace(
                topic=place.topic,
                partition=place.partition,
                offset=-1 if place.topic in self._cluster.without_ends else len(self._read(place.topic)),
                error=error,
            )
            for place in places
        ]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:  # noqa: ARG002 - as it is called
        """Where a partition begins and ends."""
        self._await_answer()
        return 0, len(self._read(place.topic))

    def assign(self, places: list[TopicPartition]) -> None:
        """What there is now, and its end."""
        if self._is_unheard:
            return
        for place in places:
            self._cluster.reads.append(place.topic)
            found = self._read(place.topic)[max(self._cluster.expired[place.topic], place.offset) :]
            self._messages += [_message(place, key, value) for _, _, key, value in found]
            self._messages.append(_message(place, None, None, KafkaError(KafkaError._PARTITION_EOF)))

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """What there is now, and its end; what comes later is for `consume`."""
        self.assign(places)
        self._later |= {place.topic: len(self._read(place.topic)) for place in places}

    def consume(self, _: int, __: float) -> list[Any]:
        """What there is, and what has come since."""
        found, self._messages = self._messages, []
        for topic, begin in self._later.items():
            records = self._read(topic)
            found += [_message(TopicPartition(topic, 0), key, value) for _, _, key, value in records[begin:]]
            self._later[topic] = len(records)
        return found

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

    def consumer(self, isolation: str, *, end_wait_ms: int = 10) -> FakeConsumer:  # noqa: ARG002 - it answers at once
        """Of what is committed, or of all."""
        return FakeConsumer(self.cluster, isolation)

    def transaction_timeout_ms(self, _: BrokerLimits) -> int:
        """As the cluster has it."""
        return int(self.cluster.timeout_seconds * 1000)

    def transactional(self, complain: Complain, _: int) -> FakeProducer:
        """With the one name that there is."""
        self.cluster.complain = complain
        return FakeProducer(self.cluster)

    def best_effort_producer(self) -> FakeProducer:
        """Outside of transactions, with reports to nobody."""
        return FakeProducer(self.cluster, lambda *_: None)

    def idempotent(self, _: object, on_failure: Callable[[KafkaError | None, Any], None]) -> FakeProducer:
        """With reports."""
        return FakeProducer(self.cluster, on_failure)


def clients(cluster: Cluster) -> KafkaClients:
    """For a publisher."""
    return cast(KafkaClients, FakeClients(cluster))


def _message(place: TopicPartition, key: bytes | None, value: bytes | None, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(
        error=lambda: error,
        key=lambda: key,
        value=lambda: value,
        topic=lambda: place.topic,
        partition=lambda: place.partition,
        offset=lambda: 0,
    )


def _done(result: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(result)
    return future


def _failed(error: KafkaError) -> Future[Any]:
    future = Future[Any]()
    future.set_exception(KafkaException(error))
    return future
