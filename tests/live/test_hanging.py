"""What another producer keeps open in the daemon's topics is waited for, visibly; which partitions that are is found out."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from cdc import hanging
from cdc.config import KafkaSection
from cdc.kafka_clients import KafkaClients
from tests.live.scene import Scene


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
    assert hanging.newest_seq(clients.consumer("read_committed"), scene.prefix, places) == max(
        event.seq for event in stream.events
    )
    assert hanging.newest_seq(clients.consumer("read_committed"), "another", places) == 0
