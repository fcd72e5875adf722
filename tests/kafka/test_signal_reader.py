"""The signal topic as it is read: from where, what comes of trouble, and that nothing of it ends the reader."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from confluent_kafka import KafkaError, TopicPartition

from cdc.config import KafkaSection
from cdc.kafka import signal_reader, topic_admin
from cdc.kafka.clients import KafkaClients
from cdc.kafka.signal_reader import SignalReader
from cdc.positions.requests import SignalPlace
from cdc.stream.snapshots.orders import Log, Received
from tests.fakes.kafka import Cluster, FakeClients, FakeConsumer
from tests.live.waiting import wait_for

TOPIC = "shop.signal"


class Tail(FakeConsumer):
    """A consumer that waits for the next record; an offset that isn't there is an error."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "read_committed")
        self._at = 0

    def assign(self, places: list[TopicPartition]) -> None:
        (place,) = places
        self._at = place.offset

    def poll(self, timeout: float) -> Any:
        """The next, if it is there."""
        if self._cluster.is_silent or self._at == len(self._read(TOPIC)):
            time.sleep(timeout)
            return None
        if self._at > len(self._read(TOPIC)):
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            return SimpleNamespace(error=lambda: error)
        offset, (_, _, key, value) = self._at, self._read(TOPIC)[self._at]
        self._at += 1
        return SimpleNamespace(
            error=lambda: None, key=lambda: key, value=lambda: value, offset=lambda: offset, timestamp=lambda: (1, 1_000 + offset)
        )


class Clients(FakeClients):
    """What makes them."""

    def tail(self) -> Tail:
        """Of this cluster."""
        return Tail(self.cluster)


class Orders:
    """The inbox, at a place."""

    def __init__(self, place: SignalPlace | None) -> None:
        self._place = place
        self.received: list[Received] = []
        self.room = 1_000
        self.troubles: list[str | None] = []

    def place(self, _: float) -> tuple[SignalPlace | None]:
        return (self._place,)

    def offer(self, received: Received, timeout_seconds: float) -> bool:
        if len(self.received) >= self.room:
            time.sleep(timeout_seconds)
            return False
        self.received.append(received)
        return True

    def report_trouble(self, reason: str | None) -> None:
        self.troubles.append(reason)

    @property
    def messages(self) -> list[str]:
        return [received.order.message for received in self.received if isinstance(received.order, Log)]

    @property
    def last(self) -> SignalPlace:
        place = self.received[-1].place
        assert place is not None
        return place


class Ground:
    """A cluster with a signal topic, and readers of it."""

    def __init__(self) -> None:
        self.cluster = Cluster(partitions={TOPIC: 1})
        self.readers: list[SignalReader] = []

    def send(self, message: str) -> None:
        value = json.dumps({"id": message, "type": "log", "data": {"message": message}})
        self.cluster.records.append((TOPIC, 0, b"shop", value.encode()))

    def read(self, place: SignalPlace | None, **settings: Any) -> Orders:
        orders = Orders(place)
        section = KafkaSection(bootstrap_servers="k:9092", topic_prefix="shop", signal_topic=True, **settings)
        reader = SignalReader(section, cast(KafkaClients, Clients(self.cluster)), orders)
        self.readers.append(reader)
        reader.start()
        return orders


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    given = {"_POLL_SECONDS": 0.01, "_AGAIN_SECONDS": 0.01, "_LOOK_SECONDS": 0.05, "_ANSWER_SECONDS": 0.3}
    for name, seconds in given.items():
        monkeypatch.setattr(signal_reader, name, seconds)
    monkeypatch.setattr(topic_admin, "ADMIN_TIMEOUT_SECONDS", 0.3)
    ground = Ground()
    yield ground
    for reader in ground.readers:
        reader.close()


