"""Compiled encoders of rows and keys: a function for each column, and the columns of a tuple in one pass.

tuple ─▶ each value: nil? ─▶ conversion to a Connect type ─▶ the format's bytes ─▶ joined
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from cdc.errors import EncodingError, WiderRowError, excerpt
from cdc.events.envelope import KeyEncoders, KeyPlan
from cdc.events.json_values import WAY_OUT
from cdc.events.row_encoder import Encode
from cdc.formats.names import cleaned
from cdc.formats.schemas import Column
from cdc.schema.forms import Field, SpaceForm
from cdc.schema.keys import no_key
from cdc.tuples.operations import steps

Assemble = Callable[[Sequence[Any]], bytes]
"""Function from the converted values of all columns, None for a missing or nil one, to a row's bytes."""

_NOT_CONVERTIBLE: Final = (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError)


BEYOND_MAX: Final = 64
"""Maximum number of fields past the format that a schema gets."""


def widened(form: SpaceForm, width: int, taken: Collection[str]) -> SpaceForm:
    """Return a form with fields for tuples of this length: those past the format are of the type `any`.

    They end before one whose name is `taken` by a published field of the format, such as `field_5`: tuples that have it are
    refused.
    """
    others_names = {cleaned(name) for name in taken}
    names = itertools.takewhile(lambda name: name not in others_names, map(form.field_name, range(len(form.fields), width)))
    others = [Field(name, "any", is_nullable=True) for name in names]
    return replace(form, fields=(*form.fields, *others)) if others else form


class ColumnRows(dict[int, Encode]):
    """Row encoders by tuple length. A tuple may lack optional columns at its end.

    If it has more fields than there are columns, WiderRowError is raised: the form must be `widened`.
    """

    def __init__(self, form: SpaceForm, columns: Sequence[Column], assemble: Assemble) -> None:
        super().__init__()
        self._form = form
        self._columns = columns
        self._format_count = sum(not _is_past(form, place) for place in range(len(form.fields)))
        self._assemble = assemble
        self.convert = converter(f"a row of space {form.name!r}", columns)
        required = [place for place, column in enumerate(columns, 1) if not column.field.is_optional]
        self._count_min = required[-1] if required else 0

    def __missing__(self, length: int) -> Encode:
        if length > len(self._columns):
            return self._too_long(length)
        if length < self._count_min:
            return self._too_short(length)
        convert, assemble, padding = self.convert, self._assemble, [None] * (len(self._columns) - length)
        if padding:

            def encode(values: Sequence[Any]) -> bytes:
                return assemble(convert([*values, *padding]))

        else:

            def encode(values: Sequence[Any]) -> bytes:
                return assemble(convert(values))

        self[length] = encode
        return encode

    def _too_long(self, length: int) -> Encode:
        form = self._form
        message = f"a row of space {form.name!r} has {length} fields, and the space's format has {self._format_count}"

        taken = {cleaned(name) for name in form.field_names}
        twice = next((name for place in range(len(form.fields), length) if (name := form.field_name(place)) in taken), None)

        def refuse(_: Sequence[Any]) -> bytes:
            if twice is not None:
                raise EncodingError(f"{message}: two of them would be called {twice!r}", WAY_OUT)
            if length > self._format_count + BEYOND_MAX:
                hint = f'Add the missing fields to the format (space:format), or use format.value = "json". {WAY_OUT}'
                raise EncodingError(f"{message}: schemas have at most {BEYOND_MAX} more", hint)
            raise WiderRowError(message, length)

        return refuse

    def _too_short(self, length: int) -> Encode:
        form = self._form

        def refuse(_: Sequence[Any]) -> bytes:
            raise EncodingError(
                f"a row of space {form.name!r} has {length} fields, and {self._count_min} of the space's format must be there",
                WAY_OUT,
            )

        return refuse


def _is_past(form: SpaceForm, place: int) -> bool:
    """Return whether a field is one that `widened` has added."""
    item = form.fields[place]
    return item.name == f"field_{place + 1}" and item.type == "any" and item.is_nullable


def converter(what: str, columns: Sequence[Column]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that converts the values of all columns. It raises EncodingError, which names the column."""
    steps_ = [(column.type.convert, column.field.is_optional) for column in columns]

    def explained(values: Sequence[Any]) -> EncodingError:
        for column, value in zip(columns, values, strict=True):
            name = column.field.name
            try:
                if value is not None:
                    column.type.convert(value)
                elif not column.field.is_optional:
                    return EncodingError(f"{what} has nil in the field {name!r}, which its format says is never nil", WAY_OUT)
            except EncodingError as error:
                return EncodingError(
                    f"{what} can't be encoded: {error.message}, in the field {name!r}", error.hint, detail=error.detail
                )
            except _NOT_CONVERTIBLE as error:
                quoted = f"{excerpt(value)} ({error})"
                return EncodingError(f"{what} can't be encoded, in the field {name!r}", WAY_OUT, detail=quoted)
        return EncodingError(f"{what} can't be encoded", WAY_OUT, detail=excerpt(values))

    def convert(values: Sequence[Any]) -> list[Any]:
        try:
            found = [None if value is None else step(value) for value, (step, _) in zip(values, steps_, strict=True)]
        except EncodingError as error:
            raise explained(values) from error
        except _NOT_CONVERTIBLE as error:
            raise explained(values) from error
        for value, (_, is_optional) in zip(values, steps_, strict=True):
            if value is None and not is_optional:
                raise explained(values)
        return found

    return convert


def key_encoders(form: SpaceForm, columns: Sequence[Column], assemble: Assemble, plan: KeyPlan | None = None) -> KeyEncoders:
    """Return the encoders of a key, and of the key of a tuple."""
    convert = converter(f"a key of space {form.name!r}", columns)
    readers = [(part.field, steps(part.path)) for part in form.key_parts]
    whose = [form.routing.shared_as] if form.routing.shared_as else []

    def key(values: Sequence[Any]) -> bytes:
        return assemble(convert([*whose, *values]))

    def key_of(tuple_: Sequence[Any]) -> bytes:
        try:
            values = [_descend(tuple_[place], path) if path else tuple_[place] for place, path in readers]
        except (IndexError, KeyError, TypeError) as error:
            raise no_key(form, tuple_) from error
        return key(values)

    return KeyEncoders(key, key_of, plan)


def row_of_key(form: SpaceForm, columns: Sequence[Column], assemble: Assemble) -> Encode | None:
    """Return an encoder from a key to a row that has only the key's fields; None if other fields can't be null."""
    places = {part.field: index for index, part in enumerate(form.key_parts) if not part.path}
    if any(not column.field.is_optional for place, column in enumerate(columns) if place not in places):
        return None
    convert = converter(f"a key of space {form.name!r}", columns)

    def encode(values: Sequence[Any]) -> bytes:
        return assemble(convert([values[places[place]] if place in places else None for place in range(len(columns))]))

    return encode


def _descend(value: Any, path: Sequence[int | str]) -> Any:
    for step in path:
        value = value[step]
    return value
