"""Keys and events as Kafka Connect's JsonConverter writes them with schemas: {"schema":…,"payload":…}.

If a registry has the schema, the payload alone is written, in Confluent's wire form.

An event's payload is the same envelope as without a schema, except for the values of rows, which have the types of the schema.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from cdc.errors import EncodingError
from cdc.events.columns import shown_rows
from cdc.events.envelope import Envelope, KeyEncoders, KeyPieces, Openings, SpaceEvents, SpacePieces
from cdc.events.json_values import WAY_OUT, encode
from cdc.events.row_encoder import RowEncoder
from cdc.formats import rows, schemas
from cdc.formats.options import FormatOptions
from cdc.formats.schemas import Column, LongByText, Struct, StructField
from cdc.formats.types import VARIABLE_SCALE_DECIMAL, Scaled, ValueType, twos_complement
from cdc.formats.wire import header
from cdc.schema.forms import SpaceForm

_SCALED: Final = (
    {"type": "int32", "optional": False, "field": "scale"},
    {"type": "bytes", "optional": False, "field": "value"},
)


def connect_schema(found: schemas.Type, *, is_optional: bool = False, default: Any = None) -> dict[str, Any]:
    """Return the schema of a type, as in `schema`."""
    if isinstance(found, LongByText):
        return {
            "type": "map",
            "keys": {"type": "string", "optional": False},
            "values": {"type": "int64", "optional": False},
            "optional": is_optional,
        }
    if isinstance(found, Struct):
        shown: dict[str, Any] = {"type": "struct", "fields": [_field(field) for field in found.fields], "optional": is_optional}
        shown["name"] = found.name
        return shown if found.version is None else shown | {"version": found.version}
    return _simple(found, is_optional=is_optional, default=default)


def _field(field: StructField) -> dict[str, Any]:
    return connect_schema(field.type, is_optional=field.is_optional, default=field.default) | {"field": field.name}


def _simple(found: ValueType, *, is_optional: bool, default: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": found.base, "optional": is_optional}
    if found.base == "scaled":
        shown = {"type": "struct", "fields": list(_SCALED), "optional": is_optional, "name": VARIABLE_SCALE_DECIMAL, "version": 1}
    elif found.name:
        shown |= {"name": found.name, "version": 1}
    if found.parameters:
        shown["parameters"] = dict(found.parameters)
    if default is not None:
        shown["default"] = default
    return shown


def _plain(value: Any) -> Any:
    """Return a converted value as its JSON form: binary becomes base64."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        raise EncodingError(
            f"{value} has no JSON number, and in the schema its field has numbers only",
            f'Use "avro", which has such numbers, or "json", which writes them as strings. {WAY_OUT}',
        )
    if kind is Scaled:
        return {"scale": value.scale, "value": twos_complement(value.unscaled)}
    return value


def assemble(columns: Sequence[Column]) -> rows.Assemble:
    """Return a function from converted values to a JSON object."""
    names = [column.field.name for column in columns]

    def in_object(values: Sequence[Any]) -> bytes:
        return encode(dict(zip(names, map(_plain, values), strict=True)))

    return in_object


def opening(struct: Struct) -> bytes:
    """Return the beginning of a message with this schema, up to the payload."""
    return b'{"schema":%b,"payload":' % encode(connect_schema(struct))


def key_pieces(prefix: str, options: FormatOptions) -> KeyPieces:
    """Return the function that makes the encoders of a form's keys."""

    def of_form(form: SpaceForm, _: str) -> KeyEncoders:
        columns = schemas.key_columns(form, options)
        beginning, in_object = opening(schemas.key_struct(f"{prefix}.{form.name}", columns)), assemble(columns)
        return rows.key_encoders(form, columns, lambda values: beginning + in_object(values) + b"}")

    return of_form


def registered_key_pieces(prefix: str, options: FormatOptions) -> KeyPieces:
    """Return the function that makes the encoders of a form's keys, whose schemas a registry has."""

    def of_form(form: SpaceForm, topic: str) -> KeyEncoders:
        columns = schemas.key_columns(form, options)
        struct, in_object = schemas.key_struct(f"{prefix}.{form.name}", columns), assemble(columns)
        beginning = header(options, topic, "key", struct, "JSON")
        return rows.key_encoders(form, columns, lambda values: beginning + in_object(values))

    return of_form


class ConnectEnvelope(Envelope):
    """Events with a schema block."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None, options: FormatOptions) -> None:
        super().__init__(version, prefix, keys, options.shard)
        self._options = options

    _end: bytes = b"}"
    """What follows the payload."""

    def _beginning(self, struct: Struct, topic: str) -> bytes:  # noqa: ARG002
        """Return what precedes the payload of an event with this schema."""
        return opening(struct)

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:
        has_images = server_version is None
        name = f"{self._prefix}.{form.name}"
        columns = schemas.columns(form, self._options, has_images=has_images)
        value = schemas.value_struct(name, columns)
        envelope = schemas.envelope(name, value, self._options, has_images=has_images)
        in_object = assemble(columns)
        json = RowEncoder(form)
        table, schema = self._text_pieces(form, server_uuid, server_version)
        return SpacePieces(
            key=json.key,
            key_of=json.key_of,
            rows=shown_rows(form, rows.ColumnRows(form, columns, in_object)),
            # The operations are of the type io.debezium.data.Json: a string.
            patch=lambda operations, base: encode(json.patch(operations, base).decode()),
            openings=_openings(self._beginning(envelope, topic)),
            row_of_key=None if has_images else rows.row_of_key(form, columns, in_object),
            table=table,
            schema=schema,
        )

    def batch_time(self, now_us: int) -> bytes:
        """Do as Envelope.batch_time, and close the object around the payload."""
        return super().batch_time(now_us) + self._end

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:
        """Do as Envelope.snapshot_pieces, and close the object around the payload."""
        before, after = super().snapshot_pieces(space, snapshot_id, vclock, now_us)
        return before, after + self._end


class RegisteredJsonEnvelope(ConnectEnvelope):
    """The same payload in Confluent's wire form: a registry has the schema, as JSON Schema."""

    _end = b""

    def _beginning(self, struct: Struct, topic: str) -> bytes:
        return header(self._options, topic, "value", struct, "JSON")


def _openings(schema: bytes) -> Openings:
    """Return the openings of events that begin with this text."""
    found = Openings()
    beginnings = ("create", "update", "snapshot", "update_image", "delete_image", "patch", "delete", "truncate")
    return found._replace(**{name: schema + getattr(found, name) for name in beginnings})