def test_the_first_start_obeys_what_comes_from_now_on(ground: Ground) -> None:
    ground.send("before")
    orders = ground.read(None)
    wait_for("the place", lambda: orders.received)
    (begin,) = orders.received
    assert (begin.order, begin.place and begin.place.offset) == (None, 1)
    ground.send("after")
    wait_for("the signal", lambda: orders.messages)
    assert orders.messages == ["after"]
    assert (orders.last.topic_id, orders.last.offset) == (TOPIC, 2)


def test_a_later_start_goes_on_after_the_last_one_that_was_taken(ground: Ground) -> None:
    for message in ("taken", "while it was away"):
        ground.send(message)
    orders = ground.read(SignalPlace(TOPIC, 1, 1_000))
    wait_for("the signal", lambda: orders.messages)
    assert orders.messages == ["while it was away"]
    assert len(orders.received) == 1, "the place is the checkpoint's, and isn't news"


def test_the_topic_is_made(ground: Ground) -> None:
    ground.cluster.partitions.clear()
    orders = ground.read(None)
    wait_for("the place", lambda: orders.received)
    assert ground.cluster.partitions == {TOPIC: 1}


def test_a_topic_that_the_daemon_may_not_make_is_waited_for(ground: Ground) -> None:
    ground.cluster.partitions.clear()
    orders = ground.read(None, create_topics=False)
    wait_for("the trouble", lambda: orders.troubles)
    assert f"the topic {TOPIC} doesn't exist" in str(orders.troubles[0])
    ground.cluster.partitions[TOPIC] = 1
    wait_for("the end of the trouble", lambda: orders.troubles[-1] is None)
    assert len(orders.troubles) == 2, "the same trouble is reported once"


@pytest.mark.parametrize("is_emptied", [True, False])
def test_the_topic_is_made_anew_while_it_is_read(ground: Ground, is_emptied: bool) -> None:
    """Copies of signals that were taken are passed over: only the timestamps tell them from new ones."""
    for message in ("one", "two"):
        ground.send(message)
    with structlog.testing.capture_logs() as logs:
        orders = ground.read(SignalPlace(TOPIC, 0, 0))
        wait_for("the signals", lambda: len(orders.messages) == 2)
        if is_emptied:
            ground.cluster.records.clear()
        ground.cluster.topic_ids[TOPIC] = "another"
        wait_for("the new place", lambda: orders.last.topic_id == "another")
        while len(ground.cluster.records) < 2:
            ground.send("copy")
        ground.send("three")
        wait_for("the signal", lambda: len(orders.messages) == 3)
    assert orders.messages == ["one", "two", "three"]
    assert any("made anew" in entry["event"] for entry in logs)


def test_signals_wait_in_kafka_until_there_is_room(ground: Ground) -> None:
    orders = ground.read(SignalPlace(TOPIC, 0, 0))
    orders.room = 2
    for number in range(5):
        ground.send(str(number))
    wait_for("two signals", lambda: len(orders.received) == 2)
    orders.room = 10
    wait_for("all signals", lambda: orders.messages == list("01234"))


def test_kafka_is_away(ground: Ground) -> None:
    ground.cluster.is_silent = True
    orders = ground.read(SignalPlace(TOPIC, 0, 0))
    wait_for("the trouble", lambda: orders.troubles)
    ground.send("one")
    ground.cluster.is_silent = False
    wait_for("the signal", lambda: orders.messages == ["one"])
    assert orders.troubles[-1] is None


def test_several_partitions_are_a_mistake(ground: Ground) -> None:
    """Also those that somebody adds while signals are read: which signals go there is up to whoever sends them."""
    with structlog.testing.capture_logs() as logs:
        orders = ground.read(None)
        wait_for("the place", lambda: orders.received)
        ground.cluster.partitions[TOPIC] = 3
        wait_for("the trouble", lambda: orders.troubles)
        ground.send("in the first one")
        wait_for("the signal", lambda: orders.messages)
        ground.cluster.partitions[TOPIC] = 1
        wait_for("the end of the trouble", lambda: orders.troubles[-1] is None)
    (trouble, _) = orders.troubles
    assert "shop.signal has 3 partitions, and the daemon reads only the first" in str(trouble)
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == [trouble]
