"""A snapshot that is killed goes on where it stopped: consumers get each row once, and the master's changes meanwhile."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.live.proxy import Slow
from tests.live.scene import Scene
from tests.live.waiting import wait_for

FILL = """
local count = ...
for _, name in ipairs{'many', 'after'} do
    local format = {{'id', 'unsigned'}, {'n', 'integer'}, {'word', 'string'}}
    box.schema.space.create(name, {format = format}):create_index('primary')
end
for first = 1, count, 5000 do
    box.begin()
    for id = first, math.min(count, first + 4999) do box.space.many:replace{id, id, 'row number ' .. id} end
    box.commit()
end
for id = 1, 100 do box.space.after:replace{id, id, 'row ' .. id} end
"""

CHANGE = """
local id = ...
box.space.many:update(id, {{'+', 2, 1000000}})
box.space.many:delete(id + 1)
box.space.many:update(id + 1000, {{'+', 2, 1000000}})
"""


def progress(scene: Scene) -> int:
    """How many events the running daemon has committed."""
    status = scene.daemon.status()
    return int(status["position"]["seq"]) if status is not None and status["state"] == "snapshot" else 0


def wait_for_progress(scene: Scene, least: int) -> None:
    """Wait until the running daemon has published so many events."""
    wait_for(f"the snapshot's event {least}", lambda: progress(scene) >= least)


def drill(scene: Scene, count: int, kills: int, seed: int) -> list[float]:
    """Kill the snapshot of so many rows at as many places, with changes meanwhile; returns how long each run took, in seconds."""
    rng = random.Random(seed)
    scene.daemon.settings["kafka"]["partitions"] = 2
    seconds = []
    for kill in range(1, kills + 1):
        scene.daemon.start("--until-caught-up")
        begun = time.monotonic()
        wait_for_progress(scene, count * kill // (kills + 1))
        scene.daemon.kill()
        seconds.append(time.monotonic() - begun)
        scene.tarantool.eval(CHANGE, rng.randrange(1, count - 2000))
    scene.daemon.start("--until-caught-up")
    begun = time.monotonic()
    assert scene.daemon.wait_for_end(600) == 0, scene.daemon.run.log_text()
    return [*seconds, time.monotonic() - begun]


def check(scene: Scene, count: int, kills: int) -> None:
    stream = scene.check()
    counts = Counter((event.space_id, event.key) for event in stream.events if event.op == "r")
    again = {key: found for key, found in counts.items() if found > 1}
    assert not again, f"{len(again)} rows were published twice"
    assert sum(counts.values()) >= count - 2 * kills


def test_a_killed_snapshot_goes_on(scene: Scene, seed: int) -> None:
    count, kills = 30_000, 3
    scene.tarantool.eval(FILL, count)
    scene.proxy(lambda: Slow(1_000_000))
    drill(scene, count, kills, seed)
    check(scene, count, kills)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_rows_killed_ten_times(scene: Scene, seed: int) -> None:
    """Prints what it takes: beside the rest of the snapshot, each start reads again from the server what is published."""
    count, kills = 1_000_000, 10
    scene.tarantool.eval(FILL, count)
    seconds = drill(scene, count, kills, seed)
    check(scene, count, kills)
    other = scene.new_daemon(
        f"{scene.prefix}-undisturbed", kafka={"topic_prefix": f"{scene.prefix}-undisturbed", "partitions": 2}
    )
    begun = time.monotonic()
    other.start("--until-caught-up")
    assert other.wait_for_end(600) == 0, other.run.log_text()
    undisturbed = time.monotonic() - begun
    runs = ", ".join(f"{each:.1f}" for each in seconds)
    print(f"killed {kills} times: {sum(seconds):.1f} s ({runs}); undisturbed: {undisturbed:.1f} s")
