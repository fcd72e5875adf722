"""What becomes of topics while the daemon runs: partitions are added, and a thousand spaces want theirs at once."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are documented
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from tests.conftest import KafkaFactory
from tests.live.conftest import SceneFactory
from tests.live.scene import Scene
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for


def test_a_truncation_reaches_partitions_that_were_added(scene: Scene) -> None:
    scene.daemon.settings["kafka"]["partitions"] = 2
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval("for id = 1, 20 do box.space.things:insert{id} end")
    scene.daemon.start()
    scene.catch_up()
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    topic = f"{scene.prefix}.things"
    (answer,) = admin.create_partitions([NewPartitions(topic, 6)]).values()
    answer.result()
    wait_for("six partitions", lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 6)
    scene.tarantool.eval("box.space.things:truncate()")
    scene.tarantool.eval("for id = 1, 60 do box.space.things:insert{id} end")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix, only="things") as reader:
        reader.look_at_rest()
    ops = {
        number: "".join(json.loads(record.value or b"")["op"] for record in reader.records[topic, number]) for number in range(6)
    }
    for number, all_ops in ops.items():
        # One truncation; the first key after it was placed among six partitions, not among the two that there were.
        before, truncation, after = all_ops.partition("t")
        assert truncation, (ops, scene.daemon.troubles())
        assert set(after) == {"c"}, ops
        assert bool(before) == (number < 2), ops


def test_a_compacted_topic_takes_no_truncation_until_it_is_not_compacted(scene: Scene) -> None:
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval("for id = 1, 20 do box.space.things:insert{id} end")
    scene.daemon.start()
    scene.catch_up()
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    topic = f"{scene.prefix}.things"
    set_cleanup_policy(admin, topic, "compact")
    scene.tarantool.eval("box.space.things:truncate() box.space.things:insert{21}")
    assert scene.daemon.wait_for_end() == 1
    assert "set cleanup.policy=delete on it" in scene.daemon.run.log_tail(1)
    set_cleanup_policy(admin, topic, "delete")
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert [event.op for event in scene.check().events][-2:] == ["t", "c"]


def set_cleanup_policy(admin: AdminClient, topic: str, policy: str) -> None:
    """Set it, and wait until it is so."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    wait_for(policy, lambda: admin.describe_configs([asked])[asked].result()["cleanup.policy"].value == policy)


@pytest.mark.parametrize(
    "count", [pytest.param(150, id="short"), pytest.param(1_500, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_many_spaces_want_their_topics_at_once(scene_factory: SceneFactory, kafka_factory: KafkaFactory, count: int) -> None:
    scene = scene_factory(kafka_factory())
    scene.daemon.settings["kafka"]["partitions"] = 1
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 60_000
    make = "for n = %d, %d do local s = box.schema.space.create('space_' .. n) s:create_index('primary') s:insert{n} end"
    scene.tarantool.eval(make % (1, count))
    scene.daemon.start()
    scene.daemon.wait_until_streaming(600)
    # Then some more, in one transaction's time.
    scene.tarantool.eval(make % (count + 1, count + 20))
    scene.catch_up(600)
    status = scene.daemon.status()
    assert status is not None
    assert status["kafka"]["aborts"] == 0
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    assert len([event for event in stream.events if event.op in "rc"]) == count + 20
    assert len({event.place for event in stream.events}) == count + 20
