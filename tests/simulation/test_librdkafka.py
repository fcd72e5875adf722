"""The simulated Kafka against a real broker: the same clients of the daemon, the same questions, the same answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol
from unittest.mock import patch

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # they are documented

from cdc.config import KafkaSection
from cdc.kafka import clients as made
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import FENCED
from tests.simulation import librdkafka
from tests.simulation.brokers import Brokers
from tests.simulation.scheduler import Process, Scheduler

PATIENCE_SECONDS = 60.0


class Ground(Protocol):
    """Where a case runs."""

    topic: str

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def clients(self) -> KafkaClients:
        """The daemon's."""

    def run(self, case: Callable[[], None]) -> None:
        """Run it."""


class Real:
    """A broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.topic = f"contract-{uuid.uuid4().hex[:12]}"
        self._servers = bootstrap_servers

    def sleep(self, seconds: float) -> None:
        """As `Ground.sleep`."""
        time.sleep(seconds)

    def clients(self) -> KafkaClients:
        """As `Ground.clients`."""
        return KafkaClients(self.topic, section(self._servers, self.topic))

    def run(self, case: Callable[[], None]) -> None:
        """As `Ground.run`."""
        case()


class Simulated:
    """The world's."""

    def __init__(self) -> None:
        self.topic = "contract"
        self._scheduler = Scheduler(1)
        self._brokers = Brokers(self._scheduler, lambda: 0)

    def sleep(self, seconds: float) -> None:
        """As `Ground.sleep`."""
        self._scheduler.block(seconds)

    def clients(self) -> KafkaClients:
        """As `Ground.clients`."""
        return KafkaClients(self.topic, section("127.0.0.1:1", self.topic))

    def run(self, case: Callable[[], None]) -> None:
        """As `Ground.run`."""
        brokers = self._brokers
        kinds: dict[str, Callable[[dict[str, Any]], Any]] = {
            "Admin": lambda _: librdkafka.Admin(brokers),
            "Consumer": lambda settings: librdkafka.Consumer(brokers, settings),
            "Producer": lambda settings: librdkafka.Producer(brokers, settings),
            "BatchProducer": lambda settings: librdkafka.Producer(brokers, settings),
        }
        with ExitStack() as patched:
            for name, kind in kinds.items():
                patched.enter_context(patch.object(made, name, lambda settings, *, logger, kind=kind: kind(settings)))  # noqa: ARG005
            task = self._scheduler.spawn(Process("case"), "main", case)
            assert self._scheduler.run(lambda: task.is_done, PATIENCE_SECONDS, check=lambda: None), "it hangs"


def section(servers: str, prefix: str) -> KafkaSection:
    return KafkaSection.model_validate({"bootstrap_servers": servers, "topic_prefix": prefix})


@pytest.fixture(params=["simulated", pytest.param("real", marks=(pytest.mark.live, pytest.mark.xdist_group("kafka")))])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "simulated":
        yield Simulated()
    else:
        yield Real(request.getfixturevalue("kafka").bootstrap_servers)


def transactional(ground: Ground, *, is_new: bool = True) -> Any:
    """A producer that has claimed the daemon's id, and the topic."""
    clients = ground.clients()
    if is_new:
        admin = clients.admin()  # what is under way ends with it
        admin.create_topics([NewTopic(ground.topic, 1, 1)])[ground.topic].result(PATIENCE_SECONDS)
    producer = clients.transactional(lambda _: None, 60_000)
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def plain(ground: Ground) -> Any:
    return ground.clients().idempotent(lambda _: None, lambda *_: None)


def put(producer: Any, ground: Ground, *values: bytes) -> None:
    """Write values to the partition, and wait until they are there."""
    for value in values:
        producer.produce(ground.topic, value, b"key", partition=0)
    assert not producer.flush(PATIENCE_SECONDS)


def visible(ground: Ground, isolation: str = "read_committed", start: int = OFFSET_BEGINNING) -> list[bytes | None]:
    """What a reader finds up to the end of the partition."""
    consumer, found = ground.clients().consumer(isolation), list[bytes | None]()
    consumer.assign([TopicPartition(ground.topic, 0, start)])
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, "no end of the partition"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append(message.value())


def see(ground: Ground, *values: bytes) -> None:
    """Readers of committed messages find these at last: markers are written after a commit is answered."""
    deadline = 200
    while visible(ground) != list(values) and deadline:
        deadline -= 1
        ground.sleep(0.05)
    assert visible(ground) == list(values)


