"""Frames of the binary protocol: a length, a header map and, mostly, a body map, all of them MessagePack.

    ce 00 00 00 27 │ 85 00 02 01 02 02 01 03 cd 00 98 04 cb … │ 82 10 cd 02 01 21 94 …
    length         │ header: type, sync, replica id, lsn, …   │ body: space, tuple

A replication stream is hundreds of thousands of such frames a second, so they are decoded by the batch: all whole frames
that are there go through MessagePack's C decoder in one call, which yields one flat list (length, header, body, length, …);
slices of it are the columns of the batch, and comparing the lengths column with the lengths found by walking the bytes
proves that each frame held exactly one header and one body. Where that doesn't hold (a heartbeat has no body, a hostile
frame lies) the same bytes go through a slower decoder that takes frame by frame and names the one that is wrong.

Tarantool takes values that the C decoder doesn't: nested up to memtx_max_tuple_size, where it follows about a thousand levels,
and extension -1 with any content. Frames with such values are walked instead: what is whole down to LEVELS_MAX levels is
decoded, and what lies deeper is a `DeepValue`. So the rows around them, and those of spaces that nobody asked for, are good.

What it refuses to know: what any key means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack
from msgpack import unpackb

from cdc.errors import ProtocolError
from cdc.protocol import layout
from cdc.protocol.extensions import DeepValue, OpaqueExtension, decode_extension

Header = dict[int, Any]
Body = dict[int, Any]

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
"""A frame that says it is longer is refused. Tarantool refuses tuples past memtx_max_tuple_size (1 MiB by default)."""

LENGTH_BYTES: Final = 5
_LENGTH_MARKER: Final = 0xCE
_SHORT_KEY_MAX: Final = 0x7F

# Where a header's fourth pair ends, which is the time, is known from how the header begins: its number of pairs, three keys, and
# the first byte of the lsn (00 03 │ 02 01 │ 03 ce … │ 04 cb …). Few beginnings differ.
_HEAD_END: Final = 12
_FOUR_PAIRS: Final = 0x84
_TIME: Final = b"\x04\xcb"
_TIME_BYTES: Final = 10
_HEADS_MAX: Final = 1000
_TIME_ENDS: Final[dict[bytes, int]] = {}
_length_at: Final[Callable[..., tuple[int]]] = struct.Struct(">xI").unpack_from

# Tarantool always writes the length as five bytes (0xce and a big-endian uint32), and so do we.
_encode_length: Final = struct.Struct(">BI").pack


class MapPairs(list[tuple[Any, Any]]):
    """A MessagePack map with a key that Python can't put into a dict (an array or a map): its pairs, in order."""

    __slots__ = ()


