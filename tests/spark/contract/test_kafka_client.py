"""What Kafka's Java clients say of topics, with a real broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from py4j.java_gateway import GatewayClient
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import SparkSession

from cdc.local.interface import KafkaServer
from spark_jobs.contract.kafka_client import KafkaClient
from spark_jobs.contract.source import Topics
from tests.live.waiting import wait_for
from tests.spark.messages import put
from tests.spark.test_live import TIMEOUT_SECONDS, Daemon, daemon

__all__ = ["daemon"]
pytestmark = pytest.mark.spark


def create(kafka: KafkaServer, *names: str) -> None:
    """Create topics with three partitions."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 3, 1) for name in names]).values():
        created.result(TIMEOUT_SECONDS)


def test_ends_and_ids_are_those_of_the_topics_that_exist(spark: SparkSession, kafka: KafkaServer, daemon: Daemon) -> None:
    create(kafka, f"{daemon.prefix}.a-1", f"{daemon.prefix}x.users")
    daemon.send(put("c", {"id": 1}, 1))
    topics = Topics(kafka.bootstrap_servers, daemon.prefix)
    client = KafkaClient(spark, topics)
    asked = [topics.of_space(name) for name in ("users", "a-1", "none")]

    def found_ends() -> list[tuple[str, int]]:
        return [(topic, end) for (topic, _), end in client.ends(asked).items() if end]

    # A transaction's end marker is a record, too; Kafka writes it after the commit.
    wait_for("the marker", lambda: found_ends() == [(asked[0], 2)])
    ends = client.ends(asked)
    assert {place for place in ends if place[0] == asked[1]} == {(asked[1], partition) for partition in range(3)}
    assert ends.keys() == client.ends(asked[:2]).keys()
    assert client.ends([]) == {}
    assert sorted(client.of_spaces()) == sorted(asked[:2])
    assert client.names() >= {*asked[:2], f"{daemon.prefix}x.users"}
    found = client.identity(asked)
    assert found.cluster
    assert found.topics.keys() == set(asked[:2])
    assert len(set(found.topics.values())) == 2


def test_topics_cost_no_questions_to_java_again_and_again(
    spark: SparkSession, kafka: KafkaServer, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = KafkaClient(spark, Topics(kafka.bootstrap_servers, daemon.prefix))
    questions = 0
    send = GatewayClient.send_command

    def counted(gateway: GatewayClient, command: str, *given: Any, **named: Any) -> Any:
        nonlocal questions
        # Java forgets objects that Python has dropped at times that nobody chooses.
        questions += not command.startswith(MEMORY_COMMAND_NAME)
        return send(gateway, command, *given, **named)

    def asked(*, ids: bool = True) -> int:
        before = questions
        topics = client.of_spaces()
        client.ends(topics)
        if ids:
            client.identity(topics)
        return questions - before

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    asked()  # it connects
    before = asked()
    create(kafka, *(f"{daemon.prefix}{number}.users" for number in range(20)))
    assert len([name for name in client.names() if name.startswith(daemon.prefix)]) > 20
    assert asked() < before + 20
    # Nor do the job's own topics, in each batch, once they are known.
    before = asked(ids=False)
    spaces = [f"space{number}" for number in range(20)]
    chosen, own = client._topics.chosen, {f"{daemon.prefix}.{space}" for space in spaces}
    create(kafka, *own)
    while not client.names() >= own:
        pass  # the broker doesn't tell of new topics at once
    assert asked(ids=False) > before + 20
    assert asked(ids=False) == before
    assert chosen(spark, spaces) == spaces
    before = questions
    assert chosen(spark, spaces) == spaces
    assert questions == before
