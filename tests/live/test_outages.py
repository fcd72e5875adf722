"""Kafka and the master go away and come back, in order and by kill -9: nothing is lost or repeated."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.process import Usage
from tests.live.scene import Scene, Watcher
from tests.live.waiting import PATIENCE_SECONDS, wait_for

_AWAY_SECONDS = 600
_OWN_MEMORY_BYTES_MAX = 250_000_000
# Random updates of 100,000 rows, as many as 50 every hundredth of a second.
_FILL = """
local space = box.schema.space.create('away', {format = {{'id', 'unsigned'}, {'name', 'string'}, {'value', 'unsigned'}}})
space:create_index('primary')
for first = 1, 100000, 1000 do
    box.begin()
    for id = first, first + 999 do space:insert{id, string.format('%016x', id), 1} end
    box.commit()
end
"""
_LOAD = """
local fiber, space = require('fiber'), box.space.away
away_changes, is_away_loaded = 0, true
fiber.create(function()
    while is_away_loaded do
        box.begin()
        for _ = 1, 50 do space:update(math.random(100000), {{'+', 3, 1}}) end
        box.commit()
        away_changes = away_changes + 50
        fiber.sleep(0.01)
    end
end)
"""


def rows_flow(scene: Scene, count: int) -> None:
    """Wait until the daemon has received that many more rows, and has committed some."""
    before = scene.daemon.wait_until_streaming()

    def do_flow(status: dict[str, Any]) -> bool:
        has_committed = status["position"]["checkpoint"] != before["position"]["checkpoint"]
        return bool(status["state"] == "streaming" and status["rows"] > before["rows"] + count and has_committed)

    scene.daemon.wait_until(f"{count} rows more", do_flow)


def rows_pile_up(scene: Scene) -> None:
    """Wait until the daemon has received what it can't publish."""
    scene.daemon.wait_until("the rows pile up", lambda status: status["position"]["received"] != status["position"]["checkpoint"])


@contextlib.contextmanager
def kafka_comes_back(scene: Scene) -> Iterator[None]:
    """It is away within this, and started at its end, however that comes."""
    try:
        yield
    finally:
        scene.kafka.start()


