"""The forms of spaces, read from the records of `<prefix>.schema`: field names, field types, primary key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

from spark_jobs.contract import json_text
from spark_jobs.contract.field_types import SUFFIXES, comment_on, kinds_of, spark_type
from spark_jobs.errors import JobError

META_COLUMNS: Final = ("_key", "_row", "_seq", "_ts")

_RESERVED: Final = (
    *("_deleted", "_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
    *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
)
"""Column names that Iceberg reserves. In frames that are written into a table, `_deleted` marks deleted rows."""

_FORBIDDEN_IN_COLUMN_NAMES: Final = re.compile(r"[ ,;{}()=`\x00-\x1f\x7f]")


_OF_DELTA_READER: Final = "__delta_internal"
"""Beginning of the names of columns that Delta adds when it reads files. It can't read a table with such a column."""


Version = tuple[int, int]
"""The space_id and the schema_version of a form. Events name their form by these."""


@dataclass(frozen=True)
class Field:
    """One field of a format. `scale` is the number of digits behind the point that a sized decimal has, if the format says it."""

    name: str
    type: str
    scale: int | None = None


@dataclass(frozen=True)
class Form:
    """The layout of a space's rows from one point of the stream on. `seq` is the last seq assigned before that point.

    With `is_from_snapshot` the form comes from a snapshot: the form may have changed in a gap of the stream, and so may the rows.
    In the key columns `as_written`, values that are written differently are different keys. In the key columns `collated`,
    different texts may be the same key.
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
        """The columns of the key, each with whether its values stay as written. If this changes, the rows' keys change."""
        return tuple((name, name in self.as_written) for name in self.key)

    def row_text(self, values: Sequence[Any]) -> str:
        """Return a row's JSON text, from the values of its fields."""
        return json_text.render({self.field_name(place): value for place, value in enumerate(values)})

    def writes_as(self, later: Form) -> bool:
        """Return whether `later` gives the same names to the fields of this form's format. Fields past the format don't count."""
        return [field.name for field in self.fields] == [field.name for field in later.fields[: len(self.fields)]]

    def covers(self, other: Form) -> bool:
        """Return whether rows of `other` have all columns of this form, and keys of the same kind, in the same space.

        The rows may have further fields.
        """
        columns = list(self.columns().items())
        is_same_space = (self.space_id, self.space) == (other.space_id, other.space)
        has_columns = self.writes_as(other) and list(other.columns().items())[: len(columns)] == columns
        return is_same_space and self.key_writing == other.key_writing and has_columns

    def field_name(self, place: int) -> str:
        """Return the name that the field at this place (from 0) has in messages."""
        return self.fields[place].name if place < len(self.fields) else f"field_{place + 1}"

    def column_names(self) -> tuple[str, ...]:
        """Return the names of `columns`."""
        return tuple(self.columns())

    def columns(self) -> dict[str, str]:
        """Return the Spark types of the columns by their names, in the order of the fields."""
        return {name: spark_type(kind) for name, (_, kind) in self.columns_of_fields().items()}

    def comments(self) -> dict[str, str]:
        """Return what tables say of each column, by its name: the field and its Tarantool type."""
        fields = {field.name: field for field in self.fields}
        return {
            name: comment_on(field, fields[field].type, fields[field].scale, kind)
            for name, (field, kind) in self.columns_of_fields().items()
        }

    def columns_of_fields(self) -> dict[str, tuple[str, str]]:
        """Return, by the name of each column, its field and its kind (field_types.py), in the order of the fields.

        The names are those of the format, without characters that Parquet or SQL can't have. Spark ignores case in column names.
        A name that is already taken gets its place (from 1) as a suffix.
        """
        found: dict[str, tuple[str, str]] = {}
        taken = {same_name(name) for name in (*META_COLUMNS, *_RESERVED)}
        for place, field in enumerate(self.fields, 1):
            for kind in kinds_of(field.type, field.scale):
                name = f"{column_name(field.name)}{SUFFIXES.get(kind, '')}"
                while same_name(name) in taken:
                    name = f"{name}__{place}"
                taken.add(same_name(name))
                found[name] = field.name, kind
        return found

    @property
    def point(self) -> str:
        """The identifier of the form in the properties of tables."""
        return f"{self.space_id}:{self.schema_version}"

    def to_json(self) -> str:
        """Return the form as JSON, for a table's properties."""
        members = asdict(self)
        # Left out where it is unknown, so that the text stays that of tables that exist.
        members["fields"] = [{name: value for name, value in field.items() if value is not None} for field in members["fields"]]
        return json.dumps(members)

    @classmethod
    @lru_cache(maxsize=1024)
    def from_json(cls, text: str) -> Form:
        """Return the form that `to_json` wrote."""
        members = json.loads(text)
        fields = tuple(Field(**field) for field in members.pop("fields"))
        members |= {name: tuple(members[name]) for name in ("key", "as_written", "collated")}
        return cls(**members, fields=fields)


