"""MessagePack as the server stores it → JSON as the contract shows it: the type table of docs/events.md, written once more.

The daemon has its own; two that were written apart and agree on what a master holds are better than one that agrees with itself.
"""

from __future__ import annotations

import base64
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import msgpack

_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False)
_DECIMAL, _UUID = 1, 2
_MINUS = {0x0B, 0x0D}


class _Pairs(list[tuple[Any, Any]]):
    """A map before it is known whether its keys stay apart as JSON names; and 1, 1.0 and true stay apart in it."""


def decode(data: bytes) -> Any:
    """One MessagePack value as JSON values."""
    return shown(
        msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape", strict_map_key=False, object_pairs_hook=_Pairs)
    )


def shown(value: Any) -> Any:
    """A decoded value as its JSON."""
    match value:
        case None | bool() | int():
            return value
        case float():
            if math.isnan(value):
                return "NaN"
            return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
        case str():
            raw = value.encode("utf-8", "surrogateescape")
            return value if _is_utf8(raw) else base64.b64encode(raw).decode()
        case bytes():
            return base64.b64encode(value).decode()
        case _Pairs():
            names = [_name(key) for key, _ in value]
            if len(set(names)) == len(names):
                return {name: shown(item) for name, (_, item) in zip(names, value, strict=True)}
            return [[shown(key), shown(item)] for key, item in value]
        case msgpack.ExtType(code, data):  # before lists: it is a tuple
            return _extension(code, data)
        case list():
            return [shown(item) for item in value]
    raise TypeError(f"{value!r} is not what MessagePack holds")


def text(value: Any) -> str:
    """JSON values as a text that is equal for equal values only: 1 and 1.0 differ, 0.0 and -0.0 too; names have no order."""
    return _ENCODER.encode(value)


def _name(key: Any) -> str:
    value = shown(key)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _extension(code: int, data: bytes) -> str:
    if code == _UUID:
        return str(uuid.UUID(bytes=data))
    if code == _DECIMAL:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data)
        scale: int = unpacker.unpack()
        nibbles = data[unpacker.tell() :].hex()
        sign = "-" if int(nibbles[-1], 16) in _MINUS else ""
        digits = nibbles[:-1].lstrip("0") or "0"
        return format(Decimal(f"{sign}{digits}E{-scale}"), "f")
    raise TypeError(f"extension {code} isn't one of a 2.6 master")
