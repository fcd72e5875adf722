"""The columns that a field of each Tarantool type gets in the tables of all jobs, and the SQL for their values.

| Tarantool | column | |
|---|---|---|
| unsigned, integer, uint64 | decimal(20,0) | they reach 2^64-1, which a bigint can't hold |
| int8 … int64, uint8 … uint32 | bigint | |
| double, float32, float64 | double | |
| number, decimal | decimal(37,18), and beside it string | see below |
| decimal32, decimal64, decimal128, decimal256 with a scale | decimal of their digits and this scale | see below |
| decimal with a scale that the user gives (scales.py) | decimal(38, scale) | |
| boolean | boolean | |
| string, uuid, interval | string | |
| varbinary | binary | |
| datetime | timestamp, and beside it int | to the microsecond; the offset from UTC, in minutes |
| array, map | string | JSON |
| any, scalar | string | a string unchanged, any other value as JSON |

A decimal has up to 38 digits at any scale, and a number may also be a double, so no single numeric type holds all of them. The
numeric column has those with up to 19 digits before and 18 behind the point, exactly. Any other value is null there, never
rounded, and its text is in the second column, `<field>__exact`, which is null otherwise. With 37 digits Spark's sums and
differences of two such columns are still exact; with 38 it would round them.

A sized decimal has a fixed number of digits, and its field says how many of them are behind the point (`scale`): decimal32 with
the scale 2 is decimal(9,2). Where Spark has enough digits, no second column is needed. decimal256 has 76 digits, twice as many.

Values of other types that their column can't hold are null in it. `_row` has every value exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spark_jobs.contract.sql_text import literal

STRING: Final = "string"
NUMERIC: Final = "decimal(37,18)"
EXACT: Final = "exact"
"""Kind of the column with the texts of values that NUMERIC can't hold. Its Spark type is string."""
_INTEGER: Final = "decimal(20,0)"
OFFSET: Final = "offset"
"""Kind of the column with a datetime's offset from UTC, in minutes. Its Spark type is int."""
SUFFIXES: Final[Mapping[str, str]] = {EXACT: "__exact", OFFSET: "__offset"}
"""Ends of the names of the columns beside others, by their kinds."""

_DIGITS: Final[Mapping[str, int]] = {"decimal": 38, "decimal32": 9, "decimal64": 18, "decimal128": 38, "decimal256": 76}
_DIGITS_MAX: Final = 38
"""The digits that a decimal of Spark has at most."""

_KINDS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("unsigned", "integer", "uint64"), (_INTEGER,)),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), ("bigint",)),
    **dict.fromkeys(("double", "float", "float32", "float64"), ("double",)),
    **dict.fromkeys(("number", *_DIGITS), (NUMERIC, EXACT)),
    "boolean": ("boolean",),
    "varbinary": ("binary",),
    "datetime": ("timestamp", OFFSET),
}


def kinds_of(field_type: str, scale: int | None = None) -> Sequence[str]:
    """Return the kinds of the columns of a field of a Tarantool type: Spark types, EXACT or OFFSET.

    `scale` is that of a sized decimal, if its field says one, or of another decimal, if the user does. It may be negative: then
    the last digits before the point are 0.
    """
    digits = _DIGITS.get(field_type)
    if digits is None or scale is None:
        return _KINDS.get(field_type, (STRING,))
    behind = max(scale, 0)
    needed = max(digits - min(scale, 0), behind)
    return (f"decimal({needed},{behind})",) if needed <= _DIGITS_MAX else (NUMERIC, EXACT)


def spark_type(kind: str) -> str:
    """Return the Spark type of a kind of column."""
    return {EXACT: STRING, OFFSET: "int"}.get(kind, kind)


def comment_on(field: str, field_type: str, scale: int | None, kind: str) -> str:
    """Return what a table says of the column of a kind for a field."""
    type_ = field_type if scale is None else f"{field_type}, scale {scale}"
    beside = {
        EXACT: f"text of a {field} that the column beside it can't hold",
        OFFSET: f"minutes by which {field} is ahead of UTC",
    }
    return f"{beside.get(kind, field)} ({type_})"


def value_of(fields: str, field: str, kind: str) -> str:
    """Return an SQL expression: a field's value in a column of a kind; null if the column can't hold it.

    `fields` is a map or struct of the values' texts.
    """
    text = f"{fields}[{literal(field)}]"
    if kind == STRING:
        return text
    if kind == EXACT:
        return f"if({_numeric(text, NUMERIC)} is null, {text}, null)"
    if kind == OFFSET:
        return _offset_of(text)
    if kind.startswith("decimal(") and kind != _INTEGER:
        return _numeric(text, kind)
    return f"try_to_binary({text}, 'base64')" if kind == "binary" else f"try_cast({text} AS {kind})"


def numeric_of(fields: str, field: str) -> str:
    """Return an SQL expression: a field's value as a NUMERIC, null if it can't be one. `fields` is that of `value_of`."""
    return _numeric(f"{fields}[{literal(field)}]", NUMERIC)


def _numeric(text: str, kind: str) -> str:
    """Return an SQL expression: a text as a decimal; null if it isn't one, or would have to be rounded."""
    scale = int(kind.rstrip(")").partition(",")[2])
    # Spark's cast rounds. Of nearly all texts it is cheap to see that nothing can be lost: they have no exponent, and are short,
    # or have few digits behind the point.
    point = f"instr({text}, '.')"
    is_short = f"length({text}) <= {scale + 2} or {point} = 0 or length({text}) - {point} <= {scale}"
    is_plain = f"instr(upper({text}), 'E') = 0 and ({is_short})"
    digits = f"length(coalesce(regexp_extract({text}, r'\\.([0-9]*[1-9])0*(?:[eE].*)?$', 1), ''))"
    exponent = f"coalesce(try_cast(regexp_extract({text}, r'[eE](.+)$', 1) as int), 0)"
    return f"if(({is_plain}) or {digits} - {exponent} <= {scale}, try_cast({text} AS {kind}), null)"


def _offset_of(text: str) -> str:
    """Return an SQL expression: the minutes by which a time in ISO 8601 is ahead of UTC; null if it isn't one."""
    minutes = f"try_cast(substr({text}, -5, 2) as int) * 60 + try_cast(substr({text}, -2) as int)"
    signed = f"case substr({text}, -6, 1) when '+' then {minutes} when '-' then -({minutes}) end"
    return f"if(endswith({text}, 'Z'), 0, {signed})"
