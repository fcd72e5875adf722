"""Schemas as Protobuf (proto3): one file, whose first message is that of the key or event.

The number of a row's field is its place in the tuple, counted from 1, so a schema stays compatible as long as fields keep their
places, which Tarantool's do. Other messages have fixed numbers. Protobuf has no semantic names: they are comments.
"""

from __future__ import annotations

from typing import Final

from cdc.formats.names import DELETED, OP, SEQ_NAME, cleaned, cleaned_path
from cdc.formats.schemas import LongByText, Struct, StructField, Type

_BASES: Final = {"int8": "int32", "int16": "int32", "float": "float", "boolean": "bool"}
"""Protobuf's names of Connect's types; others have the same name."""
SCALED: Final = "VariableScaleDecimal"

_ENVELOPE: Final = ("op", "before", "after", "source", "transaction", "ts_ms", "ts_us", "ts_ns", "patch", "upsert")
_SOURCE: Final = (
    *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "table", "space_id"),
    *("replica_id", "lsn", "tsn", "row", "seq", "schema_version", "server_uuid", "server_version", "vclock", "snapshot_id"),
    *("shard", "move", "bucket_id", "generation"),
)
_FLAT_FIRST: Final = 20_001
"""Number of the first of the fields that flat events have themselves. Numbers from 19,000 to 19,999 are Protobuf's own."""
ENVELOPE: Final = {name: number for number, name in enumerate(_ENVELOPE, 1)}
SOURCE: Final = {name: number for number, name in enumerate(_SOURCE, 1)}
FLAT: Final = {name: number for number, name in enumerate((OP, DELETED, SEQ_NAME), _FLAT_FIRST)}
BLOCK: Final = {"id": 1, "total_order": 2, "data_collection_order": 3}
_FIXED: Final = {"Envelope": ENVELOPE, "Source": SOURCE, "block": BLOCK}


def proto_text(struct: Struct) -> str:
    """Return a struct's schema, as a registry gets it."""
    package, _, _ = cleaned_path(struct.name).rpartition(".")
    writer = _Writer()
    writer.message(struct)
    return "\n".join(['syntax = "proto3";', f"package {package};", *writer.messages]) + "\n"


class _Writer:
    """The messages of one file, each once, the outermost first."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._written: set[str] = set()

    def message(self, struct: Struct) -> str:
        """Add a message, unless it is there; return its name."""
        name = struct.name.rpartition(".")[2]
        if name in self._written:
            return name
        self._written.add(name)
        at = len(self.messages)
        self.messages.append("")
        # The file of other events begins with their envelope, or with a key.
        is_flat = not at and name == "Value"
        fixed = FLAT if is_flat else _FIXED.get(name, {})
        own = (field for field in struct.fields if field.name not in fixed)
        places = {field.name: place for place, field in enumerate(own, 1)}
        seq = SEQ_NAME if is_flat else "seq" if fixed is SOURCE else None
        lines = [
            f"  {self._field(field, fixed.get(field.name) or places[field.name], is_seq=field.name == seq)}"
            for field in struct.fields
        ]
        self.messages[at] = "\n".join([f"message {name} {{", *lines, "}"])
        return name

    def _field(self, field: StructField, number: int, *, is_seq: bool) -> str:
        found = field.type
        name, kind = cleaned(field.name), self._type(found)
        is_message = isinstance(found, Struct | LongByText) or found.base == "scaled"
        label = "optional " if field.is_optional and not is_message else ""
        comment = "" if isinstance(found, Struct | LongByText) or not found.name else f" // {found.name}"
        if is_seq:
            kind = "sfixed64"
        return f"{label}{kind} {name} = {number};{comment}"

    def _type(self, found: Type) -> str:
        if isinstance(found, Struct):
            return self.message(found)
        if isinstance(found, LongByText):
            return "map<string, int64>"
        if found.base != "scaled":
            return _BASES.get(found.base, found.base)
        if SCALED not in self._written:
            self._written.add(SCALED)
            self.messages.append(f"message {SCALED} {{\n  int32 scale = 1;\n  bytes value = 2;\n}}")
        return SCALED
