"""Schemas of keys and events, independent of the format that writes them down: structs in the sense of Kafka Connect.

    Envelope ─┬─ op, patch and upsert (spaces without images)
              ├─ before, after ─▶ Value: the fields of the space's format
              ├─ source        ─▶ Source, with all fields or some (format.source)
              ├─ transaction   ─▶ event.block, if the source has all fields
              └─ ts_ms, ts_us, ts_ns
    Key: the parts of the primary key

Debezium's tools recognize events, keys and blocks by these names. Its envelope has `op` after the images; here it is the first
field, as in JSON. Readers find fields by their names.

Fields outside of the key are optional in spaces without images, because the `before` of a `d` has only the key there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.formats.keys import key_type
from cdc.formats.options import FormatOptions
from cdc.formats.types import INT64, JSON_TEXT, STRING, ValueType, value_type
from cdc.schema.forms import SHARED_NAME, SpaceForm

SNAPSHOT_ENUM: Final = ValueType(
    "string",
    "string",
    "io.debezium.data.Enum",
    STRING.convert,
    (("allowed", "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"),),
)


@dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct. An optional field's default is null, unless `default` is given."""

    name: str
    type: Type
    is_optional: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct: its full name, its version or None, and its fields."""

    name: str
    version: int | None
    fields: tuple[StructField, ...]


@dataclass(frozen=True, slots=True)
class LongByText:
    """A map from strings to 64-bit integers."""


Type = ValueType | Struct | LongByText

SOURCE: Final = Struct(
    "io.debezium.connector.tarantool.Source",
    None,
    (
        StructField("version", STRING),
        StructField("connector", STRING),
        StructField("name", STRING),
        StructField("ts_ms", INT64),
        StructField("ts_us", INT64, is_optional=True),
        StructField("ts_ns", INT64, is_optional=True),
        StructField("snapshot", SNAPSHOT_ENUM, is_optional=True, default="false"),
        StructField("db", STRING),
        StructField("sequence", STRING, is_optional=True),
        StructField("table", STRING),
        StructField("space_id", INT64),
        StructField("replica_id", INT64, is_optional=True),
        StructField("lsn", INT64, is_optional=True),
        StructField("tsn", INT64, is_optional=True),
        StructField("row", INT64, is_optional=True),
        StructField("seq", INT64),
        StructField("schema_version", INT64),
        StructField("server_uuid", STRING),
        StructField("server_version", STRING, is_optional=True),
        StructField("vclock", LongByText()),
        StructField("snapshot_id", STRING, is_optional=True),
    ),
)
_LEAN: Final = (
    StructField("name", STRING),
    StructField("ts_ms", INT64),
    StructField("table", STRING),
    StructField("lsn", INT64, is_optional=True),
    StructField("seq", INT64),
    StructField("schema_version", INT64),
    StructField("server_version", STRING, is_optional=True),
    StructField("snapshot_id", STRING, is_optional=True),
)
LEAN_SOURCE: Final = Struct(SOURCE.name, None, _LEAN)
LEAN_AVRO_SOURCE: Final = Struct(SOURCE.name, None, (StructField("connector", STRING), *_LEAN))
"""In Avro, `connector` is where a reader without the schema finds the source (cdc.formats.reading)."""
_MOVE: Final = (
    StructField("move", STRING, is_optional=True),
    StructField("bucket_id", INT64, is_optional=True),
    StructField("generation", INT64, is_optional=True),
)
BLOCK: Final = Struct(
    "event.block",
    1,
    (
        StructField("id", STRING),
        StructField("total_order", INT64),
        StructField("data_collection_order", INT64),
    ),
)
_TIMES: Final = tuple(StructField(f"ts_{unit}", INT64, is_optional=True) for unit in ("ms", "us", "ns"))


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a space's rows, with the place of its value in the tuple."""

    field: StructField
    type: ValueType