class Frames:
    """Decoded frames in columns: `headers[i]` and `bodies[i]` belong together; a frame without a body has `{}`.

    `data` holds the frames' bytes and `ends[i]` the offset at which frame i ends in it, so that an error can show the
    frame and a store can keep a tuple exactly as it came.
    """

    __slots__ = ("_bodies", "_ends", "_headers", "data")

    def __init__(self, headers: list[Header], bodies: list[Body], data: bytes, ends: list[int]) -> None:
        self._headers = headers
        self._bodies = bodies
        self.data = data
        self._ends = ends

    @property
    def headers(self) -> list[Header]:
        """What stands in front of each body."""
        return self._headers

    @property
    def bodies(self) -> list[Body]:
        """The bodies, decoded."""
        return self._bodies

    @property
    def ends(self) -> list[int]:
        """Where each frame ends."""
        return self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> bytes:
        """The bytes of one frame, its length included."""
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]

    def raws(self) -> list[bytes]:
        """The bytes of each frame."""
        data = self.data
        return [data[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]

    def part(self, start: int, stop: int) -> Frames:
        """The frames from `start` up to `stop` as a batch of their own."""
        if start == 0 and stop == len(self):
            return self
        base = self.ends[start - 1] if start else 0
        return Frames(
            self.headers[start:stop],
            self.bodies[start:stop],
            self.data[base : self.ends[stop - 1]] if stop > start else b"",
            [end - base for end in self.ends[start:stop]],
        )


class FrameDecoder:
    """Cuts a byte stream into frames and decodes them. Holds at most one unfinished frame (`frame_bytes_max`)."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        # How many bytes the buffer must hold before it can contain a whole frame.
        self._needed = LENGTH_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that isn't whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Frames:
        """Take what the socket gave, in pieces of any size; return the frames that are whole now, perhaps none.

        Raises ProtocolError if a length is malformed or over the limit, or a frame isn't one header map and at most one
        body map of valid MessagePack. The decoder is unusable from then on.
        """
        self._buffer += data
        if len(self._buffer) < self._needed:
            return Frames([], [], b"", [])
        lengths, ends = self._walk()
        if not ends:
            return Frames([], [], b"", [])
        whole = bytes(memoryview(self._buffer)[: ends[-1]])
        del self._buffer[: ends[-1]]
        return decoded(whole, lengths, ends)

    def _walk(self) -> tuple[list[int], list[int]]:
        """Lengths and ends of the whole frames in the buffer; sets how much the next one needs."""
        buffer = self._buffer
        available = len(buffer)
        lengths: list[int] = []
        ends: list[int] = []
        position = 0
        while position + LENGTH_BYTES <= available:
            if buffer[position] != _LENGTH_MARKER:
                raise ProtocolError(f"a frame begins with {bytes(buffer[position : position + 16]).hex(' ')}, not with a length")
            (length,) = _length_at(buffer, position)
            if length > self._frame_bytes_max:
                raise ProtocolError(
                    f"a frame of {length} bytes is over the limit of {self._frame_bytes_max}",
                    "If the master really stores such tuples, raise source.frame_bytes_max.",
                )
            end = position + LENGTH_BYTES + length
            if end > available:
                self._needed = end - position
                return lengths, ends
            lengths.append(length)
            ends.append(end)
            position = end
        self._needed = LENGTH_BYTES
        return lengths, ends


def unpacker(data: bytes, **options: Any) -> msgpack.Unpacker:
    """A decoder with this program's rules for values: strings that aren't UTF-8 keep their bytes as lone surrogates."""
    decoder = msgpack.Unpacker(
        strict_map_key=False,
        unicode_errors="surrogateescape",
        ext_hook=decode_extension,
        max_buffer_size=len(data) + len(_END),
        **options,
    )
    decoder.feed(data)
    return decoder


_END: Final = b"\xc0"


def _values(data: bytes, **options: Any) -> list[Any]:
    """All values in `data`. Raises ValueError if the last one isn't whole.

    The decoder itself passes over a beginning of a value in silence; a nil that is fed behind it becomes a part of it then,
    and comes out as a value of its own only where nothing is left to finish.
    """
    decoder = unpacker(data, **options)
    values = list(decoder)
    decoder.feed(_END)
    if list(decoder) != [None]:
        raise ValueError("it ends within a value")
    return values


LEVELS_MAX: Final = 64
"""So deep a tuple is decoded that the C decoder refuses."""


def tuple_values(data: bytes) -> list[Any]:
    """The fields of one tuple, decoded as `Frames` decode them. Raises ValueError if it isn't whole and valid."""
    try:
        values = unpackb(data, strict_map_key=False, unicode_errors="surrogateescape", ext_hook=decode_extension)
    except (ValueError, TypeError, msgpack.UnpackException):
        # A map with a key that can't be hashed, or what the library doesn't follow; or it isn't valid at all.
        try:
            values, *rest = _all_values(data, LEVELS_MAX)
        except IndexError as error:
            raise ValueError(f"a tuple isn't valid MessagePack ({error})") from error
        if rest:
            raise ValueError("a tuple has bytes behind its end") from None
    if type(values) is not list:
        raise ValueError("a tuple is an array")
    return values


def header_end(frame: bytes) -> int:
    """Where the header of a frame ends, and its body begins. Raises IndexError if the frame isn't whole."""
    head = frame[LENGTH_BYTES:_HEAD_END]
    position = _TIME_ENDS.get(head, 0)
    if not position or not frame.startswith(_TIME, position - _TIME_BYTES):
        return _walked(frame)
    return position if head[0] == _FOUR_PAIRS else _behind(frame, position, (head[0] & 0x0F) - 4)


def _walked(frame: bytes) -> int:
    """What header_end says, from the header's beginning on."""
    if frame[LENGTH_BYTES] & 0xF0 != 0x80:
        return layout.end_of(frame, LENGTH_BYTES)
    count = frame[LENGTH_BYTES] & 0x0F
    if count >= 4 and max(frame[6:11]) <= _SHORT_KEY_MAX:
        position = 11 + layout.SIZES[frame[11]] + _TIME_BYTES
        if position > 11 + _TIME_BYTES and frame.startswith(_TIME, position - _TIME_BYTES):
            if len(_TIME_ENDS) > _HEADS_MAX:
                _TIME_ENDS.clear()
            _TIME_ENDS[frame[LENGTH_BYTES:_HEAD_END]] = position
    return _behind(frame, LENGTH_BYTES + 1, count)


def _behind(frame: bytes, position: int, count: int) -> int:
    """Where so many pairs of the header end that begin at `position`."""
    for _ in range(count):
        size = layout.SIZES[frame[position + 1]]
        if not size or frame[position] > _SHORT_KEY_MAX:
            return layout.end_of(frame, LENGTH_BYTES)  # what no server writes
        position += size + 1
    return position


def body_of(frame: bytes) -> bytes:
    """The body of one frame as it was encoded, b"" if it has none. Raises IndexError if the frame isn't whole."""
    return frame[header_end(frame) :]


def body_values(frame: bytes, *, only_short_keys: bool = False) -> dict[int, bytes]:
    """The values of a frame's body as they were encoded, by key, as a server reads a request.

    Of values with one key the last counts. Keys that aren't unsigned integers are passed over; with `only_short_keys`, as up to
    2.8, those too that are written with more than one byte. Raises IndexError if there is no body, or not a whole one.
    """
    count, position = layout.header(frame, header_end(frame))
    values: dict[int, bytes] = {}
    for _ in range(count):
        start = layout.end_of(frame, position)
        end = layout.end_of(frame, start)
        is_short = frame[position] <= _SHORT_KEY_MAX
        if is_short or (layout.TYPES[frame[position]] is layout.UNSIGNED and not only_short_keys):
            values[layout.integer(frame, position)] = frame[start:end]
        position = end
    return values


def _all_values(data: bytes, levels_max: int) -> list[Any]:
    """All values in `data`, also those that the C decoder refuses. Raises IndexError if they aren't whole and valid."""
    try:
        return _values(data)
    except TypeError:
        # A map key that Python can't hash: only such maps become pairs.
        try:
            return _values(data, object_pairs_hook=_map_or_pairs)
        except _NOT_MESSAGEPACK:
            pass
    except _NOT_MESSAGEPACK:
        pass
    values = []
    position = 0
    while position < len(data):
        value, position = _loosely(data, position, levels_max)
        values.append(value)
    return values


def _loosely(data: bytes, position: int, levels_max: int) -> tuple[Any, int]:
    """The value at `position`, decoded down to so many levels, and where it ends. Raises IndexError if it isn't whole."""
    # What is open: whether it is a map, how many values are to come, and those that have come.
    open_: list[tuple[bool, int, list[Any]]] = []
    while True:
        kind = layout.TYPES[data[position]]
        if kind not in (layout.ARRAY, layout.MAP):
            end = layout.end_of(data, position)
            value = _scalar(data[position:end])
        elif len(open_) == levels_max:
            end = layout.end_of(data, position)
            value = DeepValue(data[position:end])
        else:
            count, position = layout.header(data, position)
            open_.append((kind is layout.MAP, count * 2 if kind is layout.MAP else count, []))
            end, value = position, None
            if count:
                continue
        position = end
        while open_:
            is_map, missing, values = open_[-1]
            if missing:
                values.append(value)
            if len(values) < missing:
                break
            open_.pop()
            value = _map_or_pairs(list(zip(values[::2], values[1::2], strict=True))) if is_map else values
        else:
            return value, position


def _scalar(data: bytes) -> Any:
    try:
        return _values(data)[0]
    except ValueError:
        if layout.TYPES[data[0]] is not layout.EXTENSION:
            raise
        # Of all extensions the library has an opinion on -1 only, and of all values on nothing else.
        start, _ = layout.content(data, 0)
        return OpaqueExtension(int.from_bytes(data[start - 1 : start], signed=True), data[start:])


_NOT_MESSAGEPACK: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)
"""What MessagePack's decoder raises: bad bytes, keys that can't be hashed, numbers out of range, an end too soon."""

