"""Real brokers leave a commit out of partitions that have no leader in its instant, and the publisher makes up for it."""

from __future__ import annotations

import contextlib
import threading
import uuid

import pytest
from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it is documented
from confluent_kafka.cimpl import TopicPartition

from cdc.config import KafkaSection
from cdc.kafka import hanging, readability
from cdc.kafka.clients import KafkaClients
from cdc.kafka.delivery import ExactlyOnce
from cdc.kafka.publisher import Publisher
from cdc.local.kafka_cluster import KafkaCluster
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batch import Batch
from cdc.stream.checkpoint import Writer
from tests.live.waiting import wait_for


def test_readers_reach_what_was_committed_while_a_partition_had_no_leader(
    kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only broker dies between the last message and the commit, and comes back during the orderly end."""
    monkeypatch.setattr(readability, "END_SECONDS", 240.0)  # a broker's start on a machine under load
    kafka_cluster.start()
    name = f"shown-{uuid.uuid4().hex[:12]}"
    topic = f"{name}.things"
    config = KafkaSection(
        bootstrap_servers=kafka_cluster.bootstrap_servers,
        topic_prefix=name,
        replication_factor=3,
        commit_interval_ms=60_000,
        commit_pause_ms=60_000,
        properties={"transaction.timeout.ms": 600_000},
    )
    admin = KafkaClients(name, config).admin()
    publisher = Publisher(name, config, Writer("writer", has_store=False))
    publisher.start()
    commits_before = publisher.statistics.commit_count
    coordinator = kafka_cluster.transaction_coordinator(name)
    node = next(node for node in kafka_cluster.nodes.values() if node is not coordinator)
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[node.node_id]])])[topic].result(60)
    value = b'{"source":{"name":"%s","seq":1}}' % name.encode()
    publisher.submit(Batch([(topic, b"key", value)], 10, 1, 1, Position(VClock({1: 1}), 1), True, {}, [topic], 1.0))
    place = TopicPartition(topic, 0)

    def is_written() -> bool:
        latest = {place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        with contextlib.suppress(KafkaException):  # the new partition has no leader yet
            ends = admin.list_offsets(latest, isolation_level=IsolationLevel.READ_UNCOMMITTED)
            return bool(ends[place].result(60).offset == 1)
        return False

    def has_no_leader() -> bool:
        with contextlib.suppress(KeyError):
            kafka_cluster.leader(topic)
            return False
        return True

    wait_for("the message is written", is_written)
    delivery = publisher._delivery
    assert isinstance(delivery, ExactlyOnce)
    # Not the length alone: a broker's complaint that nobody has fetched counts, too.
    wait_for("the client has been told", lambda: delivery._producer.flush(0.1) == 0)
    node.kill()
    try:
        wait_for("nobody leads the partition", has_no_leader)
        ended: list[bool] = []
        end = threading.Thread(target=lambda: ended.append(publisher.stop(300)), daemon=True)
        end.start()
        wait_for("the commit has come through", lambda: publisher.statistics.commit_count > commits_before)
    finally:
        node.start()
    end.join(300)
    assert (ended, publisher.unreadable, publisher.open_seconds) == ([True], None, None)
    open_, closed = hanging.open_partitions(KafkaClients(name, config).admin(), {topic: 1, f"{name}.checkpoint": 1})
    assert (open_, closed[topic, 0] > 1) == ({}, True)
