"""Batches become as small as the topics accept; only a message that is too large by itself ends the daemon."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.errors import CdcError, PublishError
from cdc.kafka import topic_settings
from cdc.kafka.batch_limit import after_refusal, smaller
from cdc.kafka.clients import Admin
from cdc.kafka.errors import ProducerLostError, TooLargeError
from cdc.kafka.publisher import Publisher
from cdc.kafka.topic_settings import Setting
from cdc.stream.commits.checkpoint import Writer
from cdc.stream.commits.publisher_statistics import BATCH_BYTES_MAX, PublisherStatistics
from tests.fakes.kafka import Cluster, FakeClients, Record
from tests.kafka.test_lost_topics import batch, until_it_ends
from tests.kafka.test_publisher import MODES, Mode, config_of, row, wait

ADMIN = cast(Admin, None)


def test_as_small_as_the_lowest_limit() -> None:
    assert smaller(BATCH_BYTES_MAX, [1_000_000_000, 100_000, 2_000_000]) == 90_000
    assert smaller(90_000, [1_000_000_000, 100_000]) is None
    assert smaller(BATCH_BYTES_MAX, [1_000_000_000]) is None
    assert smaller(BATCH_BYTES_MAX, [0]) == 1


def test_by_steps_where_limits_are_unknown() -> None:
    tried: list[int] = []
    size: int | None = BATCH_BYTES_MAX
    while size is not None:
        tried.append(size)
        size = smaller(size, [])
    assert tried == [1024 * 1024, 256 * 1024, 64 * 1024, 16 * 1024]


def test_the_error_names_the_limit_once_batches_are_small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"shop.users": {"max.message.bytes": Setting("100000")}, "shop.orders": {"max.message.bytes": Setting("2000000")}}
    monkeypatch.setattr(topic_settings, "read", lambda *_: settings)
    statistics = PublisherStatistics()
    first = after_refusal(TooLargeError("refused"), ADMIN, settings, statistics)
    assert isinstance(first, ProducerLostError)
    assert "at most 90000 bytes" in first.message
    assert statistics.batch_bytes_max == 90_000
    second = after_refusal(TooLargeError("refused", "Raise it."), ADMIN, settings, statistics)
    assert isinstance(second, TooLargeError)
    assert str(second) == "refused; the lowest max.message.bytes is 100000, of the topic shop.users. Raise it."
    other = PublishError("another")
    assert after_refusal(other, ADMIN, settings, statistics) is other


@pytest.mark.parametrize("mode", MODES)
def test_a_publisher_is_followed_by_one_with_smaller_batches(mode: Mode) -> None:
    """The topics' limits are unknown here."""
    cluster, sizes = Cluster(), []
    statistics = PublisherStatistics()

    def refuse(record: Record) -> KafkaError | None:
        is_refused = record[0] == "shop.users" and statistics.batch_bytes_max > 64 * 1024
        return KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if is_refused else None

    cluster.refuse = refuse
    for attempt in range(3):
        clients: Any = FakeClients(cluster)
        writer = Writer("writer", has_store=False)
        publisher = Publisher("x", config_of(mode), writer, clients, statistics)
        publisher.start(expected_writers={"writer"} if attempt else ())
        sizes.append(clients.batch_bytes_max)
        found = batch(1, ("shop.users", b"1", row(1)))
        found.topics = ["shop.users"]
        publisher.submit(found)
        if attempt < 2:
            with pytest.raises(ProducerLostError, match="batches have at most"):
                until_it_ends(publisher.collect)
            publisher.stop(5)
    wait(publisher)
    assert publisher.stop(5)
    assert sizes == [1024 * 1024, 256 * 1024, 64 * 1024]
    assert len(cluster.written("shop.users")) == 1


def test_settings_that_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(topic_settings, "read", read)
    found: CdcError = after_refusal(TooLargeError("refused"), ADMIN, ["shop.users"], PublisherStatistics())
    assert isinstance(found, ProducerLostError)
