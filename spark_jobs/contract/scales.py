"""The scales of decimals whose format says none, as whoever starts a job knows them (`--decimal-scale`).

A `decimal` of Tarantool has up to 38 digits at any scale, so a table needs two columns for it (field_types.py). With a scale one
is enough. The scale is put into the records of `<prefix>.schema` where a job keeps them, as a sized decimal's is there from the
start. So all that reads the job's tables knows it, without an option of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Scales = Mapping[str, int]
"""Scales by SPACE, for all decimals of a space, and by SPACE.FIELD, which comes first."""

_SCALE_MAX: Final = 38


def decimal_scale(text: str) -> tuple[str, int]:
    """Return the name and the scale of SPACE=DIGITS or SPACE.FIELD=DIGITS. For `add_argument(type=…)`."""
    name, _, digits = text.rpartition("=")
    if not name or not digits.isascii() or not digits.isdigit() or int(digits) > _SCALE_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} isn't SPACE=DIGITS or SPACE.FIELD=DIGITS with the number of digits behind the point, 0 to {_SCALE_MAX}"
        )
    return name, int(digits)


def with_scales(record: str, scales: Scales) -> str:
    """Return a record of the schema topic in which the space's decimals without a scale have the chosen one."""
    members = _members(record)
    chosen = [
        (column, found[-1][1])
        for name, column in _decimals(members)
        if "scale" not in column and (found := list(_chosen(name, column, scales)))
    ]
    for column, scale in chosen:
        column["scale"] = scale
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False) if chosen else record


def unused(records: Iterable[str], scales: Scales) -> list[str]:
    """Return the names among the scales that no decimal of these records of the schema topic has."""
    used = {key for record in records for name, column in _decimals(_members(record)) for key, _ in _chosen(name, column, scales)}
    return sorted(scales.keys() - used)


def _members(record: str) -> Any:
    try:
        return json.loads(record)
    except ValueError:
        return None  # forms.py says what is wrong


def _decimals(members: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the unsized decimals in a record, each with the name of its space; none if it is no record of a form."""
    try:
        tables = [change["table"] for change in members["tableChanges"]]
        columns = [column for table in tables if table is not None for column in table["columns"]]
        return [(members["source"]["table"], column) for column in columns if column["typeName"] == "decimal"]
    except (KeyError, TypeError):
        return []


def _chosen(space: str, column: Mapping[str, Any], scales: Scales) -> list[tuple[str, int]]:
    """Return the scales that apply to a column with their names; the last one counts."""
    return [(name, scales[name]) for name in (space, f"{space}.{column.get('name')}") if name in scales]
