"""Ten thousand spaces: what a snapshot does for one of them doesn't depend on how many there are."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.pipelines import NOW_US, Store, frames_of, pipeline
from tests.fakes.tuples import MemoryTuples


def snapshot_of(space_count: int) -> bytes:
    """A snapshot with so many spaces of one row each."""
    bodies: list[dict[int, Any]] = [{16: 272, 33: ["cluster", str(REPLICASET)]}]
    spaces = range(512, 512 + space_count)
    bodies += [{16: 280, 33: [space, 1, f"s{space}", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]]} for space in spaces]
    bodies += [{16: 288, 33: [space, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]]} for space in spaces]
    bodies += [{16: space, 33: [1]} for space in spaces]
    return b"".join(wire.frame({0: 2, 1: 1}, body) for body in bodies)


def call_count(space_count: int, *, images: bool) -> int:
    """How many functions are called, Python's own included, to take such a snapshot and to start behind it."""
    count = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    frames, store = frames_of(snapshot_of(space_count)), Store()
    target = pipeline(images=Images(MemoryTuples()) if images else None)
    sys.setprofile(see)
    try:
        store.take(target.begin_snapshot(VClock({1: 5}), NOW_US))
        for batch in (*target.feed_snapshot(frames, NOW_US), *target.end_snapshot(NOW_US)):
            store.take(batch)
        assert len(pipeline(store.position, store.spaces.values()).published_forms()) == space_count
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("images", [False, True])
def test_a_snapshot_costs_each_space_the_same(images: bool) -> None:
    few, many = call_count(250, images=images), call_count(1000, images=images)
    assert many < 5 * few, f"{few} calls for 250 spaces, {many} for 1,000"
