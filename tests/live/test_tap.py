"""TAP clients beside a real daemon: what they have in the end is what the master has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.events import topics
from cdc.feeds.tap.wire import Opcode
from tests.feeds.tap.client import FUTURE, TapClient
from tests.live.scene import Scene
from tests.live.tap import TapProcess, decoded, expected_contents
from tests.live.test_state import command
from tests.live.waiting import wait_for


@pytest.fixture
def tap(scene: Scene) -> Iterator[TapProcess]:
    """A server that isn't started yet."""
    with TapProcess(scene) as process:
        yield process


@pytest.fixture
def elsewhere(scene: Scene) -> Iterator[TapProcess]:
    """A server as on another machine, that keeps rows itself; not started yet."""
    with TapProcess(scene, "elsewhere") as process:
        process.keep_rows()
        yield process


@pytest.mark.one_of_these("TAP")
def test_filled_and_followed(scene: Scene, tap: TapProcess, elsewhere: TapProcess) -> None:
    tap.process.is_forked = False  # one that has to import all that it uses by itself; the daemon's commands are typed elsewhere
    scene.workload.create(2_000)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    tap.start()
    elsewhere.start()
    with (
        tap.connect() as everything,
        tap.connect() as keys,
        tap.connect() as future,
        tap.connect() as half,
        elsewhere.connect() as another,
    ):
        everything.connect("everything").start()
        keys.connect("keys", is_keys_only=True).start()
        future.connect("future", since=FUTURE, has_acks=False).start()
        half.connect("half", vbuckets=list(range(0, 1024, 2))).start()
        another.connect("another").start()
        everything.wait_filled()
        assert len(everything.contents) >= 1_000
        scene.run_workload()
        scene.catch_up()
        expected = expected_contents(scene)
        wait_for("the master's contents", lambda: everything.contents.keys() == expected.keys())
        wait_for("the last values", lambda: decoded(everything.contents) == expected)
        wait_for("the same from a store of the server's own", lambda: decoded(another.contents) == expected)
        assert not everything.older_over_newer
        assert not another.older_over_newer
        wait_for("all keys to be told", lambda: keys.keys_told >= everything.contents.keys())
        assert keys.contents.keys() == expected.keys()
        assert not any(keys.contents.values())
        assert future.keys_told
        # A space that gets another name fills it, too, behind a FLUSH.
        new = {told.key for told in takewhile(lambda told: told.opcode != Opcode.TAP_FLUSH, future.told)}
        assert len(new) < len(everything.keys_told)
        assert half.contents.items() <= everything.contents.items()
        assert 0.4 < len(half.contents) / len(expected) < 0.6
    scene.check()


