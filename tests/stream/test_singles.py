"""The two ways of the Python path write the same bytes: runs of single rows drawn together, and everything else."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.codec import FrameDecoder, Frames
from cdc.stream.batch import Batch
from cdc.stream.stream_events import StreamEvents
from tests.fakes.master import Master
from tests.fakes.pipelines import NOW_US, pipeline
from tests.fakes.profiles import SOME
from tests.fakes.replica import Replica
from tests.fakes.workload import Workload


def workload(seed: int, steps: int) -> tuple[Replica, Frames]:
    """A replica that has its snapshot, and all rows that the master wrote afterwards."""
    rng = random.Random(seed)
    master = Master(rng.choice(["2.6", "2.11", "3.3"]))
    work = Workload(master, rng)
    work.run(10)
    replica = Replica(master)
    replica.connect()
    start = len(master.log)
    work.run(steps)
    return replica, FrameDecoder().feed(b"".join(row.packet(2) for row in master.log[start:]))


def fed(replica: Replica, frames: Frames, sizes: list[int], *, is_general: bool, **options: Any) -> list[Batch]:
    stored = replica.topics.checkpoint()
    target = pipeline(stored.position, stored.spaces.values(), **options)
    found: list[Batch] = []
    start = 0
    for size in [*sizes, len(frames)]:
        part = frames.part(min(start, len(frames)), min(len(frames), start + size))
        start += size
        if len(part):
            found += target.feed(part, NOW_US)
    assert is_general == (StreamEvents.encode_single_row_run is _nothing_is_single)
    return found


def _nothing_is_single(_: StreamEvents, transactions: object, start: int, suffix: bytes) -> int:  # noqa: ARG001
    return start


@SOME
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), max_size=10),
    tombstones=st.booleans(),
    topic=st.sampled_from(["none", "multi", "all"]),
)
def test_both_ways_give_the_same_batches(seed: int, sizes: list[int], tombstones: bool, topic: str) -> None:
    replica, frames = workload(seed, 60)
    options: dict[str, Any] = {"tombstones": tombstones, "transaction_topic": topic}
    drawn_together = fed(replica, frames, sizes, is_general=False, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamEvents, "encode_single_row_run", _nothing_is_single)
        general = fed(replica, frames, sizes, is_general=True, **options)
    assert drawn_together == general


def test_the_short_way_is_taken() -> None:
    """Else the comparison above says nothing."""
    replica, frames = workload(7, 200)
    taken: list[int] = []
    original = StreamEvents.encode_single_row_run

    def counting(self: StreamEvents, transactions: list[object], start: int, suffix: bytes) -> int:
        done = original(self, transactions, start, suffix)  # type: ignore[arg-type]
        taken.append(done - start)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamEvents, "encode_single_row_run", counting)
        stored = replica.topics.checkpoint()
        list(pipeline(stored.position, stored.spaces.values()).feed(frames, NOW_US))
    assert sum(taken) > 50
    assert max(taken) > 1