_ALL_DICTS: Final = {dict}


def decoded(data: bytes, lengths: list[int], ends: list[int]) -> Frames:
    """Whole frames by their lengths and where they end. Raises ProtocolError as `FrameDecoder.feed` does."""
    try:
        items = _values(data)
    except _NOT_MESSAGEPACK:
        return _decode_singly(data, ends)
    if len(items) == 3 * len(lengths) and items[::3] == lengths:
        headers, bodies = items[1::3], items[2::3]
        if set(map(type, headers)) == _ALL_DICTS == set(map(type, bodies)):
            return Frames(headers, bodies, data, ends)
    return _decode_singly(data, ends)


def _decode_singly(data: bytes, ends: list[int]) -> Frames:
    headers: list[Header] = []
    bodies: list[Body] = []
    start = 0
    for end in ends:
        header, body = _decode_frame(data[start + LENGTH_BYTES : end])
        headers.append(header)
        bodies.append(body)
        start = end
    return Frames(headers, bodies, data, ends)


def _decode_frame(payload: bytes) -> tuple[Header, Body]:
    try:
        # The body is a level of its own, above those that a tuple has.
        items = _all_values(payload, LEVELS_MAX + 1)
    except IndexError as error:
        raise ProtocolError(f"a frame isn't valid MessagePack ({error}): {_hex(payload)}") from error
    if len(items) == 1:
        items.append({})
    if len(items) == 2 and isinstance(items[1], MapPairs):
        # A client may put into its request what no server has a use for; it is logged as it came.
        items[1] = {key: value for key, value in items[1] if type(key) is int}
    if len(items) != 2 or not all(isinstance(item, dict) for item in items):
        raise ProtocolError(f"a frame isn't one header map and at most one body map: {_hex(payload)}")
    return items[0], items[1]


def _map_or_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | MapPairs:
    try:
        return dict(pairs)
    except TypeError:
        return MapPairs(pairs)


def _hex(payload: bytes) -> str:
    shown = payload[:256].hex(" ")
    return shown if len(payload) <= 256 else f"{shown} … ({len(payload)} bytes)"


def encode_frame(header: Header, body: Body | None = None) -> bytes:
    """One frame, ready to be sent."""
    payload: bytes = msgpack.packb(header)
    if body is not None:
        payload += msgpack.packb(body)
    return _encode_length(_LENGTH_MARKER, len(payload)) + payload
