"""A daemon that is killed again and again, at random moments and in the middle of a snapshot, loses and repeats nothing.

While it is dead, a reader finds whole source transactions only; afterwards the topics make the master's contents.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.live.proxy import StallAfter, Straight
from tests.live.scene import Scene, Watcher
from tests.live.stream import parse
from tests.live.waiting import wait_for

SNAPSHOT_ROWS = 4_000


def wait_for_work(scene: Scene, *, rows: int, commits: int) -> None:
    """Wait until the daemon's run has received so many rows and made so many commits."""

    def is_done(status: dict[str, Any]) -> bool:
        return bool(status["rows"] >= rows and status["kafka"]["commits"] >= commits)

    scene.daemon.wait_until(f"{rows} rows and {commits} commits", is_done)


def kill_again_and_again(
    scene: Scene, chance: random.Random, count: int, while_dead: Callable[[], object] = lambda: None
) -> None:
    """Kill the daemon so often under the workload; the last one publishes the rest of it, and ends as it is asked to."""
    for number in range(count):
        scene.daemon.start()
        if number == 0:
            scene.daemon.wait_until_streaming()
        else:
            # From the very start of a process to well into its work.
            wait_for_work(scene, rows=chance.choice((0, 1, chance.randrange(3_000))), commits=chance.randrange(15))
        time.sleep(chance.random() * 0.2)  # the moment is random, so there is nothing to wait for
        scene.daemon.kill()
        while_dead()
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.workload.stop()
    scene.catch_up()
    assert scene.daemon.terminate() == 0


@pytest.mark.parametrize(
    "kill_count",
    [
        pytest.param(3, id="short"),
        pytest.param(20, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_killed_at_random_moments(scene: Scene, kill_count: int, seed: int) -> None:
    chance = random.Random(seed)
    scene.workload.create(SNAPSHOT_ROWS // 4)
    scene.workload.start(pause=0.02, rows_max=500)
    reader = scene.reader()
    with Watcher(scene.reader()) as watcher:
        kill_again_and_again(scene, chance, kill_count, lambda: scene.check_whole_while_dead(reader))
    stream = scene.check()
    watcher.check(stream)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_at_random_moments_at_least_once(scene: Scene, seed: int) -> None:
    """What comes again is the same under the same numbers, and nothing lacks."""
    chance = random.Random(seed)
    scene.daemon.settings["kafka"]["delivery"] = "at_least_once"
    scene.workload.create(SNAPSHOT_ROWS)
    scene.workload.start(pause=0.01, rows_max=500)
    kill_again_and_again(scene, chance, 12)
    assert max(scene.check_as_promised().values()) > 1, "none of the kills made anything come again"


@pytest.mark.one_of_these
@pytest.mark.parametrize("end", ["kill", "cut", "terminate"])
def test_snapshot_that_is_interrupted_is_taken_again(scene: Scene, end: str, seed: int) -> None:
    chance = random.Random(seed)
    scene.workload.create(SNAPSHOT_ROWS)
    stall = StallAfter(chance.randrange(100_000, 300_000))
    courses = iter([stall])
    proxy = scene.proxy(lambda: next(courses, Straight()))
    scene.daemon.start()
    assert stall.has_stalled.wait(60)
    reader = scene.reader()
    wait_for("a part of the snapshot in Kafka", lambda: len(parse(reader, reader.look()).events) > 100)
    scene.tarantool.eval("for _, row in box.space.accounts:pairs() do box.space.accounts:delete(row[1]) end")
    match end:
        case "kill":
            scene.daemon.restart_killed()
        case "terminate":
            assert scene.daemon.terminate() == 0
            scene.daemon.start()
        case "cut":
            proxy.cut()
    scene.daemon.wait_until_streaming()
    scene.run_workload()
    scene.catch_up()
    stream = scene.check()
    # What follows is of spaces that the workload gives another primary key.
    snapshots = stream.control["snapshot"][:3]
    statuses = [(record["snapshot_id"], record["status"]) for record in snapshots]
    assert statuses == [("1", "STARTED"), ("2", "STARTED"), ("2", "COMPLETED")]
    rows, still_there = {"1": 0, "2": 0}, 0
    for event in stream.events:
        if event.op == "r" and event.source["snapshot_id"] in rows:
            rows[event.source["snapshot_id"]] += 1
            still_there += event.source["snapshot_id"] == "1" and event.source["table"] != "accounts"
    assert rows["1"] > 100
    completed = snapshots[-1]
    # The second one says what the first hadn't said, and a kill forgets the last half second of that.
    total = sum(space["rows"] for space in completed["spaces"])
    assert 0 < rows["2"] <= total
    assert end == "kill" or rows["2"] == total - still_there


def test_terminated_in_mid_stream_goes_on_where_it_was(scene: Scene) -> None:
    scene.workload.create(500)
    scene.workload.start(pause=0.01)
    for _ in range(3):
        scene.daemon.start()
        scene.daemon.wait_until("rows flow", lambda status: status["state"] == "streaming" and status["rows"] > 500)
        assert scene.daemon.terminate() == 0
    scene.workload.stop()
    scene.daemon.start("--until-caught-up")
    assert scene.daemon.wait_for_end() == 0
    stream = scene.check()
    # What follows is of spaces that the workload gives another primary key: one record for each, and no snapshot of all.
    statuses = [(record["snapshot_id"], record["status"]) for record in stream.control["snapshot"]]
    assert statuses[:2] == [("1", "STARTED"), ("1", "COMPLETED")]
    assert all(len(record["spaces"]) == 1 for record in stream.control["snapshot"][2:] if record["status"] == "COMPLETED")
