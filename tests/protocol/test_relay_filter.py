"""What a relay leaves out of a log: local rows, whole or within transactions, ended by a NOP or not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.log_file import LogFileDecoder
from cdc.protocol.relay_filter import Relay, snapshot_rows
from tests.fakes import log_files, wire
from tests.fakes.log_files import NOP, Row, insert
from tests.fakes.profiles import SOME

COMMIT = 1


def local(lsn: int, **header: int) -> Row:
    return insert(lsn, lsn, space_id=600, replica_id=0, group_id=1, **header)


def framed(rows: list[Row]) -> Frames:
    return FrameDecoder().feed(wire.frames(rows))


def relayed(rows: list[Row], cut: int | None = None, excluded: frozenset[int] = frozenset()) -> list[tuple[Any, Any]]:
    relay = Relay(excluded)
    found: list[tuple[Any, Any]] = []
    for part in (rows,) if cut is None else (rows[:cut], rows[cut:]):
        frames = relay.rows(framed(part))
        again = FrameDecoder().feed(frames.data)
        assert (again.headers, again.bodies, again.ends) == (frames.headers, frames.bodies, frames.ends)
        found += zip(frames.headers, frames.bodies, strict=True)
    return found


def test_captured_log() -> None:
    relay = Relay()
    kept: list[tuple[Any, Any]] = []
    for frames in LogFileDecoder().feed(log_files.captured()["00000000000000000000.xlog"]):
        part = relay.rows(frames)
        kept += zip(part.headers, part.bodies, strict=True)
    assert [header[3] for header, _ in kept] == list(range(1, 335))
    assert {header[2] for header, _ in kept} == {1}


def test_log_that_ends_transactions_with_local_rows() -> None:
    """As versions from 3.0 on write them."""
    rows = [
        insert(1, 1),
        insert(2, 2, tsn=0),
        local(1, tsn=2**64 - 1),
        insert(3, 3, tsn=1),
        local(2, tsn=2**64 - 1, flags=COMMIT),
    ]
    rows += [local(3), insert(4, 4)]
    expected = [*rows[:2], rows[3], ({0: NOP, 2: 1, 3: 3, 4: 1.5, 8: 1, 9: COMMIT}, {}), rows[6]]
    for cut in range(len(rows) + 1):
        assert relayed(rows, cut) == expected


def test_transactions_of_local_rows_alone() -> None:
    rows = [local(1), local(2, tsn=0), local(3, tsn=1, flags=COMMIT), insert(1, 1)]
    for cut in range(len(rows) + 1):
        assert relayed(rows, cut) == rows[3:]


def test_local_rows_with_an_origin_become_nops() -> None:
    row = insert(5, 1, group_id=1)
    assert relayed([row]) == [({0: NOP, 2: 1, 3: 5, 4: 1.5}, {})]


def test_excluded_origins() -> None:
    rows = [insert(1, 1), insert(1, 1, replica_id=2), local(1), insert(2, 2)]
    assert relayed(rows, excluded=frozenset({2})) == [rows[0], rows[3]]


def test_snapshot() -> None:
    state: Row = ({0: 30, 7: 1}, {0: 1})
    promote: Row = ({0: 31, 2: 1, 3: 7}, {2: 1, 3: 7})
    rows = [insert(1, 1), state, promote, local(2), insert(3, 3)]
    kept = snapshot_rows(framed(rows))
    assert list(zip(kept.headers, kept.bodies, strict=True)) == [rows[0], rows[4]]
    assert kept.raws() == [wire.frame(*rows[0]), wire.frame(*rows[4])]
    untouched = framed([insert(1, 1)])
    assert snapshot_rows(untouched) is untouched


@given(
    kinds=st.lists(st.sampled_from("lg"), max_size=12),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    cut=st.integers(0, 20),
)
@SOME
def test_what_is_kept_is_whole_transactions(kinds: list[str], sizes: list[int], cut: int) -> None:
    rows: list[Row] = []
    lsns = {"l": 0, "g": 0}
    waiting = list(kinds)
    for size in sizes:
        part, waiting = waiting[:size], waiting[size:]
        first = lsns["g"] + 1
        for number, kind in enumerate(part, 1):
            lsns[kind] += 1
            flags = {"flags": COMMIT} if number == len(part) else {}
            header = {} if len(part) == 1 else {"tsn": lsns[kind] - first if kind == "g" else 2**64 - 1, **flags}
            rows.append(insert(lsns["g"], 0, **header) if kind == "g" else local(lsns["l"], **header))
    found = relayed(rows, cut)
    assert [header[3] for header, _ in found if header[0] != NOP] == [row[0][3] for row in rows if 7 not in row[0]]
    open_tsn = None
    for header, _ in found:
        if 8 not in header:
            assert open_tsn is None
            continue
        tsn = header[3] - header[8]
        assert open_tsn in (None, tsn)
        open_tsn = None if header.get(9) else tsn
    assert open_tsn is None
