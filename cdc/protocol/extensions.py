"""Values that MessagePack has no type for: decimal, uuid, error, datetime and interval (MP_EXT 1 to 6).

A value that can't be decoded becomes an `OpaqueExtension` instead of raising an error, so that neighbouring rows, and rows of
unpublished spaces, stay readable. The code that must show the value decides how to handle it. For the same reason, arrays and
maps that are nested too deeply become a `DeepValue`. Extension -1 is MessagePack's own timestamp; to Tarantool it is an unknown
extension like any other. The library decodes it as a `msgpack.Timestamp` before it calls this module's hook; if the library
can't decode it, the value becomes an `OpaqueExtension` too.

Sources: src/lib/core/mp_decimal.c, mp_uuid.c, mp_datetime.c, mp_interval.c; src/box/mp_error.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgpack

EXT_DECIMAL: Final = 1
EXT_UUID: Final = 2
EXT_ERROR: Final = 3
EXT_DATETIME: Final = 4
EXT_INTERVAL: Final = 6

_ADJUST_NAMES: Final = ("excess", "none", "last")
_INTERVAL_FIELDS: Final = ("year", "month", "week", "day", "hour", "minute", "second", "nanosecond", "adjust")
_DIGITS_MAX: Final = 76
"""Maximum number of digits. Tarantool stores 38 digits, and 76 since 3.5, so it can't have written a longer number."""
_SCALE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class OpaqueExtension:
    """An extension of an unknown type, or one whose bytes don't match its type."""

    code: int
    data: bytes


class DeepValue:
    """The bytes of an array or map that is nested deeper in a row than this program decodes."""

    # Not a dataclass, because the JSON encoder would silently write its fields.
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeepValue) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<{len(self.data)} bytes, nested too deeply to be decoded: {self.data[:16].hex(' ')} …>"


@dataclass(frozen=True, slots=True)
class Datetime:
    """A point in time: seconds since the epoch (negative before it), nanoseconds, and the offset and time zone to show it in."""

    seconds: int
    nanosecond: int = 0
    offset_minutes: int = 0
    timezone_index: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A length of time in parts, each of which may be negative."""

    year: int = 0
    month: int = 0
    week: int = 0
    day: int = 0
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanosecond: int = 0
    adjust: str = "none"


@dataclass(frozen=True, slots=True)
class ErrorValue:
    """A box.error stored in a tuple: its stack of decoded maps, newest first."""

    stack: tuple[dict[int, object], ...]


Extension = Decimal | UUID | Datetime | Interval | ErrorValue | OpaqueExtension


def decode_extension(code: int, data: bytes) -> Extension:
    """Decode one extension's payload; return an OpaqueExtension if that fails. Never raises."""
    decoder = _DECODERS.get(code)
    if decoder is None:
        return OpaqueExtension(code, data)
    try:
        return decoder(data)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error, msgpack.UnpackException):
        return OpaqueExtension(code, data)


def _decimal(data: bytes) -> Decimal:
    """Decode the scale (a MessagePack integer), then packed decimal digits, whose last nibble is the sign."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    scale = unpacker.unpack()
    if type(scale) is not int or abs(scale) > _SCALE_MAX:
        raise ValueError("scale")
    nibbles = data[unpacker.tell() :].hex()
    digits, sign = nibbles[:-1], nibbles[-1]
    if not digits.isdecimal() or len(digits) > _DIGITS_MAX + 1 or sign not in "abcdef":
        raise ValueError("digits")
    # 0xb and 0xd are minus, the other four letters plus (decNumber's decPacked).
    return Decimal((1 if sign in "bd" else 0, tuple(map(int, digits.lstrip("0") or "0")), -scale))


def _uuid(data: bytes) -> UUID:
    return UUID(bytes=bytes(data))


def _datetime(data: bytes) -> Datetime:
    """Decode seconds (int64), then nanoseconds (int32), offset (int16) and time zone (int16); all little-endian.

    The last three are absent if all of them are zero.
    """
    if len(data) == 8:
        return Datetime(*struct.unpack("<q", data))
    return Datetime(*struct.unpack("<qihh", data))


def _interval(data: bytes) -> Interval:
    """Decode a count, then as many pairs of field number and MessagePack integer. Fields that are zero are absent."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(data[1:])
    fields: dict[str, int] = {}
    for _ in range(data[0]):
        number, value = unpacker.unpack(), unpacker.unpack()
        if type(number) is not int or number < 0 or type(value) is not int:
            raise ValueError("field")
        fields[_INTERVAL_FIELDS[number]] = value
    if unpacker.tell() != len(data) - 1:
        raise ValueError("trailing bytes")
    adjust = fields.pop("adjust", 0)
    if adjust < 0:
        raise ValueError("adjust")
    return Interval(**fields, adjust=_ADJUST_NAMES[adjust])


def _error(data: bytes) -> ErrorValue:
    value = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")
    stack = value[0]
    if not isinstance(stack, list) or not stack or not all(isinstance(item, dict) for item in stack):
        raise ValueError("stack")
    return ErrorValue(tuple(stack))


_DECODERS: Final[dict[int, Callable[[bytes], Extension]]] = {
    EXT_DECIMAL: _decimal,
    EXT_UUID: _uuid,
    EXT_ERROR: _error,
    EXT_DATETIME: _datetime,
    EXT_INTERVAL: _interval,
}


def pack(value: Any) -> bytes:
    """Encode a decoded value, including its extensions, as MessagePack. For stored values; too slow for the hot path.

    Raises TypeError for a value that no decoder of this program returns.
    """
    data: bytes = msgpack.packb(value, default=_encode, unicode_errors="surrogateescape")
    return data


def unpack(data: bytes) -> Any:
    """Decode bytes that `pack` returned."""
    return msgpack.unpackb(data, ext_hook=decode_extension, strict_map_key=False, unicode_errors="surrogateescape")


def _encode(value: Any) -> msgpack.ExtType | str:
    match value:
        case Decimal():
            return msgpack.ExtType(EXT_DECIMAL, _packed_decimal(value))
        case UUID():
            return msgpack.ExtType(EXT_UUID, value.bytes)
        case ErrorValue():
            return msgpack.ExtType(EXT_ERROR, pack({0: list(value.stack)}))
        case Datetime():
            tail = (value.nanosecond, value.offset_minutes, value.timezone_index)
            return msgpack.ExtType(
                EXT_DATETIME, struct.pack("<q", value.seconds) + (struct.pack("<ihh", *tail) if any(tail) else b"")
            )
        case Interval():
            return msgpack.ExtType(EXT_INTERVAL, _packed_interval(value))
        case OpaqueExtension() if value.code >= 0:
            return msgpack.ExtType(value.code, value.data)
        case OpaqueExtension() | DeepValue():
            # MessagePack reserves the negative type codes, and its Python library can't write them; nor can it write deep values.
            return repr(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be packed")


def _packed_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
    nibbles = "".join(map(str, digits)) + ("d" if sign else "c")
    return pack(-exponent) + bytes.fromhex(nibbles.rjust(len(nibbles) + len(nibbles) % 2, "0"))


def _packed_interval(value: Interval) -> bytes:
    parts = [getattr(value, name) for name in _INTERVAL_FIELDS[:-1]] + [_ADJUST_NAMES.index(value.adjust)]
    told = [(number, part) for number, part in enumerate(parts) if part]
    return bytes([len(told)]) + b"".join(pack(number) + pack(part) for number, part in told)