@pytest.mark.parametrize(
    "end_count",
    [
        pytest.param(1, id="short"),
        pytest.param(5, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize(
    ("how", "mode"),
    [
        pytest.param("kill", "exactly_once", marks=pytest.mark.one_of_these("Kafka that goes")),
        pytest.param("stop", "exactly_once", marks=pytest.mark.soak),
        pytest.param("kill", "at_least_once", marks=pytest.mark.soak),
    ],
)
def test_kafka_is_away_at_the_start_and_ends_in_mid_stream(
    frail_scene: Scene, how: str, mode: str, end_count: int, seed: int
) -> None:
    """It stays away for longer than its transactions may take. A daemon that is to end meanwhile does, and the next goes on."""
    scene, chance = frail_scene, random.Random(seed)
    scene.daemon.settings["kafka"] |= {"delivery": mode, "stop_timeout_ms": 1_000}
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 2_000
    scene.workload.create(500)
    scene.kafka.stop()
    with kafka_comes_back(scene):
        scene.daemon.start()
        scene.daemon.wait_until("it waits for Kafka", lambda status: status["state"] == "waiting for kafka")
        assert scene.daemon.terminate(20) == 0, "it has never had an answer"
        scene.daemon.start()
        scene.daemon.wait_until("it waits for Kafka", lambda status: status["state"] == "waiting for kafka" and status["error"])
        assert "kafka doesn't answer yet" in scene.daemon.run.log_text(), "it is told before the daemon gives the first try up"
    scene.daemon.wait_until_streaming()
    scene.workload.start(pause=0.02, rows_max=300)
    with Watcher(scene.reader()) as watcher:
        for _ in range(end_count):
            rows_flow(scene, chance.randrange(1_000))
            getattr(scene.kafka, how)()
            with kafka_comes_back(scene):
                rows_pile_up(scene)
            rows_flow(scene, 200)
        scene.kafka.kill()
        with kafka_comes_back(scene):
            rows_pile_up(scene)
            assert scene.daemon.terminate(75) == 0
            assert "next start resumes from the checkpoint" in scene.daemon.run.log_text()
        scene.workload.stop()
        scene.daemon.start()
        scene.catch_up()
        assert scene.daemon.terminate() == 0
    if mode == "exactly_once":
        watcher.check(scene.check())
    else:
        scene.check_as_promised()


@pytest.mark.parametrize("mode", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.soak)])
def test_kafka_stands_still_for_longer_than_a_transaction_may_take(frail_scene: Scene, mode: str) -> None:
    scene = frail_scene
    scene.daemon.settings["kafka"]["delivery"] = mode
    scene.daemon.settings["kafka"]["properties"]["transaction.timeout.ms"] = 1_000
    scene.workload.create(500)
    scene.workload.start(pause=0.01, rows_max=300)
    scene.daemon.start()
    rows_flow(scene, 500)
    scene.kafka.pause()
    try:
        scene.daemon.wait_until(
            "a commit has waited for too long", lambda status: status["lag_seconds"] > 3 or status["state"] != "streaming"
        )
    finally:
        scene.kafka.resume()
    rows_flow(scene, 500)
    scene.workload.stop()
    scene.catch_up()
    scene.check_as_promised()


@pytest.mark.soak
@pytest.mark.timeout(_AWAY_SECONDS + 1200)
def test_memory_stays_bounded_while_kafka_is_away_under_load(frail_scene: Scene) -> None:
    """What the master writes meanwhile waits in its log, not in the daemon's memory, and doesn't come all at once afterwards."""
    scene = frail_scene
    scene.tarantool.eval(_FILL)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    scene.catch_up()
    scene.tarantool.eval(_LOAD)
    rows_flow(scene, 5_000)
    usage = Usage(scene.daemon.run.pid)
    try:
        scene.kafka.stop()
        try:
            (changes_before,) = scene.tarantool.eval("return away_changes")
            away_since = scene.daemon.wait_until("it answers", bool)["uptime_seconds"]
            scene.daemon.wait_until(
                "Kafka has been away for long enough",
                lambda status: status["uptime_seconds"] > away_since + _AWAY_SECONDS,
                _AWAY_SECONDS + PATIENCE_SECONDS,
            )
            away_bytes = usage.peak_anonymous_bytes
        finally:
            scene.kafka.start()
        rows_flow(scene, 5_000)
        (changes,) = scene.tarantool.eval("is_away_loaded = false return away_changes")
        scene.catch_up(600)
    finally:
        usage.close()
    print(
        f"\n{changes - changes_before:,} changes from Kafka's stop on; own memory at most {away_bytes / 1e6:.0f} MB "
        f"while Kafka was away, {usage.peak_anonymous_bytes / 1e6:.0f} MB with what followed"
    )
    assert changes - changes_before > 500 * _AWAY_SECONDS, "there was no load"
    assert usage.peak_anonymous_bytes < _OWN_MEMORY_BYTES_MAX


def test_ready_means_that_changes_become_durable(frail_scene: Scene) -> None:
    """While Kafka is frozen a quiet source is well; one change that waits for too long isn't, and the daemon says so."""
    scene = frail_scene
    scene.daemon.settings["kafka"]["stalled_after_ms"] = 1_000
    scene.workload.create(100)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    # A new stream also commits the rows at the checkpoint that the master has sent again; later changes are committed after them.
    scene.run_workload(steps=1)
    scene.catch_up()
    scene.kafka.pause()
    try:
        uptime_seconds = scene.daemon.wait_until_streaming()["uptime_seconds"]
        quiet = scene.daemon.wait_until("twice the time has passed", lambda status: status["uptime_seconds"] > uptime_seconds + 2)
        assert (quiet["state"], quiet["error"], scene.daemon.is_ready()) == ("streaming", None, True)
        scene.workload.start(steps=1, fibers=1)
        stalled = scene.daemon.wait_until("it says that Kafka stands still", lambda status: status["state"] == "stalled")
        assert "Kafka has committed nothing since" in stalled["error"]
        assert stalled["kafka"]["stalled_seconds"] >= 1
        assert not scene.daemon.is_ready()
        wait_for("the log says so", lambda: "Kafka stands still" in scene.daemon.run.log_text())
    finally:
        scene.kafka.resume()
    scene.daemon.wait_until("it is ready again", lambda status: status["state"] == "streaming" and status["error"] is None)
    assert scene.daemon.is_ready()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    log = scene.daemon.run.log_text()
    # On a machine under load the first commits may take that long as well.
    assert log.count("Kafka stands still") == log.count("Kafka is back") >= 1
    scene.check()


@pytest.mark.parametrize(
    "end_count",
    [
        pytest.param(1, id="short"),
        pytest.param(5, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.soak)])
def test_master_ends_in_mid_stream(scene: Scene, how: str, end_count: int, seed: int) -> None:
    chance = random.Random(seed)
    scene.workload.create(500)
    scene.daemon.start()
    for _ in range(end_count):
        scene.workload.start(pause=0.005)
        rows_flow(scene, chance.randrange(2_000))
        getattr(scene.tarantool, how)()
        scene.daemon.wait_until("it knows that the master is away", lambda status: status["state"] == "connecting")
        scene.tarantool.start()
        scene.daemon.wait_until_streaming()
    scene.workload.start(steps=100)
    scene.workload.wait()
    scene.catch_up()
    scene.check()


def test_daemon_is_frozen_until_the_master_drops_it(scene: Scene) -> None:
    scene.tarantool.eval("box.cfg{replication_timeout = 0.2}")  # a replica may be silent for four times that
    scene.workload.create(500)
    scene.daemon.start()
    scene.workload.start(pause=0.005)
    rows_flow(scene, 500)
    scene.daemon.run.pause()
    reader = scene.reader()
    try:
        wait_for("the master drops it", lambda: scene.tarantool.eval("return box.info.replication_anon.count") == [0])
        scene.check_whole_while_dead(reader)
    finally:
        scene.daemon.run.resume()
    rows_flow(scene, 500)
    scene.workload.stop()
    scene.catch_up()
    scene.check()
