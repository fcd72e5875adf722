"""What comes to a partition whose leader refuses a producer's first batch, and takes the ones behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from cdc.errors import PublishAborted, PublishError
from cdc.kafka.by_batch import BatchProducer
from cdc.kafka.delivery import AtLeastOnce, ExactlyOnce
from cdc.kafka.errors import FencedError
from cdc.kafka.murmur2 import partition_of
from cdc.kafka.sender import Sender
from cdc.positions.position import Position
from cdc.stream.batches.batch import Addressed, Batch, Broadcast, Part
from tests.fakes.mock_cluster import PRODUCE, MockCluster, mock_cluster

PARTS: list[Part] = [Broadcast("a", b"t"), *(("a", b"%d" % number, b"x") for number in range(5))]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with mock_cluster() as found:
        for topic in ("a", "checkpoint"):
            found.create(topic, 1)
        yield found


def producer(cluster: MockCluster, **more: Any) -> Producer:
    """Each message is a batch of its own."""
    settings = {"batch.num.messages": 1, "linger.ms": 0, "delivery.report.only.error": True, "log_level": 0}
    return BatchProducer({"bootstrap.servers": cluster.bootstrap_servers, **settings, **more})


def values(cluster: MockCluster, topic: str, count: int) -> list[bytes | None]:
    """The first so many messages of a topic's one partition."""
    settings = {"group.id": "x", "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    for _ in range(count):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.append(message.key())
    consumer.close()
    return found


def test_the_messages_behind_one_that_is_refused_wait_for_it(cluster: MockCluster) -> None:
    """Kafka would take them, and the refused one would pass for arrived; this cluster says that a number was skipped."""
    delivery = ExactlyOnce(producer(cluster, **{"transactional.id": "x"}), lambda: False, nullcontext(), "checkpoint")
    delivery.start()
    cluster.refuse(PRODUCE, [KafkaError.NOT_LEADER_FOR_PARTITION])
    delivery.produce(Batch(PARTS, 1, 6, 1, Position(seq=1), True, {}, [], 1.0))
    delivery.commit([(b"k", b"v")])
    assert values(cluster, "a", 6) == [None, b"0", b"1", b"2", b"3", b"4"]
    # Kafka knows the last number by now.
    cluster.refuse(PRODUCE, [KafkaError.NOT_LEADER_FOR_PARTITION])
    delivery.produce(Batch([("a", b"5", b"x")], 1, 1, 1, Position(seq=2), True, {}, [], 1.0))
    delivery.commit([(b"k", b"v")])
    assert values(cluster, "a", 7)[6] == b"5"


@pytest.mark.parametrize("is_by_batch", [True, False])
def test_headers_and_partitions_that_the_key_does_not_decide(cluster: MockCluster, is_by_batch: bool) -> None:
    """Between other messages, whose order they keep, at first and later on."""
    cluster.create("b", 4)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "partitioner": "murmur2_random"}
    used = BatchProducer(settings) if is_by_batch else Producer(settings)
    sender = Sender(used, lambda: False, nullcontext())
    headers = [("op", b"c"), ("seq", b"7")]
    parts: list[Part] = [
        ("b", b"k", b"1"),
        Addressed("b", b"k", b"2", b'"x"', headers),
        Addressed("b", b"k", None, b'"x"', headers),
        Addressed("b", b"k", b"3", None, headers),
        Broadcast("b", b"t", [("op", b"t")]),
        ("b", b"k", b"4"),
        Addressed("b", b"k", b"5", b'"x"'),
    ]
    for _ in range(2):
        sender.send(list(parts), {"b"})
    sender.flush()
    found: dict[int, list[tuple[Any, Any]]] = {}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "x", "log_level": 0})
    consumer.assign([TopicPartition("b", number, 0) for number in range(4)])
    for _ in range(2 * (len(parts) + 3)):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.setdefault(cast(int, message.partition()), []).append((message.value(), message.headers()))
    consumer.close()
    by_key, by_place = partition_of(b"k", 4), partition_of(b'"x"', 4)
    assert by_key != by_place
    truncation = (b"t", [("op", b"t")])
    assert found.pop(by_key) == 2 * [(b"1", None), (b"3", headers), truncation, (b"4", None)]
    assert found.pop(by_place) == 2 * [(b"2", headers), (None, headers), truncation, (b"5", None)]
    assert list(found.values()) == 2 * [[truncation, truncation]]


