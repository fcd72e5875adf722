"""What the producers' settings allow; no broker is needed to be told no."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError

from cdc.config import TRANSACTION_TIMEOUT_MAX_MS, KafkaSection
from cdc.errors import ConfigurationError
from cdc.kafka.broker_limits import BrokerLimits
from cdc.kafka.checkpoint_tail import CheckpointTail
from cdc.kafka.clients import ANSWER_TIMEOUT_MS, KafkaClients, _trouble, queue_kbytes, time_outs
from cdc.kafka.sign_of_life import observe
from tests.fakes.secrets import told

NOBODY = "127.0.0.1:1"


def clients(message_bytes_max: int = 32 * 1024 * 1024, **properties: int) -> KafkaClients:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaClients(
        "x", KafkaSection(bootstrap_servers=NOBODY, topic_prefix="x", message_bytes_max=message_bytes_max, properties=dict(named))
    )


@pytest.mark.parametrize("size", [1024, 65 * 1024 * 1024, 100_000_001])
def test_the_queue_takes_the_largest_message(size: int) -> None:
    producer = clients(size).idempotent(lambda _: None, lambda *_: None)
    producer.produce("x.things", b"x" * (size - 100), b"key")
    assert len(producer)
    producer.purge()


def test_the_queue_is_no_larger_than_it_must_be() -> None:
    assert queue_kbytes(32 * 1024 * 1024) == 64 * 1024
    assert queue_kbytes(1_000_000_000) == 976_563


def test_a_transaction_may_be_open_for_as_long_as_the_brokers_allow() -> None:
    assert clients().transaction_timeout_ms(BrokerLimits(1_200_000)) == 1_200_000
    assert clients().transaction_timeout_ms(BrokerLimits()) == 900_000
    assert clients(transaction_timeout_ms=5_000).transaction_timeout_ms(BrokerLimits(1_200_000)) == 5_000


@pytest.mark.parametrize("timeout_ms", [1_000, 15_000, 900_000, TRANSACTION_TIMEOUT_MAX_MS])
def test_every_time_that_a_transaction_may_have_makes_a_producer(timeout_ms: int) -> None:
    clients().transactional(lambda _: None, timeout_ms).purge()


def test_the_larger_a_message_may_be_the_longer_may_its_answer_take() -> None:
    assert time_outs(1024)["socket.timeout.ms"] == ANSWER_TIMEOUT_MS <= time_outs(32 * 1024 * 1024)["socket.timeout.ms"] < 4_200
    assert time_outs(1_000_000_000)["socket.timeout.ms"] > 100_000


def test_a_silent_broker_is_given_up_as_soon_as_the_documents_say() -> None:
    """The table of docs/operations.md is what all clients have; `request.timeout.ms` is the producer's alone."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    rows = re.findall(r"^  \| (`[^|]*`) \| [^|]* \| (\d+) s \| [^|]+\|$", text, re.MULTILINE)
    documented = {name: int(seconds) * 1000 for names, seconds in rows for name in re.findall(r"`([a-z.]+)`", names)}
    settings = clients(1024)._settings(lambda _: None)
    assert documented == {**time_outs(1024), "request.timeout.ms": 4_000}
    assert documented.items() <= settings.items()
    assert time_outs(1024).items() <= clients(1024)._common().items()


def test_properties_override_the_time_outs() -> None:
    assert clients(socket_timeout_ms=30_000)._common()["socket.timeout.ms"] == 30_000


MARK = "hunter2"
SECRET = f"{MARK}\t and more"
"""In whatever property it stands."""
WRONG: list[dict[str, str | int]] = [
    {"security.protocol": SECRET},
    {"security.protocol": MARK},
    {"sasl.pasword": SECRET},
    {"compression.type": SECRET},
    {"debug": SECRET},
    {"linger.ms": SECRET},
    {"socket.timeout.ms": SECRET},
    {"plugin.library.paths": SECRET},
    {"security.protocol": "ssl", "ssl.key.pem": SECRET},
    {"security.protocol": "ssl", "ssl.key.location": f"/nowhere/{SECRET}"},
    {"security.protocol": "ssl", "ssl.keystore.location": f"/nowhere/{SECRET}", "ssl.keystore.password": SECRET},
    {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": SECRET},
    {"error_cb": SECRET},
    {"stats_cb": SECRET},
    {"default.topic.config": SECRET},
]


@pytest.mark.parametrize("properties", WRONG, ids=",".join)
def test_properties_that_are_not_taken_are_named_without_their_values(properties: dict[str, str | int]) -> None:
    made = KafkaClients("x", KafkaSection(bootstrap_servers=NOBODY, topic_prefix="x", properties=dict(properties)))
    ways: list[Callable[[], object]] = [
        made.admin,
        made.best_effort_producer,
        lambda: made.prober(1000),
        lambda: made.consumer("read_committed"),
        lambda: made.transactional(lambda _: None, 1000),
        lambda: made.idempotent(lambda _: None, lambda *_: None),
    ]
    texts: list[list[str]] = []
    for way in ways:
        try:
            way()
        except ConfigurationError as error:
            texts.append(list(told(error)))
    assert texts, "none of the clients minds"
    assert all("kafka.properties" in first for first, *_ in texts)
    assert not [text for found in texts for text in found if MARK in text]


def test_no_client_has_a_broker_make_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted topic is made again by the daemon alone, with its own settings."""
    settings: list[dict[str, object]] = []

    def made(_: object, given: dict[str, object], **__: object) -> None:
        settings.append(given)

    monkeypatch.setattr(KafkaClients, "_made", lambda _, *given, **named: made(*given, **named))
    some = clients()
    some.admin(), some.prober(1000), some.consumer("read_committed"), some.best_effort_producer()
    some.transactional(lambda _: None, 1000), some.idempotent(lambda _: None, lambda *_: None)
    assert [given["allow.auto.create.topics"] for given in settings] == [False] * 6


def test_who_waits_for_hours_asks_a_broker_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Mock] = []

    def make(_: object, __: object, given: dict[str, Any], *___: object, **____: object) -> Mock:
        made.append(Mock(settings=given))
        return made[-1]

    monkeypatch.setattr(KafkaClients, "_made", make)
    CheckpointTail(clients(), "shop.checkpoint", "shop")
    observe(clients(), "shop.checkpoint", "shop", lambda: True, Mock())
    assert [each.settings["fetch.wait.max.ms"] >= 100 for each in made] == [True, True]


@pytest.mark.parametrize("end", ["after 0ms in state CONNECT", "after 12ms in state CONNECT, 1 identical error(s) suppressed"])
def test_a_complaint_is_told_without_what_only_librdkafka_wants_to_know(end: str) -> None:
    said = f"Connect to ipv4#127.0.0.1:9092 failed: Connection refused ({end})"
    assert _trouble("127.0.0.1:9092", said, KafkaError._TRANSPORT) == "Connect to 127.0.0.1:9092 failed: Connection refused"
