"""Encoder of one space's rows and keys as JSON, compiled when the space's form becomes known.

A format is known before its rows arrive, so all decisions that depend only on the format are made once. A msgspec struct
contains the field names as finished JSON, and omits those past the tuple's end. A wide format has smaller structs too, for
tuples that are much shorter; all structs together have at most three times the format's number of fields. Only fields whose
type allows values that need conversion for JSON (a float may be NaN, a map may have numbers as keys) are checked in each row.
A row of a space with only unsigned and string fields costs one struct and one call into C.

If a string isn't UTF-8, the encoder rejects the row. Then each value of the row is converted with `plain`, and the row is encoded
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cdc.errors import EncodingError, excerpt
from cdc.events.columns import plan_of, shown_rows
from cdc.events.json_values import SAFE_TYPES, WAY_OUT, encode, plain
from cdc.events.key_text import key_converter
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.schema.keys import no_key
from cdc.tuples.operations import Operation, normalise, steps

Encode = Callable[[Sequence[Any]], bytes]

_SIZED_INTEGERS: Final = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
PLAIN_FIELD_TYPES: Final = frozenset({"unsigned", "integer", "string", "boolean", "varbinary", "uuid"} | _SIZED_INTEGERS)
"""Field types all of whose values msgspec writes as the type table requires."""

_BEYOND_MAX: Final = 32
"""Maximum number of fields past the format for which an encoder is cached. The lengths of longer tuples have no bound."""

_SHORT: Final = 8
"""Number of fields of the smallest struct of a wider format; each larger struct has twice as many."""

_SAFE_TYPES: Final = SAFE_TYPES | {str}

_NOT_ENCODABLE: Final = (UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


_TOO_DEEP: Final = "a value is nested too deeply to be written as JSON"


class RowEncoder:
    """Encoder of tuples, keys and operations of one form. Methods raise EncodingError or SchemaError.

    If it is a ShownForm, rows and operations are encoded as its rules say; tuples are given with all their fields.

    `key` encodes a key as in a DELETE or UPDATE (its parts in order), `key_of` the key of a tuple; both return a JSON object.
    `rows[n]` encodes a tuple of n fields as an object with exactly these fields.
    """

    def __init__(self, form: SpaceForm) -> None:
        self.form = form
        self._plan = plan_of(form)
        self._stored_form = form if self._plan is None else self._plan.form
        names = [form.part_name(index) for index in range(len(form.key_parts))]
        # By a struct's number of fields: the encoder of tuples with all fields, and that of shorter tuples.
        self._sized: dict[int, tuple[Encode, Encode]] = {}
        self.key: Encode
        self.key_of: Encode
        self.rows: dict[int, Encode]
        twice = _first_duplicate(names)
        if twice is not None:
            # The server accepts such a key, but it can't be written as a JSON object, so no row of the space can be published.
            refuse = _refuse_all(f"two parts of the primary key of space {form.name!r} would be called {twice!r}")
            self.key = self.key_of = refuse
            self.rows = _Rows(lambda _: (refuse, False))
        else:
            self.key = _key_encoder(names, form.key_parts)
            self.key_of = self._compile_key_of(names)
            self.rows = shown_rows(form, _Rows(self._compile_row))

    def patch(self, operations: object, base: int) -> bytes:
        """Encode an UPDATE's or UPSERT's operations as a JSON array; `base` is the request's INDEX_BASE."""
        resolved = normalise(operations, base=base, names=self._stored_form.field_names)
        if self._plan is not None:
            resolved = self._plan.operations(resolved)
        try:
            return encode([self._operation(operation) for operation in resolved])
        except RecursionError as error:
            raise EncodingError(_TOO_DEEP, WAY_OUT) from error

    def _operation(self, operation: Operation) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "op": operation.code,
            "field": self.form.field_name(operation.field) if operation.field >= 0 else operation.field,
        }
        if operation.path:
            steps(operation.path)  # raises for a malformed path, which must not be published
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

    def _compile_row(self, length: int) -> tuple[Encode, bool]:
        """Return the encoder of tuples of a length, and whether to cache it."""
        field_count = len(self.form.fields)
        if length > field_count + _BEYOND_MAX:
            return self._compile(length, is_struct=False)[0], False
        if self._plan is not None and length != field_count:
            # Which fields past the format are published is known only as far as a tuple has them.
            return self._compile(length, is_struct=False)[0], True
        if length > field_count:
            size = field_count + _BEYOND_MAX
        else:
            size = _SHORT
            while size < length:
                size *= 2
            size = min(size, field_count)
        if size not in self._sized:
            try:
                self._sized[size] = self._compile(size)
            except EncodingError:
                # Two of the struct's fields would have one name, but this tuple may be too short to have both.
                return self._compile(length, is_struct=False)[0], False
        whole, part = self._sized[size]
        return (whole if length == size else part), True

    def _compile(self, length: int, *, is_struct: bool = True) -> tuple[Encode, Encode]:
        names = [self.form.field_name(place) for place in range(length)]
        types = [item.type for item in self.form.fields[:length]] + ["any"] * (length - len(self.form.fields))
        unsafe = _unsafe_places(types)
        build = _builder(names, is_struct=is_struct)
        return _encoder(build, unsafe), _encoder(build, unsafe, is_whole=False)

    def _compile_key_of(self, names: list[str]) -> Encode:
        form, parts, key = self._stored_form, self._stored_form.key_parts, self.key
        if len(parts) == 1 and parts[0].type in PLAIN_FIELD_TYPES and not parts[0].path:
            place, build = parts[0].field, _builder(names, takes_fewer=False)

            def key_of(tuple_: Sequence[Any]) -> bytes:
                try:
                    value = tuple_[place]
                except IndexError as error:
                    raise no_key(form, tuple_) from error
                try:
                    return encode(build(value))
                except _NOT_ENCODABLE:
                    return key((value,))

            return key_of
        readers = [(part.field, steps(part.path)) for part in parts]

        def key_of_parts(tuple_: Sequence[Any]) -> bytes:
            try:
                values = [_descend(tuple_[place], path) if path else tuple_[place] for place, path in readers]
            except (IndexError, KeyError, TypeError) as error:
                raise no_key(form, tuple_) from error
            return key(values)

        return key_of_parts


