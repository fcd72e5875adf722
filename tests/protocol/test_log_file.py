"""Tarantool's own files: as a live 2.6.0 wrote them, as they are described, cut off, and wrong in every bit.

Whatever the bytes are, the decoder yields the rows of the blocks before the first wrong one, and then either knows a tail that an
interrupted writer leaves, or raises LogFileError.
"""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import LogFileError
from cdc.positions.vclock import VClock
from cdc.protocol import log_file
from cdc.protocol.codec import FrameDecoder, MapPairs
from cdc.protocol.log_file import LogFileDecoder, parse_meta
from tests.fakes import log_files, wire
from tests.fakes.log_files import END_MARKER, Row, block, insert, meta, nop, rows_data
from tests.fakes.profiles import MANY, SOME

FILES = log_files.captured()
SMALL = "00000000000000000344.xlog"
META = meta()


def read(data: bytes, step: int = 0, *, decoder: LogFileDecoder | None = None) -> list[tuple[Any, Any]]:
    """The rows of a whole file, which must show as frames of the wire too."""
    decoder = LogFileDecoder() if decoder is None else decoder
    found: list[tuple[Any, Any]] = []
    for start in range(0, len(data), step or max(len(data), 1)):
        for frames in decoder.feed(data[start : start + (step or len(data))]):
            found += zip(frames.headers, frames.bodies, strict=True)
            again = FrameDecoder().feed(frames.data)
            assert (again.headers, again.bodies, again.ends) == (frames.headers, frames.bodies, frames.ends)
    decoder.end()
    return found


def plain(rows: list[Row]) -> list[tuple[Any, Any]]:
    return [(header, {} if body is None else body) for header, body in rows]


def built(*blocks: bytes, is_closed: bool = True) -> bytes:
    return META + b"".join(blocks) + (END_MARKER if is_closed else b"")


# As they were written.


@pytest.mark.parametrize("name", FILES)
def test_captured_files(name: str) -> None:
    decoder = LogFileDecoder()
    rows = read(FILES[name], decoder=decoder)
    assert decoder.is_closed
    assert decoder.tail_bytes == 0
    assert decoder.meta is not None
    assert decoder.meta.is_snapshot == name.endswith(".snap")
    assert decoder.meta.writer_version == (2, 6, 0)
    assert decoder.meta.instance_uuid is not None
    kinds = {header[0] for header, _ in rows}
    assert kinds == ({2} if decoder.meta.is_snapshot else kinds & {2, 4, 9, 12, 40})
    assert [read(FILES[name], step) for step in (1, 7, 1000)] == [rows] * 3


def test_what_the_scenario_did() -> None:
    rows = read(FILES["00000000000000000000.xlog"])
    assert len(rows) == 343
    assert [body for header, body in rows if header[0] == 40] == [{2: 1, 3: 26}, {2: 1, 3: 29}]
    assert [header.get(9) for header, body in rows if header[0] == 12] == [1, 1, None]
    assert all(not body for header, body in rows if header[0] == 12)
    large = [header for header, _ in rows if header.get(3, 0) in range(32, 333)]
    assert [header[8] for header in large] == list(range(301))
    assert {header.get(9) for header in large[:-1]} == {None}
    assert large[-1][9] == 1
    assert {header[3] for header, _ in rows if 7 in header} == set(range(1, 10))
    first, second = (parse_meta(FILES[f"{number:020}.xlog"]) for number in (0, 343))
    assert first is not None
    assert second is not None
    assert (first[0].vclock, first[0].previous_vclock) == (VClock(), None)
    assert (second[0].vclock, second[0].previous_vclock) == (VClock({1: 334}), VClock())


# As they are described.

SEVERAL = [insert(1, 1, "a"), nop(2), insert(3, 2, b"\xff\xfe"), insert(4, 3, {"deep": [None, 1.5]}), nop(5)]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_block_of_several_rows(compressed: bool) -> None:
    assert read(built(block(rows_data(SEVERAL), compressed=compressed))) == plain(SEVERAL)


