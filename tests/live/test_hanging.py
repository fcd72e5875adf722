"""What another producer keeps open in the daemon's topics is waited for, visibly; which partitions that are is found out."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is documented

from cdc.config import KafkaSection
from cdc.events import topics
from cdc.kafka import hanging
from cdc.kafka.clients import KafkaClients
from tests.live.scene import Scene


@pytest.mark.one_of_these("transactions of others")
def test_another_producers_transaction_in_the_checkpoint_topic(scene: Scene) -> None:
    scene.workload.create(100)
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end() == 0
    checkpoint = f"{scene.prefix}.checkpoint"
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    assert not hanging.open_partitions(admin, {checkpoint: 1})[0]
    assert not hanging.still_open(admin, {checkpoint: 1}, 0)
    stranger = Producer({"bootstrap.servers": scene.kafka.bootstrap_servers, "transactional.id": f"{scene.prefix}-stranger"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(checkpoint, b'{"name":"stranger"}', b'{"name":"stranger"}')
    stranger.flush(30)
    open_, closed = hanging.open_partitions(admin, {checkpoint: 1})
    assert set(open_) == set(hanging.still_open(admin, {checkpoint: 1}, 0)) == {(checkpoint, 0)}
    assert not closed
    scene.run_workload()
    scene.daemon.start()
    scene.daemon.wait_until(
        "it says whom it waits for", lambda status: "another producer's transaction is open" in (status["error"] or "")
    )
    stranger.abort_transaction(30)
    scene.daemon.wait_until_streaming()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check()


def test_the_newest_event_that_can_be_read(scene: Scene) -> None:
    scene.workload.create(300)
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end() == 0
    config = KafkaSection(bootstrap_servers=scene.kafka.bootstrap_servers, topic_prefix=scene.prefix)
    clients = KafkaClients("x", config)
    stream = scene.check()
    places = {
        place: records[-1].offset + 2 for place, records in stream.records.items() if records and "checkpoint" not in place[0]
    }
    assert hanging.newest_seq(clients.consumer("read_committed"), hanging.Whose(scene.prefix), places) == max(
        event.seq for event in stream.events
    )
    assert hanging.newest_seq(clients.consumer("read_committed"), hanging.Whose("another"), places) == 0
    # Of all partitions of rows only the last message hasn't expired: the newest event isn't passed over with what has.
    places = {place: end for place, end in places.items() if place[0].removeprefix(f"{scene.prefix}.") not in topics.CONTROL}
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(*place, end - 2) for place, end in places.items()]).values():
        answer.result()
    assert hanging.newest_seq(clients.consumer("read_committed"), hanging.Whose(scene.prefix), places) == max(
        event.seq for event in stream.events
    )


@pytest.mark.one_of_these("transactions of others")
@pytest.mark.parametrize("mode", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.soak)])
def test_topics_of_others_under_the_same_prefix(scene: Scene, mode: str) -> None:
    """Their messages may be anything, and a transaction may be open in them: it is nobody's business here."""
    scene.daemon.settings["kafka"]["delivery"] = mode
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": scene.kafka.bootstrap_servers}
    admin = AdminClient(servers)
    names = [f"{scene.prefix}.{name}" for name in ("foreign", "eu.users")]
    for answer in admin.create_topics([NewTopic(name, num_partitions=2) for name in names]).values():
        answer.result()
    plain = Producer(servers)
    for value in (b"\xff no JSON", b"null", b'["source"]', b'{"source":7}', b'{"source":{"name":"shop.eu","seq":9000}}', None):
        plain.produce(names[0], value, b"key", partition=0)
    assert plain.flush(30) == 0
    stranger = Producer({**servers, "transactional.id": f"{scene.prefix}-stranger"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(names[1], b"of an open transaction", b"key", partition=0)
    stranger.flush(30)
    scene.workload.create(100)
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end() == 0
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    assert scene.daemon.terminate() == 0
    assert "another producer's transaction" not in scene.daemon.run.log_text()
    open_, _ = hanging.open_partitions(admin, {names[1]: 2})
    assert set(open_) == {(names[1], 0)}, "it was ended, or never open"
    stranger.abort_transaction(30)
    written = hanging.open_partitions(admin, dict.fromkeys(names, 2))[1]
    assert written[names[1], 1] == 0, "something was written to another's topic"
