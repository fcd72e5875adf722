"""Rows become whole transactions: by TSN and flags, in memory or on disk, wherever the stream is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ProtocolError
from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.constants import Flag, Type
from cdc.stream.transactions.assembler import Assembler, rows_of
from cdc.stream.transactions.transaction import Transaction
from tests.fakes import wire
from tests.fakes.pipelines import MemorySpool, frames_of
from tests.fakes.profiles import MANY, SOME

Header = dict[int, Any]


def row(lsn: int, *, tsn: int | None = None, flags: int | None = None, origin: int = 1, kind: int = Type.INSERT) -> bytes:
    header: Header = {0: kind, 1: 2, 2: origin, 3: lsn, 4: float(lsn)}
    if tsn is not None:
        header[8] = tsn
    if flags is not None:
        header[9] = flags
    return wire.frame(header, {0x10: 512, 0x21: [lsn, "x" * 20]})


def assembler(memory: int = 10**9, spools: list[MemorySpool] | None = None) -> Assembler:
    return Assembler(memory_bytes_max=memory, new_spool=lambda: MemorySpool(spools))


def whole(transaction: Transaction) -> tuple[Any, ...]:
    """All of a transaction, its rows from wherever they are."""
    rows = transaction.rows
    if transaction.spool is not None:
        assert rows == []
        decoder = FrameDecoder()
        rows = [item for chunk in transaction.spool.chunks() for item in rows_of(decoder.feed(chunk))]
    assert len(rows) == transaction.row_count
    origin = transaction.replica_id
    shown = [(kind, lsn, content) for kind, lsn, content, _ in rows]
    return origin, transaction.tsn, transaction.lsn, transaction.timestamp, transaction.flags, shown


def fed(target: Assembler, data: bytes) -> list[tuple[Any, ...]]:
    return [whole(transaction) for transaction in target.feed(frames_of(data))]


def body(lsn: int) -> dict[int, Any]:
    return {0x10: 512, 0x21: [lsn, "x" * 20]}


def test_a_row_without_tsn_is_a_transaction() -> None:
    assert fed(assembler(), row(41)) == [(1, 41, 41, 41.0, 0, [(2, 41, body(41))])]


def test_a_single_row_keeps_its_flags() -> None:
    """2.11 and 3.3 flag a synchronous single row although it has no TSN."""
    assert fed(assembler(), row(41, flags=6))[0][4] == 6


def test_a_transaction_of_three_rows() -> None:
    data = row(42, tsn=0) + row(43, tsn=1) + row(44, tsn=2, flags=1)
    rows = [(2, lsn, body(lsn)) for lsn in (42, 43, 44)]
    assert fed(assembler(), data) == [(1, 42, 44, 44.0, 1, rows)]


def test_the_first_row_that_arrives_may_not_be_the_first() -> None:
    """Masters up to 2.11 leave out rows of local spaces one by one."""
    assert fed(assembler(), row(43, tsn=1) + row(45, tsn=3, flags=1)) == [
        (1, 42, 45, 45.0, 1, [(2, 43, body(43)), (2, 45, body(45))])
    ]
    assert fed(assembler(), row(43, tsn=1, flags=1))[0][:3] == (1, 42, 43)


def test_nop_at_the_end() -> None:
    ((_, tsn, lsn, _, _, rows),) = fed(assembler(), row(42, tsn=0) + row(43, tsn=1, flags=1, kind=Type.NOP))
    assert (tsn, lsn) == (42, 43)
    assert [kind for kind, _, _ in rows] == [Type.INSERT, Type.NOP]


def test_flags_without_commit_do_not_end_it() -> None:
    target = assembler()
    assert fed(target, row(42, tsn=0, flags=0) + row(43, tsn=1, flags=2)) == []
    assert len(fed(target, row(44, tsn=2, flags=Flag.COMMIT | 6))) == 1


def test_origins_follow_each_other() -> None:
    data = row(5) + row(9, origin=2) + row(6, tsn=0) + row(7, tsn=1, flags=1) + row(10, origin=2, tsn=0, flags=1)
    assert [item[:3] for item in fed(assembler(), data)] == [(1, 5, 5), (2, 9, 9), (1, 6, 7), (2, 10, 10)]


@pytest.mark.parametrize(
    "following",
    [row(50), row(50, tsn=0), row(50, tsn=0, flags=1), row(44, tsn=0, flags=1, origin=2), row(1, origin=2), row(44)],
    ids=["single", "first of several", "one row", "another origin's", "another origin's, single", "without a gap"],
)
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("memory", [1, 10**9])
def test_the_next_transaction_ends_one_whose_last_row_is_not_relayed(following: bytes, is_split: bool, memory: int) -> None:
    """The row that empties a temporary space has the COMMIT flag and isn't relayed, before 2.8.4. A relay never mixes two."""
    target = assembler(memory)
    start = row(42, tsn=0) + row(43, tsn=1)
    if is_split:
        assert target.feed(frames_of(start)) == []
        start = b""
    ended, *_ = fed(target, start + following + row(60, tsn=0, flags=1))
    assert ended == (1, 42, 43, 43.0, 0, [(2, 42, body(42)), (2, 43, body(43))])
    assert target.open_byte_count == 0


