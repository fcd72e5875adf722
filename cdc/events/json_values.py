"""Conversion of values to JSON by the type table of docs/events.md.

Most values need no conversion: msgspec itself writes None, bool, int, str, bytes (as base64), UUID, list and dict. `plain`
converts the values that msgspec can't write, or would write differently: floats without a JSON number, decimals (plain notation
instead of an exponent), points and lengths of time, maps with keys that aren't strings, strings that aren't UTF-8.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgpack import Timestamp

from cdc.errors import EncodingError, excerpt
from cdc.protocol.codec import MapPairs
from cdc.protocol.extensions import Datetime, DeepValue, ErrorValue, Interval, OpaqueExtension

encode: Final = msgspec.json.Encoder().encode
"""Encodes a plain value as JSON; the entire program uses this encoder."""

SAFE_TYPES: Final = frozenset({type(None), bool, int, bytes, UUID})
"""Types whose values are always plain. A str is plain if it is UTF-8, which the encoder itself checks."""

WAY_OUT: Final = 'Leave the space out (spaces.exclude), or send such rows to the dead-letter topic (format.on_error = "dlq").'
"""Hint for a row that contains a value without a JSON form."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_SECONDS: Final = 86_400
# Python's calendar is limited to the years 1 to 9999, Tarantool's isn't; the Gregorian calendar repeats every 400 years.
_CYCLE_SECONDS: Final = 146_097 * _DAY_SECONDS
# The published fields of an error; its other fields are locations in the server's source code.
_ERROR_FIELDS: Final = {0: "type", 3: "message", 5: "code", 6: "fields"}


def plain(value: Any) -> Any:
    """Convert a value to one that msgspec writes as the type table requires.

    Raises EncodingError for a value that isn't in the table.
    """
    kind = type(value)
    if kind in SAFE_TYPES:
        return value
    if kind is str:
        return value if _is_utf8(value) else _base64(value.encode("utf-8", "surrogateescape"))
    if kind is float:
        return _float(value)
    if kind is list:
        return [plain(item) for item in value]
    if kind is dict:
        return _map(list(value.items()))
    return _EXTENSIONS[kind](value) if kind in _EXTENSIONS else _refuse(value)


def _float(value: float) -> float | str:
    if value != value:  # the definition of NaN
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _map(pairs: list[tuple[Any, Any]]) -> dict[str, Any] | list[list[Any]]:
    """Return an object, or an array of pairs if two keys would become the same name."""
    named = {_key(key): plain(item) for key, item in pairs}
    return named if len(named) == len(pairs) else [[plain(key), plain(item)] for key, item in pairs]


def _key(key: Any) -> str:
    value = plain(key)
    if isinstance(value, str):
        return value
    # msgspec writes binary and uuid as JSON strings: strip their quotes, because the key is quoted again.
    return encode(value).decode().strip('"') if isinstance(value, bytes | UUID) else encode(value).decode()


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _datetime(value: Datetime) -> str:
    local = value.seconds + value.offset_minutes * 60
    cycles, within = divmod(local, _CYCLE_SECONDS)
    moment = _EPOCH + timedelta(seconds=within)
    year = moment.year + 400 * cycles
    fraction = f".{value.nanosecond:09d}" if value.nanosecond else ""
    date = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}"
    return f"{date}-{moment:%m-%dT%H:%M:%S}{fraction}{_offset(value.offset_minutes)}"


def _offset(minutes: int) -> str:
    if minutes == 0:
        return "Z"
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02d}:{rest:02d}"


def _interval(value: Interval) -> str | dict[str, Any]:
    if value.adjust != "none":
        return {name: getattr(value, name) for name in value.__slots__ if getattr(value, name)}
    parts = ((value.year, "Y"), (value.month, "M"), (value.week, "W"), (value.day, "D"))
    date = "".join(f"{number}{unit}" for number, unit in parts if number)
    # Seconds and nanoseconds form one part, which can have only one sign.
    nanoseconds = value.second * 1_000_000_000 + value.nanosecond
    seconds, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    second = f"{sign}{seconds}" + (f".{fraction:09d}" if fraction else "") + "S" if nanoseconds else ""
    time = "".join(f"{number}{unit}" for number, unit in ((value.hour, "H"), (value.minute, "M")) if number) + second
    if not date and not time:
        return "PT0S"
    return f"P{date}" + (f"T{time}" if time else "")


def _error(value: ErrorValue) -> dict[str, Any]:
    stack: list[dict[str, Any]] = [
        {_ERROR_FIELDS[key]: plain(item) for key, item in entry.items() if key in _ERROR_FIELDS} for entry in value.stack
    ]
    newest, *older = stack
    shown: dict[str, Any] = {name: newest[name] for name in ("type", "code", "message", "fields") if name in newest}
    return {**shown, "previous": older} if older else shown


def _refuse(value: Any) -> Any:
    if isinstance(value, DeepValue):
        raise EncodingError("a value is nested too deeply to be written as JSON", WAY_OUT, detail=repr(value))
    if isinstance(value, Timestamp):
        value = OpaqueExtension(-1, value.to_bytes())
    if isinstance(value, OpaqueExtension):
        raise EncodingError(
            f"a value of MessagePack extension type {value.code} can't be shown",
            f"This version doesn't know the type. {WAY_OUT}",
            detail=value.data[:64].hex(" "),
        )
    raise EncodingError(f"a value of Python type {type(value).__name__} can't be shown", detail=excerpt(value, 200))


_EXTENSIONS: Final[dict[type, Any]] = {
    Decimal: _decimal,
    Datetime: _datetime,
    Interval: _interval,
    ErrorValue: _error,
    MapPairs: _map,
}
