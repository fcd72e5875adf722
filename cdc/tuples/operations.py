"""The operations of UPDATE and UPSERT: their target fields and arguments, in a normalised form.

A client may refer to a field by number (from 0 or 1, according to INDEX_BASE, or negative from the tuple's end), by its name in
the format, or by a JSON path that begins with either (`data.user.name`, `[3].a.b[2]`). Tarantool logs the reference as it was
sent. Therefore this module resolves it, by the format at the row's position.

`normalise` converts all references to one form, which events without images contain. update.py applies operations to tuples.

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
    """One operation.

    `field` counts from 0, or is negative from the tuple's end. `path` is the path inside the field (`.a.b[2]`), or empty.
    `argument` is the operand; for `:` it is (position from 1 or negative from the end, length, text); for `#` a count.
    """

    code: str
    field: int
    path: str
    argument: Any


def normalise(operations: object, *, base: int, names: Sequence[str]) -> list[Operation]:
    """Resolve the references in a decoded list of operations.

    `base` is the request's INDEX_BASE, `names` are the format's field names in order. Raises SchemaError for operations that a
    server would not have written.
    """
    if not isinstance(operations, list):
        raise SchemaError("the row's operations should be an array", detail=excerpt(operations, 200))
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
    raise SchemaError("the row has an operation that can't be read", detail=excerpt(operation, 200))


def _resolve(reference: int | str, base: int, names: Sequence[str]) -> tuple[int, str]:
    if isinstance(reference, int):
        return (reference if reference < 0 else _place(reference, base)), ""
    # A field name that contains dots takes precedence over the equal path.
    if reference in names:
        return names.index(reference), ""
    data = reference.encode(errors="surrogateescape")
    try:
        first, end = next_token(data, 0)
    except PathError as error:
        raise SchemaError(f"a field reference can't be read: {error}", detail=excerpt(reference, 200)) from error
    rest = data[end:].decode(errors="surrogateescape")
    match first:
        case int():
            # Places in a path count from 1, even if INDEX_BASE is 0: of an UPSERT, vinyl rewrites only the field numbers.
            return first, rest
        case bytes():
            name = first.decode()
            if name in names:
                return names.index(name), rest
            message = f"the operation names a field that the format at its position doesn't have; it has {list(names)}"
            raise SchemaError(message, detail=excerpt(name, 200))
    raise SchemaError("a field reference names no field", detail=excerpt(reference, 200))


def _place(number: int, base: int) -> int:
    if number < base:
        raise SchemaError(f"field number {number} is below the first field, {base}")
    return number - base


def steps(path: str) -> list[int | str]:
    """Split a path into steps: array places (from 0) and map keys. Raises SchemaError."""
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
        raise SchemaError(f"a JSON path can't be read: {error}", detail=excerpt(path, 200)) from error
