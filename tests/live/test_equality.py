"""Snapshot and stream under a concurrent workload make the master's contents, row by row, and every event comes once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.live.scene import Scene, Watcher

NEVER_WITHOUT = (
    "accounts.by_another_index",
    "accounts.upsert_in_part",
    "binary.replace",
    "blobs.replace",
    "counted.insert",
    "guarded.replace",
    "hidden.replace",
    "kinds.update_inside",
    "morph.update",
    "pairs.update",
    "schema.rename",
    "schema.truncate",
    "texts.replace",
    "transaction",
    "vinyl transaction",
    "vinyl.upsert",
)
"""A workload that lacks one of these would prove less than the test says."""


@dataclass(frozen=True)
class Size:
    """Of a workload."""

    fill_rows: int
    rows: int
    rows_max: int


@pytest.mark.one_of_these
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(Size(4_000, 8_000, 2_000), id="short"),
        pytest.param(Size(200_000, 300_000, 10_000), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("images", ["full", "none"])
def test_topics_make_the_masters_contents(scene: Scene, size: Size, images: str) -> None:
    scene.daemon.settings["state"]["images"] = images
    scene.workload.create(size.fill_rows)
    scene.workload.start(rows_max=size.rows_max)
    scene.daemon.start()
    with Watcher(scene.reader()) as watcher:
        scene.daemon.wait_until("the stream has brought much", lambda status: status["rows"] >= size.rows, 1200)
        scene.workload.stop()
        scene.catch_up(600)
        assert scene.daemon.terminate() == 0
    stream = scene.check()
    watcher.check(stream)
    counts = scene.workload.counts()
    assert not [kind for kind in NEVER_WITHOUT if not counts.get(kind)], (counts, scene.workload.errors())
    assert {event.op for event in stream.events} == set("rcudt")
    topics = {event.place[0] for event in stream.events}
    assert not topics & {f"{scene.prefix}.{name}" for name in ("hidden", "passing")}
