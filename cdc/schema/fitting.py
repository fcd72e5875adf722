"""Check whether a tuple fits its space's format, by the format's own fields: types, nil, and missing fields.

The check is used only for the results of UPSERTs in vinyl, which the server ignores if they don't fit. Out of scope: types that
secondary indexes require for fields beyond the format, constraints, and the ranges of sized numbers.

Sources: src/box/tuple_format.c, field_def.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.protocol.extensions import Datetime, Interval
from cdc.schema.forms import SpaceForm


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, Decimal)


def _is_scalar(value: Any) -> bool:
    return type(value) in (int, float, Decimal, bool, str, bytes, UUID, Datetime)


_FITTING: Final[dict[str, Callable[[Any], bool]]] = {
    "unsigned": lambda value: type(value) is int and value >= 0,
    "integer": _is_integer,
    "number": _is_number,
    "double": lambda value: type(value) is float,
    "decimal": lambda value: type(value) is Decimal,
    "string": lambda value: type(value) is str,
    "boolean": lambda value: type(value) is bool,
    "varbinary": lambda value: type(value) is bytes,
    "uuid": lambda value: type(value) is UUID,
    "datetime": lambda value: type(value) is Datetime,
    "interval": lambda value: type(value) is Interval,
    "array": lambda value: type(value) is list,
    "map": lambda value: not _is_scalar(value) and type(value) not in (list, Interval),
    "scalar": _is_scalar,
}
"""Check of a value, by the field's type. A field of any other type accepts all values."""
_SHORT: Final = {"*": "any", "str": "string", "num": "unsigned", "uint": "unsigned", "int": "integer", "bool": "boolean"}
_INTEGERS_IN_DOUBLES_SINCE: Final = (2, 11, 1)
"""First version in which a field of the type `double` accepts integers too; before it, only doubles fit."""


def fits(form: SpaceForm, values: Sequence[Any], version: tuple[int, ...]) -> bool:
    """Return whether decoded values fit the format's fields, by the rules of this server version."""
    for place, field in enumerate(form.fields):
        value = values[place] if place < len(values) else None
        kind = _SHORT.get(field.type, field.type)
        if value is None:
            if not field.is_nullable and (kind != "any" or place >= len(values)):
                return False
        elif kind == "double" and type(value) is int:
            if version < _INTEGERS_IN_DOUBLES_SINCE:
                return False
        elif kind in _FITTING and not _FITTING[kind](value):
            return False
    return True