def ends(ground: Ground) -> dict[str, int]:
    """Where the partition begins, and where it ends for either kind of reader."""
    place, admin, levels = TopicPartition(ground.topic, 0), ground.clients().admin(), IsolationLevel
    asked = {
        "first": (OffsetSpec.earliest(), levels.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]
        "last": (OffsetSpec.latest(), levels.READ_UNCOMMITTED),  # type: ignore[no-untyped-call]
        "stable": (OffsetSpec.latest(), levels.READ_COMMITTED),  # type: ignore[no-untyped-call]
    }
    return {
        name: admin.list_offsets({place: spec}, isolation_level=level)[place].result(PATIENCE_SECONDS).offset
        for name, (spec, level) in asked.items()
    }


def code(call: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as caught:
        call()
    return int(caught.value.args[0].code())


def test_readers_see_a_transaction_once_it_is_committed(ground: Ground) -> None:
    def case() -> None:
        producer = transactional(ground)
        producer.begin_transaction()
        put(producer, ground, b"1", b"2")
        assert visible(ground, "read_uncommitted") == [b"1", b"2"]
        assert visible(ground) == []
        assert ends(ground) == {"first": 0, "last": 2, "stable": 0}
        producer.commit_transaction(PATIENCE_SECONDS)
        see(ground, b"1", b"2")
        assert ends(ground) == {"first": 0, "last": 3, "stable": 3}, "the marker has an offset, too"
        assert visible(ground, start=1) == [b"2"]
        assert visible(ground, start=OFFSET_END) == []

    ground.run(case)


def test_what_is_aborted_is_never_seen(ground: Ground) -> None:
    def case() -> None:
        producer = transactional(ground)
        producer.begin_transaction()
        put(producer, ground, b"1")
        producer.abort_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        put(producer, ground, b"2")
        producer.commit_transaction(PATIENCE_SECONDS)
        see(ground, b"2")
        assert visible(ground, "read_uncommitted") == [b"1", b"2"]

    ground.run(case)


def test_an_empty_transaction_leaves_nothing(ground: Ground) -> None:
    def case() -> None:
        producer = transactional(ground)
        producer.begin_transaction()
        producer.commit_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.abort_transaction(PATIENCE_SECONDS)
        assert ends(ground)["last"] == 0

    ground.run(case)


def test_whoever_claims_the_id_fences_the_former(ground: Ground) -> None:
    def case() -> None:
        former = transactional(ground)
        former.begin_transaction()
        put(former, ground, b"1")
        other = transactional(ground, is_new=False)
        assert code(lambda: former.commit_transaction(PATIENCE_SECONDS)) in FENCED
        other.begin_transaction()
        put(other, ground, b"2")
        other.commit_transaction(PATIENCE_SECONDS)
        see(ground, b"2")

    ground.run(case)


def test_a_fenced_producer_without_transactions_goes_on(ground: Ground) -> None:
    """Why a take-over has to wait with at_least_once delivery."""

    def case() -> None:
        transactional(ground)
        producer = plain(ground)
        transactional(ground, is_new=False)
        put(producer, ground, b"1")
        assert visible(ground) == [b"1"]
        assert ends(ground)["last"] == 1

    ground.run(case)


def test_an_open_transaction_holds_up_readers_of_what_comes_behind_it(ground: Ground) -> None:
    def case() -> None:
        producer = transactional(ground)
        put(plain(ground), ground, b"before")
        producer.begin_transaction()
        put(producer, ground, b"open")
        put(plain(ground), ground, b"behind")
        assert visible(ground) == [b"before"]
        assert visible(ground, "read_uncommitted") == [b"before", b"open", b"behind"]
        producer.abort_transaction(PATIENCE_SECONDS)
        see(ground, b"before", b"behind")

    ground.run(case)


def test_nothing_is_written_outside_of_a_transaction(ground: Ground) -> None:
    def case() -> None:
        producer = transactional(ground)
        assert code(lambda: producer.produce(ground.topic, b"1", b"key")) == KafkaError._STATE

    ground.run(case)


def test_topics(ground: Ground) -> None:
    def case() -> None:
        transactional(ground)
        admin = ground.clients().admin()
        again = admin.create_topics([NewTopic(ground.topic, 1, 1)])[ground.topic]
        assert code(lambda: again.result(PATIENCE_SECONDS)) == KafkaError.TOPIC_ALREADY_EXISTS
        known = admin.list_topics(ground.topic, PATIENCE_SECONDS).topics[ground.topic]
        assert (known.error, list(known.partitions)) == (None, [0])
        missing = admin.list_topics(f"{ground.topic}-missing", PATIENCE_SECONDS).topics[f"{ground.topic}-missing"]
        assert missing.error is not None
        assert missing.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert not missing.partitions
        names = [ground.topic, f"{ground.topic}-missing"]
        asked = admin.describe_topics(TopicCollection(names), request_timeout=30)
        assert asked[names[0]].result(PATIENCE_SECONDS).topic_id is not None
        assert code(lambda: asked[names[1]].result(PATIENCE_SECONDS)) == KafkaError.UNKNOWN_TOPIC_OR_PART

    ground.run(case)
