"""Names in Avro and Protobuf, by the rules of Avro, as Debezium's adjustment `avro` makes them.

A name has letters, digits and underscores, and doesn't begin with a digit. Other characters become `_`, so two names may become
one: then the rows of one field, or of one space, could be taken for the other's, and such names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cdc.errors import ConfigurationError
from cdc.formats.options import FormatOptions
from cdc.schema.forms import SpaceForm

OP: Final = "__op"
DELETED: Final = "__deleted"
SEQ_NAME: Final = "__source_seq"
_FLAT: Final = frozenset({OP, DELETED, SEQ_NAME})
"""Fields that flat events have beside the row's."""

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_]")


def cleaned(name: str) -> str:
    """Return a name of a field as Avro allows it."""
    text = _FOREIGN.sub("_", name)
    return text if text and not text[0].isdigit() else f"_{text}"


def cleaned_path(name: str) -> str:
    """Return a full name, each of whose parts between dots is as Avro allows it."""
    return ".".join(cleaned(part) for part in name.split("."))


def check_fields(form: SpaceForm, shown: Callable[[str], str] = cleaned) -> None:
    """Raise ConfigurationError if two fields of a space, or two parts of its key, would get one name."""
    _refuse(form, _twice_in(form, shown))


def check_key(form: SpaceForm) -> None:
    """Raise ConfigurationError if two parts of a space's key would get one name, whatever its other fields are called."""
    _refuse(form, _twice_in_key(form, cleaned))


def _refuse(form: SpaceForm, twice: tuple[str, str, str] | None) -> None:
    if twice is None:
        return
    what, one, other = twice
    if one == other:
        raise ConfigurationError(
            f"two {what} of space {form.name!r} would both be called {one!r} in schemas: a field without a name is called by its "
            "place, and a key that is inside a field by the field and the path",
            "Give all fields of the primary key a name in the format of the space (space:format), and one that no other field "
            "has, or leave the space out (spaces.exclude).",
        )
    raise ConfigurationError(
        f"the {what} {one!r} and {other!r} of space {form.name!r} would both be called {cleaned(one)!r} in "
        "schemas, whose names have letters, digits and underscores only",
        "Rename one of the two in the format of the space (space:format), or leave the space out (spaces.exclude), or "
        'use format.key = "json" and format.value = "json", which keep all names.',
    )


def check_proto_fields(form: SpaceForm) -> None:
    """Raise ConfigurationError if two fields, or parts of a key, would get one name in Protobuf's JSON, which protoc refuses."""
    twice = _twice_in(form, _in_proto_json)
    if twice is not None:
        _, one, other = twice
        raise ConfigurationError(
            f"the fields {one!r} and {other!r} of space {form.name!r} would both be called {_in_proto_json(one)!r} in the "
            "JSON of Protobuf, which leaves out underscores",
            "Rename one of the two in the format of the space (space:format), leave the space out (spaces.exclude), or use "
            "another format.",
        )


def _as_it_is(name: str) -> str:
    return name


def _in_proto_json(name: str) -> str:
    first, *others = cleaned(name).split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _twice_in(form: SpaceForm, shown: Callable[[str], str]) -> tuple[str, str, str] | None:
    """Return what would be shown by one name, fields or parts of the key, and two of them."""
    # The key may have fields that the format doesn't name.
    count = max([len(form.fields), *(part.field + 1 for part in form.key_parts)])
    fields = [form.field_name(place) for place in range(count)]
    return _twice(fields, "fields", shown) or _twice_in_key(form, shown)


def _twice_in_key(form: SpaceForm, shown: Callable[[str], str]) -> tuple[str, str, str] | None:
    return _twice([form.part_name(index) for index in range(len(form.key_parts))], "parts of the primary key", shown)


def _twice(names: Iterable[str], what: str, shown: Callable[[str], str]) -> tuple[str, str, str] | None:
    seen: dict[str, str] = {}
    for name in names:
        if shown(name) in seen:
            return what, seen[shown(name)], name
        seen[shown(name)] = name
    return None


def check_spaces(forms: Iterable[SpaceForm]) -> None:
    """Raise ConfigurationError if the schemas of two spaces would get one name."""
    seen: dict[str, SpaceForm] = {}
    for form in forms:
        other = seen.setdefault(cleaned_path(form.name), form)
        if other.space_id != form.space_id:
            raise ConfigurationError(
                f"the schemas of the spaces {other.name!r} and {form.name!r} would both be called {cleaned_path(form.name)!r} in "
                "this format, whose names have letters, digits and underscores only",
                "Rename one of the spaces, or leave one out with spaces.exclude.",
            )


def check_flat(form: SpaceForm) -> None:
    """Raise ConfigurationError if a field of a space has the name of one that flat events have themselves."""
    taken = _FLAT.intersection(form.field_names)
    if taken:
        raise ConfigurationError(
            f"space {form.name!r} has a field {min(taken)!r}, which flat events have themselves",
            'Rename the field in the format of the space (space:format), use format.envelope = "debezium", or leave the space '
            "out (spaces.exclude).",
        )


def check_names(forms: Collection[SpaceForm], options: FormatOptions) -> None:
    """Raise ConfigurationError if these formats have no names of their own for the spaces, or for their fields."""
    if {options.key, options.value} != {"json"}:
        for form in forms:
            check_fields(form, _as_it_is)
    if {"avro", "protobuf"} & {options.key, options.value}:
        check_spaces(forms)
        for form in forms:
            check_fields(form)
    if "protobuf" in (options.key, options.value):
        for form in forms:
            check_proto_fields(form)
    if options.envelope == "flat":
        for form in forms:
            check_flat(form)
