"""Rows and keys of one space as JSON, compiled when its form appears.

A format is known long before its rows come, so what can be decided from it is decided once: a msgspec struct per tuple
length holds the field names as finished JSON, and only fields whose type admits a value that JSON writes differently (a
float may be NaN, a map may have numbers as keys) are looked at row by row. For a space of unsigneds and strings a row costs
one struct and one call into C.

A string that isn't UTF-8 makes the encoder refuse the row; then the row is made plain value by value and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cdc.errors import EncodingError
from cdc.json_values import SAFE_TYPES, encode, plain
from cdc.operations import Operation, normalise, steps
from cdc.schema import SpaceForm

Encode = Callable[[Sequence[Any]], bytes]

_PLAIN_FIELD_TYPES: Final = frozenset({"unsigned", "integer", "string", "boolean", "varbinary", "uuid"})
"""Field types whose every value msgspec writes as the type table says (int8 … uint64 of newer servers included below)."""

_SIZED_INTEGER_TYPES: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))

_NOT_ENCODABLE: Final = (UnicodeEncodeError, TypeError, ValueError, OverflowError, msgspec.MsgspecError)


class RowEncoder:
    """Writes tuples, keys and operations of one form. All methods raise EncodingError or SchemaError, nothing else."""

    def __init__(self, form: SpaceForm) -> None:
        self.form = form
        names = [part_name(form, index) for index in range(len(form.key_parts))]
        key_types = [part.type for part in form.key_parts]
        self.key: Encode = _encoder(names, _unsafe_places(key_types))
        """A key as it stands in a DELETE or UPDATE (its parts in order) → JSON object."""
        self.key_of: Encode = self._compile_key_of()
        """A tuple → its key as JSON object."""
        self._by_length: dict[int, Encode] = {}

    def row(self, tuple_: Sequence[Any]) -> bytes:
        """A tuple as JSON object: exactly the fields it has."""
        length = len(tuple_)
        encoder = self._by_length.get(length)
        if encoder is None:
            encoder = self._by_length[length] = self._compile_row(length)
        return encoder(tuple_)

    def row_encoder(self, length: int) -> Encode:
        """The encoder for tuples of one length, for callers that keep it themselves."""
        if length not in self._by_length:
            self._by_length[length] = self._compile_row(length)
        return self._by_length[length]

    def patch(self, operations: object, base: int) -> bytes:
        """An UPDATE's or UPSERT's operations as a JSON array."""
        resolved = normalise(operations, base=base, names=self.form.field_names)
        return encode([self._operation(operation) for operation in resolved])

    def _operation(self, operation: Operation) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "op": operation.code,
            "field": self.form.field_name(operation.field) if operation.field >= 0 else operation.field,
        }
        if operation.path:
            steps(operation.path)  # a path that can't be read must not get out
            shown["path"] = operation.path if operation.path[0] in ".[" else f".{operation.path}"
        match operation.code:
            case "#":
                shown["count"] = plain(operation.argument)
            case ":":
                position, length, text = operation.argument
                shown.update(position=position, length=length, value=plain(text))
            case _:
                shown["value"] = plain(operation.argument)
        return shown

    def _compile_row(self, length: int) -> Encode:
        names = [self.form.field_name(place) for place in range(length)]
        types = [item.type for item in self.form.fields[:length]] + ["any"] * (length - len(self.form.fields))
        return _encoder(names, _unsafe_places(types))

    def _compile_key_of(self) -> Encode:
        parts, key = self.form.key_parts, self.key
        if len(parts) == 1 and not parts[0].path:
            (place,) = (part.field for part in parts)
            return lambda tuple_: key((tuple_[place],))
        if not any(part.path for part in parts):
            places = [part.field for part in parts]
            return lambda tuple_: key([tuple_[place] for place in places])
        readers = [(part.field, steps(part.path)) for part in parts]
        return lambda tuple_: key([_descend(tuple_[place], path) for place, path in readers])


def part_name(form: SpaceForm, index: int) -> str:
    """What a key part is called: its field, and the path inside it if it has one."""
    part = form.key_parts[index]
    name = form.field_name(part.field)
    if not part.path:
        return name
    return name + (part.path if part.path[0] in ".[" else f".{part.path}")


def _descend(value: Any, path: Sequence[int | str]) -> Any:
    for step in path:
        value = value[step]
    return value


def _unsafe_places(types: Sequence[str]) -> list[int]:
    return [
        place for place, kind in enumerate(types) if kind not in _PLAIN_FIELD_TYPES and kind not in _SIZED_INTEGER_TYPES
    ]


def _encoder(names: list[str], unsafe: list[int]) -> Encode:
    """Values in order → JSON object with these names."""
    build = _builder(names)

    def slowly(values: Sequence[Any]) -> bytes:
        try:
            return encode(build(*[plain(value) for value in values]))
        except _NOT_ENCODABLE as error:
            raise EncodingError(f"a row can't be written as JSON ({error}): {values!r:.500}") from error

    if not unsafe:

        def safe(values: Sequence[Any]) -> bytes:
            try:
                return encode(build(*values))
            except _NOT_ENCODABLE:
                return slowly(values)

        return safe

    def checked(values: Sequence[Any]) -> bytes:
        for place in unsafe:
            kind = type(values[place])
            if kind not in SAFE_TYPES and kind is not str:
                return slowly(values)
        try:
            return encode(build(*values))
        except _NOT_ENCODABLE:
            return slowly(values)

    return checked


def _builder(names: list[str]) -> Callable[..., Any]:
    fields = [(f"field_{place}", Any) for place in range(len(names))]
    try:
        renames = {f"field_{place}": name for place, name in enumerate(names)}
        return msgspec.defstruct("Row", fields, rename=renames, gc=False)
    except ValueError:
        # msgspec refuses names that JSON has to escape, and names that stand twice; a dict takes the former.
        return lambda *values: dict(zip(names, values, strict=True))
