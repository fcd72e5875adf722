"""Values of rows as the daemon writes them into keys: keys that the server treats as equal have one text (docs/events.md).

A row contains its values as they were written. A job that builds keys from rows must therefore convert them as the daemon does:
in a `number` field, 10, 10.0 and "10.00" all become 10. In the key of a HASH index the server distinguishes "10" from "10.00",
so a text stays unchanged. A text also stays unchanged if the row doesn't show its kind: in a field of the type `scalar` or `any`,
and in a field past the format, a text may be a decimal or a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

_INTEGER_MIN: Final = -(2**63)
_INTEGER_END: Final = 2**64
_DIGITS: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_LOCAL_TIME: Final = re.compile(
    r"([+-]?[0-9]{4,})(-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?([+-])([0-9]{2}):([0-9]{2})"
)
_CYCLE_YEARS: Final = 400
"""Length of the calendar's cycle, in years. Python supports only the years 1 to 9999, so other years are moved by cycles."""


def canonical(value: Any, kind: str, *, is_as_written: bool = False) -> Any:
    """Return a JSON value of a field of this type as it appears in a key. `is_as_written` comes from the schema record."""
    if is_as_written and isinstance(value, str):
        return value
    return _BY_TYPE.get(kind, _untyped)(value)


def _untyped(value: Any) -> Any:
    return _of_double(value) if isinstance(value, float) else value


def _in_number(value: Any) -> Any:
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        return _untyped(value)
    exact = Decimal(value)
    double = float(exact)
    if math.isfinite(double) and _stood_for(double) == exact:
        return _of_double(double)
    if _INTEGER_MIN <= exact < _INTEGER_END and exact == exact.to_integral_value():
        return int(exact)
    return _in_decimal(value)


def _stood_for(double: float) -> Decimal | None:
    """Return the number as which the server compares a double with decimals; None if 15 digits don't lead back to the double."""
    if double.is_integer() and abs(double) < _INTEGER_END:
        return Decimal(int(double))
    digits = f"{double:.15g}"
    return Decimal(digits) if float(digits) == double else None


def _of_double(value: float) -> Any:
    return int(value) if value.is_integer() and _INTEGER_MIN <= value < _INTEGER_END else value


def _in_double(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and value == 0 else value


def _in_decimal(value: Any) -> Any:
    if not isinstance(value, str) or not _DIGITS.fullmatch(value):
        return value
    text = value.rstrip("0").rstrip(".") if "." in value else value
    return "0" if text == "-0" else text


def _in_datetime(value: Any) -> Any:
    found = _LOCAL_TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value  # already in UTC
    year, rest, fraction, sign, hours, minutes = found.groups()
    cycles, within = divmod(int(year) - _CYCLE_YEARS, _CYCLE_YEARS)
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    local = datetime.fromisoformat(f"{within + _CYCLE_YEARS:04d}{rest}")
    moment = local - offset if sign == "+" else local + offset
    year_shown = moment.year + cycles * _CYCLE_YEARS
    date = f"{year_shown:04d}" if 0 <= year_shown <= 9999 else f"{year_shown:+07d}"
    return f"{date}-{moment:%m-%dT%H:%M:%S}{fraction or ''}Z"


_BY_TYPE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "number": _in_number,
    **dict.fromkeys(("double", "float32", "float64"), _in_double),
    **dict.fromkeys(("decimal", "decimal32", "decimal64", "decimal128", "decimal256"), _in_decimal),
    "datetime": _in_datetime,
}