class _Rows(dict[int, Encode]):
    """Row encoders by tuple length, each compiled for the first tuple of that length."""

    def __init__(self, compile_row: Callable[[int], tuple[Encode, bool]]) -> None:
        super().__init__()
        self._compile_row = compile_row

    def __missing__(self, length: int) -> Encode:
        encoder, is_kept = self._compile_row(length)
        if is_kept:
            self[length] = encoder
        return encoder


def _descend(value: Any, path: Sequence[int | str]) -> Any:
    for step in path:
        value = value[step]
    return value


def _unsafe_places(types: Sequence[str]) -> list[tuple[int, frozenset[type]]]:
    return [(place, _SAFE_TYPES) for place, kind in enumerate(types) if kind not in PLAIN_FIELD_TYPES]


def _key_encoder(names: list[str], parts: Sequence[KeyPart]) -> Encode:
    """Return an encoder from a key's values in order to a JSON object with these names, which is the same for equal keys."""
    writings = [key_converter(part) for part in parts]
    unsafe = [(place, kinds) for place, (_, kinds) in enumerate(writings) if parts[place].type not in PLAIN_FIELD_TYPES]
    return _encoder(_builder(names, takes_fewer=False), unsafe, [write for write, _ in writings])


def _encoder(
    build: Callable[..., Any],
    unsafe: Sequence[tuple[int, frozenset[type]]],
    writes: Sequence[Callable[[Any], Any]] | None = None,
    *,
    is_whole: bool = True,
) -> Encode:
    """Return an encoder from values in order to a JSON object. Unless `is_whole`, there may be fewer values than names.

    `unsafe` are the places whose values may need conversion, each with the types that don't. If a value needs conversion, all
    values are converted with `writes` (one function per place), by default with `plain`.
    """

    def encode_converted(values: Sequence[Any]) -> bytes:
        try:
            shown = map(plain, values) if writes is None else [write(value) for write, value in zip(writes, values, strict=True)]
            return encode(build(*shown))
        except RecursionError as error:
            raise EncodingError(_TOO_DEEP, WAY_OUT) from error
        except _NOT_ENCODABLE as error:
            raise EncodingError("a row can't be written as JSON", detail=f"{excerpt(values)} ({error})") from error

    if not unsafe:

        def safe(values: Sequence[Any]) -> bytes:
            try:
                return encode(build(*values))
            except _NOT_ENCODABLE:
                return encode_converted(values)

        return safe

    def checked(values: Sequence[Any]) -> bytes:
        for place, kinds in unsafe:
            if type(values[place]) not in kinds:
                return encode_converted(values)
        try:
            return encode(build(*values))
        except _NOT_ENCODABLE:
            return encode_converted(values)

    def checked_in_part(values: Sequence[Any]) -> bytes:
        count = len(values)
        for place, kinds in unsafe:
            if place >= count:
                break
            if type(values[place]) not in kinds:
                return encode_converted(values)
        try:
            return encode(build(*values))
        except _NOT_ENCODABLE:
            return encode_converted(values)

    return checked if is_whole else checked_in_part


def _builder(names: list[str], *, is_struct: bool = True, takes_fewer: bool = True) -> Callable[..., Any]:
    """Return a function from values in order to an object that msgspec writes with these names.

    If `takes_fewer`, there may be fewer values than names; the remaining names are then left out.
    """
    twice = _first_duplicate(names)
    if twice is not None:
        # A format may have a field named `field_5`, which is also the name of a fifth field past the format.
        raise EncodingError(f"two fields of a row would be called {twice!r}", WAY_OUT)

    def as_dict(*values: Any) -> dict[str, Any]:
        return dict(zip(names, values, strict=not takes_fewer))

    if not is_struct:
        return as_dict
    fields = [
        (f"field_{place}", Any, msgspec.field(default=msgspec.UNSET) if takes_fewer else msgspec.field())
        for place in range(len(names))
    ]
    try:
        renames = {f"field_{place}": name for place, name in enumerate(names)}
        return msgspec.defstruct("Row", fields, rename=renames, gc=False)
    except ValueError:
        return as_dict  # msgspec rejects names that JSON must escape


def _first_duplicate(names: Sequence[str]) -> str | None:
    return None if len(set(names)) == len(names) else next(name for place, name in enumerate(names) if name in names[:place])


def _refuse_all(message: str) -> Encode:
    def refuse(_: Sequence[Any]) -> bytes:
        raise EncodingError(message, WAY_OUT)

    return refuse
