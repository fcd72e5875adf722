"""What each way of delivery does with a batch by itself, without the publisher's thread: over producers of a cluster of words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message, Producer

from cdc.errors import PublishAborted
from cdc.kafka.delivery import AtLeastOnce
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch, Part
from tests.fakes.kafka import Cluster, FakeProducer


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(partitions={f"shop.{name}": 1 for name in ("things", "a", "b", "c", "checkpoint")})


@pytest.fixture
def delivery(cluster: Cluster) -> AtLeastOnce:
    """Events at once, and what becomes of them is reported."""
    made: list[AtLeastOnce] = []

    def report(error: KafkaError | None, message: Message) -> None:
        made[0].on_failed_delivery(error, message)

    events = FakeProducer(cluster, report)
    checkpoint = FakeProducer(cluster)
    given = (cast(Producer, events), cast(Producer, checkpoint), lambda: False, nullcontext())
    made.append(AtLeastOnce(*given, "shop.checkpoint", "shop.schema"))
    made[0].start()
    return made[0]


def batch(*topics: str) -> Batch:
    """A message for each topic."""
    parts: list[Part] = [(topic, b"key", b"value") for topic in topics]
    return Batch(parts, 10, len(parts), 1, Position(seq=1), True, {}, [], 1.0)


def refuse(topic: str) -> Callable[[object], KafkaError | None]:
    """Kafka takes nothing for this topic."""
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    return lambda record: error if isinstance(record, tuple) and record[0] == topic else None


def test_reports_are_looked_at_with_each_batch(cluster: Cluster, delivery: AtLeastOnce) -> None:
    """Not with the next commit only: until then the source's transaction may be as large as it likes."""
    cluster.refuse = refuse("shop.things")
    with pytest.raises(PublishAborted, match="can't be delivered"):
        delivery.produce(batch("shop.things"))


def test_a_failed_delivery_names_its_own_topic(cluster: Cluster, delivery: AtLeastOnce) -> None:
    cluster.refuse = refuse("shop.b")
    with pytest.raises(PublishAborted, match=r"an event can't be delivered to shop\.b: "):
        delivery.produce(batch("shop.a", "shop.b", "shop.c"))
    assert cluster.written("shop.c")


def test_the_first_of_several_failures_is_told(cluster: Cluster, delivery: AtLeastOnce) -> None:
    cluster.refuse = lambda record: KafkaError(
        KafkaError._MSG_TIMED_OUT if record[0] == "shop.a" else KafkaError._ALL_BROKERS_DOWN
    )
    with pytest.raises(PublishAborted, match=r"to shop\.a: .*[Tt]imed out"):
        delivery.produce(batch("shop.a", "shop.b"))
    delivery.abort()
    cluster.refuse = lambda _: None
    delivery.produce(batch("shop.a"))
    assert len(cluster.written("shop.a")) == 1
