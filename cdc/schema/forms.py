"""What a space looks like at a position: its fields, its primary key, and how either changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

_COLLATED: Final = frozenset({"string", "str", "scalar"})
_BINARY_COLLATIONS: Final = frozenset({0, 3})
"""`none` and `binary`: strings are compared as bytes."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One part of a primary key: the field's place from 0, a path inside the field or "", the part's type, and the id of the
    collation that compares its strings (0 is none).
    """

    field: int
    path: str
    type: str
    collation: int = 0
    # Whether values that are equal but written differently are different keys: decimal 1 and decimal 1.00.
    is_as_written: bool = False

    @property
    def is_collated(self) -> bool:
        """Whether strings that differ may be the same key."""
        return self.type in _COLLATED and self.collation not in _BINARY_COLLATIONS


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a format."""

    name: str
    type: str
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class SpaceForm:
    """What a row of one space looks like, as long as nobody alters the space."""

    space_id: int
    name: str
    fields: tuple[Field, ...]
    key_parts: tuple[KeyPart, ...]
    is_sync: bool = False
    # Rows of local and temporary spaces are never relayed.
    is_replicated: bool = True
    # An engine is for life, and says nothing about how rows look.
    is_vinyl: bool = field(default=False, compare=False)
    # Counts the forms of all published spaces; 0 until the form is known outside. No part of the form itself.
    schema_version: int = field(default=0, compare=False)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names that the format gives, in order."""
        return tuple(item.name for item in self.fields)

    def field_name(self, place: int) -> str:
        """The name of a field by its place from 0, `field_N` past the format."""
        return self.fields[place].name if place < len(self.fields) else f"field_{place + 1}"

    def part_name(self, index: int) -> str:
        """What a part of the primary key is called: its field, and the path inside it if it has one."""
        part = self.key_parts[index]
        name = self.field_name(part.field)
        if not part.path:
            return name
        return name + (part.path if part.path[0] in ".[" else f".{part.path}")

    @property
    def primary_key(self) -> tuple[tuple[str, KeyPart], ...]:
        """The parts with their names. Where either becomes another, keys that consumers know are no keys any more."""
        return tuple((self.part_name(index), part) for index, part in enumerate(self.key_parts))


class ChangeKind(Enum):
    """What happened to a space, in the words of the schema topic."""

    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A space has a new form, or is gone (`form` is then its last one). `previous_name` is set by a rename."""

    kind: ChangeKind
    form: SpaceForm
    previous_name: str | None = None


@dataclass(frozen=True, slots=True)
class StoredSpace:
    """What the checkpoint keeps of one space: its system rows as they are, and the version its form is known under."""

    space_id: int
    space_row: list[Any]
    index_rows: dict[int, list[Any]]
    schema_version: int
