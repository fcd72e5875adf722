"""What the publisher does when Kafka refuses, fences, or takes too long: both ways of delivery, against a cluster of words."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from confluent_kafka import KafkaError

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConnectionLostError, PublishAborted, PublishError, TransactionTimeoutError
from cdc.kafka.publisher import Publisher
from cdc.position import Position
from cdc.stream.batch import Batch, Broadcast
from cdc.stream.checkpoint import Writer
from cdc.vclock import VClock
from tests.fakes.kafka import FENCED, Cluster, clients

Mode = Literal["exactly_once", "at_least_once"]
MODES: list[Mode] = ["exactly_once", "at_least_once"]
Start = Callable[..., Publisher]
WRITER = Writer("writer", has_store=False)


@pytest.fixture
def cluster() -> Cluster:
    """An empty one that works."""
    return Cluster()


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """Starts publishers, one after the other, and stops them."""
    publishers: list[Publisher] = []

    def make(mode: Mode, **settings: object) -> Publisher:
        config = KafkaSection.model_validate(
            {"bootstrap_servers": "x:1", "topic_prefix": "shop", "delivery": mode, "commit_interval_ms": 1, **settings}
        )
        publisher = Publisher("x", config, WRITER, clients(cluster))
        publisher.start()
        publishers.append(publisher)
        return publisher

    yield make
    for publisher in publishers:
        if publisher._thread.is_alive():
            publisher.stop(20)


def batch(number: int, *messages: Broadcast, is_boundary: bool = True) -> Batch:
    """One row of one space, at lsn `number`."""
    row = ("shop.things", b"%d" % number, b"row %d" % number)
    found = messages or (row,)
    return Batch(list(found), 10, 1, 1, Position(VClock({1: number}), number), is_boundary, {}, ["shop.things"], 1.0)


def wait(publisher: Publisher) -> list[Position]:
    """What is settled next. Raises what the publisher raises."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        settled = publisher.collect()
        if settled:
            return settled
        poller = select.poll()
        poller.register(publisher.wake_fd, select.POLLIN)
        poller.poll(1000)
    raise AssertionError("nothing was settled")


def fails_once(code: int) -> Callable[[object], KafkaError | None]:
    errors = iter([KafkaError(code)])
    return lambda _: next(errors, None)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_settled_is_there(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode)
    publisher.submit(batch(1))
    assert [position.seq for position in wait(publisher)] == [1]
    assert cluster.values("shop.things") == [b"row 1"]
    assert publisher.committed == Position(VClock({1: 1}), 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_broadcast_reaches_the_partitions_that_there_are_now(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode, partitions=2)
    publisher.submit(batch(1))
    wait(publisher)
    cluster.partitions["shop.things"] = 5
    publisher.submit(batch(2, Broadcast("shop.things", b"t")))
    wait(publisher)
    assert [partition for _, partition, _, value in cluster.records if value == b"t"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", MODES)
def test_topics_are_made_after_a_commit(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode, commit_interval_ms=60_000)
    for number in (1, 2):
        found = batch(number)
        found.topics = [f"shop.{number}", f"shop.{number}b"]
        publisher.submit(found)
    # The first is committed long before its time.
    assert [position.seq for position in wait(publisher)] == [1]
    publisher.stop(20)
    assert {"shop.1", "shop.1b", "shop.2", "shop.2b"} <= cluster.partitions.keys()
    assert not cluster.created_within


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._UNKNOWN_PARTITION])
def test_a_failed_delivery_is_forgotten_after_the_abort(cluster: Cluster, start: Start, code: int) -> None:
    publisher = start("at_least_once")
    cluster.refuse = fails_once(code)
    publisher.submit(batch(1))
    with pytest.raises(PublishAborted, match="an event can't be delivered"):
        wait(publisher)
    assert (publisher.statistics.abort_count, cluster.values("shop.things")) == (1, [])
    assert "an event can't be delivered" in (publisher.statistics.failure or "")
    publisher.reset()
    for number in (1, 2, 3):
        publisher.submit(batch(number))
        wait(publisher)
    assert cluster.values("shop.things") == [b"row 1", b"row 2", b"row 3"]
    assert (publisher.statistics.abort_count, publisher.statistics.failure) == (1, None)


