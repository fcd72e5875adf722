"""The forms of spaces, from the records of `<prefix>.schema`: field names, their types, the primary key.

| Tarantool | column | why |
|---|---|---|
| unsigned, integer, uint64 | decimal(20,0) | both reach 2^64-1, which a bigint doesn't hold |
| int8 … int64, uint8 … uint32 | bigint | |
| double, float32, float64 | double | |
| number, decimal and its sized kinds | string | up to 38 digits at any scale, or a double: no one numeric column holds all |
| boolean | boolean | |
| string, uuid, interval | string | |
| varbinary | binary | |
| datetime | timestamp | to the microsecond; the offset is in `_row` |
| array, map | string | JSON |
| any, scalar | string | a string as it is, anything else as JSON |

A value that its column can't hold is null there. `_row` has every value exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from spark_jobs import json_text
from spark_jobs.errors import JobError

COLUMN_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("unsigned", "integer", "uint64"), "decimal(20,0)"),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), "bigint"),
    **dict.fromkeys(("double", "float", "float32", "float64"), "double"),
    "boolean": "boolean",
    "varbinary": "binary",
    "datetime": "timestamp",
}
"""All other types are strings."""

META_COLUMNS: Final = ("_key", "_row", "_seq", "_ts")

_RESERVED: Final = "_deleted"
"""Iceberg's own; it marks deleted rows on their way into a table."""

_FORBIDDEN_IN_COLUMN_NAMES: Final = re.compile(r"[ ,;{}()\n\t=`]")


Version = tuple[int, int]
"""A form's space_id and schema_version, by which events name it."""


@dataclass(frozen=True)
class Field:
    """One field of a format."""

    name: str
    type: str


