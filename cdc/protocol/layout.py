"""The boundaries of MessagePack values, found without decoding them.

A change of one field of a tuple must keep the bytes of all other fields, even if a value has a shorter encoding. Therefore
tuples are cut into slices, and only the slices that an operation touches are decoded. Positions are plain integers into bytes
that the caller holds.

Out of scope: the contents of values. The functions raise IndexError for an incomplete value, and its subclass NothingError for
a byte with which no value begins; the caller adds the meaning of the bytes. The depth of nesting is unlimited, because no
function here is recursive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgpack

NIL: Final = 0xC0
ARRAY: Final = "array"
MAP: Final = "map"
STRING: Final = "string"
BINARY: Final = "binary"
UNSIGNED: Final = "unsigned"
INTEGER: Final = "integer"
FLOAT: Final = "float"
DOUBLE: Final = "double"
EXTENSION: Final = "extension"
OTHER: Final = "other"


def _sizes() -> tuple[int, ...]:
    sizes = [0] * 256
    sizes[0x00:0x80] = [1] * 128
    sizes[0xA0:0xC0] = [1 + length for length in range(32)]
    for first in (0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)):
        sizes[first] = 1
    for first, size in {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.items():
        sizes[first] = size
    for first, size in {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}.items():
        sizes[first] = size
    return tuple(sizes)


SIZES: Final = _sizes()
"""Size of a value in bytes, by its first byte; 0 if the first byte doesn't determine the size."""

_NEVER_USED: Final = 0xC1
_LARGE: Final = 300
"""If more bytes than this follow from a container's first byte on, the library skips the container faster than this module."""

_WINDOW: Final = 4096

_PREFIXED: Final = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
"""By the first byte: number of bytes of the length, and of those between the length and the content."""


def _types() -> tuple[str, ...]:
    types = [OTHER] * 256
    for name, ranges in {
        UNSIGNED: [(0x00, 0x80), (0xCC, 0xD0)],
        INTEGER: [(0xD0, 0xD4), (0xE0, 0x100)],
        MAP: [(0x80, 0x90), (0xDE, 0xE0)],
        ARRAY: [(0x90, 0xA0), (0xDC, 0xDE)],
        STRING: [(0xA0, 0xC0), (0xD9, 0xDC)],
        BINARY: [(0xC4, 0xC7)],
        EXTENSION: [(0xC7, 0xCA), (0xD4, 0xD9)],
        FLOAT: [(0xCA, 0xCB)],
        DOUBLE: [(0xCB, 0xCC)],
    }.items():
        for begin, end in ranges:
            types[begin:end] = [name] * (end - begin)
    return tuple(types)


TYPES: Final = _types()
"""A value's type, by its first byte. In some places the server distinguishes a non-negative `integer` from an `unsigned`."""


class NothingError(IndexError):
    """No value begins with the found byte, so more data wouldn't help."""


def end_of(data: bytes, position: int) -> int:
    """Return the end of the value that begins at `position`.

    Raises IndexError if the value is incomplete, NothingError if no value begins with a byte in it.
    """
    size = SIZES[data[position]]
    if size and position + size <= len(data):
        return position + size
    if not size and len(data) - position > _LARGE:
        end = _skipped(data, position)
        if end:
            return end
    left = 1
    while left:
        first = data[position]
        size = SIZES[first]
        left -= 1
        if size:
            position += size
        elif first in _PREFIXED:
            start, length = content(data, position)
            position = start + length
        elif first == _NEVER_USED:
            raise NothingError("no value begins with the byte c1")
        else:
            count, position = header(data, position)
            left += count * 2 if TYPES[first] is MAP else count
    if position > len(data):
        raise IndexError("the value continues after the end of the data")
    return position


def _skipped(data: bytes, position: int) -> int:
    """Do as `end_of` with the library, which is faster for large values. Return 0 if the library can't find the end."""
    # The library copies its input, so the window grows only if the value doesn't end in it.
    window = _WINDOW
    while True:
        unpacker = msgpack.Unpacker(max_buffer_size=2**31 - 1)
        unpacker.feed(memoryview(data)[position : position + window])
        try:
            unpacker.skip()
        except msgpack.OutOfData:
            if position + window >= len(data):
                return 0
            window *= 8
        except (ValueError, msgpack.UnpackException):
            # The value is nested too deeply for the library, or has a byte with which no value begins.
            return 0
        else:
            length: int = unpacker.tell()
            return position + length


def header(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of elements of the array (or of pairs of the map) at `position`, and where the first one begins.

    Raises IndexError if the value is neither an array nor a map.
    """
    first = data[position]
    if 0x80 <= first < 0xA0:
        return first & 0x0F, position + 1
    if not 0xDC <= first < 0xE0:
        raise IndexError("neither an array nor a map")
    end = position + (5 if first & 1 else 3)
    if end > len(data):
        raise IndexError("a header is cut off")
    return int.from_bytes(data[position + 1 : end], "big"), end


def content(data: bytes, position: int) -> tuple[int, int]:
    """Return where the content of the string, binary or extension at `position` begins, and its length in bytes.

    Raises IndexError if the value is of another type. The content itself may be incomplete.
    """
    first = data[position]
    if 0xA0 <= first < 0xC0:
        return position + 1, first & 0x1F
    if 0xD4 <= first < 0xD9:
        return position + 2, 1 << (first - 0xD4)
    if first not in _PREFIXED:
        raise IndexError("a value without content")
    width, more = _PREFIXED[first]
    end = position + 1 + width
    if end > len(data):
        raise IndexError("a length is cut off")
    return end + more, int.from_bytes(data[position + 1 : end], "big")


def integer(data: bytes, position: int) -> int:
    """Return the integer at `position`, in any of its encodings. Raises IndexError if the value isn't an integer."""
    first = data[position]
    if first < 0x80:
        return first
    if first >= 0xE0:
        return first - 0x100
    if not 0xCC <= first < 0xD4 or position + SIZES[first] > len(data):
        raise IndexError("not an integer")
    return int.from_bytes(data[position + 1 : position + SIZES[first]], "big", signed=first >= 0xD0)


def elements(data: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each element of the array at `position`; for a map, those of each key and each value.

    Raises IndexError if the container is incomplete.
    """
    count, begin = header(data, position)
    for _ in range(count * 2 if TYPES[data[position]] is MAP else count):
        end = end_of(data, begin)
        yield begin, end
        begin = end


def array_header(count: int) -> bytes:
    """Return the shortest header of an array with `count` elements."""
    packed: bytes = msgpack.Packer().pack_array_header(count)
    return packed


def map_header(count: int) -> bytes:
    """Return the shortest header of a map with `count` pairs."""
    packed: bytes = msgpack.Packer().pack_map_header(count)
    return packed


def string(text: bytes) -> bytes:
    """Encode a string in its shortest form, whether or not it is UTF-8."""
    return _prefix(len(text), 0xD9) + text if len(text) > 31 else bytes((0xA0 | len(text),)) + text


def binary(text: bytes) -> bytes:
    """Encode a binary value in its shortest form."""
    return _prefix(len(text), 0xC4) + text


def _prefix(length: int, first: int) -> bytes:
    for place, width in enumerate((1, 2, 4)):
        if length < 1 << (8 * width):
            return bytes((first + place,)) + length.to_bytes(width, "big")
    raise IndexError("longer than MessagePack can encode")
