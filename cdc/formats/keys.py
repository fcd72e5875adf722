"""The values of primary keys in formats with a schema: equal keys have the same bytes.

A key's value is brought into the one notation that cdc.events.key_text gives it, and then has the type of the index's part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from cdc.errors import EncodingError, excerpt
from cdc.events.json_values import WAY_OUT, encode
from cdc.events.key_text import key_converter
from cdc.formats.options import FormatOptions
from cdc.formats.types import DECIMALS, JSON, Convert, Scaled, ValueType, scaled, value_type
from cdc.schema.forms import KeyPart
from cdc.schema.keys import is_quiet_nan

_DOUBLES: Final = frozenset({"double", "float32", "float64"})


def key_type(part: KeyPart, options: FormatOptions) -> ValueType:
    """Return the type of a key part, whose conversion gives equal values one notation."""
    found = value_type(part.type, options)
    return replace(found, convert=_convert(part, found))


def _convert(part: KeyPart, found: ValueType) -> Convert:
    in_one_notation, _ = key_converter(part)
    if found.name == JSON:
        return lambda value: encode(in_one_notation(value)).decode()
    if part.type == "datetime":
        return in_one_notation
    if part.type in DECIMALS:
        return in_one_notation if found.base == "string" else _as_written if part.is_as_written else _stripped
    if part.type in _DOUBLES:
        return _double_of(part, found)
    if part.type == "string":
        return _text
    return found.convert


def _text(value: Any) -> str:
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise EncodingError(
        "a value in a primary key isn't a string of UTF-8, which this format can't tell from another string",
        WAY_OUT,
        detail=excerpt(value, 200),
    )


def _as_written(value: Any) -> Scaled:
    """Return a decimal with its own scale, where each notation is a key of its own."""
    found = scaled(value)
    if not found.unscaled and value.is_signed():
        raise EncodingError(
            "a signed zero in a primary key, which in a HASH index is another key than zero, is the same one in this format",
            f'Set format.decimal = "string". {WAY_OUT}',
            detail=str(value),
        )
    return found


def _stripped(value: Any) -> Scaled:
    """Return a decimal without trailing zeroes in its fraction, and without a sign before zero."""
    scale, unscaled = scaled(value)
    if scale < 0:
        return Scaled(0, unscaled * 10**-scale)
    while scale and unscaled % 10 == 0:
        scale, unscaled = scale - 1, unscaled // 10
    return Scaled(scale, unscaled)


def _double_of(part: KeyPart, found: ValueType) -> Convert:
    def convert(value: Any) -> float:
        number: float = found.convert(value)
        if not math.isnan(number):
            return number + 0.0  # not -0.0
        return number if part.is_as_written or not is_quiet_nan(number) else math.nan

    return convert
