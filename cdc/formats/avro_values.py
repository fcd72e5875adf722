"""Values of Kafka Connect's types as Avro's binary encoding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.formats.types import Scaled, ValueType, twos_complement

Write = Callable[[Any], bytes]

NULL: Final = b"\x00"
"""The first type of an optional field's union."""
PRESENT: Final = b"\x02"
"""The second one."""

_FLOAT: Final = struct.Struct("<f").pack
_DOUBLE: Final = struct.Struct("<d").pack


def long(number: int) -> bytes:
    """Encode an integer of 32 or 64 bits: zigzag, then seven bits in each byte, the lowest first."""
    left = number << 1 if number >= 0 else (-number << 1) - 1
    if left < 0x80:
        return _SINGLE[left]
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


_SINGLE: Final = [bytes([number]) for number in range(0x80)]


def binary(data: bytes) -> bytes:
    """Encode bytes, preceded by their number."""
    return long(len(data)) + data


def string(text: str) -> bytes:
    """Encode a string, which must be UTF-8."""
    data = text.encode()
    return long(len(data)) + data


def _boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _scaled(number: Scaled) -> bytes:
    return long(number.scale) + binary(twos_complement(number.unscaled))


def long_by_text(values: Mapping[str, int]) -> bytes:
    """Encode a map as one block."""
    if not values:
        return b"\x00"
    return long(len(values)) + b"".join(string(key) + long(value) for key, value in values.items()) + b"\x00"


_BY_BASE: Final[dict[str, Write]] = {
    "int8": long,
    "int16": long,
    "int32": long,
    "int64": long,
    "float": _FLOAT,
    "double": _DOUBLE,
    "boolean": _boolean,
    "string": string,
    "bytes": binary,
    "scaled": _scaled,
}


def writer(found: ValueType) -> Write:
    """Return the function that encodes a type's values, after their conversion."""
    return _BY_BASE[found.base]
