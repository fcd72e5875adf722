"""The wire as a server writes it: frames, and the extension types that the program only ever reads.

Written from Tarantool's documentation of its MessagePack extensions, not from the decoder, so that one can test the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgpack

from cdc.protocol.extensions import Datetime, ErrorValue, Interval, OpaqueExtension

_ADJUST: Final = {"excess": 0, "none": 1, "last": 2}
_INTERVAL_FIELDS: Final = ("year", "month", "week", "day", "hour", "minute", "second", "nanosecond")


def pack(value: Any) -> bytes:
    """One value as MessagePack."""
    packed: bytes = msgpack.packb(value, default=_extension, unicode_errors="surrogateescape")
    return packed


def frame(header: Mapping[int, Any], body: Mapping[int, Any] | None = None) -> bytes:
    """One frame; without a body there is none, not an empty one."""
    return raw_frame(pack(header) + (b"" if body is None else pack(body)))


def raw_frame(payload: bytes) -> bytes:
    """A frame around any bytes."""
    return b"\xce" + struct.pack(">I", len(payload)) + payload


def frames(packets: Iterable[tuple[Mapping[int, Any], Mapping[int, Any] | None]]) -> bytes:
    """Several frames."""
    return b"".join(frame(header, body) for header, body in packets)


def _extension(value: Any) -> msgpack.ExtType:
    match value:
        case Decimal():
            return msgpack.ExtType(1, decimal_payload(value))
        case UUID():
            return msgpack.ExtType(2, value.bytes)
        case ErrorValue():
            return msgpack.ExtType(3, pack({0: list(value.stack)}))
        case Datetime(seconds, nanosecond, offset, timezone):
            tail = struct.pack("<ihh", nanosecond, offset, timezone) if nanosecond or offset or timezone else b""
            return msgpack.ExtType(4, struct.pack("<q", seconds) + tail)
        case Interval():
            return msgpack.ExtType(6, interval_payload(value))
        case OpaqueExtension(code, data):
            return msgpack.ExtType(code, data)
    raise TypeError(f"{value!r} has no form on the wire")


def decimal_payload(value: Decimal) -> bytes:
    """Scale, then packed decimal: two digits a byte, the sign in the last half."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    nibbles = "".join(map(str, digits)) + ("d" if sign else "c")
    return pack(-exponent) + bytes.fromhex(nibbles if len(nibbles) % 2 == 0 else "0" + nibbles)


def interval_payload(value: Interval) -> bytes:
    """The number of parts that aren't zero, then each part's number and value; `adjust` is part 8."""
    parts = [(number, getattr(value, name)) for number, name in enumerate(_INTERVAL_FIELDS)]
    parts.append((8, _ADJUST[value.adjust]))
    told = [(number, part) for number, part in parts if part]
    return bytes([len(told)]) + b"".join(pack(number) + pack(part) for number, part in told)
