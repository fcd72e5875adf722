"""Frames of the binary protocol: a length, a header map and usually a body map, each encoded as MessagePack.

    ce 00 00 00 27 │ 85 00 02 01 02 02 01 03 cd 00 98 04 cb … │ 82 10 cd 02 01 21 94 …
    length         │ header: type, sync, replica id, lsn, …   │ body: space, tuple

A replication stream has hundreds of thousands of such frames a second, so frames are decoded in batches. One call passes all
complete frames to MessagePack's C decoder and returns one flat list (length, header, body, length, …). Slices of that list are
the batch's columns. If the lengths column equals the lengths found by walking the bytes, each frame held exactly one header
and one body. Otherwise (a heartbeat has no body, a hostile frame has a wrong length) a slower decoder processes the same bytes
frame by frame and reports the malformed frame.

Tarantool accepts values that the C decoder rejects: values nested up to memtx_max_tuple_size, while the decoder follows about
a thousand levels, and extension -1 with any content. The module walks the bytes of such frames itself. It decodes LEVELS_MAX
levels of nesting and keeps every deeper array or map as a `DeepValue`. Thus the neighbouring rows, and rows of unpublished
spaces, stay readable.

Out of scope: the meaning of the keys.
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
"""Maximum length that a frame may announce, in bytes; the decoder rejects longer frames. Tarantool itself rejects tuples over
memtx_max_tuple_size (1 MiB by default)."""

LENGTH_BYTES: Final = 5
_LENGTH_MARKER: Final = 0xCE
_SHORT_KEY_MAX: Final = 0x7F

_length_at: Final[Callable[..., tuple[int]]] = struct.Struct(">xI").unpack_from

# Tarantool always writes the length as five bytes (0xce and a big-endian uint32), and so does this module.
_encode_length: Final = struct.Struct(">BI").pack


class MapPairs(list[tuple[Any, Any]]):
    """The pairs, in order, of a MessagePack map that has a key unusable in a Python dict (an array or a map)."""

    __slots__ = ()


class Frames:
    """Decoded frames in columns: `headers[i]` and `bodies[i]` belong to frame i; the body of a frame without one is `{}`.

    `data` holds the frames' bytes, and frame i ends at offset `ends[i]` in `data`. Thus an error can show the frame, and a store
    can keep a tuple exactly as it was received.
    """

    __slots__ = ("_bodies", "_ends", "_headers", "data")

    def __init__(self, headers: list[Header], bodies: list[Body], data: bytes, ends: list[int]) -> None:
        self._headers = headers
        self._bodies = bodies
        self.data = data
        self._ends = ends

    @property
    def headers(self) -> list[Header]:
        """The decoded headers."""
        return self._headers

    @property
    def bodies(self) -> list[Body]:
        """The decoded bodies."""
        return self._bodies

    @property
    def ends(self) -> list[int]:
        """The offset in `data` at which each frame ends."""
        return self._ends

    def __len__(self) -> int:
        return len(self._ends)

    def raw(self, index: int) -> bytes:
        """Return the bytes of one frame, including its length."""
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]

    def raws(self) -> list[bytes]:
        """Return the bytes of each frame."""
        data = self.data
        return [data[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]

    def part(self, start: int, stop: int) -> Frames:
        """Return the frames from `start` (inclusive) to `stop` (exclusive) as a separate batch."""
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
    """Decoder that splits a byte stream into frames. It buffers at most one incomplete frame (`frame_bytes_max` bytes)."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        # Number of bytes that the buffer must hold before it can contain a complete frame.
        self._needed = LENGTH_BYTES

    @property
    def buffered_bytes(self) -> int:
        """Number of buffered bytes of the incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Frames:
        """Add received bytes, in pieces of any size; return the frames that are now complete, possibly none.

        Raises ProtocolError if a length is malformed or over the limit, or a frame isn't one header map and at most one
        body map of valid MessagePack. After an error the decoder is unusable.
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
        """Return the lengths and ends of the complete frames in the buffer; set `_needed` for the next frame."""
        buffer = self._buffer
        available = len(buffer)
        lengths: list[int] = []
        ends: list[int] = []
        position = 0
        while position + LENGTH_BYTES <= available:
            if buffer[position] != _LENGTH_MARKER:
                found = bytes(buffer[position : position + 16]).hex(" ")
                raise ProtocolError("a frame doesn't begin with a length", detail=found)
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
    """Return a decoder with this program's rules for values: strings that aren't UTF-8 keep their bytes as lone surrogates."""
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
    """Return all values in `data`. Raises ValueError if the last one is incomplete.

    The decoder itself silently ignores an incomplete last value. Therefore a nil is fed after `data`: if the last value is
    incomplete, the nil becomes a part of it; otherwise the decoder returns the nil as a separate value.
    """
    decoder = unpacker(data, **options)
    values = list(decoder)
    decoder.feed(_END)
    if list(decoder) != [None]:
        raise ValueError("it ends within a value")
    return values


