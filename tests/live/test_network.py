"""A connection to the master that breaks, stalls, trickles or bunches up changes nothing in what comes out."""

from __future__ import annotations

import random

import pytest

from tests.live.proxy import CutAfter, Gather, StallAfter, Straight, Trickle
from tests.live.scene import Scene
from tests.live.waiting import wait_for


@pytest.mark.parametrize(
    "cut_count",
    [
        pytest.param(5, id="short"),
        pytest.param(100, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_cut_at_random_bytes(scene: Scene, cut_count: int, seed: int) -> None:
    chance = random.Random(seed)
    # From the greeting (128 bytes) and the handshake to deep in the stream.
    cuts = [CutAfter(int(10 ** chance.uniform(1, 6))) for _ in range(cut_count)]
    courses: list[Straight] = list(cuts)
    scene.workload.create(500)
    proxy = scene.proxy(lambda: courses.pop(0) if courses else Straight())
    scene.workload.start(pause=0.005)
    scene.daemon.start()
    wait_for("all the cuts", lambda: proxy.connection_count > cut_count, 600)
    scene.daemon.wait_until_streaming()
    scene.workload.stop()
    scene.catch_up()
    scene.check()
    assert proxy.connection_count == cut_count + 1


def test_trickle(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    scene.workload.create(100)
    scene.proxy(lambda: Trickle(chance, 60_000))
    scene.daemon.start()
    scene.run_workload()
    scene.catch_up()
    scene.check()


def test_silent_master_is_left_and_found_again(scene: Scene, seed: int) -> None:
    stall = StallAfter(random.Random(seed).randrange(100_000), of_stream=True)
    courses = iter([stall])
    scene.workload.create(500)
    proxy = scene.proxy(lambda: next(courses, Straight()))
    scene.daemon.settings["source"]["replication_timeout_ms"] = 150  # a tenth of the allowed silence
    scene.workload.start(pause=0.01)
    scene.daemon.start()
    assert stall.has_stalled.wait(60)
    wait_for("another connection", lambda: proxy.connection_count > 1)
    stall.is_released.set()
    scene.workload.stop()
    scene.catch_up()
    scene.check()


def test_rows_that_come_in_one_piece_with_the_answer_to_subscribe(scene: Scene) -> None:
    """The first rows of a stream may share a packet with what says that the stream begins."""
    scene.workload.create(100)
    scene.daemon.start()
    scene.catch_up()
    assert scene.daemon.terminate() == 0
    scene.run_workload(300)
    proxy = scene.proxy(lambda: Gather(20_000))
    scene.daemon.start()
    scene.catch_up()
    scene.check()
    assert proxy.connection_count == 1
