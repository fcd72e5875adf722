"""Where partitions end, asked over connections that are kept until there is trouble."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from cdc.errors import CdcError, ConnectionLostError
from cdc.kafka import ends
from cdc.kafka.clients import KafkaClients
from cdc.kafka.ends import Ends
from cdc.kafka.errors import ForbiddenError
from tests.fakes.kafka import Cluster, FakeClients, FakeConsumer

TOPIC = "shop.things"


class CountingConsumer(FakeConsumer):
    """Notes what is asked for."""

    def __init__(self, cluster: Cluster, isolation: str, listed: list[str | None]) -> None:
        super().__init__(cluster, isolation)
        self._listed = listed

    def list_topics(self, topic: str | None = None, *_: object, **__: object) -> object:
        """As for everybody."""
        self._listed.append(topic)
        return super().list_topics(topic)


class CountingClients(FakeClients):
    """Counts the consumers that are made, and notes which topics they ask for."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.made = 0
        self.listed: list[str | None] = []

    def consumer(self, isolation: str, *, end_wait_ms: int = 10) -> FakeConsumer:  # noqa: ARG002 - it answers at once
        """As for everybody."""
        self.made += 1
        return CountingConsumer(self.cluster, isolation, self.listed)


@pytest.fixture
def cluster() -> Cluster:
    """Two partitions, with two records each, of which readers reach one."""
    record: Any = (TOPIC, None, b"key", b"value")
    return Cluster(partitions={TOPIC: 2}, records=[record, record], hanging={TOPIC: 1})


@pytest.fixture
def clients(cluster: Cluster) -> CountingClients:
    return CountingClients(cluster)


@pytest.fixture
def asked(clients: CountingClients) -> Ends:
    return Ends(cast(KafkaClients, clients))


def test_what_is_written_and_what_is_committed(asked: Ends) -> None:
    assert asked.written([TOPIC]) == ({(TOPIC, 0): 2, (TOPIC, 1): 2}, [])
    assert asked.committed([(TOPIC, 1)]) == {(TOPIC, 1): 1}
    assert asked.committed([]) == {}


def test_a_topic_that_is_not_there(asked: Ends) -> None:
    assert asked.written(["shop.gone", TOPIC]) == ({(TOPIC, 0): 2, (TOPIC, 1): 2}, ["shop.gone"])


def test_a_topic_that_was_not_there_is_asked_for_again_at_once(asked: Ends, clients: CountingClients, cluster: Cluster) -> None:
    asked.written(["shop.new", TOPIC])
    cluster.partitions["shop.new"] = 1
    assert asked.written(["shop.new", TOPIC]) == ({("shop.new", 0): 0, (TOPIC, 0): 2, (TOPIC, 1): 2}, [])
    assert clients.listed == ["shop.new", TOPIC, "shop.new"], "and only what wasn't there"


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, ForbiddenError), (KafkaError.LEADER_NOT_AVAILABLE, ConnectionLostError)],
)
def test_a_topic_that_is_refused_is_not_one_that_is_not_there(
    asked: Ends, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: int, error: type[CdcError]
) -> None:
    refused = SimpleNamespace(partitions={}, error=KafkaError(code))
    monkeypatch.setattr(cluster, "topics", lambda *_: SimpleNamespace(topics={"shop.other": refused}))
    with pytest.raises(error, match=r"can't be asked for \(shop\.other\): "):
        asked.written(["shop.other"])


def test_connections_are_kept_until_there_is_trouble(asked: Ends, clients: CountingClients) -> None:
    for _ in range(3):
        asked.written([TOPIC])
        asked.committed([(TOPIC, 0)])
    assert clients.made == 2
    asked.reset_clients()
    asked.committed([(TOPIC, 0)])
    assert clients.made == 3


def test_partitions_that_are_added_are_found_a_second_later_or_at_once_after_trouble(
    asked: Ends, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("cdc.kafka.ends.time.monotonic", lambda: now[0])
    asked.written([TOPIC])
    cluster.partitions[TOPIC] = 3
    assert len(asked.written([TOPIC])[0]) == 2
    now[0] += ends.COUNTS_SECONDS
    assert len(asked.written([TOPIC])[0]) == 3
    cluster.partitions[TOPIC] = 4
    asked.reset_clients()
    assert len(asked.written([TOPIC])[0]) == 4


def test_many_topics_are_asked_for_at_once(asked: Ends, clients: CountingClients, cluster: Cluster) -> None:
    names = [f"shop.{number}" for number in range(ends.SINGLE_TOPICS_MAX + 1)]
    cluster.partitions |= dict.fromkeys(names, 1)
    assert asked.written(names) == ({(name, 0): 0 for name in names}, [])
    assert asked.written([*names, TOPIC, "shop.gone"])[1] == ["shop.gone"]
    assert clients.listed == [None, TOPIC, "shop.gone"], "and only what isn't known"


def test_an_answer_that_tells_no_end(asked: Ends, cluster: Cluster) -> None:
    cluster.without_ends.add(TOPIC)
    with pytest.raises(ConnectionLostError, match=r"\(shop.things, partition 0: no offset was returned\)"):
        asked.written([TOPIC])


def test_a_partition_without_a_leader(asked: Ends, cluster: Cluster) -> None:
    cluster.can_tell = False
    with pytest.raises(ConnectionLostError, match=r"shop.things, partition 0\): Broker: Leader not available"):
        asked.written([TOPIC])


def test_no_answer(asked: Ends, cluster: Cluster) -> None:
    cluster.is_silent = True
    with pytest.raises(ConnectionLostError, match="can't be asked for: Local: Timed out"):
        asked.written([TOPIC])