LEVELS_MAX: Final = 64
"""Number of nesting levels that are decoded of a tuple that the C decoder rejects."""


def tuple_values(data: bytes) -> list[Any]:
    """Decode the fields of one tuple, as `Frames` do. Raises ValueError if the tuple is incomplete or invalid."""
    try:
        values = unpackb(data, strict_map_key=False, unicode_errors="surrogateescape", ext_hook=decode_extension)
    except (ValueError, TypeError, msgpack.UnpackException):
        # The tuple has a map with an unhashable key or a value that the library rejects, or it isn't valid at all.
        try:
            values, *rest = _all_values(data, LEVELS_MAX)
        except IndexError as error:
            raise ValueError(f"a tuple isn't valid MessagePack ({error})") from error
        if rest:
            raise ValueError("a tuple has bytes after its end") from None
    if type(values) is not list:
        raise ValueError("a tuple is an array")
    return values


def body_of(frame: bytes) -> bytes:
    """Return the encoded body of one frame, or b"" if it has none. Raises IndexError if the frame is incomplete."""
    return frame[layout.end_of(frame, LENGTH_BYTES) :]


def body_values(frame: bytes, *, only_short_keys: bool = False) -> dict[int, bytes]:
    """Return the encoded values of a frame's body by key, as a server reads a request.

    If a key occurs several times, its last value counts. Keys that aren't unsigned integers are skipped. With
    `only_short_keys`, keys that are encoded in more than one byte are skipped too, as servers up to 2.8 do.
    Raises IndexError if the body is absent or incomplete.
    """
    count, position = layout.header(frame, layout.end_of(frame, LENGTH_BYTES))
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
    """Return all values in `data`, including those that the C decoder rejects. Raises IndexError if one is incomplete or
    invalid.
    """
    try:
        return _values(data)
    except TypeError:
        # Some map has a key that Python can't hash: only such maps become pairs.
        try:
            return _values(data, object_pairs_hook=_map_or_pairs)
        except _NOT_MESSAGEPACK:
            pass
    except _NOT_MESSAGEPACK:
        pass
    values = []
    position = 0
    while position < len(data):
        value, position = _decode_lenient(data, position, levels_max)
        values.append(value)
    return values


def _decode_lenient(data: bytes, position: int, levels_max: int) -> tuple[Any, int]:
    """Decode `levels_max` levels of the value at `position`; return it and the offset of its end.

    Raises IndexError if the value is incomplete.
    """
    # The open containers: whether it is a map, its number of values, and the values read so far.
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
        # The library rejects the content of no scalar except extension -1.
        start, _ = layout.content(data, 0)
        return OpaqueExtension(int.from_bytes(data[start - 1 : start], signed=True), data[start:])


_NOT_MESSAGEPACK: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)
"""Exceptions that MessagePack's decoder raises: invalid bytes, unhashable keys, numbers out of range, a premature end."""

_ALL_DICTS: Final = {dict}


def decoded(data: bytes, lengths: list[int], ends: list[int]) -> Frames:
    """Decode complete frames, given their lengths and ends. Raises ProtocolError as `FrameDecoder.feed` does."""
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
        # The body map is one more level around the levels of a tuple.
        items = _all_values(payload, LEVELS_MAX + 1)
    except IndexError as error:
        raise ProtocolError(f"a frame isn't valid MessagePack ({error})", detail=_hex(payload)) from error
    if len(items) == 1:
        items.append({})
    if len(items) == 2 and isinstance(items[1], MapPairs):
        # The server logs a client's request as it was received, including keys that no server uses.
        items[1] = {key: value for key, value in items[1] if type(key) is int}
    if len(items) != 2 or not all(isinstance(item, dict) for item in items):
        raise ProtocolError("a frame isn't one header map and at most one body map", detail=_hex(payload))
    return items[0], items[1]


def _map_or_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | MapPairs:
    try:
        return dict(pairs)
    except TypeError:
        return MapPairs(pairs)


def _hex(payload: bytes) -> str:
    shown = payload[:256].hex(" ")
    return shown if len(payload) <= 256 else f"{shown} … ({len(payload)} bytes)"


def encode_frame(header: Header, body: Body | bytes | None = None) -> bytes:
    """Encode one frame, including its length. A body of bytes is MessagePack already."""
    payload: bytes = msgpack.packb(header)
    if body is not None:
        payload += body if isinstance(body, bytes) else msgpack.packb(body)
    return _encode_length(_LENGTH_MARKER, len(payload)) + payload
