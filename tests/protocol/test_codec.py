"""Frames: whole, in pieces, and wrong in every way that a length, MessagePack or a header can be wrong.

Whatever the bytes are, the decoder either takes them in one way only, however they are cut, or raises ProtocolError; and it
never holds more than its bound and what it was handed last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import EncodingError, ProtocolError
from cdc.events.json_values import encode, plain
from cdc.protocol.codec import LEVELS_MAX, FrameDecoder, MapPairs, body_of, body_values, encode_frame, tuple_values
from cdc.protocol.extensions import DeepValue, OpaqueExtension
from cdc.protocol.log_file import LogFileDecoder
from tests.fakes import wire
from tests.fakes.log_files import block, meta
from tests.fakes.profiles import MANY, SOME

ROW = wire.frame({0: 2, 2: 1, 3: 7}, {0x10: 512, 0x21: [1, "x"]})
HEARTBEAT = wire.frame({0: 0, 1: 2})


def decoded(data: bytes, sizes: Iterator[int] | None = None) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
    decoder = FrameDecoder()
    found: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
    position = 0
    while position < len(data):
        size = next(sizes, len(data)) if sizes is not None else len(data)
        frames = decoder.feed(data[position : position + size])
        found += zip(frames.headers, frames.bodies, strict=True)
        position += size
    return found


# Right bytes.


def test_header_and_body() -> None:
    assert decoded(ROW) == [({0: 2, 2: 1, 3: 7}, {0x10: 512, 0x21: [1, "x"]})]


def test_frame_without_a_body() -> None:
    assert decoded(HEARTBEAT) == [({0: 0, 1: 2}, {})]


@pytest.mark.parametrize("stream", [ROW * 3, HEARTBEAT * 3, ROW + HEARTBEAT + ROW, HEARTBEAT + ROW * 2 + HEARTBEAT])
def test_several_frames_in_every_cut(stream: bytes) -> None:
    at_once = decoded(stream)
    assert len(at_once) == stream.count(ROW) + stream.count(HEARTBEAT)
    for cut in range(1, len(stream)):
        assert decoded(stream, iter([cut])) == at_once
    assert decoded(stream, iter([1] * len(stream))) == at_once


def test_unfinished_frame_stays() -> None:
    decoder = FrameDecoder()
    assert len(decoder.feed(ROW + ROW[:-1])) == 1
    assert decoder.buffered_bytes == len(ROW) - 1
    assert len(decoder.feed(ROW[-1:])) == 1
    assert decoder.buffered_bytes == 0


def test_raw_bytes_of_a_frame() -> None:
    frames = FrameDecoder().feed(HEARTBEAT + ROW + HEARTBEAT)
    assert [frames.raw(index) for index in range(3)] == [HEARTBEAT, ROW, HEARTBEAT]


@given(start=st.integers(0, 5), stop=st.integers(0, 5))
def test_a_part_is_a_batch_of_its_own(start: int, stop: int) -> None:
    stream = [ROW, HEARTBEAT, ROW, ROW, HEARTBEAT]
    frames = FrameDecoder().feed(b"".join(stream))
    part = frames.part(start, stop)
    expected = stream[start:stop]
    assert len(part) == len(expected)
    assert [part.raw(index) for index in range(len(part))] == expected
    assert part.data == b"".join(expected)
    assert part.headers == frames.headers[start:stop]


def test_nothing_gives_nothing() -> None:
    assert decoded(b"") == []
    assert len(FrameDecoder().feed(b"")) == 0


def test_the_encoder_is_read_by_the_decoder() -> None:
    assert decoded(encode_frame({0: 66, 1: 5}, {0x26: {1: 2**63}})) == [({0: 66, 1: 5}, {0x26: {1: 2**63}})]
    assert encode_frame({0: 68}) == bytes.fromhex("ce 00000003 81 00 44")


# Values that Python could stumble over.


@pytest.mark.parametrize("behind", [b"", ROW])
def test_map_with_a_key_that_cannot_be_hashed(behind: bytes) -> None:
    value = b"\x82" + wire.pack([1, 2]) + b"\x01" + wire.pack({}) + wire.pack({5: 6})
    payload = wire.pack({0: 2}) + b"\x82\x10\x01\x21\x92" + value + wire.pack({7: 8})
    (_, body), *_ = decoded(wire.raw_frame(payload) + behind)
    pairs, plain = body[0x21]
    assert isinstance(pairs, MapPairs)
    assert list(pairs) == [([1, 2], 1), ({}, {5: 6})]
    assert plain == {7: 8}


def test_string_that_is_not_utf8_keeps_its_bytes() -> None:
    ((_, body),) = decoded(wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\x91\xa3\xff\x00a"))
    (text,) = body[0x21]
    assert text.encode("utf-8", "surrogateescape") == b"\xff\x00a"


def test_unknown_keys_and_extensions_pass() -> None:
    header: dict[Any, Any] = {0: 2, 0x7F: [1], "k": None, -1: 2.5}
    body: dict[Any, Any] = {0x99: OpaqueExtension(99, b"x"), None: 1}
    assert decoded(wire.frame(header, body)) == [(header, body)]


@pytest.mark.parametrize("depth", [1, 100, 1000])
def test_nesting(depth: int) -> None:
    payload = wire.pack({0: 2}) + b"\x81\x21" + b"\x91" * depth + b"\xc0"
    ((_, body),) = decoded(wire.raw_frame(payload))
    value = body[0x21]
    for _ in range(depth - 1):
        (value,) = value
    assert str(value) == "[None]"


DEEP = [b"\x91", b"\x81\x01", b"\x92\x01", b"\xdd\x00\x00\x00\x01", b"\xdf\x00\x00\x00\x01\xa1a"]


@pytest.mark.parametrize("depth", [1021, 1022, 1023, 5000, 100_000])
@pytest.mark.parametrize("level", DEEP)
def test_nesting_that_the_library_does_not_follow(depth: int, level: bytes) -> None:
    """Tarantool takes it. The rows around it are as ever, and all of it that lies within reach."""
    deep, behind_deep = level * depth + b"\xc0", wire.pack({"a": [1.5, None]})
    row = wire.raw_frame(wire.pack({0: 2, 3: 8}) + b"\x82\x10\xcd\x02\x00\x21\x94\x07\xa1x" + deep + behind_deep)
    for before, behind in (([], []), ([ROW] * 3, []), ([], [ROW, HEARTBEAT]), ([HEARTBEAT], [ROW] * 3)):
        frames = FrameDecoder().feed(b"".join([*before, row, *behind]))
        assert frames.raws() == [*before, row, *behind]
        place = len(before)
        assert decoded(b"".join(before)) == list(zip(frames.headers[:place], frames.bodies[:place], strict=True))
        assert decoded(b"".join(behind)) == list(zip(frames.headers[place + 1 :], frames.bodies[place + 1 :], strict=True))
        assert frames.headers[place] == {0: 2, 3: 8}
        body = frames.bodies[place]
        assert body[0x10] == 512
        number, text, value, behind_it = body[0x21]
        assert (number, text, behind_it) == (7, "x", {"a": [1.5, None]})
        if depth > 1022:
            for _ in range(LEVELS_MAX - 1):
                value = next(iter(value.values())) if isinstance(value, dict) else value[-1]
            assert value == DeepValue(level * (depth - LEVELS_MAX + 1) + b"\xc0")
    assert body_of(row) == row[5:][len(wire.pack({0: 2, 3: 8})) :]
    raw = body_values(row)[0x21]
    assert raw == b"\x94\x07\xa1x" + deep + behind_deep
    fields = tuple_values(raw)
    assert (fields[:2], fields[3]) == ([7, "x"], {"a": [1.5, None]})


@pytest.mark.parametrize("level", DEEP)
@pytest.mark.parametrize("depth", [900, 5000])
def test_wrong_bytes_in_the_depth_are_refused(level: bytes, depth: int) -> None:
    for inner in (b"\xc1", b"", b"\xa5x", b"\xc0\xc0"):
        with pytest.raises(ProtocolError):
            decoded(ROW + wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21" + level * depth + inner))


# Two ways of decoding, one meaning.


def _length(length: int, first: int, widths: tuple[int, ...]) -> st.SearchStrategy[bytes]:
    fitting = [(place, width) for place, width in enumerate(widths) if length < 1 << (8 * width)]
    return st.sampled_from([bytes([first + place]) + length.to_bytes(width) for place, width in fitting])


def _with_length(data: bytes, first: int, fix: int = 0) -> st.SearchStrategy[bytes]:
    """Text with each form of its length that it may have."""
    forms = _length(len(data), first, (1, 2, 4)).map(lambda header: header + data)
    return forms | st.just(bytes([fix | len(data)]) + data) if fix and len(data) < 32 else forms


def _extension(code: int, data: bytes) -> st.SearchStrategy[bytes]:
    end = code.to_bytes(1, signed=True) + data
    long = _length(len(data), 0xC7, (1, 2, 4)).map(lambda header: header + end)
    fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(len(data))
    return long | st.just(bytes([fixed]) + end) if fixed else long


def _integer(number: int) -> st.SearchStrategy[bytes]:
    forms = [bytes([0xCC + place]) + number.to_bytes(1 << place) for place in range(4) if 0 <= number < 1 << (8 << place)]
    for place in range(4):
        half = 1 << ((8 << place) - 1)
        if -half <= number < half:
            forms.append(bytes([0xD0 + place]) + number.to_bytes(1 << place, signed=True))
    return st.sampled_from([*forms, *([number.to_bytes(1, signed=True)] if -32 <= number < 128 else [])])


def _container(first: int, fix: int, size: int) -> Callable[[list[bytes]], st.SearchStrategy[bytes]]:
    def built(items: list[bytes]) -> st.SearchStrategy[bytes]:
        count = len(items) // size
        forms = _length(count, first, (2, 4))
        return (forms | st.just(bytes([fix | count])) if count < 16 else forms).map(lambda header: header + b"".join(items))

    return built


LENGTHS = st.integers(0, 20) | st.sampled_from([31, 32, 255, 256])
BLOBS = LENGTHS.flatmap(lambda size: st.binary(min_size=size, max_size=size))
SCALARS = st.one_of(
    st.sampled_from([b"\xc0", b"\xc2", b"\xc3"]),
    st.integers(-(2**63), 2**64 - 1).flatmap(_integer) | st.integers(-40, 300).flatmap(_integer),
    st.binary(min_size=4, max_size=4).map(lambda data: b"\xca" + data),
    st.binary(min_size=8, max_size=8).map(lambda data: b"\xcb" + data),
    st.text(max_size=8).map(str.encode).flatmap(lambda data: _with_length(data, 0xD9, 0xA0)),
    BLOBS.flatmap(lambda data: _with_length(data, 0xD9, 0xA0)),
    BLOBS.flatmap(lambda data: _with_length(data, 0xC4)),
    st.tuples(st.integers(-128, 127) | st.sampled_from([-1, 1, 2, 3, 4, 6]), BLOBS).flatmap(lambda pair: _extension(*pair)),
    st.sampled_from([4, 8, 12]).flatmap(lambda n: st.binary(min_size=n, max_size=n)).flatmap(lambda data: _extension(-1, data)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).flatmap(_container(0xDC, 0x90, 1)),
        st.lists(inner, max_size=3).map(lambda items: [*items, *items]).flatmap(_container(0xDE, 0x80, 2)),
    ),
    max_leaves=12,
)


@MANY
@given(fields=st.lists(VALUES, max_size=4).flatmap(_container(0xDC, 0x90, 1)))
@example(fields=b"\x91\xd6\xff\x00\x00\x00\x01")
@example(fields=b"\x91\xc7\x0c\xff" + b"\x00" * 12)
@example(fields=b"\x91\xd7\xff" + b"\xff" * 8)
@example(fields=b"\x91\xd4\xff\x00")
@example(fields=b"\x91\x81\x91\x01\x02")
@example(fields=b"\x91\x81\xd6\xff\x00\x00\x00\x01\x02")
def test_every_way_of_decoding_has_one_meaning(fields: bytes) -> None:
    """In a batch, in a frame that the library refuses for its neighbour in the body, in a log file, and by itself."""
    body = b"\x82\x10\xcd\x02\x00\x21" + fields
    row = wire.pack({0: 2, 2: 1, 3: 7}) + body
    frame = wire.raw_frame(row)
    (_, in_a_batch), _ = decoded(frame + ROW)
    assert body_of(frame) == body
    assert body_values(frame) == {0x10: b"\xcd\x02\x00", 0x21: fields}
    neighbour = b"\x83\x2f" + b"\x91" * 2000 + b"\xc0" + body[1:]
    ((_, walked),) = decoded(wire.raw_frame(wire.pack({0: 2}) + neighbour))
    (logged,) = (body for frames in LogFileDecoder().feed(meta() + block(row)) for body in frames.bodies)
    values = [in_a_batch[0x21], walked[0x21], logged[0x21], tuple_values(fields)]
    assert len({repr(value) for value in values}) == 1
    assert {_shown(value) for value in values} == {_shown(values[0])}


def _shown(value: Any) -> bytes | None:
    """As an event shows it; None if none can."""
    with contextlib.suppress(EncodingError, UnicodeEncodeError):
        return encode(plain(value))
    return None


@MANY
@given(data=st.binary(max_size=40).map(lambda data: b"\x93" + data))
@example(data=b"\x93\x00\x00\x00\xc0\xc4")
def test_what_is_no_tuple_is_none_in_every_way(data: bytes) -> None:
    outcomes: list[object] = []
    for read in (
        lambda: tuple_values(data),
        lambda: decoded(wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21" + data))[0][1][0x21],
        lambda: decoded(wire.raw_frame(wire.pack({0: 2}) + b"\x82\x2f" + b"\x91" * 2000 + b"\xc0\x21" + data))[0][1][0x21],
    ):
        try:
            outcomes.append(repr(read()))
        except (ValueError, ProtocolError):
            outcomes.append(None)
    assert len(set(outcomes)) == 1


# Wrong bytes.

WRONG: dict[str, bytes] = {
    "empty frame": wire.raw_frame(b""),
    "three values": wire.raw_frame(wire.pack({0: 2}) + wire.pack({}) + wire.pack({})),
    "header is an array": wire.raw_frame(wire.pack([0, 2]) + wire.pack({})),
    "header is a number": wire.raw_frame(b"\x01"),
    "body is nil": wire.raw_frame(wire.pack({0: 2}) + b"\xc0"),
    "body is a string": wire.raw_frame(wire.pack({0: 2}) + wire.pack("x")),
    "body cut off": wire.raw_frame(wire.pack({0: 2}) + wire.pack({0x21: [1, 2, 3]})[:-1]),
    "header cut off": wire.raw_frame(wire.pack({0: 2, 1: 3})[:-1]),
    "bytes behind the body": wire.raw_frame(wire.pack({0: 2}) + wire.pack({}) + b"\x92"),
    "string longer than the frame": wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\xdb\xff\xff\xff\xff"),
    "array longer than the frame": wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\xdd\xff\xff\xff\xff"),
    "map longer than the frame": wire.raw_frame(wire.pack({0: 2}) + b"\xdf\xff\xff\xff\xff"),
    "extension longer than the frame": wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\xc9\xff\xff\xff\xff\x01"),
    "the byte that MessagePack never uses": wire.raw_frame(wire.pack({0: 2}) + b"\x81\x21\xc1"),
    "header with a key that can't be hashed": wire.raw_frame(b"\x81\x91\x00\x02" + wire.pack({})),
    "length is a fixint": b"\x05" + ROW[5:],
    "length is a uint16": b"\xcd\x00\x05" + ROW[5:],
    "greeting again": b"Tarantool 2.11.5 (Binary)",
    "TLS alert": bytes.fromhex("1503030002022e"),
    "length too short": ROW[:4] + bytes([ROW[4] - 1]) + ROW[5:],
    "length too long": ROW[:4] + bytes([ROW[4] + 1]) + ROW[5:] + b"\xc0",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("before", [b"", ROW, HEARTBEAT], ids=["first", "behind a row", "behind a heartbeat"])
@pytest.mark.parametrize("behind", [b"", ROW, HEARTBEAT], ids=["last", "before a row", "before a heartbeat"])
def test_wrong_bytes_are_refused(wrong: bytes, before: bytes, behind: bytes) -> None:
    """In every place of a batch: the fast way of decoding must not take what the slow way refuses."""
    with pytest.raises(ProtocolError):
        decoded(before + wrong + behind)


@pytest.mark.parametrize("wrong", [WRONG["three values"], WRONG["header is an array"], WRONG["body cut off"]])
def test_the_error_shows_the_frame(wrong: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decoded(ROW + wrong)
    assert wrong[5:].hex(" ") in str(caught.value)


def test_the_error_shows_only_the_beginning_of_a_large_frame() -> None:
    with pytest.raises(ProtocolError) as caught:
        decoded(wire.raw_frame(wire.pack([0] * 100_000)))
    assert len(str(caught.value)) < 1000


def test_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    decoder = FrameDecoder(frame_bytes_max=100)
    with pytest.raises(ProtocolError, match=r"101 bytes is over the limit of 100.*source\.frame_bytes_max"):
        decoder.feed(b"\xce\x00\x00\x00\x65")
    exact = wire.raw_frame(wire.pack({0: 2}) + wire.pack({0: "x" * 93}))
    assert len(exact) == 105
    assert len(FrameDecoder(frame_bytes_max=100).feed(exact)) == 1


def test_a_frame_that_reaches_into_the_next_one() -> None:
    """Its body lacks a value and would take the next length for it; the next frame has one value too many in return."""
    first = wire.raw_frame(wire.pack({0: 2}) + b"\x81\x10")
    second = wire.raw_frame(wire.pack(1000) + wire.pack({0: 2}) + wire.pack({}))
    with pytest.raises(ProtocolError):
        decoded(first + second)


# Any bytes.


def _outcome(data: bytes, sizes: list[int]) -> tuple[list[Any], bool]:
    """Frames that came out, and whether it ended with an error."""
    limit = 4096
    decoder = FrameDecoder(frame_bytes_max=limit)
    found: list[Any] = []
    pieces = iter(sizes)
    position = 0
    while position < len(data):
        size = next(pieces, len(data))
        piece = data[position : position + size]
        try:
            frames = decoder.feed(piece)
        except ProtocolError:
            return found, True
        assert decoder.buffered_bytes <= limit + 5
        found += [frames.raw(index) for index in range(len(frames))]
        position += size
    return found, False


ANY_STREAM = st.lists(
    st.one_of(
        st.just(ROW),
        st.just(HEARTBEAT),
        st.binary(max_size=40),
        st.binary(max_size=40).map(wire.raw_frame),
        st.sampled_from(sorted(WRONG.values())),
    ),
    max_size=6,
).map(b"".join)


@MANY
@given(data=ANY_STREAM, sizes=st.lists(st.integers(1, 30), max_size=30))
@example(data=ROW + WRONG["bytes behind the body"], sizes=[])
def test_the_outcome_does_not_depend_on_the_pieces(data: bytes, sizes: list[int]) -> None:
    """What is refused is refused in any pieces; what comes out before that is a prefix of the same frames."""
    by_byte, is_wrong = _outcome(data, [1] * len(data))
    in_pieces, is_wrong_too = _outcome(data, sizes)
    assert is_wrong == is_wrong_too
    assert in_pieces == by_byte[: len(in_pieces)]
    assert is_wrong or in_pieces == by_byte


@SOME
@given(st.binary(max_size=3000))
def test_random_bytes_only_ever_raise_protocol_errors(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        FrameDecoder().feed(data)
    with contextlib.suppress(ProtocolError):
        FrameDecoder().feed(wire.raw_frame(data))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 200) | st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)
MAPS = st.dictionaries(st.integers(0, 255), VALUES, max_size=4)


@MANY
@given(packets=st.lists(st.tuples(MAPS, st.none() | MAPS), max_size=6))
def test_any_values_come_back(packets: list[tuple[dict[int, Any], dict[int, Any] | None]]) -> None:
    assert decoded(wire.frames(packets)) == [(header, body or {}) for header, body in packets]


def test_memory_is_bounded_while_a_large_frame_trickles_in() -> None:
    decoder = FrameDecoder(frame_bytes_max=10_000)
    frame = wire.frame({0: 2}, {0x21: ["x" * 9000]})
    largest = 0
    for _ in range(20):
        for start in range(0, len(frame), 700):
            decoder.feed(frame[start : start + 700])
            largest = max(largest, decoder.buffered_bytes)
    assert largest <= 10_000 + 5
    assert decoder.buffered_bytes == 0
