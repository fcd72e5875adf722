"""Primary keys as JSON: keys have the same text if and only if the server considers them equal.

    decimal 10, decimal 10.00, double 10.0 in a `number`     10
    decimal 0.1, double 0.1 in a `number`                    0.1
    decimal 0.30000000000000001 in a `number`                "0.30000000000000001"     no double is equal to it
    10 and 10.00 in a `decimal`                              "10"
    0.0 and -0.0 in a `double`                               0.0
    one instant in two time zones                            "2024-02-29T20:59:58Z"
    in a `scalar`: binary, UUID, datetime, such a decimal    {"varbinary":"/w=="}, …   a string may say the same

In a HASH index the server distinguishes notations of a value (`KeyPart.is_as_written`), and so do these texts:

    decimal 10, decimal 10.00, double 10.0 in a `number`     "10", "10.00", 10
    decimal 1E+2 and decimal 100                             "1E+2", "100"
    one instant in two time zones                            "2024-02-29T20:59:58Z", "2024-02-29T23:59:58+03:00"

Kafka keeps the last record of each key, and orders the records of one key. If one key had two texts, consumers would see two
rows. The row itself keeps the value's notation. Equality is defined as in cdc.schema.keys, which encodes keys for the store.

Out of scope: spaces, and values that have only one notation: integers, booleans, UUIDs, binary, and UTF-8 strings.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.events.json_values import plain
from cdc.protocol.extensions import Datetime
from cdc.schema.forms import KeyPart
from cdc.schema.keys import comparable_value, is_quiet_nan

Write = Callable[[Any], Any]
"""Function from a part's value to the value that is written as JSON in its place."""

_BITS: Final = struct.Struct(">d").pack
_QUIET_NAN: Final = _BITS(math.nan)

_INTEGER_MIN: Final = -(2**63)
_INTEGER_END: Final = 2**64


def _number(value: Any) -> Any:
    """Return an int for a 64-bit integer, a float for a number equal to a double, and otherwise the digits as a string."""
    kind = type(value)
    if kind is float:
        return _double(value)
    if kind is not Decimal:
        return plain(value)
    double = float(value)
    if math.isfinite(double) and comparable_value(double) == value:
        return _double(double)
    if _INTEGER_MIN <= value < _INTEGER_END and value == value.to_integral_value():
        return int(value)
    return _digits(value)


def _double(value: float) -> Any:
    if not math.isfinite(value):
        return "sNaN" if value != value and not is_quiet_nan(value) else plain(value)
    return int(value) if value.is_integer() and _INTEGER_MIN <= value < _INTEGER_END else value


def _digits(value: Decimal) -> str:
    """Return a decimal in plain notation, without trailing zeroes in the fraction and without a sign before zero."""
    text = format(value, "f") if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _in_double(value: Any) -> Any:
    number = _number(value)
    return float(number) if type(number) is int and float(number) == number else number


def _in_decimal(value: Any) -> Any:
    if type(value) is float and math.isfinite(value):
        value = comparable_value(value) or value
    elif type(value) is int:
        value = Decimal(value)
    return _digits(value) if type(value) is Decimal else _number(value)


def _in_datetime(value: Any) -> Any:
    return plain(Datetime(value.seconds, value.nanosecond) if type(value) is Datetime else value)


def _in_string(value: Any) -> Any:
    if type(value) is not str:
        return plain(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"string": base64.b64encode(value.encode("utf-8", "surrogateescape")).decode()}
    return value


def _in_scalar(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return _in_string(value)
    if kind in _NAMES:
        return {_NAMES[kind]: _in_datetime(value)}
    number = _number(value)
    if type(number) is str:
        return {"decimal" if kind is Decimal else "double": number}
    return number


# Parts in which different notations are different keys.


def _number_as_written(value: Any) -> Any:
    if type(value) is Decimal:
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
        return format(value, "f") if exponent <= 0 else str(value)
    return _nan_as_written(value) if value != value else _number(value)


def _nan_as_written(value: float) -> str:
    bits = _BITS(value)
    return "NaN" if bits == _QUIET_NAN else f"NaN({bits.hex()})"


def _in_double_as_written(value: Any) -> Any:
    return _number_as_written(value) if type(value) is Decimal or value != value else _in_double(value)


def _in_datetime_as_written(value: Any) -> Any:
    text = plain(value)
    return f"{text}[{value.timezone_index}]" if type(value) is Datetime and value.timezone_index else text


def _in_scalar_as_written(value: Any) -> Any:
    if type(value) is Datetime:
        return {"datetime": _in_datetime_as_written(value)}
    if type(value) is Decimal:
        return {"decimal": _number_as_written(value)}
    return {"double": _nan_as_written(value)} if value != value else _in_scalar(value)


_NAMES: Final[dict[type, str]] = {bytes: "varbinary", UUID: "uuid", Datetime: "datetime"}

_DOUBLES: Final = ("double", "float32", "float64")
_DECIMALS: Final = ("decimal", "decimal32", "decimal64", "decimal128", "decimal256")
_BY_TYPE: Final[dict[str, tuple[Write, frozenset[type]]]] = {
    "string": (_in_string, frozenset({str})),
    **dict.fromkeys(_DOUBLES, (_in_double, frozenset())),
    **dict.fromkeys(_DECIMALS, (_in_decimal, frozenset())),
    "number": (_number, frozenset({int})),
    "datetime": (_in_datetime, frozenset()),
    "scalar": (_in_scalar, frozenset({int, bool, str})),
}
_AS_WRITTEN_BY_TYPE: Final[dict[str, tuple[Write, frozenset[type]]]] = {
    **dict.fromkeys(_DOUBLES, (_in_double_as_written, frozenset())),
    **dict.fromkeys(_DECIMALS, (_number_as_written, frozenset())),
    "number": (_number_as_written, frozenset({int})),
    "datetime": (_in_datetime_as_written, frozenset()),
    "scalar": (_in_scalar_as_written, frozenset({int, bool, str})),
}
_PLAIN: Final = (plain, frozenset({type(None), bool, int, str, bytes, UUID}))


def key_converter(part: KeyPart) -> tuple[Write, frozenset[type]]:
    """Return the function that converts a key part's values, and the types whose values need no conversion for msgspec.

    A str needs no conversion only if it is UTF-8, which msgspec itself checks.
    """
    return (_AS_WRITTEN_BY_TYPE if part.is_as_written else _BY_TYPE).get(part.type, _PLAIN)
