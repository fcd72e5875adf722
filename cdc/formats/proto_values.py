"""Values of Kafka Connect's types as Protobuf's binary encoding: fields, each with its number and kind in front."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.formats.types import Scaled, ValueType, twos_complement

Write = Callable[[Any], bytes]

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_FLOAT: Final = struct.Struct("<f").pack
_DOUBLE: Final = struct.Struct("<d").pack
fixed64: Final[Callable[[int], bytes]] = struct.Struct("<q").pack
"""Encodes an integer in eight bytes, so that what contains it has a known length."""
_BITS: Final = (1 << 64) - 1


def varint(number: int) -> bytes:
    """Encode an integer: seven bits in each byte, the lowest first; a negative one as its 64 bits."""
    left = number & _BITS
    if left < 0x80:
        return bytes((left,))
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def tag(number: int, kind: int) -> bytes:
    """Return what precedes a field's value."""
    return varint(number << 3 | kind)


def prefixed(data: bytes) -> bytes:
    """Encode bytes, preceded by their number."""
    return varint(len(data)) + data


def text(value: str) -> bytes:
    """Encode a string, which must be UTF-8."""
    return prefixed(value.encode())


def _boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _scaled(number: Scaled) -> bytes:
    return prefixed(tag(1, VARINT) + varint(number.scale) + tag(2, BYTES) + prefixed(twos_complement(number.unscaled)))


def long_by_text(number: int, values: Mapping[str, int]) -> bytes:
    """Encode a map as the field with this number: one field for each entry."""
    before, key, value = tag(number, BYTES), tag(1, BYTES), tag(2, VARINT)
    return b"".join(before + prefixed(key + text(name) + value + varint(one)) for name, one in values.items())


_BY_BASE: Final[dict[str, tuple[int, Write]]] = {
    "int8": (VARINT, varint),
    "int16": (VARINT, varint),
    "int32": (VARINT, varint),
    "int64": (VARINT, varint),
    "float": (FIXED32, _FLOAT),
    "double": (FIXED64, _DOUBLE),
    "boolean": (VARINT, _boolean),
    "string": (BYTES, text),
    "bytes": (BYTES, prefixed),
    "scaled": (BYTES, _scaled),
}


def writer(number: int, found: ValueType) -> tuple[bytes, Write]:
    """Return what precedes a field's value, and the function that encodes the type's values after their conversion."""
    kind, write = _BY_BASE[found.base]
    return tag(number, kind), write
