"""Kafka loses what it had committed: the newest checkpoints, the forms, or everything. No seq comes twice."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are documented
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from tests.live import replica
from tests.live.scene import Scene
from tests.live.stream import Stream, parse
from tests.live.test_operators import complaint
from tests.live.test_refusals import delete_topics
from tests.live.test_slips import caught_up
from tests.live.test_state import command
from tests.live.topics import Record, TopicReader

THINGS = """
box.schema.space.create('things', {format = {{'id', 'unsigned'}, {'value', 'string'}}}):create_index('primary')
box.schema.space.create('others'):create_index('primary')
for id = 1, 20 do box.space.things:insert{id, 'first'} end
box.space.others:insert{1}
"""
LATER = """
for id = 1, 20 do box.space.things:update(id, {{'=', 2, 'second'}}) end
for id = 21, 60 do box.space.things:insert{id, 'new'} end
"""
WHILE_NOBODY_RUNS = """
for id = 21, 60 do box.space.things:delete(id) end
for id = 1, 20 do box.space.things:update(id, {{'=', 2, 'last'}}) end
"""


def records(scene: Scene, topic: str) -> list[Record]:
    """All records of one topic, in order."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        return [record for record in reader.below(reader.look_at_rest()) if record.topic == f"{scene.prefix}.{topic}"]


def position_record(scene: Scene) -> Record:
    """The newest checkpoint."""
    key = json.dumps({"name": scene.daemon.name}, separators=(",", ":")).encode()
    return next(record for record in reversed(records(scene, "checkpoint")) if record.key == key)


def throw_back(scene: Scene, to: Record) -> None:
    """The checkpoint topic ends with an older record, as after an unclean election."""
    producer = Producer({"bootstrap.servers": scene.kafka.bootstrap_servers})
    producer.produce(to.topic, to.value, to.key)
    assert producer.flush(20) == 0


def check_consumers(scene: Scene) -> Stream:
    """Each seq is there once, and a consumer that orders by it ends with the master's rows."""
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader)
    seqs = [event.seq for event in stream.events]
    assert len(seqs) == len(set(seqs))
    assert sum(replica.compare(replica.fold(stream), scene.tarantool).values())
    return stream


@pytest.mark.one_of_these
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("images", ["full", "none"])
def test_newest_checkpoints_that_are_lost(scene: Scene, images: str, delivery: str) -> None:
    scene.daemon.settings["state"]["images"] = images
    scene.daemon.settings["kafka"]["delivery"] = delivery
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    old = position_record(scene)
    scene.tarantool.eval(LATER)
    caught_up(scene.daemon)
    newest = json.loads(position_record(scene).value or b"")["seq"]
    scene.tarantool.eval(WHILE_NOBODY_RUNS)
    throw_back(scene, old)
    checked = command(scene.daemon, "check")
    assert checked.returncode == 0
    assert "would take a snapshot: Kafka has lost the newest checkpoints: the last one left is at seq 21, and " in checked.stdout
    caught_up(scene.daemon)
    stream = check_consumers(scene)
    new = [event for event in stream.events if event.seq > newest]
    assert {event.op for event in new} == {"r"}
    assert min(event.seq for event in new) == newest + 1, "nothing is left out after an orderly stop"
    (completed,) = [json.loads(record.value or b"") for record in records(scene, "snapshot")][-1:]
    assert {space["sweep_seq"] for space in completed["spaces"]} == {newest}
    # It is healed: the next one goes on as ever.
    scene.tarantool.eval("box.space.things:delete(1)")
    caught_up(scene.daemon)
    assert [event.op for event in check_consumers(scene).events][len(stream.events) :] == ["d"]
    if images == "full":
        assert command(scene.daemon, "verify").returncode == 0


@pytest.mark.parametrize("images", ["full", pytest.param("none", marks=pytest.mark.soak)])
def test_a_kafka_without_all_that_it_had(scene: Scene, images: str) -> None:
    """Or another one: it isn't filled, and the store isn't emptied for it, before somebody says so."""
    scene.daemon.settings["state"]["images"] = images
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    scene.tarantool.eval(LATER)
    caught_up(scene.daemon)
    newest = json.loads(position_record(scene).value or b"")["seq"]
    topics = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers}).list_topics(timeout=10).topics
    delete_topics(scene, *(topic for topic in topics if topic.startswith(f"{scene.prefix}.")))
    scene.tarantool.eval(WHILE_NOBODY_RUNS)
    said = complaint(scene.daemon)
    assert f"up to seq {newest}: this is another Kafka, or it has lost its topics" in said
    checked = command(scene.daemon, "check")
    assert checked.returncode == 1
    assert f"up to seq {newest}: this is another Kafka, or it has lost its topics" in checked.stdout
    caught_up(scene.daemon, "--rebuild-state")
    stream = check_consumers(scene)
    assert [event.seq for event in stream.events] == list(range(newest + 1, newest + 22))
    assert {event.source["snapshot_id"] for event in stream.events} == {"2"}
    versions = [json.loads(record.value or b"")["source"]["schema_version"] for record in records(scene, "schema")]
    assert min(versions) == 3, "the first two are those of the forms that Kafka has lost"
    caught_up(scene.daemon)


@pytest.mark.one_of_these
@pytest.mark.parametrize("images", ["full", "none"])
def test_a_checkpoint_topic_that_lost_the_forms(scene: Scene, images: str) -> None:
    """Retention keeps the position, which is written all the time."""
    scene.daemon.settings["state"]["images"] = images
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    scene.tarantool.eval(LATER)
    caught_up(scene.daemon)
    last, servers = position_record(scene), scene.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    deleting = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, last.topic, incremental_configs=[deleting])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(20)
    forms = {record.key for record in records(scene, "checkpoint") if b"space_id" in (record.key or b"")}
    assert len(forms) > 2
    for answer in admin.delete_records([TopicPartition(last.topic, 0, last.offset)]).values():
        answer.result(20)
    scene.tarantool.eval(WHILE_NOBODY_RUNS)
    caught_up(scene.daemon)
    log = scene.daemon.run.log_text()
    if images == "full":
        assert f"the topic {last.topic} has lost the forms of {len(forms)} spaces, which are taken from the state store" in log
        assert "taking a snapshot" not in log
        assert command(scene.daemon, "verify").returncode == 0
    else:
        assert log.count("taking a snapshot") == 1
    check_consumers(scene)
    scene.tarantool.eval("box.space.others:delete(1)")
    caught_up(scene.daemon)
    check_consumers(scene)


def test_a_topic_that_somebody_has_deleted_and_created_again(scene: Scene) -> None:
    """It looks as ever, and consumers lack what was there."""
    scene.tarantool.eval(THINGS)
    caught_up(scene.daemon)
    topic = f"{scene.prefix}.things"
    admin = delete_topics(scene, topic)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
    said = f"{topic}: warning: it was deleted and created again since the daemon's last start or stop, and what was published"
    assert said in command(scene.daemon, "check").stdout
    caught_up(scene.daemon)
    assert f"the topic {topic} was deleted (noticed at" in scene.daemon.run.log_text()
    assert "snapshot --config FILE things` publishes the rows again" in scene.daemon.run.log_text()
    caught_up(scene.daemon)
    assert "was deleted" not in scene.daemon.run.log_text(), "its beginning is told of once"
    told = command(scene.daemon, "check").stdout
    assert f"the topic {topic} was deleted (noticed at" in told, "until it is made up for"
    assert "created again" not in told