@pytest.mark.one_of_these("TAP")
@pytest.mark.parametrize(
    ("rounds", "keeps_rows"),
    [
        pytest.param(4, False, id="short"),
        pytest.param(30, False, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param(30, True, id="long, store of its own", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_clients_that_come_and_go_while_everything_is_killed(
    scene: Scene, tap: TapProcess, rounds: int, keeps_rows: bool, seed: int
) -> None:
    """Sessions last over connections, the server's death and the daemon's; nobody misses a change or gets an older value."""
    chance = random.Random(seed)
    if keeps_rows:
        tap.keep_rows()
    scene.workload.create(1_000)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    tap.start()
    names = ["all", "keys", "lagging"]
    clients = {name: _connected(tap, name, None) for name in names}
    scene.workload.start(pause=0.01, rows_max=300)
    for number in range(rounds):
        told = sum(len(client.told) for client in clients.values())
        wait_for("some changes", lambda: sum(len(client.told) for client in clients.values()) > told + 50)  # noqa: B023
        match number % 4:
            case 0:
                tap.process.kill()
                tap.start()
            case 1:
                scene.daemon.restart_killed()
            case 2:
                clients["lagging"].is_acknowledging = False
            case 3:
                assert tap.process.terminate() == 0
                tap.start()
        for name in names:
            if clients[name].is_closed or chance.random() < 0.5:
                clients[name].close()
                clients[name] = _connected(tap, name, clients[name])
    scene.daemon.wait_until_streaming()
    scene.workload.stop()
    scene.catch_up()
    for name in names:
        clients[name].close()
        clients[name] = _connected(tap, name, clients[name])
    expected = expected_contents(scene)
    for name in names:
        wait_for(f"{name}: all keys", lambda: clients[name].contents.keys() == expected.keys())  # noqa: B023
        assert not clients[name].older_over_newer
        clients[name].close()
    for name in ("all", "lagging"):
        assert decoded(clients[name].contents) == expected
    assert clients["keys"].keys_told >= clients["all"].keys_told & expected.keys()


@pytest.mark.one_of_these("TAP")
def test_from_a_store_of_its_own(scene: Scene, tap: TapProcess) -> None:
    """On a machine without the daemon's store: filled from the topics, through kills and expired topics."""
    tap.keep_rows()
    scene.workload.create(2_000)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    tap.start()
    scene.workload.start(pause=0.01, rows_max=300)
    for _ in range(3):
        assert len(tap.dumped().contents) >= 1_000
        tap.process.kill()
        tap.start()
    client = _connected(tap, "follower", None)
    client.wait_filled()
    told = len(client.told)
    wait_for("some changes", lambda: len(client.told) > told + 50)
    scene.workload.stop()
    scene.catch_up()
    expected = expected_contents(scene)
    wait_for("the follower's contents", lambda: decoded(client.contents) == expected)
    assert not client.older_over_newer
    # A view may be some seconds old.
    found = tap.dumped()
    while decoded(found.contents) != expected:
        found = tap.dumped()
    # A row has the number of its last change, whether it came as a row or as the change.
    assert all(found.cas[key] == client.cas[key] for key in expected)
    wait_for("what is gone to be removed", lambda: tap.status()["store"]["rows"] == len(expected))
    client.close()
    # What comes while it is away has expired by the time it is back: it says so, until all rows come once more.
    tap.process.kill()
    scene.run_workload()
    scene.catch_up()
    _expire(scene)
    scene.run_workload()
    scene.catch_up()
    tap.start()
    incomplete = wait_for("the gap to be noticed", lambda: tap.status()["store"]["incomplete"])
    asked = command(scene.daemon, "snapshot", *incomplete)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    wait_for("all rows", lambda: not tap.status()["store"]["incomplete"])
    # Of the other spaces nothing had been missed, so that their rows aren't on the topics any more.
    expected = _of_spaces(expected_contents(scene), incomplete)
    wait_for("a dump of all rows", lambda: _of_spaces(decoded(tap.dumped().contents), incomplete) == expected)


@pytest.mark.one_of_these("TAP")
def test_a_topic_that_is_made_again_by_hand(scene: Scene, tap: TapProcess) -> None:
    """The server's own store has what the topic had until it was away; what came then and is lost is said, and healed."""
    tap.keep_rows()
    scene.tarantool.eval("box.schema.space.create('made'):create_index('pk') for id = 1, 3 do box.space.made:replace{id} end")
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.catch_up()
    tap.start()
    assert tap.dumped().contents.keys() == {"made:1", "made:2", "made:3"}
    tap.process.kill()
    scene.tarantool.eval("box.space.made:replace{4} box.space.made:delete{1}")
    scene.catch_up()
    _make_again(scene, f"{scene.prefix}.made")
    scene.tarantool.eval("for id = 5, 20 do box.space.made:replace{id} end")
    scene.catch_up()
    tap.start()
    assert wait_for("the loss to be noticed", lambda: tap.status()["store"]["incomplete"]) == ["made"]
    asked = command(scene.daemon, "snapshot", "made")
    assert asked.returncode == 0, asked.stdout + asked.stderr
    wait_for("all rows", lambda: not tap.status()["store"]["incomplete"])
    assert tap.dumped().contents.keys() == {f"made:{number}" for number in range(2, 21)}


def _make_again(scene: Scene, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    count = len(admin.list_topics(timeout=30).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result()
    wait_for("the topic to be gone", lambda: topic not in admin.list_topics(timeout=30).topics)
    admin.create_topics([NewTopic(topic, count)])[topic].result()


def _of_spaces(contents: dict[str, Any], spaces: list[str]) -> dict[str, Any]:
    return {key: row for key, row in contents.items() if key.partition(":")[0] in spaces}


def _expire(scene: Scene) -> None:
    """Take from the spaces' topics all that they hold."""
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    found = admin.list_topics(timeout=30).topics
    control = {f"{scene.prefix}.{name}" for name in topics.CONTROL}
    places = [
        TopicPartition(name, number, OFFSET_END)
        for name, topic in found.items()
        if name.startswith(f"{scene.prefix}.") and name not in control
        for number in topic.partitions
    ]
    for answer in admin.delete_records(places).values():
        answer.result()


def _connected(tap: TapProcess, name: str, former: TapClient | None) -> TapClient:
    return tap.connect().connect(name, is_keys_only=name == "keys").start(former)
