"""The form of a space at one position: its fields, its primary key, and changes of either."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

_COLLATED: Final = frozenset({"string", "scalar"})
_BINARY_COLLATIONS: Final = frozenset({0, 3})
"""`none` and `binary`: strings are compared as bytes."""
WRITTEN_DIFFERENTLY: Final = frozenset(
    {"number", "double", "float32", "float64", "scalar", "datetime"}
    | {"decimal", "decimal32", "decimal64", "decimal128", "decimal256"}
)
"""Types in which a value has several notations. A HASH index, and a file of vinyl, find a key by the hash of its bytes as they
were sent (src/box/tuple_hash.cc). In all versions, 1 and 1.0 are the same number there, but each notation of a decimal or of a
point in time, and each NaN, is a separate key. A TREE index compares the values."""
_COMPARED_BY_VALUE: Final = WRITTEN_DIFFERENTLY | {"integer", "int8", "int16", "int32", "int64", "varbinary"}
"""Types of which a TREE takes differently encoded values for equal; `unsigned` and `uuid` are compared by their bytes."""


_TYPE_NAMES: Final = {"*": "any", "num": "unsigned", "str": "string"}
SHORTENED_TYPE_NAMES: Final = {"nu": "unsigned", "n": "unsigned", "": "unsigned", "st": "string", "s": "string"}
"""Beginnings of the old names, with the present names."""


def type_of_field(text: str) -> str:
    """Return the present name of a field's type.

    Servers keep a type as it was written. They ignore case, accept the names of Tarantool 1.6, and up to 2.10 the beginnings of
    these (src/box/field_def.c, field_type_by_name).
    """
    name = text.lower()
    return SHORTENED_TYPE_NAMES.get(name) or type_of_key_part(name)


def type_of_key_part(text: str) -> str:
    """Return the present name of the type of an index's part.

    The shortened names stay: rows with such a key have never been kept in the state store, so existing stores lack them.
    """
    name = text.lower()
    return _TYPE_NAMES.get(name, name)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One part of a primary key: the field's place (from 0), a path inside the field or "", the part's type, and the id of the
    collation that compares its strings (0 if none).
    """

    field: int
    path: str
    type: str
    collation: int = 0
    # Whether equal values in different notations are different keys, such as decimal 1 and decimal 1.00.
    is_as_written: bool = False
    # Whether the index has larger values first. The keys are the same then, so it isn't compared.
    is_descending: bool = dataclasses.field(default=False, compare=False)

    @property
    def is_collated(self) -> bool:
        """Whether different strings may be the same key."""
        return self.type in _COLLATED and self.collation not in _BINARY_COLLATIONS


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a format."""

    name: str
    type: str
    is_nullable: bool
    has_default: bool = False
    # Digits after the point, of a decimal with a fixed number of them.
    scale: int | None = None


SPACE: Final = "{space}"
"""Where a topic's name has the space's."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Where a space's events go, and which rows have events.

    If it changes, what consumers have of the space isn't what they would have got by it.
    """

    topic: str = SPACE
    """Name of the topic behind the prefix."""
    shared_as: str = ""
    """The space's name, if other spaces may have the same topic: each key then says whose it is."""
    where: str = ""
    """Expression that chooses the rows that have events (cdc.events.row_filter); empty: all."""
    partition_by: tuple[str, ...] = ()
    """Fields whose values decide the partition; none: the key does."""

    def to_json(self) -> dict[str, Any]:
        """Return what isn't the default."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Routing:
        """Return what `to_json` has written. Raises TypeError for anything else."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})  # type: ignore[arg-type]


SHARED_NAME: Final = "__dbz__physicalTableIdentifier"
"""First field of the keys on a topic of several spaces, with the space's name, as Debezium's ByLogicalTableRouter calls it."""
PLAIN_ROUTING: Final = Routing()
"""Each space has a topic of its own, with its name."""


@dataclass(frozen=True, slots=True)
class SpaceForm:
    """The form of one space's rows, valid until the space is altered."""

    space_id: int
    name: str
    fields: tuple[Field, ...]
    key_parts: tuple[KeyPart, ...]
    is_sync: bool = False
    # Number of fields that each row has, 0 if rows may be of any length.
    field_count: int = 0
    # Rows of local and temporary spaces are never relayed.
    is_replicated: bool = True
    # A space's engine never changes, and doesn't affect the form of rows, so it isn't compared.
    is_vinyl: bool = field(default=False, compare=False)
    # What the rules for columns change of the published rows, so that a changed rule makes another form; empty if nothing.
    columns: str = ""
    routing: Routing = PLAIN_ROUTING
    # Number of the form, counted over all published spaces; 0 until the form is published. It isn't a part of the form itself.
    schema_version: int = field(default=0, compare=False)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The field names of the format, in order."""
        return tuple(item.name for item in self.fields)

    def field_name(self, place: int) -> str:
        """Return the name of the field at `place` (from 0); past the format it is `field_N`, with N counted from 1."""
        return self.fields[place].name if place < len(self.fields) else f"field_{place + 1}"

    def part_name(self, index: int) -> str:
        """Return the name of a part of the primary key: its field's name, followed by the path inside the field, if any."""
        part = self.key_parts[index]
        name = self.field_name(part.field)
        if not part.path:
            return name
        return name + (part.path if part.path[0] in ".[" else f".{part.path}")

    @property
    def has_notations(self) -> bool:
        """Whether a request may miss its row because it writes the same key differently (cdc.images.notations)."""
        return self.is_vinyl and any(part.type in WRITTEN_DIFFERENTLY for part in self.key_parts)

    @property
    def hides_equal_keys(self) -> bool:
        """Whether an INSERT of vinyl may hide a row with an equal key that is encoded differently, instead of finding it.

        Clients write such keys on purpose in a space that `has_notations`; in others only by longer encodings than need be.
        """
        return self.is_vinyl and any(part.type in _COMPARED_BY_VALUE for part in self.key_parts)

    @property
    def primary_key(self) -> tuple[tuple[str, KeyPart], ...]:
        """The parts with their names. If a part or a name changes, the keys that consumers have stored become invalid."""
        return tuple((self.part_name(index), part) for index, part in enumerate(self.key_parts))


class ChangeKind(Enum):
    """Kind of a schema change, as named on the schema topic."""

    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A new form of a space, or its drop (`form` is then its last one). `previous_name` is set if the space was renamed."""

    kind: ChangeKind
    form: SpaceForm
    previous_name: str | None = None
    # Whether rows that were published before are shown differently from here on (SpaceForm.columns).
    has_other_columns: bool = False
    former: SpaceForm | None = field(default=None, compare=False)
    """The form before an ALTER."""

    @property
    def former_route(self) -> SpaceForm | None:
        """The form before, if other rules for topics or rows applied to it (SpaceForm.routing)."""
        return self.former if self.former is not None and self.former.routing != self.form.routing else None


@dataclass(frozen=True, slots=True)
class StoredSpace:
    """One space in the checkpoint: its system rows unchanged, and the schema version under which its form is published."""

    space_id: int
    space_row: list[Any]
    index_rows: dict[int, list[Any]]
    schema_version: int
    columns: str = ""
    """`SpaceForm.columns` of the published form."""
    routing: Routing = PLAIN_ROUTING
    """`SpaceForm.routing` of the published form."""
