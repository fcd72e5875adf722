"""The columns that a field of each Tarantool type gets in the tables of all jobs, and the SQL for their values.

| Tarantool | column | |
|---|---|---|
| unsigned, integer, uint64 | decimal(20,0) | they reach 2^64-1, which a bigint can't hold |
| int8 … int64, uint8 … uint32 | bigint | |
| double, float32, float64 | double | |
| number, decimal and its sized kinds | decimal(37,18), and beside it string | see below |
| boolean | boolean | |
| string, uuid, interval | string | |
| varbinary | binary | |
| datetime | timestamp | to the microsecond; the offset is in `_row` |
| array, map | string | JSON |
| any, scalar | string | a string unchanged, any other value as JSON |

A decimal has up to 38 digits at any scale, and a number may also be a double, so no single numeric type holds all of them. The
numeric column has those with up to 19 digits before and 18 behind the point, exactly. Any other value is null there, never
rounded, and its text is in the second column, `<field>__exact`, which is null otherwise. With 37 digits Spark's sums and
differences of two such columns are still exact; with 38 it would round them.

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
EXACT_SUFFIX: Final = "__exact"

_SCALE: Final = 18
_SHORT: Final = _SCALE + 2
"""Length up to which a text without an exponent has at most _SCALE digits behind the point."""

_KINDS: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("unsigned", "integer", "uint64"), ("decimal(20,0)",)),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), ("bigint",)),
    **dict.fromkeys(("double", "float", "float32", "float64"), ("double",)),
    **dict.fromkeys(("number", "decimal", "decimal32", "decimal64", "decimal128", "decimal256"), (NUMERIC, EXACT)),
    "boolean": ("boolean",),
    "varbinary": ("binary",),
    "datetime": ("timestamp",),
}


def kinds_of(field_type: str) -> Sequence[str]:
    """Return the kinds of the columns of a field of a Tarantool type: Spark types or EXACT."""
    return _KINDS.get(field_type, (STRING,))


def spark_type(kind: str) -> str:
    """Return the Spark type of a kind of column."""
    return STRING if kind == EXACT else kind


def value_of(fields: str, field: str, kind: str) -> str:
    """Return an SQL expression: a field's value in a column of a kind; null if the column can't hold it.

    `fields` is a map or struct of the values' texts.
    """
    text = f"{fields}[{literal(field)}]"
    if kind == STRING:
        return text
    if kind == NUMERIC:
        return _numeric(text)
    if kind == EXACT:
        return f"if({_numeric(text)} is null, {text}, null)"
    return f"try_to_binary({text}, 'base64')" if kind == "binary" else f"try_cast({text} AS {kind})"


def numeric_of(fields: str, field: str) -> str:
    """Return an SQL expression: a field's value as a NUMERIC, null if it can't be one. `fields` is that of `value_of`."""
    return _numeric(f"{fields}[{literal(field)}]")


def _numeric(text: str) -> str:
    """Return an SQL expression: a text as a NUMERIC; null if it isn't one, or would have to be rounded."""
    # Spark's cast rounds. Nearly all texts are so short that nothing can be lost, which is cheap to see.
    is_short = f"length({text}) <= {_SHORT} and instr(upper({text}), 'E') = 0"
    digits = f"length(coalesce(regexp_extract({text}, r'\\.([0-9]*[1-9])0*(?:[eE].*)?$', 1), ''))"
    exponent = f"coalesce(try_cast(regexp_extract({text}, r'[eE](.+)$', 1) as int), 0)"
    return f"if(({is_short}) or {digits} - {exponent} <= {_SCALE}, try_cast({text} AS {NUMERIC}), null)"
