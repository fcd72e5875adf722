"""Reading a control topic to its end, also if somebody gave it several partitions."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdc.kafka import control_records, owned_topics
from cdc.kafka.clients import Admin
from cdc.kafka.hanging import Place
from cdc.kafka.owned_topics import OwnedTopics
from tests.fakes.kafka import Cluster, FakeAdmin, clients

TOPIC = "shop.schema"


class Scripted:
    """A consumer of a topic whose partitions have these records, of which it gives one after the other in turn."""

    def __init__(self, *partitions: list[tuple[bytes, bytes | None]]) -> None:
        self._partitions = partitions
        self._messages: list[Any] = []

    def list_topics(self, topic: str, _: float) -> Any:
        """The topic's partitions."""
        return SimpleNamespace(
            topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(len(self._partitions))), error=None)}
        )

    def assign(self, places: list[TopicPartition]) -> None:
        """Records of the first partition, then its end, and so on: the end of one comes before the others' records."""
        for place in places:
            for key, value in self._partitions[place.partition]:
                self._messages.append(self._message(place, key, value))
            self._messages.append(self._message(place, b"", None, KafkaError(KafkaError._PARTITION_EOF)))

    @staticmethod
    def _message(place: TopicPartition, key: bytes, value: bytes | None, error: KafkaError | None = None) -> Any:
        return SimpleNamespace(
            key=lambda: key,
            value=lambda: value,
            error=lambda: error,
            topic=lambda: place.topic,
            partition=lambda: place.partition,
        )

    def poll(self, _: float) -> Any:
        """The next."""
        return self._messages.pop(0) if self._messages else None

    def close(self) -> None:
        """Nothing to let go."""


def test_all_partitions_are_read() -> None:
    """By key they have the newest values, whichever partition has the key."""
    one: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
    partitions: list[list[tuple[bytes, bytes | None]]] = [[], one, [(b"c", b"1"), (b"c", None)]]
    assert control_records.newest(cast(Consumer, Scripted(*partitions)), TOPIC) == {b"a": b"2", b"b": b"1"}
    assert control_records.values(cast(Consumer, Scripted(*partitions)), TOPIC) == [b"1", b"1", b"2", b"1"]


def test_a_topic_is_read_again_after_a_change_of_any_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ends are asked for in all of them."""
    cluster, asked = Cluster(), []
    cluster.partitions[TOPIC] = 3
    owned = OwnedTopics(clients(cluster))
    monkeypatch.setattr(control_records, "values", lambda *_: [])

    def ends(_: Admin, counts: Mapping[str, int]) -> tuple[dict[Place, int], dict[Place, int]]:
        asked.append(dict(counts))
        return {}, {(TOPIC, number): 0 for number in range(3)}

    monkeypatch.setattr(owned_topics, "open_partitions", ends)
    owned.of("shop", cast(Admin, FakeAdmin(cluster)), cluster.partitions)
    assert asked == [{TOPIC: 3}]
