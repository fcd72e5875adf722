"""Kafka doesn't take what it is given: a transaction takes too long, topics are gone or smaller, a broker freezes."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it is documented

from cdc.kafka import topic_settings
from cdc.kafka.clients import time_outs
from tests.live.scene import Scene
from tests.live.stream import parse
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

MODES = ["exactly_once", "at_least_once"]


def delete_topics(scene: Scene, *names: str) -> AdminClient:
    """Delete topics and wait until no broker knows them; the client that did it."""
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    for answer in admin.delete_topics(list(names)).values():
        answer.result()
    wait_for("the topics are gone", lambda: not set(names) & admin.list_topics(timeout=10).topics.keys())
    return admin


@pytest.mark.one_of_these("Kafka refuses")
def test_a_transaction_that_takes_longer_than_kafka_allows(frail_scene: Scene) -> None:
    scene = frail_scene
    kafka = scene.daemon.settings["kafka"]
    # The producer waits half a second whenever it has 2,000 messages: 12,000 take three.
    slow = {"queue.buffering.max.messages": 2_000, "linger.ms": 500}
    kafka["properties"] |= {"transaction.timeout.ms": 1_000, **slow}
    scene.daemon.settings["source"]["transaction_bytes_max"] = 64 * 1024
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    count = 12_000
    scene.tarantool.eval(
        f"box.begin() for id = 1, {count} do box.space.things:insert{{id, string.rep('x', 200)}} end box.commit()"
    )
    errors: set[str] = set()

    def has_ended() -> bool:
        status = scene.daemon.status()
        if status is not None and status["error"]:
            errors.add(status["error"])
            aborts.append(status["kafka"]["aborts"])
        return scene.daemon.run.exit_status() is not None

    aborts: list[int] = []
    wait_for("the daemon gives up", has_ended, 90)
    log = scene.daemon.run.log_text()
    assert scene.daemon.run.exit_status() == 1
    assert "trying once more" in log
    last = scene.daemon.run.log_tail(1)
    assert last.startswith("tarantool-cdc: a source transaction took longer to publish than a Kafka transaction may be open"), (
        last
    )
    assert "events of it (" in last
    assert "transaction.max.timeout.ms" in last
    assert "Two daemons" not in log
    assert any("took longer to publish" in error for error in errors), errors
    assert max(aborts) >= 1
    # The remedy that it names.
    kafka["properties"]["transaction.timeout.ms"] = 120_000
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    assert len([event for event in scene.check().events if event.op == "c"]) == count


@pytest.mark.one_of_these
@pytest.mark.parametrize("mode", MODES)
def test_a_topic_is_made_anew_with_fewer_partitions(scene: Scene, mode: str) -> None:
    kafka: dict[str, Any] = scene.daemon.settings["kafka"]
    kafka |= {"delivery": mode, "partitions": 6}
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval("for id = 1, 20 do box.space.things:insert{id} end")
    scene.daemon.start()
    scene.catch_up()
    topic = f"{scene.prefix}.things"
    admin = delete_topics(scene, topic)
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result()
    scene.tarantool.eval("for id = 101, 150 do box.space.things:insert{id} end")
    scene.catch_up()
    status = scene.daemon.wait_until("no trouble is left", lambda status: status["error"] is None)
    assert scene.daemon.terminate() == 0
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        events = [event for event in parse(reader, may_repeat=True).events if event.op == "c"]
    counts = Counter(event.value["after"]["field_1"] for event in events)
    assert sorted(counts) == list(range(101, 151))
    assert max(counts.values()) <= (1 if mode == "exactly_once" else 3), status["kafka"]


@pytest.mark.one_of_these
@pytest.mark.parametrize("mode", MODES)
def test_a_deleted_topic_is_made_again(scene: Scene, mode: str) -> None:
    scene.daemon.settings["kafka"]["delivery"] = mode
    # librdkafka's patience with a topic that it doesn't find.
    scene.daemon.settings["kafka"]["properties"]["topic.metadata.propagation.max.ms"] = 1_000
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval("for id = 1, 20 do box.space.things:insert{id} end")
    scene.daemon.start()
    scene.catch_up()
    delete_topics(scene, f"{scene.prefix}.things")
    scene.tarantool.eval("for id = 101, 150 do box.space.things:insert{id} end")
    scene.catch_up()
    log = scene.daemon.run.log_text()
    assert "Two daemons" not in log
    assert f"the topic {scene.prefix}.things was deleted and has been created again" in log
    assert "snapshot --config FILE things` sends its rows again" in log
    assert scene.daemon.terminate() == 0
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        events = [event for event in parse(reader, may_repeat=True).events if event.op == "c"]
    assert {event.value["after"]["field_1"] for event in events} == set(range(101, 151))


@pytest.mark.one_of_these("Kafka refuses")
def test_topics_deleted_under_an_idle_daemon(scene: Scene) -> None:
    """Nobody makes them again before there is something to write; then the daemon does, as it makes them."""
    scene.daemon.settings["kafka"]["partitions"] = 3
    scene.daemon.settings["kafka"]["properties"]["topic.metadata.propagation.max.ms"] = 1_000
    scene.tarantool.eval("box.schema.space.create('things'):create_index('primary')")
    scene.tarantool.eval("for id = 1, 20 do box.space.things:insert{id} end")
    scene.daemon.start()
    scene.catch_up()
    deleted = [f"{scene.prefix}.{name}" for name in ("things", "schema")]
    admin = delete_topics(scene, *deleted)
    # Longer than the producers' regular questions are apart, each of which could bring them back.
    refreshes = time.monotonic() + 3 * time_outs(1024)["topic.metadata.refresh.interval.ms"] / 1000
    while time.monotonic() < refreshes:
        scene.daemon.wait_until_streaming()
        assert not set(deleted) & admin.list_topics(timeout=10).topics.keys()
    scene.tarantool.eval("box.schema.space.create('others'):create_index('primary')")
    scene.tarantool.eval("for id = 101, 150 do box.space.things:insert{id} end")
    scene.catch_up()
    topics = admin.list_topics(timeout=10).topics
    assert [len(topics[topic].partitions) for topic in deleted] == [3, 1]
    settings = topic_settings.read(admin, deleted)
    assert [settings[topic]["cleanup.policy"].value for topic in deleted] == ["delete", "compact"]
    log = scene.daemon.run.log_text()
    assert f"the topic {scene.prefix}.things was deleted and has been created again" in log
    assert f"the topic {scene.prefix}.schema, which consumers need to read rows, was deleted" in log
    assert scene.daemon.terminate() == 0
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        forms = [value["source"]["table"] for value in parse(reader, may_repeat=True).control["schema"]]
    assert set(forms) == {"things", "others"}


def frozen_until_deliveries_fail(scene: Scene) -> dict[str, Any] | None:
    """Have Kafka stand still; the status once deliveries fail. None if none is under way: a daemon that has just committed sends
    nothing before it has seen that readers reach that.
    """
    commits = scene.daemon.wait_until_streaming()["kafka"]["commits"]
    before = scene.daemon.wait_until("rows flow", lambda status: status["kafka"]["commits"] > commits + 3)["kafka"]["aborts"]

    def has_failed(status: dict[str, Any]) -> bool:
        return status["kafka"]["aborts"] > before and status["error"] is not None

    scene.kafka.pause()
    try:
        status = scene.daemon.wait_until(
            "deliveries fail, or nothing is delivered", lambda status: has_failed(status) or status["state"] == "stalled"
        )
    finally:
        scene.kafka.resume()
    return status if has_failed(status) else None


@pytest.mark.one_of_these("Kafka refuses")
def test_at_least_once_outlives_a_freeze_that_messages_do_not(frail_scene: Scene) -> None:
    scene = frail_scene
    kafka: dict[str, Any] = scene.daemon.settings["kafka"]
    kafka["delivery"] = "at_least_once"
    kafka["properties"] |= {"message.timeout.ms": 6_000}
    scene.workload.create(300)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.workload.start(pause=0.01, rows_max=300)
    status = next(filter(None, (frozen_until_deliveries_fail(scene) for _ in range(5))))
    commits = status["kafka"]["commits"]
    scene.daemon.wait_until("it goes on", lambda status: status["kafka"]["commits"] > commits + 3 and status["error"] is None)
    scene.workload.stop()
    scene.catch_up()
    aborts = scene.daemon.wait_until_streaming()["kafka"]["aborts"]
    assert aborts < 20
    assert scene.daemon.terminate() == 0
    assert max(scene.check_as_promised().values()) < 20
