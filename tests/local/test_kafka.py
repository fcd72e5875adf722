"""The Kafka that tests start, stop, kill and pause: transactions, address, data and properties stay."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its annotations don't re-export these
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from cdc.local.errors import LocalServerError, PortTakenError
from cdc.local.interface import KafkaServer
from cdc.local.kafka import Kafka
from cdc.local.servers import ServerKind, server_kind
from tests.conftest import KafkaFactory


def commit(kafka: KafkaServer, topic: str, *values: bytes, timeout_seconds: float = 60) -> None:
    """Write these values in one transaction."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"test-{topic}", "log_level": 0})
    producer.init_transactions(timeout_seconds)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(timeout_seconds)


def outcome_of_writing(kafka: KafkaServer, topic: str) -> int | None:
    """The error code of one message's delivery, None if it was delivered."""
    codes: list[int | None] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "topic.metadata.propagation.max.ms": 1000})
    producer.produce(topic, b"value", on_delivery=lambda error, _: codes.append(None if error is None else error.code()))
    assert producer.flush(60) == 0
    (code,) = codes
    return code


def committed(kafka: KafkaServer, topic: str, count: int) -> list[bytes]:
    """Read until there are `count` committed values; an empty poll of a minute ends it with fewer."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    try:
        while len(values) < count and (message := consumer.poll(60)) is not None:
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def test_transactions_are_read_once_they_are_committed(kafka: KafkaServer) -> None:
    topic = f"transactions-{uuid.uuid4().hex}"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction(60)
    assert committed(kafka, topic, 1) == [b"committed"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_stops_kills_and_pauses_keep_address_and_data(kafka_factory: KafkaFactory) -> None:
    kafka = kafka_factory()
    address = kafka.bootstrap_servers
    commit(kafka, "kept", b"one")
    kafka.restart()
    commit(kafka, "kept", b"two")
    kafka.kill()
    assert not kafka.is_running
    kafka.start()
    commit(kafka, "kept", b"three")
    kafka.pause()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=0.5)
    kafka.resume()
    assert kafka.bootstrap_servers == address
    assert committed(kafka, "kept", 3) == [b"one", b"two", b"three"]


def test_properties_reach_the_broker_and_may_forbid_topics(kafka_factory: KafkaFactory) -> None:
    kafka = kafka_factory(
        {
            "auto.create.topics.enable": "false",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    refused = AclBinding(
        ResourceType.TOPIC,
        "forbidden",
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for outcome in admin.create_acls([refused]).values():
        outcome.result(60)
    for created in admin.create_topics([NewTopic("forbidden", 1, 1), NewTopic("allowed", 1, 1)]).values():
        created.result(60)
    assert outcome_of_writing(kafka, "allowed") is None
    assert outcome_of_writing(kafka, "forbidden") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert outcome_of_writing(kafka, "missing") == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.skipif(server_kind() is not ServerKind.PROCESS, reason="containers are chosen")
def test_a_port_in_use_is_an_error_if_it_was_asked_for(kafka: KafkaServer, tmp_path: Path) -> None:
    other = Kafka(tmp_path, port=int(kafka.bootstrap_servers.rpartition(":")[2]), heap="256m")
    with pytest.raises(PortTakenError, match="Address already in use"):
        other.start()
    assert not other.is_running


@pytest.mark.skipif(server_kind() is not ServerKind.PROCESS, reason="containers are chosen")
@pytest.mark.live
def test_one_that_cannot_start_shows_why(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"log\.retention\.hours"):
        Kafka(tmp_path, {"log.retention.hours": "nonsense"}).start()