@pytest.mark.parametrize(
    "code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_RECORD]
)
def test_what_cannot_heal_ends_the_publisher(cluster: Cluster, start: Start, code: int) -> None:
    publisher = start("at_least_once")
    cluster.refuse = lambda _: KafkaError(code)
    before = cluster.attempts
    publisher.submit(batch(1))
    with pytest.raises(PublishError, match="an event can't be delivered"):
        wait(publisher)
    assert cluster.attempts == before + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_topic_that_is_gone_is_made_again(cluster: Cluster, start: Start, mode: Mode) -> None:
    publisher = start(mode)
    publisher.submit(batch(1))
    wait(publisher)
    del cluster.partitions["shop.things"]
    cluster.fail_commit = fails_once_to_commit(KafkaError._UNKNOWN_TOPIC)
    publisher.submit(batch(2))
    with pytest.raises(PublishAborted):
        wait(publisher)
    publisher.reset()
    publisher.submit(batch(2))
    wait(publisher)
    assert "shop.things" in cluster.partitions


def fails_once_to_commit(code: int) -> Callable[[], KafkaError | None]:
    errors = iter([KafkaError(code, txn_requires_abort=True)])
    return lambda: next(errors, None)


def test_what_was_aborted_is_not_said_to_be_committed(cluster: Cluster, start: Start) -> None:
    publisher = start("at_least_once")
    publisher.submit(batch(1))
    wait(publisher)
    cluster.refuse = fails_once(KafkaError._MSG_TIMED_OUT)
    publisher.submit(batch(2))
    with pytest.raises(PublishAborted):
        wait(publisher)
    publisher.reset()
    publisher.stop(20)
    assert publisher.committed == Position(VClock({1: 1}), 1)


def test_a_source_transaction_that_takes_too_long(cluster: Cluster, start: Start) -> None:
    cluster.timeout_seconds = 0.3
    publisher = start("exactly_once")
    publisher.submit(batch(1))
    wait(publisher)
    publisher.submit(batch(2, is_boundary=False))
    time.sleep(0.4)  # this is what the test is about
    publisher.submit(batch(3))
    with pytest.raises(TransactionTimeoutError, match=r"of 0\.3 s, 1 events of it \(10 bytes\).*hadn't come") as caught:
        wait(publisher)
    assert "transaction.max.timeout.ms" in str(caught.value)
    assert "Two daemons" not in str(caught.value)
    assert publisher.statistics.abort_count == 1
    # A new producer goes on, if it is faster.
    again = start("exactly_once")
    again.submit(batch(2, is_boundary=False))
    again.submit(batch(3))
    assert [position.seq for position in wait(again)] == [3]
    assert cluster.values("shop.things") == [b"row 1", b"row 2", b"row 3"]


def test_a_large_source_transaction_has_all_the_time_that_there_is(cluster: Cluster, start: Start) -> None:
    publisher = start("exactly_once", commit_interval_ms=60_000)
    publisher.submit(batch(1))
    publisher.submit(batch(2, is_boundary=False))
    assert [position.seq for position in wait(publisher)] == [1]
    assert cluster.values("shop.things") == [b"row 1"]
    publisher.abandon("the test ends")


def test_a_commit_between_source_transactions_that_takes_too_long_is_no_size(cluster: Cluster, start: Start) -> None:
    cluster.timeout_seconds = 0.2
    publisher = start("exactly_once", commit_interval_ms=400)
    publisher.submit(batch(1))
    with pytest.raises(PublishError) as caught:
        wait(publisher)
    assert not isinstance(caught.value, TransactionTimeoutError)
    assert "Two daemons" not in str(caught.value)


def test_a_name_that_is_lost_at_the_start_is_taken_again(cluster: Cluster, start: Start) -> None:
    errors = iter([FENCED])
    cluster.fail_commit = lambda: next(errors, None)
    with pytest.raises(ConnectionLostError, match="was lost at once") as caught:
        start("exactly_once")
    assert "Two daemons" not in str(caught.value)
    publisher = start("exactly_once")
    publisher.submit(batch(1))
    wait(publisher)


def test_another_daemon_is_named_only_if_there_is_one(cluster: Cluster, start: Start) -> None:
    first = start("exactly_once")
    config = KafkaSection(bootstrap_servers="x:1", topic_prefix="shop")
    other = Publisher("x", config, Writer("another writer", has_store=False), clients(cluster))
    other.start()
    first.submit(batch(1))
    with pytest.raises(CdcError, match="fenced") as caught:
        wait(first)
    assert "Two daemons" not in str(caught.value)
    again = Publisher("x", config, WRITER, clients(cluster))
    with pytest.raises(PublishError, match=r"another daemon has taken the name 'x'.*Two daemons"):
        again.start(expected_writers={"writer"})
    again.stop(0)
    other.stop(20)
