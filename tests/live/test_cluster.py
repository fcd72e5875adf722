"""The daemon and a replica set that changes under it: members that die, freeze, lag, lose their logs or become what they were.

Whatever happens, nothing is lost, doubled or out of order, and the topics make the members' contents.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from tests.live import replica
from tests.live.cluster import Cluster, only_processes
from tests.live.conftest import SceneFactory
from tests.live.scene import Scene
from tests.live.stream import Stream, parse
from tests.live.test_operators import complaint
from tests.live.waiting import wait_for

pytestmark = only_processes

_CREATE = """
local FORMAT = {{'member', 'unsigned'}, {'id', 'unsigned'}, {'word', 'string'}, {'n', 'unsigned'}}
for _, name in ipairs{'load', 'more'} do
    box.schema.space.create(name, {format = FORMAT}):create_index('primary', {parts = {1, 'unsigned', 2, 'unsigned'}})
end
"""

# Each member has keys of its own: two that write the same key would end up with different rows.
_LOAD = """
loading = true
local fiber = require('fiber')
for number = 1, 2 do
    fiber.create(function()
        local me, step = box.info.id, math.random(1000)
        while loading do
            step = step + 1
            local id, name = step * 7 % 40, step % 3 == 0 and 'more' or 'load'
            local space = box.space[name]
            if step % 11 == 0 then space:delete{me, id}
            elseif step % 5 == 0 then space:update({me, id}, {{'+', 'n', 1}})
            elseif step % 4 == 0 then space:upsert({me, id, 'upserted', 0}, {{'+', 'n', 10}})
            elseif step % 13 == 0 then
                box.begin()
                for offset = 0, 4 do box.space.load:replace{me, 100 + (id + offset) % 40, 'together', step} end
                box.space.more:replace{me, 100, 'together', step}
                box.commit()
            else space:replace{me, id, 'replaced', step} end
            fiber.sleep(0.003)
        end
    end)
end
"""


@pytest.fixture
def size() -> int:
    """How many members there are, where a test doesn't say otherwise."""
    return 2


@pytest.fixture
def cluster(tmp_path: Path, size: int) -> Iterator[Cluster]:
    """Members that all may write."""
    with Cluster(tmp_path / "cluster", size, replication_timeout=0.3) as started:
        started[0].eval(_CREATE)
        started.wait_until_equal()
        yield started


@pytest.fixture
def tarantool(cluster: Cluster) -> TarantoolServer:
    """Whose contents the topics have to make."""
    return cluster[0]


@pytest.fixture
def scene(scene_factory: SceneFactory, kafka: KafkaServer, cluster: Cluster) -> Scene:
    """A daemon that knows all members."""
    scene = scene_factory(kafka)
    scene.daemon.settings["source"] |= {"uris": cluster.uris, "ack_interval_ms": 100, "replication_timeout_ms": 400}
    scene.daemon.settings["kafka"]["partitions"] = 1
    return scene


def fill(cluster: Cluster, number: int = 0, count: int = 100) -> None:
    """Rows of one member's."""
    code = "for id = 1, ... do box.space.load:replace{box.info.id, id, 'row ' .. id, 0} end"
    cluster[number].eval(code, count)


def follow(scene: Scene) -> None:
    """Have the daemon follow, with everything published that there is."""
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.catch_up()


def finish(scene: Scene, cluster: Cluster) -> Stream:
    """Everything has come to rest, and the topics make what every member has."""
    for member in cluster.running:
        member.eval("loading = false")
    cluster.wait_until_equal()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.tarantool = cluster.running[0]
    stream = scene.check()
    made = replica.fold(stream, has_images=True)
    for member in cluster.running[1:]:
        replica.compare(made, member)
    return stream


def upstream(scene: Scene) -> str | None:
    """Whom the daemon follows now; None while it follows nobody."""
    status = scene.daemon.status()
    return status["upstream"]["address"] if status is not None and status["state"] == "streaming" else None


