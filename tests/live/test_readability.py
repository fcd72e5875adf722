"""Real brokers leave a commit out of partitions that have no leader in its instant, and the publisher makes up for it."""

from __future__ import annotations

import contextlib
import uuid

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # it is documented
from confluent_kafka.cimpl import TopicPartition

from cdc.config import KafkaSection
from cdc.errors import PublishAborted
from cdc.kafka import hanging
from cdc.kafka.clients import KafkaClients
from cdc.kafka.delivery import ExactlyOnce
from cdc.kafka.publisher import Publisher
from cdc.local.kafka_cluster import KafkaCluster
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.checkpoint import Writer
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for


def test_no_abort_takes_what_was_committed_while_a_partition_had_no_leader(kafka_cluster: KafkaCluster) -> None:
    """Its only broker dies between the last message and the commit, and what comes next has to be aborted."""
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
    wait_for("the start is seen", lambda: publisher._readability.is_seen)
    commits_before = publisher.statistics.commit_count
    coordinator = kafka_cluster.transaction_coordinator(name)
    node = next(node for node in kafka_cluster.nodes.values() if node is not coordinator)
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[node.node_id]])])[topic].result(60)
    values = [b'{"source":{"name":"%s","seq":%d}}' % (name.encode(), number) for number in (1, 2)]

    def batch(number: int, *, is_boundary: bool) -> Batch:
        message = (topic, b"key", values[number - 1])
        return Batch([message], 10, 1, 1, Position(VClock({1: number}), number), is_boundary, {}, [topic], 1.0)

    publisher.submit(batch(1, is_boundary=True))
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
    delivery = publisher._loop.delivery
    assert isinstance(delivery, ExactlyOnce)
    # Not the length alone: a broker's complaint that nobody has fetched counts, too.
    wait_for("the client has been told", lambda: delivery._producer.flush(0.1) == 0)
    node.kill()
    try:
        wait_for("nobody leads the partition", has_no_leader)
        # A part of a large transaction is published in a Kafka transaction of its own: what came before is committed.
        publisher.submit(batch(2, is_boundary=False))
        wait_for("the commit has come through", lambda: publisher.statistics.commit_count > commits_before)
    finally:
        node.start()
    wait_for("the part is written", lambda: publisher.statistics.event_count == 2 and delivery._producer.flush(0.1) == 0)
    publisher.abandon("the rest won't come")

    def is_aborted() -> bool:
        try:
            publisher.collect()
        except PublishAborted:
            return True
        return False

    wait_for("it is aborted", is_aborted)
    wait_for("the checkpoint can be read", lambda: publisher.reload() is not None)
    publisher.reset()
    publisher.submit(batch(2, is_boundary=True))
    assert publisher.stop(300)
    assert (publisher.unreadable, publisher.open_seconds) == (None, None)
    open_, _ = hanging.open_partitions(KafkaClients(name, config).admin(), {topic: 1, f"{name}.checkpoint": 1})
    assert not open_
    with TopicReader(kafka_cluster.bootstrap_servers, name) as reader:
        reader.look_at_rest()
        assert [record.value for record in reader.records[topic, 0] if record.value is not None] == values
