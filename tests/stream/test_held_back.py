"""Rows are let go in their order, as far as a checkpoint covers them, by both row paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.constants import Key, Type
from cdc.protocol.extensions import pack
from cdc.stream.held_back import HeldBack
from tests.fakes.pipelines import frames_of

Row = tuple[int, int]
"""Origin and lsn."""


def data_of(rows: list[Row]) -> bytes:
    found = b""
    for origin, lsn in rows:
        header = pack({Key.REQUEST_TYPE: Type.INSERT, Key.REPLICA_ID: origin, Key.LSN: lsn, Key.TIMESTAMP: 1.0})
        body = pack({Key.SPACE_ID: 512, Key.TUPLE: [lsn]})
        found += b"\xce" + (len(header) + len(body)).to_bytes(4, "big") + header + body
    return found


def rows_of(frames: Frames) -> list[Row]:
    return [(header[Key.REPLICA_ID], header[Key.LSN]) for header in frames.headers]


@st.composite
def streams(draw: st.DrawFn) -> list[list[Row]]:
    """Rows of up to three origins, each with lsns that grow, in parts."""
    origins = draw(st.lists(st.integers(1, 3), max_size=20))
    counts: dict[int, int] = {}
    rows = []
    for origin in origins:
        counts[origin] = counts.get(origin, 0) + draw(st.integers(1, 3))
        rows.append((origin, counts[origin]))
    parts = []
    while rows:
        size = draw(st.integers(1, len(rows)))
        parts.append(rows[:size])
        rows = rows[size:]
    return parts


@pytest.mark.parametrize("is_compiled", [True, False])
@given(parts=streams(), checkpoints=st.lists(st.dictionaries(st.integers(1, 3), st.integers(0, 30)), max_size=6))
def test_what_a_checkpoint_covers_goes_and_nothing_behind_what_it_does_not(
    is_compiled: bool, parts: list[list[Row]], checkpoints: list[dict[int, int]]
) -> None:
    held, let_go, waiting = HeldBack(), list[Row](), [row for part in parts for row in part]
    for part in parts:
        held.put(frames_of(data_of(part)) if is_compiled else FrameDecoder().feed(data_of(part)))
    for checkpoint in map(VClock, checkpoints):
        expected = []
        while waiting and waiting[0][1] <= checkpoint[waiting[0][0]]:
            expected.append(waiting.pop(0))
        let_go = [row for frames in held.take(checkpoint) for row in rows_of(frames)]
        assert let_go == expected
        assert held.byte_count == len(data_of(waiting))