def columns(form: SpaceForm, options: FormatOptions, *, has_images: bool, all_optional: bool = False) -> tuple[Column, ...]:
    """Return the fields of a space's rows: those of its format, and those that its primary key needs beyond it."""
    in_key = {part.field for part in form.key_parts}
    places = range(_count(form, in_key))
    found = (_column(form, place, options, is_key=place in in_key, has_images=has_images) for place in places)
    if all_optional:
        found = (replace(one, field=replace(one.field, is_optional=True)) for one in found)
    return tuple(found)


def _count(form: SpaceForm, in_key: set[int]) -> int:
    return max(len(form.fields), max(in_key, default=-1) + 1)


def _column(form: SpaceForm, place: int, options: FormatOptions, *, is_key: bool, has_images: bool) -> Column:
    if place < len(form.fields):
        item = form.fields[place]
        field_type = item.type
        # A field of the type `any` may be nil whatever the format says, as may a field with a default.
        may_be_nil = item.is_nullable or item.has_default or item.type == "any"
    else:
        whole = [part.type for part in form.key_parts if part.field == place and not part.path]
        field_type = whole[0] if whole else "any"
        may_be_nil = not whole
    if field_type == "any":
        part_types = [part.type for part in form.key_parts if part.field == place and not part.path]
        field_type = part_types[0] if part_types else "any"
    kind = value_type(field_type, options)
    is_optional = not is_key if not has_images else may_be_nil and not _is_whole_part(form, place)
    if not has_images and is_key and not _is_whole_part(form, place):
        is_optional = True  # the key has only a part of this field
    return Column(StructField(form.field_name(place), kind, is_optional), kind)


def _is_whole_part(form: SpaceForm, place: int) -> bool:
    return any(part.field == place and not part.path for part in form.key_parts)


def value_struct(name: str, found: tuple[Column, ...]) -> Struct:
    """Return the struct of a space's rows; `name` is the topic's prefix and the space's name."""
    return Struct(f"{name}.Value", None, tuple(column.field for column in found))


def key_columns(form: SpaceForm, options: FormatOptions) -> tuple[Column, ...]:
    """Return the parts of a space's primary key, in the order of the index; on a topic of several spaces, its name precedes."""
    types = [key_type(part, options) for part in form.key_parts]
    whose = (Column(StructField(SHARED_NAME, STRING), STRING),) if form.routing.shared_as else ()
    return (*whose, *(Column(StructField(form.part_name(index), kind), kind) for index, kind in enumerate(types)))


def key_struct(name: str, found: tuple[Column, ...]) -> Struct:
    """Return the struct of a space's keys."""
    return Struct(f"{name}.Key", None, tuple(column.field for column in found))


def envelope(name: str, value: Struct, options: FormatOptions, *, has_images: bool) -> Struct:
    """Return the struct of a space's events."""
    patch = (
        () if has_images else (StructField("patch", JSON_TEXT, is_optional=True), StructField("upsert", value, is_optional=True))
    )
    return Struct(
        f"{name}.Envelope",
        2,
        (
            StructField("op", STRING),
            *patch,
            StructField("before", value, is_optional=True),
            StructField("after", value, is_optional=True),
            *_after_rows(options),
        ),
    )


def _after_rows(options: FormatOptions) -> tuple[StructField, ...]:
    if options.source == "lean":
        lean = LEAN_AVRO_SOURCE if options.value == "avro" else LEAN_SOURCE
        return StructField("source", _of_fleet(lean, options)), _TIMES[0]
    return StructField("source", _of_fleet(SOURCE, options)), StructField("transaction", BLOCK, is_optional=True), *_TIMES


def _of_fleet(source: Struct, options: FormatOptions) -> Struct:
    """Return the struct of sources with the fields that only a fleet's events have."""
    fields = list(source.fields)
    if options.shard:
        fields.insert([field.name for field in fields].index("name") + 1, StructField("shard", STRING))
    if options.marks_moves:
        place = [field.name for field in fields].index("server_version") + 1
        fields[place:place] = _MOVE
    return replace(source, fields=tuple(fields))