@given(
    sizes=st.lists(st.integers(0, 300), max_size=12),
    compressed=st.lists(st.booleans(), min_size=12, max_size=12),
    step=st.integers(1, 400),
    is_closed=st.booleans(),
)
@SOME
def test_blocks_of_every_size_in_every_cut(sizes: list[int], compressed: list[bool], step: int, is_closed: bool) -> None:
    rows = [insert(lsn, "x" * size) for lsn, size in enumerate(sizes, 1)]
    data = built(
        *(block(rows_data([row]), compressed=way) for row, way in zip(rows, compressed, strict=False)), is_closed=is_closed
    )
    decoder = LogFileDecoder()
    assert read(data, step, decoder=decoder) == plain(rows)
    assert decoder.is_closed == is_closed
    assert decoder.offset == len(data) - (len(END_MARKER) if is_closed else 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_block_comes_in_pieces(compressed: bool) -> None:
    rows = [insert(lsn, random.Random(lsn).randbytes(50).hex()) for lsn in range(1, 2_500)]
    rows[100:100] = [insert(9_999, "y" * 3 * log_file.ROWS_BYTES)]
    data = built(block(rows_data([insert(1)])), block(rows_data(rows), compressed=compressed), block(rows_data([nop(7)])))
    sizes = []
    found: list[tuple[Any, Any]] = []
    for frames in LogFileDecoder().feed(data):
        sizes.append(len(frames.data))
        found += zip(frames.headers, frames.bodies, strict=True)
    assert found == plain([insert(1), *rows, nop(7)])
    assert len(sizes) > 4
    assert max(sizes) < 8 * log_file.ROWS_BYTES


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("size", [log_file.ROWS_BYTES // 2, log_file.ROWS_BYTES + 5_000])
def test_a_row_in_longer_writing_after_a_long_row(size: int, *, compressed: bool) -> None:
    """The compiled path stops before it, also where the block ends."""
    rows = [insert(1, "y" * size), insert(2), insert(3), insert(4), nop(5)]
    header, body = rows[2]
    longer = wire.pack(header) + b"\xde\x00\x02" + wire.pack(body)[1:]
    data = rows_data(rows[:2]) + longer + rows_data(rows[3:])
    assert read(built(block(data, compressed=compressed), block(rows_data([insert(6)])))) == plain([*rows, insert(6)])
    for cut in (len(data) - 2, len(rows_data(rows[:2]) + longer) - 1):
        with pytest.raises(LogFileError, match="ends within a row"):
            read(built(block(data[:cut], compressed=compressed)))


def test_keys_that_python_cannot_hash() -> None:
    data = wire.pack({0: 2, 3: 1}) + b"\x82\x10\x01\x21\x81\x91\x01\x02" + rows_data([nop(2)])
    for compressed in (False, True):
        rows = read(built(block(data, compressed=compressed), block(rows_data([insert(3)]))))
        assert rows[0] == ({0: 2, 3: 1}, {0x10: 1, 0x21: MapPairs([([1], 2)])})
        assert rows[1:] == plain([nop(2), insert(3)])


def test_padding_of_old_writers() -> None:
    data = block(rows_data([insert(1)]), padding=0x5A)
    assert read(meta(writer="1.7.2-0-g1") + data + END_MARKER) == plain([insert(1)])
    with pytest.raises(LogFileError, match="padding"):
        read(meta() + data + END_MARKER)


# Text headers.


def test_text_header() -> None:
    text = b"SNAP\n0.12\nServer: aaaaaaaa-0000-4000-8000-000000000001\nVClock: {0: 5, 1: 7}\nColour:\tred \n\n"
    found = parse_meta(text + b"\n\n")
    assert found is not None
    head, size = found
    assert size == len(text)
    assert (head.kind, head.format_version, str(head.vclock), head.previous_vclock) == ("SNAP", "0.12", "{1: 7}", None)
    assert str(head.instance_uuid) == log_files.INSTANCE
    assert head.writer_version is None
    assert head.values["Colour"] == "red"
    assert all(parse_meta(text[:size]) is None for size in range(len(text)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"VYLOG\n0.13\n\n", r"vinyl's own files \(VYLOG\)"),
        (b"RUN\n0.13\n\n", r"vinyl's own files \(RUN\)"),
        (b"INDEX\n0.13\n\n", r"vinyl's own files \(INDEX\)"),
        (b"Tarantool 2.6.0 (Binary)", "not as a .snap or .xlog does"),
        (b"XLOGS\n0.13\n\n", "not as a .snap or .xlog does"),
        (b"XLOG\n0.11\n\n", "format version '0.11'"),
        (b"XLOG\n\n", "format version ''"),
        (b"XLOG\n0.13\nVClock\n\n", "a line without a value"),
        (b"XLOG\n0.13\nVClock: {1: 2\n\n", "can't be understood"),
        (b"XLOG\n0.13\nVClock: {99: 2}\n\n", "can't be understood"),
        (b"XLOG\n0.13\nInstance: me\n\n", "can't be understood"),
        (b"XLOG\n0.13\n" + b"a: b\n" * 1000, "doesn't end within 4096 bytes"),
    ],
)
def test_refused_text_headers(text: bytes, sentence: str) -> None:
    for step in (1, len(text)):
        with pytest.raises(LogFileError, match=sentence):
            read(text, step)


# Cut off.


@pytest.mark.parametrize("is_closed", [True, False])
def test_every_truncation(is_closed: bool) -> None:
    last = insert(9, "b" * 300)
    blocks = [block(rows_data([insert(1, "a")])), block(rows_data(SEVERAL * 40), compressed=True), block(rows_data([last]))]
    counts, rows = [1, 200, 1], plain([insert(1, "a"), *SEVERAL * 40, last])
    data = built(*blocks, is_closed=is_closed)
    ends = [len(META) + sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]
    for size in range(len(data)):
        decoder = LogFileDecoder()
        if size < len(META):
            with pytest.raises(LogFileError, match="within its text header"):
                read(data[:size], decoder=decoder)
            continue
        whole = sum(end <= size for end in ends) - 1
        assert read(data[:size], decoder=decoder) == rows[: sum(counts[:whole])]
        assert not decoder.is_closed
        assert decoder.offset == ends[whole]
        assert decoder.tail_bytes == size - ends[whole]


def test_captured_file_cut_in_its_last_block() -> None:
    data = FILES[SMALL]
    whole = read(data)
    for size in range(len(data) - 30, len(data)):
        assert read(data[:size]) in (whole, whole[:-1])


def test_a_tail_that_its_writer_changes() -> None:
    first, lost, second = (block(rows_data([insert(lsn, "row" * lsn)])) for lsn in (1, 2, 3))
    decoder = LogFileDecoder()
    assert read(META + first + lost[:25], decoder=decoder) == plain([insert(1, "row")])
    at = decoder.rewind()
    assert at == len(META) + len(first)
    assert read(second + END_MARKER, decoder=decoder) == plain([insert(3, "row" * 3)])
    assert decoder.is_closed
    # A server that starts again takes the end marker of a log without rows away, and so may any writer.
    assert decoder.rewind() == at + len(second)
    assert read(lost + END_MARKER, decoder=decoder) == plain([insert(2, "row" * 2)])
    assert decoder.is_closed


# Damaged.


def damaged(data: bytes, step: int = 0) -> tuple[int, LogFileError]:
    """How many rows come out before the damage, and the error about it."""
    decoder, count = LogFileDecoder(), 0
    try:
        for start in range(0, len(data), step or len(data)):
            for frames in decoder.feed(data[start : start + (step or len(data))]):
                count += len(frames)
        decoder.end()
    except LogFileError as error:
        return count, error
    raise AssertionError("the damage wasn't found")


def test_every_flipped_bit_is_found() -> None:
    blocks = [block(rows_data([insert(1, "a" * 200)])), block(rows_data(SEVERAL), compressed=True), block(rows_data([insert(9)]))]
    data = built(*blocks)
    ends = [len(META) + sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]
    counts = [0, 1, 6, 7]
    for place in range(len(META), len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            good = max(number for number, end in enumerate(ends) if end <= place)
            rows, error = damaged(bytes(changed))
            assert rows == counts[good], f"byte {place}, bit {bit}"
            assert error.offset == ends[good]
            assert error.hint


def test_a_flipped_bit_before_a_whole_block_is_found_without_an_end_marker() -> None:
    first = block(rows_data([insert(1, "a" * 40)]))
    data = built(first, block(rows_data([insert(2)])), is_closed=False)
    for place in range(len(META), len(META) + len(first)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(LogFileError):
                read(bytes(changed))


@given(name=st.sampled_from(sorted(FILES)), place=st.integers(0), bit=st.integers(0, 7))
@MANY
def test_flipped_bits_of_captured_files(name: str, place: int, bit: int) -> None:
    data = bytearray(FILES[name])
    begin = data.index(b"\n\n") + 2
    data[begin + place % (len(data) - begin)] ^= 1 << bit
    with pytest.raises(LogFileError):
        read(bytes(data))


ONE, TWO = block(rows_data([insert(1)])), block(rows_data([insert(2)]))


@pytest.mark.parametrize(
    ("data", "rows", "sentence"),
    [
        (ONE + b"garbage" + TWO, 1, "no block begins with 67 61 72 62"),
        (ONE + bytes(100), 1, "no block begins with 00 00 00 00"),
        (ONE + b"\0", 1, "which begins no block"),
        (ONE + END_MARKER + TWO, 1, "after the end marker"),
        (ONE + END_MARKER + b"\0", 1, "after the end marker"),
        (ONE + END_MARKER * 2, 1, "after the end marker"),
        (ONE + TWO[:4] + b"\xcf" + bytes(30), 1, "length in the header of a block is malformed"),
        (ONE + TWO[:4] + b"\xce\x7f\xff\xff\xff" + bytes(30), 1, "more than source.frame_bytes_max"),
        (ONE + TWO[:25] + ONE, 1, "doesn't fit its data"),
        (ONE + TWO[:4] + b"\x70" + TWO[5:] + ONE, 1, "doesn't fit its data|another block begins at offset"),
        (ONE + TWO[:4] + b"\xcd\x70\x00" + TWO[5:] + ONE, 1, "another block begins at offset"),
        (ONE + TWO[:4] + b"\xcd\x70\x00" + TWO[5:] + END_MARKER, 1, "which has its end marker"),
        (ONE + block(b"\x81"), 1, "ends within a row"),
        (ONE + block(rows_data([insert(2)])[:-1]) + TWO, 1, "ends within a row"),
        (ONE + block(b"\xc1\xc1"), 1, "isn't a row"),
        (ONE + block(b"\x01\x02"), 1, "isn't a row"),
        (ONE + block(wire.pack({0: 2}) + wire.pack([])), 1, "isn't a row"),
        (ONE + block(wire.pack({1: 2}) + wire.pack({})), 1, "isn't a row"),
        (ONE + block(rows_data([insert(2, "x" * 200_000)])[:-1], compressed=True), 1, "ends within a row"),
    ],
)
def test_damage(data: bytes, rows: int, sentence: str) -> None:
    for step in (1, 11, 1_000_000):
        if step == 1 and len(data) > 1000:
            continue
        count, error = damaged(META + data, step)
        assert re.search(sentence, str(error)), str(error)
        assert count == rows
        assert error.offset >= len(META) + len(ONE)


def test_data_that_is_no_zstd() -> None:
    data = bytearray(block(b"no frame of zstd"))
    data[3] = 0xBA
    with pytest.raises(LogFileError, match="can't be decompressed"):
        read(META + bytes(data))


def test_bounds() -> None:
    decoder = LogFileDecoder(block_bytes_max=1_000)
    with pytest.raises(LogFileError, match=r"source.frame_bytes_max \(1000\)"):
        read(META + block(rows_data([insert(1, "x" * 2_000)])), decoder=decoder)
    decoder = LogFileDecoder(block_bytes_max=100_000)
    with pytest.raises(LogFileError, match="a row has more than 100000 bytes"):
        read(META + block(rows_data([insert(1, "x" * 1_000_000)]), compressed=True), decoder=decoder)


@given(data=st.binary(max_size=200), as_block=st.booleans(), compressed=st.booleans(), step=st.integers(1, 50))
@MANY
def test_any_bytes(data: bytes, as_block: bool, compressed: bool, step: int) -> None:
    rows = plain([insert(1)])
    with contextlib.suppress(LogFileError):
        rows = read(META + ONE + (block(data, compressed=compressed) if as_block else data), step)
    assert rows[0] == plain([insert(1)])[0]
    assert as_block or len(rows) == 1


@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
@MANY
def test_changed_files(seed: int, count: int) -> None:
    rng = random.Random(seed)
    data = bytearray(FILES[rng.choice(sorted(FILES))])
    for _ in range(count):
        place = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.randrange(1, 60)]
            case 2:
                data[place:place] = rng.randbytes(rng.randrange(1, 60))
    with contextlib.suppress(LogFileError):
        read(bytes(data), rng.choice((0, 100)))
