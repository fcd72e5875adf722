"""JSON that reading and writing leaves textually unchanged.

If a patch changes one field of a row, the text of the other fields must stay the same. Python's own `json` keeps integers of any
size, but writes floats in its own way (`1e+300` for `1e300`). Floats therefore keep the text from which they were read.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Final

_quote: Final = json.JSONEncoder(ensure_ascii=False).encode


class WrittenFloat(float):
    """Float with the text from which it was read."""

    __slots__ = ("text",)
    text: str


def _written_float(text: str) -> WrittenFloat:
    number = WrittenFloat(text)
    number.text = text
    return number


_decoder: Final = json.JSONDecoder(parse_float=_written_float)


def parse(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError."""
    return _decoder.decode(text)


def values(text: str) -> list[Any]:
    """Return the values of a JSON object's members, in order, as `parse` returns them."""
    return list(parse(text).values())


def render(value: Any) -> str:
    """Return a value as compact JSON, with floats as they were read."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, WrittenFloat):
        return value.text
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, list):
        return f"[{','.join(map(render, value))}]"
    return f"{{{','.join(f'{_quote(name)}:{render(item)}' for name, item in value.items())}}}"


def _float_text(number: float) -> str:
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    mantissa, _, exponent = repr(number).partition("e")
    if exponent == "-05":  # the daemon writes 0.00001 in full, and smaller numbers with an exponent
        return format(Decimal(repr(number)), "f")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