def test_several_transactions_without_their_last_rows() -> None:
    target = assembler()
    data = row(42, tsn=0) + row(43, tsn=0) + row(44, tsn=1) + row(45, tsn=0, flags=2)
    assert [item[:3] for item in fed(target, data)] == [(1, 42, 42), (1, 43, 44)]
    assert [whole(transaction)[:5] for transaction in target.end()] == [(1, 45, 45, 45.0, 2)]
    assert target.end() == []


@pytest.mark.parametrize("memory", [1, 10**9])
def test_a_transaction_of_which_no_row_follows(memory: int) -> None:
    spools: list[MemorySpool] = []
    target = assembler(memory, spools)
    for number in range(3):
        target.feed(frames_of(row(42 + number, tsn=number)))
    (ended,) = target.end()
    assert whole(ended) == (1, 42, 44, 44.0, 0, [(2, lsn, body(lsn)) for lsn in (42, 43, 44)])
    assert target.open_byte_count == 0
    target.close()
    assert not any(spool.is_closed for spool in spools), "who reads it closes it"


@pytest.mark.parametrize(
    "interruption",
    [row(44, tsn=1), row(43), row(42, tsn=1), row(41)],
    ids=["within it", "its last", "before it", "before, single"],
)
@pytest.mark.parametrize("is_split", [False, True])
def test_a_row_that_is_neither_its_own_nor_after_it(interruption: bytes, is_split: bool) -> None:
    target = assembler()
    start = row(42, tsn=0) + row(43, tsn=1)
    if is_split:
        assert target.feed(frames_of(start)) == []
        start = b""
    with pytest.raises(ProtocolError, match=r"transaction 1:42, of which row 43 had arrived, was interrupted by a row"):
        target.feed(frames_of(start + interruption))


def test_open_bytes_are_counted() -> None:
    target = assembler()
    first, second = row(42, tsn=0), row(43, tsn=1)
    target.feed(frames_of(row(41) + first))
    assert target.open_byte_count == len(first)
    target.feed(frames_of(second))
    assert target.open_byte_count == len(first + second)
    target.feed(frames_of(row(44, tsn=2, flags=1)))
    assert target.open_byte_count == 0


def test_what_is_unfinished_is_forgotten_with_its_connection() -> None:
    spools: list[MemorySpool] = []
    target = assembler(100, spools)
    target.feed(frames_of(row(42, tsn=0) + row(43, tsn=1)))
    target.close()
    assert [spool.is_closed for spool in spools] == [True]
    assert target.open_byte_count == 0
    assert [item[:3] for item in fed(target, row(42, tsn=0) + row(43, tsn=1, flags=1))] == [(1, 42, 43)]
    target.close()
    target.close()


def test_memory_is_bounded() -> None:
    """Past the bound neither frames nor rows stay: the spool has their bytes."""
    spools: list[MemorySpool] = []
    target = assembler(200, spools)
    for number in range(50):
        target.feed(frames_of(row(100 + number, tsn=number)))
        assert target._open is not None
        assert sum(len(part.data) for part in target._open.parts) <= 200
        assert bool(target._open.parts) == (target._open.spool is None)
    assert len(spools) == 1
    (transaction,) = target.feed(frames_of(row(150, tsn=50, flags=1)))
    assert transaction.spool is spools[0]
    assert not spools[0].is_closed, "who reads it closes it"
    assert [lsn for _, lsn, _ in whole(transaction)[5]] == list(range(100, 151))