def test_messages_with_headers_outside_of_transactions(cluster: MockCluster) -> None:
    """Beside a new form, which comes after all messages before it."""
    cluster.create("schema", 1)
    checkpoints = producer(cluster, **{"transactional.id": "x"})
    delivery = AtLeastOnce(producer(cluster), checkpoints, lambda: False, nullcontext(), "checkpoint", "schema")
    delivery.start()
    parts: list[Part] = [
        Addressed("a", b"0", b"x", b"place", [("op", b"c")]),
        ("schema", b"form", b"x"),
        Addressed("a", b"1", None, None, [("op", b"d")]),
    ]
    delivery.produce(Batch(parts, 1, 2, 1, Position(seq=1), True, {1: None}, [], 1.0))
    delivery.commit([(b"k", b"v")])
    assert values(cluster, "a", 2) == [b"0", b"1"]
    assert values(cluster, "schema", 1) == [b"form"]


def test_the_same_of_a_checkpoint_of_several_records(cluster: MockCluster) -> None:
    delivery = ExactlyOnce(producer(cluster, **{"transactional.id": "x"}), lambda: False, nullcontext(), "checkpoint")
    delivery.start()
    cluster.refuse(PRODUCE, [KafkaError.NOT_LEADER_FOR_PARTITION])
    delivery.commit([(b"1", b"v"), (b"2", b"v"), (b"3", b"v")])
    assert values(cluster, "checkpoint", 3) == [b"1", b"2", b"3"]


class Asked:
    """A producer that only answers which topics there are, as it is told."""

    def __init__(self, *answers: KafkaError | None) -> None:
        self._answers = iter(answers)
        self.polls = 0

    def list_topics(self, *_: object, **__: object) -> Any:
        error = next(self._answers)
        if error is not None and error.code() < 0:
            raise KafkaException(error)
        topic = type("Topic", (), {"error": error, "partitions": {} if error else {0: None}})
        return type("Topics", (), {"topics": {"a": topic}})

    def poll(self, _: float) -> int:
        self.polls += 1
        return 0


def asking(*answers: int | None, is_stopping: bool = False) -> tuple[Sender, Asked]:
    """One that asks a producer with these answers."""
    asked = Asked(*(None if code is None else KafkaError(code) for code in answers))
    return Sender(cast(Producer, asked), lambda: is_stopping, nullcontext()), asked


def test_while_nobody_answers_the_partitions_are_waited_for() -> None:
    away, unknown = KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART
    sender, asked = asking(away, unknown, KafkaError._TIMED_OUT, None)
    assert sender._counted(["a"]) == {"a": 1}
    assert asked.polls == 3


def test_a_stop_does_not_wait_for_partitions() -> None:
    sender, _ = asking(KafkaError._TRANSPORT, is_stopping=True)
    with pytest.raises(PublishAborted, match="stopped before Kafka had reported the topics' partitions"):
        sender._counted(["a"])


def test_who_may_not_see_a_topic_is_told_at_once() -> None:
    sender, _ = asking(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PublishError, match=r"a message for a was refused: .*authorization failed"):
        sender._counted(["a"])


class Fenced(Asked):
    """A producer that takes messages, and notices then that another one has its name."""

    def produce(self, *_: object, **__: object) -> None:
        """Take a message."""

    def poll(self, _: float) -> int:
        raise KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))


@pytest.mark.parametrize("is_first_write", [True, False])
def test_who_is_fenced_when_all_messages_are_taken_is_told(is_first_write: bool) -> None:
    sender = Sender(cast(Producer, Fenced(None)), lambda: False, nullcontext())
    if not is_first_write:
        sender._first_writes.unacknowledged_topics((), time.monotonic())
        sender._first_writes._whole.add("a")
    with pytest.raises(FencedError, match="a Kafka transaction can't continue"):
        sender.send([("a", b"1", b"v")], {"a"})


def test_a_topic_that_stays_unknown_ends_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    sender, _ = asking(*[KafkaError.UNKNOWN_TOPIC_OR_PART] * 10)
    times = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
    with pytest.raises(PublishAborted, match="the brokers don't know the topic a"):
        sender._counted(["a"])
