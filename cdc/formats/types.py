"""The type table of the formats with a schema: what each type of field becomes, and the conversion of its values.

A value becomes one of Kafka Connect's types first, and a format then writes that:

    unsigned 7                     int64     7
    uuid                           string    with the name io.debezium.data.Uuid
    decimal 1.50                   struct    scale 2, unscaled value 150: io.debezium.data.VariableScaleDecimal
    map, array, any, number …      string    the value's JSON: io.debezium.data.Json

A value that its type can't hold is an EncodingError: the row is refused, never changed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from cdc.errors import EncodingError, excerpt
from cdc.events.json_values import WAY_OUT, encode, plain
from cdc.formats.options import FormatOptions
from cdc.protocol.extensions import Datetime, Interval

Convert = Callable[[Any], Any]
"""Function from a value as it was received to the value of a Connect type. Raises EncodingError."""

JSON: Final = "io.debezium.data.Json"
UUID_NAME: Final = "io.debezium.data.Uuid"
VARIABLE_SCALE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
ZONED_TIMESTAMP: Final = "io.debezium.time.ZonedTimestamp"
INTERVAL: Final = "io.debezium.time.Interval"
CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"

UNSIGNED_DIGITS: Final = 20
"""Digits of 2^64-1."""


class Scaled(NamedTuple):
    """A decimal number: `unscaled` divided by ten to the power of `scale`."""

    scale: int
    unscaled: int


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of Kafka Connect: its base, its semantic name or "", the parameters of the name, and the conversion of values.

    `base` is int8, int16, int32, int64, float, double, boolean, string, bytes, or "scaled" for a struct of scale and value.
    """

    kind: str
    """How the values are written, for the compiled row path (cdc/native/src/avro_values.rs)."""
    base: str
    name: str
    convert: Convert
    parameters: tuple[tuple[str, str], ...] = ()


def _misfit(value: Any, wanted: str, hint: str = WAY_OUT) -> EncodingError:
    return EncodingError(f"a value isn't {wanted}", hint, detail=excerpt(value, 200))


_NUMBER_WANTED: Final = (
    "Give the field the type unsigned, whose values format.unsigned represents, or number, which schemas have as JSON, in the "
    "format of the space (space:format)."
)


def _integer(bits: int, hint: str = "") -> Convert:
    """Return the conversion to integers with a sign; `hint` is the remedy for numbers that are too large."""
    least, end = -(1 << bits - 1), 1 << bits - 1

    def convert(value: Any) -> int:
        if type(value) is int and least <= value < end:
            return value
        raise _misfit(value, f"an integer of {bits} bits with a sign", f"{hint} {WAY_OUT}".lstrip())

    return convert


def _unsigned(value: Any) -> int:
    if type(value) is not int:
        raise _misfit(value, "an integer")
    return value


def twos_complement(number: int) -> bytes:
    """Return an integer in as few bytes as it needs, the sign included, the highest byte first: Java's BigInteger."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _as_decimal(value: Any) -> bytes:
    return twos_complement(_unsigned(value))


def _as_digits(value: Any) -> str:
    return str(_unsigned(value))


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _misfit(value, "a boolean")
    return value


def _text_of(kind: type, what: str) -> Convert:
    """Return the conversion of values of one type to the text that they have in JSON."""

    def convert(value: Any) -> str:
        if type(value) is not kind:
            raise _misfit(value, what)
        text: str = plain(value)
        return text

    return convert


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _misfit(value, "binary")
    return value


def double(value: Any) -> float:
    """Convert a number that is equal to a double."""
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < 1 << 1000 and int(float(value)) == value:
        return float(value)
    raise _misfit(value, "a double")


def _float(value: Any) -> float:
    number = double(value)
    if math.isfinite(number):
        try:
            is_equal = struct.unpack("<f", struct.pack("<f", number))[0] == number
        except OverflowError:
            is_equal = False
        if not is_equal:
            raise _misfit(value, "a float of 32 bits")
    return number


def _uuid(value: Any) -> str:
    if type(value) is not UUID:
        raise _misfit(value, "a UUID")
    return str(value)


def scaled(value: Any) -> Scaled:
    """Convert a decimal with its own scale."""
    if type(value) is not Decimal:
        raise _misfit(value, "a decimal")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "Tarantool has no NaN and no infinity among its decimals"
    unscaled = int("".join(map(str, digits)) or "0")
    return Scaled(-exponent, -unscaled if sign else unscaled)


def _interval(value: Any) -> str:
    if type(value) is not Interval:
        raise _misfit(value, "an interval")
    text = plain(value)
    if type(text) is not str:
        raise EncodingError("an interval with this adjust mode has no ISO 8601 form", WAY_OUT, detail=f"{value.adjust!r}, {text}")
    return text


def json_text(value: Any) -> str:
    """Convert any value to its JSON, by the type table of the format json."""
    try:
        return encode(plain(value)).decode()
    except RecursionError as error:
        raise EncodingError("a value is nested too deeply to be written as JSON", WAY_OUT) from error


INT64: Final = ValueType("int64", "int64", "", _integer(64, _NUMBER_WANTED))
STRING: Final = ValueType("string", "string", "", _text_of(str, "a string"))
JSON_TEXT: Final = ValueType("json", "string", JSON, json_text)
_UNSIGNED: Final = {
    "long": replace(INT64, convert=_integer(64, 'Set format.unsigned = "decimal" or "string".')),
    "decimal": ValueType(
        "unsigned decimal",
        "bytes",
        CONNECT_DECIMAL,
        _as_decimal,
        (("scale", "0"), ("connect.decimal.precision", str(UNSIGNED_DIGITS))),
    ),
    # The parameter tells readers that these strings are numbers.
    "string": ValueType("unsigned text", "string", "", _as_digits, (("tarantool.type", "unsigned"),)),
}
_DECIMAL: Final = {
    "variable": ValueType("scaled", "scaled", VARIABLE_SCALE_DECIMAL, scaled),
    "string": ValueType("decimal text", "string", "", _text_of(Decimal, "a decimal")),
}
_SIZED: Final = {bits: ValueType(f"int{bits}", f"int{bits}", "", _integer(bits)) for bits in (8, 16, 32)}
_DOUBLE: Final = ValueType("double", "double", "", double)
_BY_TYPE: Final = {
    "integer": INT64,
    "int64": INT64,
    "int32": _SIZED[32],
    "int16": _SIZED[16],
    "int8": _SIZED[8],
    "uint32": INT64,
    "uint16": _SIZED[32],
    "uint8": _SIZED[16],
    "double": _DOUBLE,
    "float64": _DOUBLE,
    "float32": ValueType("float", "float", "", _float),
    "boolean": ValueType("boolean", "boolean", "", _boolean),
    "string": STRING,
    "varbinary": ValueType("bytes", "bytes", "", _bytes),
    "uuid": ValueType("uuid", "string", UUID_NAME, _uuid),
    "datetime": ValueType("datetime", "string", ZONED_TIMESTAMP, _text_of(Datetime, "a datetime")),
    "interval": ValueType("interval", "string", INTERVAL, _interval),
}
DECIMALS: Final = frozenset({"decimal", "decimal32", "decimal64", "decimal128", "decimal256"})


def value_type(field_type: str, options: FormatOptions) -> ValueType:
    """Return the type of a field's values. Types that hold values of several kinds, or that are unknown, are JSON texts."""
    if field_type in ("unsigned", "uint64"):
        return _UNSIGNED[options.unsigned]
    if field_type in DECIMALS:
        return _DECIMAL[options.decimal]
    return _BY_TYPE.get(field_type, JSON_TEXT)