WRONG_HEADERS: list[Header] = [
    {0: None},
    {0: []},
    {0: {}},
    {0: True},
    {3: None},
    {3: 0},
    {3: -1},
    {3: "7"},
    {3: 7.0},
    {3: True},
    {2: None},
    {2: 0},
    {2: 32},
    {2: -1},
    {2: "1"},
    {2: True},
    {4: "now"},
    {4: float("nan")},
    {4: float("inf")},
    {4: -1.0},
    {4: 1e11},
    {4: 1e308},
    {4: True},
    {8: None},
    {8: -1},
    {8: "0"},
    {9: None},
    {9: "1"},
    {9: -1},
    {8: 0, 9: None},
    {8: 0, 9: "1"},
    {8: 0, 9: -1},
]


FIELDS = {0: "request type", 2: "replica id", 3: "lsn", 4: "timestamp", 8: "tsn", 9: "flags"}


@pytest.mark.parametrize("wrong", WRONG_HEADERS, ids=[str(wrong) for wrong in WRONG_HEADERS])
@pytest.mark.parametrize("before", [b"", row(1)], ids=["first", "second"])
def test_headers_that_cannot_be_followed(wrong: Header, before: bytes) -> None:
    header: Header = {0: 2, 1: 2, 2: 1, 3: 7, 4: 1.0, **wrong}
    with pytest.raises(ProtocolError, match=f"header without a valid {FIELDS[max(wrong)]}"):
        assembler().feed(frames_of(before + wire.frame(header, {})))


@pytest.mark.parametrize("missing", [2, 3])
def test_headers_without_origin_or_lsn(missing: int) -> None:
    header: Header = {0: 2, 1: 2, 2: 1, 3: 7, 4: 1.0}
    del header[missing]
    with pytest.raises(ProtocolError, match=f"header without a valid {FIELDS[missing]}"):
        assembler().feed(frames_of(wire.frame(header, {})))


def test_row_without_a_time() -> None:
    assert fed(assembler(), row(5) + wire.frame({0: 2, 2: 1, 3: 7}, {}))[1][3] == 0.0


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Transactions of up to nine rows, of several origins, with gaps, some without their end; and what identifies them."""
    lsns = {1: 0, 2: 100}
    data, expected = b"", []
    for size, origin, gap, has_end in draw(
        st.lists(
            st.tuples(st.integers(1, 9), st.sampled_from([1, 1, 2]), st.integers(0, 3), st.sampled_from([True, True, False])),
            max_size=12,
        )
    ):
        first = lsns[origin] + 1 + gap
        lsns[origin] = first + size - 1
        if size == 1 and gap != 1:
            data += row(first, origin=origin)
        else:
            for number in range(size):
                data += row(first + number, tsn=number, flags=1 if has_end and number == size - 1 else None, origin=origin)
        expected.append((origin, first, first + size - 1))
    return data, expected


def _parts(frames: Frames, sizes: list[int]) -> Iterator[Frames]:
    start = 0
    for size in [*sizes, len(frames)]:
        yield frames.part(min(start, len(frames)), min(len(frames), start + size))
        start += size


@MANY
@given(stream=streams(), sizes=st.lists(st.integers(0, 7), max_size=40), memory=st.sampled_from([1, 150, 400, 10**9]))
def test_any_cut_and_any_memory_give_the_same(
    stream: tuple[bytes, list[tuple[int, int, int]]], sizes: list[int], memory: int
) -> None:
    data, expected = stream
    frames = frames_of(data)
    target = assembler()
    at_once = [whole(transaction) for transaction in target.feed(frames) + target.end()]
    assert [item[:3] for item in at_once] == expected
    target = assembler(memory)
    in_parts = [whole(transaction) for part in _parts(frames, sizes) for transaction in target.feed(part)]
    in_parts += map(whole, target.end())
    assert in_parts == at_once
    assert target.open_byte_count == 0


@SOME
@given(stream=streams(), cut=st.integers(0, 60))
def test_only_whole_transactions_leave(stream: tuple[bytes, list[tuple[int, int, int]]], cut: int) -> None:
    data, expected = stream
    frames = frames_of(data)
    cut = min(cut, len(frames))
    found = [whole(transaction)[:3] for transaction in assembler().feed(frames.part(0, cut))]
    rows_before = [(header[2], header[3]) for header in frames.headers[:cut]]
    arrived = [item for item in expected if (item[0], item[2]) in rows_before]
    has_end = bool(cut) and (8 not in frames.headers[cut - 1] or frames.headers[cut - 1].get(9) == 1)
    assert found == (arrived if has_end or cut == 0 else [item for item in arrived if item[2:] != rows_before[-1][1:]])