@dataclass(frozen=True)
class Form:
    """How a space's rows look from one point on. `seq` is the last one given out before it.

    A snapshot told it if `is_from_snapshot`: the form may have changed in a gap of the stream, and so may the rows. `as_written`
    are those columns of the key whose values are different keys where they are written differently, and `collated` those of which
    different texts may be one key.
    """

    space: str
    space_id: int
    schema_version: int
    seq: int
    key: tuple[str, ...]
    fields: tuple[Field, ...]
    is_from_snapshot: bool = False
    as_written: tuple[str, ...] = ()
    collated: tuple[str, ...] = ()

    @property
    def key_writing(self) -> tuple[tuple[str, bool], ...]:
        """The columns of the key, and how they are written in it. Where either becomes another, rows have other keys."""
        return tuple((name, name in self.as_written) for name in self.key)

    def row_text(self, values: Sequence[Any]) -> str:
        """A row's JSON text, from the values of its fields."""
        return json_text.render({self.field_name(place): value for place, value in enumerate(values)})

    def writes_as(self, later: Form) -> bool:
        """Whether rows of this form have the names that `later` gives their fields, but for those past this format."""
        return [field.name for field in self.fields] == [field.name for field in later.fields[: len(self.fields)]]

    def field_name(self, place: int) -> str:
        """What the field at this place (from 0) is called in messages."""
        return self.fields[place].name if place < len(self.fields) else f"field_{place + 1}"

    def column_names(self) -> tuple[str, ...]:
        """What the fields are called in tables: as in the format, without the characters that Parquet or SQL has no room for.

        Spark tells names apart without regard to case, so a name that is taken gets its place as a suffix.
        """
        names: list[str] = []
        taken = {same_name(name) for name in (*META_COLUMNS, _RESERVED)}
        for place, field in enumerate(self.fields, 1):
            name = column_name(field.name)
            while same_name(name) in taken:
                name = f"{name}__{place}"
            taken.add(same_name(name))
            names.append(name)
        return tuple(names)

    def columns(self) -> dict[str, str]:
        """Names and Spark types of the columns, in the order of the fields."""
        types = (COLUMN_TYPES.get(field.type, "string") for field in self.fields)
        return dict(zip(self.column_names(), types, strict=True))

    @property
    def point(self) -> str:
        """What tables call it."""
        return f"{self.space_id}:{self.schema_version}"

    def to_json(self) -> str:
        """For a table's properties."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Form:
        """The inverse of `to_json`."""
        members = json.loads(text)
        fields = tuple(Field(**field) for field in members.pop("fields"))
        # Older properties haven't got all of them.
        members |= {name: tuple(members.get(name, ())) for name in ("key", "as_written", "collated")}
        return cls(**members, fields=fields)


def column_name(field: str) -> str:
    """What a field is called in tables if nothing else is: without the characters that Parquet or SQL has no room for."""
    return _FORBIDDEN_IN_COLUMN_NAMES.sub("_", field)


def same_name(name: str) -> str:
    """One text for all names of columns that are one for Spark: as Java compares them, letter by letter in both cases.

    There the sign of kelvin is k, the long s is s, an i without a dot is i, and both small sigmas are one; but ß isn't ss.
    """
    upper = (letter.upper() if len(letter.upper()) == 1 else letter for letter in name)
    return "".join(letter.lower()[0] for letter in upper)


class Forms:
    """All forms that the schema topic holds."""

    def __init__(self, topic: str, records: Iterable[str]) -> None:
        """`records` are the values of the topic in the order of their offsets."""
        self._topic = topic
        self._by_version: dict[Version, Form] = {}
        self._latest: dict[str, Form] = {}
        self._dropped: set[int] = set()
        for record in records:
            for space_id, form in _forms(record, topic):
                if form is None:
                    self._dropped.add(space_id)
                    continue
                self._dropped.discard(space_id)
                self._by_version[space_id, form.schema_version] = form
                known = self._latest.get(form.space)
                if known is None or form.seq >= known.seq:
                    self._latest[form.space] = form

    def has(self, space: str, space_id: int, schema_version: int) -> bool:
        """Whether this form of this space is known under this name."""
        form = self._by_version.get((space_id, schema_version))
        return form is not None and form.space == space

    def of(self, space_id: int, schema_version: int) -> Form:
        """The form that an event names. Raises JobError."""
        try:
            return self._by_version[space_id, schema_version]
        except KeyError:
            raise JobError(
                f"The topic {self._topic} has no form of space {space_id} at schema_version {schema_version}, which events "
                "refer to. It must be compacted, never deleted: let the daemon take a new snapshot, which writes it anew."
            ) from None

    def latest(self, space: str) -> Form | None:
        """The newest form of the space that has this name."""
        return self._latest.get(space)

    def at(self, space: str, seq: int) -> Form | None:
        """The form that the space of this name had after a seq; its first one, if that came later."""
        known = [form for form in self._by_version.values() if form.space == space]
        then = [form for form in known if form.seq <= seq]
        order = _order_of_forms
        return max(then, key=order) if then else min(known, key=order, default=None)

    @property
    def last_seq(self) -> int:
        """The seq of the newest form; -1 if there is none."""
        return max((form.seq for form in self._by_version.values()), default=-1)

    def names(self) -> set[str]:
        """All names that spaces have had."""
        return {form.space for form in self._by_version.values()}

    def bounds(self) -> list[list[tuple[Form, Form]]]:
        """Where a space got another name or another primary key: the form before and the one after it.

        In order, those together that may have been made at once.
        """
        changes = [
            (former, form)
            for history in self.histories()
            for former, form in pairwise(history)
            if former.space != form.space or former.key_writing != form.key_writing
        ]
        rounds: list[list[tuple[Form, Form]]] = []
        for change in sorted(changes, key=lambda change: _order_of_forms(change[1])):
            last = rounds[-1] if rounds else []
            same_time = last and last[0][1].seq == change[1].seq
            if same_time and all(form.space_id != change[1].space_id for _, form in last):
                last.append(change)
            else:
                rounds.append([change])
        return rounds

    def alive(self) -> list[str]:
        """The names of the spaces that are there after the last record."""
        newest = [history[-1] for history in self.histories()]
        return [form.space for form in newest if form.space_id not in self._dropped and self._latest[form.space] == form]

    def histories(self) -> list[list[Form]]:
        """The forms of each space (by id, whatever its names were), in order."""
        histories: dict[int, list[Form]] = {}
        for (space_id, _), form in sorted(self._by_version.items()):
            histories.setdefault(space_id, []).append(form)
        return list(histories.values())


def _order_of_forms(form: Form) -> tuple[int, int]:
    return form.seq, form.schema_version


def _forms(record: str, topic: str) -> Iterable[tuple[int, Form | None]]:
    """Ids of spaces and their forms; None for a space that is dropped."""
    try:
        members: dict[str, Any] = json.loads(record)
        source = members["source"]
        for change in members["tableChanges"]:
            table = change["table"]
            yield (
                source["space_id"],
                None
                if table is None
                else Form(
                    space=source["table"],
                    space_id=source["space_id"],
                    schema_version=source["schema_version"],
                    seq=source["seq"],
                    key=tuple(table["primaryKeyColumnNames"]),
                    as_written=tuple(table.get("primaryKeyColumnsAsWritten", ())),
                    collated=tuple(table.get("primaryKeyColumnsCollated", ())),
                    fields=tuple(Field(column["name"], column["typeName"]) for column in table["columns"]),
                    is_from_snapshot=source.get("snapshot") == "true",
                ),
            )
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"The topic {topic} holds something that is no schema record: {record[:300]}") from error
