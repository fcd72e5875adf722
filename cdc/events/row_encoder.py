"""Rows and keys of one space as JSON, compiled when its form appears.

A format is known long before its rows come, so what can be decided from it is decided once: a msgspec struct holds the field
names as finished JSON, and leaves out those behind the tuple's end; tuples of a wide format that are much shorter have smaller
ones, so that all together have at most three times the format's fields. And only fields whose type admits a value that JSON
writes differently (a float may be NaN, a map may have numbers as keys) are looked at row by row. For a space of unsigneds and
strings a row costs one struct and one call into C.

A string that isn't UTF-8 makes the encoder refuse the row; then the row is made plain value by value and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cdc.errors import EncodingError, excerpt
from cdc.events.json_values import SAFE_TYPES, WAY_OUT, encode, plain
from cdc.events.key_text import writing
from cdc.schema.forms import KeyPart, SpaceForm
from cdc.tuples.operations import Operation, normalise, steps

Encode = Callable[[Sequence[Any]], bytes]

_SIZED_INTEGERS: Final = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
PLAIN_FIELD_TYPES: Final = frozenset({"unsigned", "integer", "string", "boolean", "varbinary", "uuid"} | _SIZED_INTEGERS)
"""Field types whose every value msgspec writes as the type table says."""

_BEYOND_MAX: Final = 32
"""Tuples with more fields past the format than this have lengths of all kinds, without a bound: nothing is kept of them."""

_SHORT: Final = 8
"""Fields of the smallest struct of a format that has more; each next one has twice as many."""

_SAFE_TYPES: Final = SAFE_TYPES | {str}

_NOT_ENCODABLE: Final = (UnicodeEncodeError, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)


_TOO_DEEP: Final = "a value is nested too deeply to be written as JSON"


class RowEncoder:
    """Writes tuples, keys and operations of one form. All methods raise EncodingError or SchemaError, nothing else.

    `key` takes a key as it stands in a DELETE or UPDATE (its parts in order), `key_of` a tuple; both give a JSON object.
    `rows[n]` writes tuples of n fields: exactly the fields that they have.
    """

    def __init__(self, form: SpaceForm) -> None:
        self.form = form
        names = [form.part_name(index) for index in range(len(form.key_parts))]
        # By number of fields: what writes tuples that have all of them, and what writes shorter ones.
        self._sized: dict[int, tuple[Encode, Encode]] = {}
        self.key: Encode
        self.key_of: Encode
        self.rows: dict[int, Encode]
        twice = _first_that_is_there_twice(names)
        if twice is not None:
            # The server takes such a key. Nobody can be told it, so there is nothing to tell of any row either.
            refuse = _refuse_all(f"two parts of the primary key of space {form.name!r} would be called {twice!r}")
            self.key = self.key_of = refuse
            self.rows = _Rows(lambda _: (refuse, False))
        else:
            self.key = _key_encoder(names, form.key_parts)
            self.key_of = self._compile_key_of(names)
            self.rows = _Rows(self._compile_row)

    def patch(self, operations: object, base: int) -> bytes:
        """An UPDATE's or UPSERT's operations as a JSON array."""
        resolved = normalise(operations, base=base, names=self.form.field_names)
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

    def _compile_row(self, length: int) -> tuple[Encode, bool]:
        """What writes tuples of a length, and whether it is worth keeping."""
        field_count = len(self.form.fields)
        if length > field_count + _BEYOND_MAX:
            return self._compile(length, is_struct=False)[0], False
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
                # Two fields would have one name, which need not be so in this tuple.
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
        parts, key = self.form.key_parts, self.key
        if len(parts) == 1 and parts[0].type in PLAIN_FIELD_TYPES and not parts[0].path:
            place, build = parts[0].field, _builder(names, takes_fewer=False)

            def key_of(tuple_: Sequence[Any]) -> bytes:
                try:
                    return encode(build(tuple_[place]))
                except _NOT_ENCODABLE:
                    return key((tuple_[place],))

            return key_of
        if not any(part.path for part in parts):
            places = [part.field for part in parts]
            return lambda tuple_: key([tuple_[place] for place in places])
        readers = [(part.field, steps(part.path)) for part in parts]
        return lambda tuple_: key([_descend(tuple_[place], path) for place, path in readers])


class _Rows(dict[int, Encode]):
    """Row encoders by tuple length, found when the first tuple of a length comes."""

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
    """A key's values in order → JSON object with these names, the same for equal keys."""
    writings = [writing(part) for part in parts]
    unsafe = [(place, kinds) for place, (_, kinds) in enumerate(writings) if parts[place].type not in PLAIN_FIELD_TYPES]
    return _encoder(_builder(names, takes_fewer=False), unsafe, [write for write, _ in writings])


def _encoder(
    build: Callable[..., Any],
    unsafe: Sequence[tuple[int, frozenset[type]]],
    writes: Sequence[Callable[[Any], Any]] | None = None,
    *,
    is_whole: bool = True,
) -> Encode:
    """Values in order → JSON object. Unless `is_whole`, there may be fewer than `build` has names.

    `unsafe` are places that hold more than msgspec writes as it should, with the types of values that it does; `writes` give
    what is written for each value where one of them is met, `plain` by default.
    """

    def slowly(values: Sequence[Any]) -> bytes:
        try:
            shown = map(plain, values) if writes is None else [write(value) for write, value in zip(writes, values, strict=True)]
            return encode(build(*shown))
        except RecursionError as error:
            raise EncodingError(_TOO_DEEP, WAY_OUT) from error
        except _NOT_ENCODABLE as error:
            raise EncodingError(f"a row can't be written as JSON ({error}): {excerpt(values)}") from error

    if not unsafe:

        def safe(values: Sequence[Any]) -> bytes:
            try:
                return encode(build(*values))
            except _NOT_ENCODABLE:
                return slowly(values)

        return safe

    def checked(values: Sequence[Any]) -> bytes:
        for place, kinds in unsafe:
            if type(values[place]) not in kinds:
                return slowly(values)
        try:
            return encode(build(*values))
        except _NOT_ENCODABLE:
            return slowly(values)

    def checked_in_part(values: Sequence[Any]) -> bytes:
        count = len(values)
        for place, kinds in unsafe:
            if place >= count:
                break
            if type(values[place]) not in kinds:
                return slowly(values)
        try:
            return encode(build(*values))
        except _NOT_ENCODABLE:
            return slowly(values)

    return checked if is_whole else checked_in_part


def _builder(names: list[str], *, is_struct: bool = True, takes_fewer: bool = True) -> Callable[..., Any]:
    """Values in order → what msgspec writes as an object of them. If it `takes_fewer`, names past the last one are left out."""
    twice = _first_that_is_there_twice(names)
    if twice is not None:
        # A format may call a field `field_5`, and so would a fifth one past the format be called.
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
        return as_dict  # msgspec refuses names that JSON has to escape


def _first_that_is_there_twice(names: Sequence[str]) -> str | None:
    return None if len(set(names)) == len(names) else next(name for place, name in enumerate(names) if name in names[:place])


def _refuse_all(message: str) -> Encode:
    def refuse(_: Sequence[Any]) -> bytes:
        raise EncodingError(message, WAY_OUT)

    return refuse
