"""The operations of UPDATE and UPSERT: what they address, and what they say.

A client may name a field by number (from 0 or 1, as INDEX_BASE says, or negative from the tuple's end), by its name in the
format, or by a JSON path that begins with either (`data.user.name`, `[3].a.b[2]`). Tarantool logs the reference as it was
sent, so it is resolved here, against the format at the row's position.

`normalise` gives one form to all of them, which events without images carry. What they make of a tuple is update.py's.

Source: src/box/xrow_update.c (field references).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import SchemaError, excerpt
from cdc.tuples.json_path import Mark, PathError, next_token

_ARITHMETIC: Final = frozenset("+-&|^")
_CODES: Final = _ARITHMETIC | frozenset("=!#:")


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
    data = reference.encode(errors="surrogateescape")
    try:
        first, end = next_token(data, 0)
    except PathError as error:
        raise SchemaError(f"the field reference {reference!r} can't be read: {error}") from error
    rest = data[end:].decode(errors="surrogateescape")
    match first:
        case int():
            # Places in a path count from 1, also where INDEX_BASE is 0: vinyl rewrites only the numbers of an UPSERT.
            return first, rest
        case bytes():
            name = first.decode()
            if name in names:
                return names.index(name), rest
            raise SchemaError(f"the operation names a field {name!r} that the format at its position doesn't have: {list(names)}")
    raise SchemaError(f"the field reference {reference!r} names no field")


def _place(number: int, base: int) -> int:
    if number < base:
        raise SchemaError(f"field number {number} is below the first field, {base}")
    return number - base


def steps(path: str) -> list[int | str]:
    """A path's steps: array places from 0, or map keys. Raises SchemaError."""
    data = path.encode(errors="surrogateescape")
    found: list[int | str] = []
    offset = 0
    try:
        while True:
            token, offset = next_token(data, offset)
            match token:
                case Mark.END:
                    return found
                case Mark():
                    raise PathError(f"{token.value} stands for more than one value")
                case bytes():
                    found.append(token.decode())
                case _:
                    found.append(token)
    except PathError as error:
        raise SchemaError(f"the JSON path {path!r} can't be read: {error}") from error