def column_name(field: str) -> str:
    """Return a field's column name if no other column has that name: without characters that Parquet or SQL can't have."""
    name = _FORBIDDEN_IN_COLUMN_NAMES.sub("_", field) or "_"
    return f"field{name}" if same_name(name).startswith(_OF_DELTA_READER) else name


def same_name(name: str) -> str:
    """Return the same text for all column names that Spark treats as equal, which is how Java compares letters in both cases.

    Java treats the kelvin sign as k, the long s as s, the dotless i as i, and both small sigmas as one letter; but ß isn't ss.
    """
    upper = (letter.upper() if len(letter.upper()) == 1 else letter for letter in name)
    return "".join(letter.lower()[0] for letter in upper)


class Forms:
    """All forms in the schema topic."""

    def __init__(self, topic: str, records: Iterable[str]) -> None:
        """Read the forms. `records` are the values of the topic in the order of their offsets."""
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
        """Return whether this form is known, and is a form of the space with this name."""
        form = self._by_version.get((space_id, schema_version))
        return form is not None and form.space == space

    def get(self, space_id: int, schema_version: int) -> Form | None:
        """Return the form that an event names; None if the schema topic lacks it."""
        return self._by_version.get((space_id, schema_version))

    def of(self, space_id: int, schema_version: int) -> Form:
        """Return the form that an event names. Raises JobError if the schema topic lacks it."""
        form = self.get(space_id, schema_version)
        if form is None:
            raise JobError(
                f"{self.lost(space_id, schema_version)}, which `current` no longer needs once the space has been truncated, or "
                "swept by a later snapshot of all rows (its sweep_seq isn't 0)."
            )
        return form

    def lost(self, space_id: int, schema_version: int) -> str:
        """Return what an operator must know about a form that events name and that the schema topic lacks.

        The text ends with the former forms, so that a job can say what they mean to it.
        """
        return (
            f"The topic {self._topic} has no form of space {space_id} at schema_version {schema_version}, which events refer to. "
            "This topic must be compacted; its records must not be deleted by retention. The daemon writes a present form again, "
            "at its start or within a minute. It can't write former forms"
        )

    def latest(self, space: str) -> Form | None:
        """Return the newest form of the space with this name; None if there is none."""
        return self._latest.get(space)

    def at(self, space: str, seq: int) -> Form | None:
        """Return the form that the space of this name had after a seq, or its first form if that came later; else None."""
        known = self._by_space.get(space, [])
        then = [form for form in known if form.seq <= seq]
        return then[-1] if then else next(iter(known), None)

    @cached_property
    def _by_space(self) -> Mapping[str, Sequence[Form]]:
        """All forms that a space of each name has had, in order. A job asks for them in every batch, whatever is in it."""
        found: dict[str, list[Form]] = {}
        for form in sorted(self._by_version.values(), key=_order_of_forms):
            found.setdefault(form.space, []).append(form)
        return found

    @property
    def last_seq(self) -> int:
        """The seq of the newest form, -1 if there is none."""
        return max((form.seq for form in self._by_version.values()), default=-1)

    def names(self) -> set[str]:
        """Return all names that spaces have had."""
        return {form.space for form in self._by_version.values()}

    def identity_changes(self) -> list[list[tuple[Form, Form]]]:
        """Return the renamings of spaces and the changes of primary keys, each as the former and the next form.

        They are in order. An inner list has changes of different spaces that may have been made at the same time.
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
        """Return the names of the spaces that exist after the last record."""
        newest = [history[-1] for history in self.histories()]
        return [form.space for form in newest if form.space_id not in self._dropped and self._latest[form.space] == form]

    def histories(self) -> list[list[Form]]:
        """Return the forms of each space, in order. Spaces are identified by their id, across their names."""
        return list(self._histories)

    @cached_property
    def _histories(self) -> Sequence[list[Form]]:
        histories: dict[int, list[Form]] = {}
        for (space_id, _), form in sorted(self._by_version.items()):
            histories.setdefault(space_id, []).append(form)
        return list(histories.values())


def _order_of_forms(form: Form) -> tuple[int, int]:
    return form.seq, form.schema_version


def _forms(record: str, topic: str) -> Iterable[tuple[int, Form | None]]:
    """Yield the ids of the spaces in a record with their forms, None for a dropped space. Raises JobError for other records."""
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
                    fields=tuple(Field(one["name"], one["typeName"], one.get("scale")) for one in table["columns"]),
                    is_from_snapshot=source.get("snapshot") == "true",
                ),
            )
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"The topic {topic} holds something that is no schema record: {record[:300]}") from error
