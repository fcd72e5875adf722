"""Signals that arrive while the daemon is killed again and again: each is carried out once, and notifications say so."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # they are documented

from tests.live.scene import Scene
from tests.live.stream import Stream, parse
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

FILL = """
for _, name in ipairs{'one', 'two'} do
    box.schema.space.create(name, {format = {{'id', 'unsigned'}, {'n', 'integer'}}}):create_index('primary')
    box.begin()
    for id = 1, ... do box.space[name]:insert{id, id} end
    box.commit()
end
"""
ROWS = 4_000
BAD = (b"{", b"7", json.dumps({"id": "bad", "type": "no"}).encode(), b"x" * 100_000)


class Sender:
    """Somebody who writes signals."""

    def __init__(self, scene: Scene) -> None:
        self._topic = f"{scene.prefix}.signal"
        self._prefix = scene.prefix
        self._producer = Producer({"bootstrap.servers": scene.kafka.bootstrap_servers, "log_level": 0})

    def send(self, value: bytes, key: str | None = None) -> None:
        self._producer.produce(self._topic, value, key or self._prefix)
        assert self._producer.flush(60) == 0

    def order(self, identity: str, type_: str, **data: Any) -> None:
        self.send(json.dumps({"id": identity, "type": type_, "data": data}).encode())

    def execute(self, identity: str, *collections: str, **more: Any) -> None:
        self.order(identity, "execute-snapshot", **{"data-collections": collections}, **more)


def with_topics(scene: Scene, **kafka: Any) -> None:
    scene.daemon.settings["kafka"] |= {"signal_topic": True, "notification_topic": True, **kafka}


def create_signal_topic(scene: Scene) -> None:
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    topic = f"{scene.prefix}.signal"
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(60)


def wait_until_read(scene: Scene) -> None:
    """Wait until the running daemon reads signals."""
    wait_for("signals are read", lambda: "signals are read" in scene.daemon.run.log_text())


def obeying(scene: Scene) -> Sender:
    """Start a daemon, wait until it reads signals, and return a sender of them."""
    with_topics(scene)
    scene.daemon.start()
    scene.catch_up()
    wait_until_read(scene)
    return Sender(scene)


def wait_until_done(scene: Scene, taken: int, skipped: int = 0) -> None:
    """Wait until this process has taken so many signals, and no request is open."""

    def is_done(status: dict[str, Any]) -> bool:
        counts = status["signals"]
        return counts["taken"] >= taken and counts["skipped"] >= skipped and status["snapshot_request"] is None

    scene.daemon.wait_until(f"{taken} signals", is_done)


def told(stream: Stream, type_: str) -> list[str]:
    return [value["id"] for value in stream.control["notification"] if value["type"] == type_]


def rows_by_request(stream: Stream) -> dict[str, list[tuple[str, str | None]]]:
    """The rows of each signal, by its id."""
    ids = {
        value["additional_data"]["snapshot_id"]: value["id"]
        for value in stream.control["notification"]
        if value["type"] == "STARTED"
    }
    found: dict[str, list[tuple[str, str | None]]] = {}
    for event in stream.events:
        if event.op == "r":
            found.setdefault(ids[event.source["snapshot_id"]], []).append((event.source["table"], event.key))
    return found


@pytest.mark.one_of_these("signals")
@pytest.mark.parametrize("delivery", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.soak)])
def test_signals_while_the_daemon_is_killed(scene: Scene, seed: int, delivery: str) -> None:
    chance, is_exact = random.Random(seed), delivery == "exactly_once"
    scene.tarantool.eval(FILL, ROWS)
    with_topics(scene, delivery=delivery)
    create_signal_topic(scene)
    sender = Sender(scene)
    sender.execute("before the first start", ".*")
    scene.daemon.start()
    scene.catch_up()
    wait_until_read(scene)
    expected, bad_count = {}, 0
    for kill in range(5):
        for number in range(2):
            spaces = chance.choice((["one"], ["two"], ["one", "two"]))
            expected[f"{kill}-{number}"] = spaces
            sender.execute(f"{kill}-{number}", *(f"{scene.prefix}.{name}" for name in spaces))
            if chance.random() < 0.7:
                sender.send(chance.choice(BAD))
                bad_count += 1
        scene.tarantool.eval("local id = ... box.space.one:update(id, {{'+', 2, 1}})", chance.randrange(1, ROWS))
        time.sleep(chance.random() * 0.7)  # the moment is random, so there is nothing to wait for
        scene.daemon.kill()
        if chance.random() < 0.5:
            sender.send(chance.choice(BAD), "another")
            bad_count += 1
        scene.daemon.start()
    scene.daemon.wait_until_streaming()
    wait_until_read(scene)
    sender.execute("last", "one", **{"additional-conditions": [{"data-collection": "one", "filter": "row.id <= 10"}]})
    wait_until_done(scene, 1)
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.check_as_promised()
    with TopicReader(scene.kafka.bootstrap_servers, scene.prefix) as reader:
        stream = parse(reader, may_repeat=not is_exact)
    completed, skipped = told(stream, "COMPLETED"), told(stream, "SKIPPED")
    if is_exact:
        assert (completed, len(skipped)) == (["snapshot-1", *expected, "last"], bad_count)
    assert list(dict.fromkeys(completed)) == ["snapshot-1", *expected, "last"]
    assert len(skipped) >= bad_count
    assert not told(stream, "ABORTED")
    rows = rows_by_request(stream)
    for identity, spaces in expected.items():
        counts = Counter(rows[identity])
        assert max(counts.values()) == 1 or not is_exact, f"rows of {identity} came twice"
        assert Counter(space for space, _ in counts) == dict.fromkeys(spaces, ROWS)
    assert len(set(rows["last"])) == 10


@pytest.mark.soak
def test_stopped_and_paused(scene: Scene) -> None:
    scene.tarantool.eval(FILL, ROWS)
    sender = obeying(scene)
    sender.order("p", "pause-snapshot")
    sender.execute("a", "one", "two")
    sender.order("p", "pause-snapshot")
    scene.daemon.wait_until("the pause", lambda status: (status["snapshot_request"] or {}).get("paused"))
    scene.daemon.restart_killed()
    scene.daemon.wait_until("the pause", lambda status: (status["snapshot_request"] or {}).get("paused"))
    wait_until_read(scene)
    sender.order("s", "stop-snapshot", **{"data-collections": ["two"]})
    sender.order("r", "resume-snapshot")
    sender.order("l", "log", message="here at {}")
    wait_until_done(scene, 3)
    assert "here at {1: " in scene.daemon.run.log_text()
    assert scene.daemon.terminate() == 0
    stream = scene.check()
    assert told(stream, "COMPLETED") == ["snapshot-1", "a"]
    assert told(stream, "PAUSED") == ["a"]
    assert Counter(space for space, _ in rows_by_request(stream)["a"])["one"] == ROWS


@pytest.mark.one_of_these("signals")
def test_a_topic_that_is_made_anew(scene: Scene) -> None:
    scene.tarantool.eval(FILL, 10)
    sender = obeying(scene)
    sender.execute("a", "one")
    wait_until_done(scene, 1)
    topic = f"{scene.prefix}.signal"
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(60)
    wait_for("the topic again", lambda: "was made anew" in scene.daemon.run.log_text())
    wait_for("signals are read", lambda: scene.daemon.run.log_text().count("signals are read") == 2)
    Sender(scene).execute("b", "two")
    wait_until_done(scene, 2)
    assert scene.daemon.terminate() == 0
    assert told(scene.check(), "COMPLETED") == ["snapshot-1", "a", "b"]
