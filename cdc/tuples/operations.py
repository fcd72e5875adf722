"""The operations of UPDATE and UPSERT: what they address, and what they say.

A client may name a field by number (from 0 or 1, as INDEX_BASE says, or negative from the tuple's end), by its name in the
format, or by a JSON path that begins with either (`data.user.name`, `[3].a.b[2]`). Tarantool logs the reference as it was
sent, so it is resolved here, against the format at the row's position.

`normalise` gives one form to all of them; `apply_plainly` carries out the part that schema rows need. The arithmetic that
computes images of user rows is not here: an event carries the operations themselves.

Sources: src/box/xrow_update.c (field references), src/lib/json/json.c (paths).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import SchemaError, excerpt

_ARITHMETIC: Final = frozenset("+-&|^")
_CODES: Final = _ARITHMETIC | frozenset("=!#:")

# One step of a JSON path: [3], ["key"], ['key'], .name, or a name at the very beginning.
_STEP: Final = re.compile(r"""\[\s*(?:(?P<place>\d+)|"(?P<double>[^"]*)"|'(?P<single>[^']*)')\s*\]|\.?(?P<name>[^.\[\]\s]+)""")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `field` counts from 0, or is negative from the tuple's end; `path` leads inside it (`.a.b[2]`) or is empty.

    `argument` is the operand; for `:` it is (position from 1 or negative from the end, length, text); for `#` a count.
    """

    code: str
    field: int
    path: str
    argument: Any


def normalise(operations: object, *, base: int, names: Sequence[str]) -> list[Operation]:
    """Resolve a decoded list of operations. `names` are the format's field names in order.

    Raises SchemaError for anything that a server would not have written.
    """
    if not isinstance(operations, list):
        raise SchemaError(f"operations should be an array, the row has {excerpt(operations, 200)}")
    return [_normalise(operation, base, names) for operation in operations]


def _normalise(operation: object, base: int, names: Sequence[str]) -> Operation:
    match operation:
        case [str(code), int() | str() as reference, argument] if code in _CODES and code != ":":
            field, path = _resolve(reference, base, names)
            return Operation(code, field, path, argument)
        case [":", int() | str() as reference, int(position), int(length), text]:
            field, path = _resolve(reference, base, names)
            # Positions are counted like fields: from the base, or negative from the end.
            return Operation(":", field, path, (position if position < 0 else position - base + 1, length, text))
    raise SchemaError(f"the row has an operation that can't be read: {excerpt(operation, 200)}")


def _resolve(reference: int | str, base: int, names: Sequence[str]) -> tuple[int, str]:
    if isinstance(reference, int):
        return (reference if reference < 0 else _place(reference, base)), ""
    # A name with dots in it wins over the path that it could also be.
    if reference in names:
        return names.index(reference), ""
    first = _STEP.match(reference)
    if first is None:
        raise SchemaError(f"the field reference {reference!r} can't be read")
    rest = reference[first.end() :]
    if first["place"] is not None:
        # Places in a path count from 1, also where INDEX_BASE is 0: vinyl rewrites only the numbers of an UPSERT.
        return _place(int(first["place"]), 1), rest
    name = next(text for text in (first["double"], first["single"], first["name"]) if text is not None)
    if name not in names:
        raise SchemaError(f"the operation names a field {name!r} that the format at its position doesn't have: {list(names)}")
    return names.index(name), rest


def _place(number: int, base: int) -> int:
    if number < base:
        raise SchemaError(f"field number {number} is below the first field, {base}")
    return number - base


def steps(path: str) -> list[int | str]:
    """A path's steps: array places from 0, or map keys. Raises SchemaError."""
    found: list[int | str] = []
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None or (step["place"] is not None and int(step["place"]) == 0):
            raise SchemaError(f"the JSON path {path!r} can't be read")
        if step["place"] is not None:
            found.append(int(step["place"]) - 1)
        else:
            found.append(next(text for text in (step["double"], step["single"], step["name"]) if text is not None))
        position = step.end()
    return found


def apply_plainly(row: list[Any], operations: Sequence[Operation]) -> list[Any]:
    """Carry out `=`, `!` and `#` on a row of a system space and return the new row.

    Raises SchemaError for the other operations, which no DDL uses on the fields that matter here.
    """
    changed: list[Any] = _copy(row)
    for operation in operations:
        parent: Any = changed
        place: int | str = operation.field if operation.field >= 0 else len(changed) + operation.field
        if operation.code == "!" and operation.field < 0:
            place = len(changed) + operation.field + 1
        if isinstance(place, int) and place < 0:
            raise SchemaError(f"{excerpt(operation)} is before the first field of the system row {excerpt(row)}")
        try:
            for step in steps(operation.path):
                parent, place = parent[place], step
            _apply_one(parent, place, operation)
        except (IndexError, KeyError, TypeError) as error:
            raise SchemaError(f"{excerpt(operation)} doesn't fit the system row {excerpt(row)}") from error
    return changed


def _apply_one(parent: Any, place: int | str, operation: Operation) -> None:
    match operation.code, parent, place:
        case "=", list(), int() if place == len(parent):
            parent.append(operation.argument)
        case "=", _, _:
            parent[place] = operation.argument
        case "!", list(), int() if 0 <= place <= len(parent):
            parent.insert(place, operation.argument)
        case "!", dict(), str():
            parent[place] = operation.argument
        case "#", list(), int() if place < len(parent):
            del parent[place : place + operation.argument]
        case "#", dict(), str():
            del parent[place]
        case _:
            raise SchemaError(
                f"the operation {operation.code!r} on a system space's row isn't one that DDL makes: {excerpt(operation)}",
                "The schema can't be followed past this row; a new snapshot reads it afresh.",
            )


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return value