# Failing over.


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize(
    ("round_count", "kill_chance"),
    [
        pytest.param(4, 0.0, id="short"),
        pytest.param(50, 0.2, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_members_end_in_turn_while_all_of_them_write(
    scene: Scene, cluster: Cluster, round_count: int, kill_chance: float, seed: int
) -> None:
    """The one that is followed dies or freezes; the daemon goes on at another, or waits if only that one has what it has.

    At times it is killed as well: then the other's log has to lead from the store to the checkpoint.
    """
    chance = random.Random(seed)
    fill(cluster)
    follow(scene)
    for member in cluster:
        member.eval(_LOAD)
    moves = 0
    for _ in range(round_count):
        rows = scene.daemon.wait_until_streaming()["rows"]
        scene.daemon.wait_until("rows flow", lambda status: status["rows"] > rows + 100)  # noqa: B023
        address = scene.daemon.wait_until_streaming()["upstream"]["address"]
        member = cluster.at(address)
        is_paused = chance.random() < 0.4
        member.pause() if is_paused else member.kill()
        if chance.random() < kill_chance:
            scene.daemon.restart_killed()
        deadline = time.monotonic() + 3

        def has_moved() -> bool:
            # A member that ended with rows that only the daemon got from it is the only one to go on from.
            return upstream(scene) not in (address, None) or time.monotonic() > deadline  # noqa: B023

        wait_for("the daemon has left, or can't", has_moved)
        moves += upstream(scene) not in (address, None)
        if is_paused:
            member.resume()
        else:
            member.start()
            member.eval(_LOAD)
        cluster.wait_until_connected()
    assert moves >= round_count // 2, f"it moved {moves} times of {round_count}"
    stream = finish(scene, cluster)
    assert [record["status"] for record in stream.control["snapshot"]] == ["STARTED", "COMPLETED"], "all logs were there"


def test_read_only_member_that_outlives_the_writer(scene: Scene, cluster: Cluster) -> None:
    """A replica serves everything that it has, with its writer, while that is frozen, and when it is dead."""
    cluster.hand_over(0)
    fill(cluster)
    cluster.wait_until_equal()
    scene.daemon.settings["source"]["uris"] = cluster.uris[1:]
    scene.tarantool = cluster[1]
    follow(scene)
    cluster[0].eval("box.space.more:insert{1, 1, 'by way of the replica', 1}")
    wait_for("the replica has it", lambda: cluster[1].eval("return box.space.more:count()") == [1])
    scene.catch_up()
    cluster[0].pause()
    # Longer than anybody's patience with a silent peer.
    lost = "return box.info.replication[1].upstream.status ~= 'follow'"
    wait_for("the replica has given up on the writer", lambda: cluster[1].eval(lost) == [True])
    status = scene.daemon.status()
    assert status is not None
    assert (status["state"], status["upstream"]["reconnects"]) == ("streaming", 0)
    cluster[0].resume()
    cluster[0].eval("box.space.more:insert{1, 2, 'after the freeze', 1}")
    cluster.wait_until_connected()
    cluster.wait_until_equal()
    scene.catch_up()
    cluster[0].kill()
    cluster.hand_over(1)
    cluster[1].eval("box.space.more:insert{2, 3, 'of its own', 1}")
    scene.catch_up()
    status = scene.daemon.status()
    assert status is not None
    assert status["upstream"]["reconnects"] == 0
    finish(scene, cluster)


def test_master_that_is_frozen_for_longer_than_the_time_out(scene: Scene, cluster: Cluster) -> None:
    """With nobody else to go to, the daemon waits for it, says so, and goes on."""
    scene.daemon.settings["source"]["uris"] = cluster.uris[:1]
    fill(cluster)
    follow(scene)
    cluster[0].eval(_LOAD)
    rows = scene.daemon.wait_until_streaming()["rows"]
    scene.daemon.wait_until("rows flow", lambda status: status["rows"] > rows + 100)
    cluster[0].pause()
    try:
        status = scene.daemon.wait_until("it is missed", lambda status: status["state"] == "connecting" and status["error"])
        assert status["position"]["checkpoint"] == status["position"]["published"]
    finally:
        cluster[0].resume()
    scene.daemon.wait_until_streaming()
    finish(scene, cluster)


# What a member no longer has.


def kinds(stream: Stream, after_seq: int) -> Counter[tuple[str, int]]:
    """Kinds and ids of the events behind a seq."""
    events = [event for event in stream.events if event.seq > after_seq]
    return Counter((event.op, (event.value["after"] or event.value["before"])["id"]) for event in events)


_CHANGE = """
local load = box.space.load
load:insert{1, 101, 'new', 0}
load:update({1, 1}, {{'=', 'word', 'other'}})
load:delete{1, 2}
load:update({1, 3}, {{'+', 'n', 1}})
load:update({1, 3}, {{'-', 'n', 1}})
load:delete{2, 200}
"""


def test_member_that_is_restored_from_an_old_backup(scene: Scene, cluster: Cluster) -> None:
    """It lacks what was published: an error that says so, by component; and, if it is so wanted, exactly the corrections."""
    fill(cluster)
    cluster[1].eval("box.space.load:insert{2, 200, 'of the second', 0}")
    cluster.wait_until_equal()
    cluster[1].kill()
    copy = cluster.back_up(0)
    scene.daemon.settings["source"]["uris"] = cluster.uris[:1]
    follow(scene)
    old = cluster[0].vclock()
    cluster[0].eval(_CHANGE)
    scene.catch_up()
    status = scene.daemon.status()
    assert status is not None
    seq, new = status["position"]["seq"], cluster[0].vclock()
    assert scene.daemon.terminate() == 0
    cluster[0].kill()
    cluster.restore(0, copy)
    text = complaint(scene.daemon)
    assert "lacks changes that were published" in text
    assert f"origin 1: server {old[1]}, published {new[1]}" in text
    assert "origin 2" not in text, "of the other origin nothing is lost"
    assert "on_divergence" in text
    with scene.reader() as reader:
        assert not kinds(parse(reader), seq)
    scene.daemon.settings["source"]["on_divergence"] = "resnapshot"
    follow(scene)
    assert kinds(scene.check(), seq) == {("d", 101): 1, ("u", 1): 1, ("c", 2): 1, ("c", 200): 1}
    # It goes on from there. The member gives its numbers once more, so rows of both histories have the same ones: only seq is
    # unique from here on.
    cluster[0].eval("box.space.load:insert{1, 102, 'on the new line', 0}")
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    with scene.reader() as reader:
        stream = parse(reader)
    assert [event.seq for event in stream.events] == list(range(1, len(stream.events) + 1))
    replica.compare(replica.fold(stream, has_images=True), cluster[0])


def remove_logs(cluster: Cluster, number: int = 0) -> None:
    """Nothing from before now is in a member's logs. It keeps them for its peers up to where these have come, log by log."""
    member = cluster[number]
    member.eval("box.cfg{checkpoint_count = 1} box.snapshot() box.space.more:replace{1, 999, 'in the new log', 0}")

    def is_gone() -> bool:
        kept_from = max(int(path.stem) for path in member.work_dir.glob("*.snap"))
        return all(int(path.stem) >= kept_from for path in member.work_dir.glob("*.xlog"))

    wait_for("the old logs are removed", is_gone, 20)


def test_logs_that_a_quiet_member_has_removed(scene: Scene, cluster: Cluster) -> None:
    """Its stream would not show the gap before the next write; the ballot does. Who still has them is followed instead."""
    fill(cluster)
    follow(scene)
    assert scene.daemon.terminate() == 0
    cluster[0].eval("box.space.load:delete{1, 1} box.space.load:insert{1, 101, 'unseen', 0}")
    cluster.wait_until_equal()
    remove_logs(cluster)
    cluster.wait_until_equal()
    follow(scene)
    status = scene.daemon.status()
    assert status is not None
    assert (status["upstream"]["address"], status["position"]["snapshot_id"]) == (f"127.0.0.1:{cluster[1].port}", 1)
    assert scene.daemon.terminate() == 0
    cluster[0].eval("box.space.load:delete{1, 3} box.space.load:insert{1, 103, 'unseen too', 0}")
    cluster.wait_until_equal()
    remove_logs(cluster)
    scene.daemon.settings["source"]["uris"] = cluster.uris[:1]
    # Nobody writes, so the stream says nothing.
    follow(scene)
    assert "no longer has the logs" in scene.daemon.run.log_text()
    assert scene.daemon.terminate() == 0
    expected = {("d", 1): 1, ("c", 101): 1, ("c", 999): 1, ("d", 3): 1, ("c", 103): 1}
    assert kinds(scene.check(), 100) in (expected, expected | {("u", 999): 1})


def test_logs_that_a_busy_member_removes(scene: Scene, cluster: Cluster) -> None:
    """The daemon stands still while its place in the logs goes, and comes back into the middle of the load."""
    fill(cluster)
    scene.daemon.settings["source"]["uris"] = cluster.uris[:1]
    follow(scene)
    cluster[0].eval(_LOAD)
    rows = scene.daemon.wait_until_streaming()["rows"]
    scene.daemon.wait_until("rows flow", lambda status: status["rows"] > rows + 100)
    scene.daemon.run.pause()
    try:
        wait_for("the member drops it", lambda: cluster[0].eval("return box.info.replication_anon.count") == [0])
        remove_logs(cluster)
    finally:
        scene.daemon.run.resume()
    scene.daemon.wait_until("it knows", lambda _: "no longer has the logs" in scene.daemon.run.log_text())
    scene.daemon.wait_until_streaming()
    finish(scene, cluster)
