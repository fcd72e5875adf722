"""Flat events: the row's fields with the operation, as Debezium's ExtractNewRecordState makes them of an envelope (`rewrite`).

    {"__op":"u","__deleted":"false","id":1,"name":"x","__source_seq":4711}

A `d` has the previous row, or its key's fields in a space without images. A `t` has no row. In formats with a schema all fields
of the row are therefore optional. An event says only what the row is now, so the operations of an UPDATE can't be flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from cdc.errors import EncodingError
from cdc.events.columns import shown_rows
from cdc.events.envelope import Envelope, Openings, SharedPieces, SpaceEvents, SpacePieces
from cdc.events.json_values import WAY_OUT, encode
from cdc.events.row_encoder import Encode, RowEncoder
from cdc.formats import avro_events, connect_events, proto_events, rows, schemas
from cdc.formats.avro_values import PRESENT, string
from cdc.formats.names import DELETED, OP, SEQ_NAME, check_fields, check_flat
from cdc.formats.proto_events import ProtoEnvelope
from cdc.formats.proto_schema import FLAT
from cdc.formats.proto_values import BYTES, FIXED64, tag, text
from cdc.formats.schemas import Column, Struct, StructField
from cdc.formats.types import INT64, STRING
from cdc.formats.wire import header
from cdc.positions.vclock import VClock
from cdc.schema.forms import SpaceForm


def _openings(opening: Callable[[str, str], bytes]) -> Openings:
    """Return the openings, given a function of the operation, and of whether the row is deleted, as text."""
    deleted = opening("d", "true")
    return Openings(
        create=opening("c", "false"),
        update=opening("u", "false"),
        snapshot=opening("r", "false"),
        update_image=opening("u", "false"),
        delete_image=deleted,
        after=b"",
        no_after=b"",
        delete=deleted,
        truncate=opening("t", "false"),
    )


def _no_patch(form: SpaceForm) -> Callable[[object, int], bytes]:
    def refuse(_: object, __: int) -> NoReturn:
        raise EncodingError(
            f"an UPDATE or UPSERT of space {form.name!r}, which has no images, can't be a flat event: it says how the row "
            "changes, not what it is",
            f'Use format.envelope = "debezium", whose events have a patch. {WAY_OUT}',
        )

    return refuse


def _struct(name: str, columns: Sequence[Column]) -> Struct:
    fields = (column.field for column in columns)
    own = StructField(OP, STRING), StructField(DELETED, STRING)
    # Optional, so that a byte of its own precedes it in Avro (cdc.formats.reading).
    return Struct(f"{name}.Value", None, (*own, *fields, StructField(SEQ_NAME, INT64, is_optional=True)))


class _Shared:
    """The end of an event: its seq."""

    def __init__(self, before: bytes, number: Callable[[int], bytes], after: bytes) -> None:
        self._before, self._number, self._after = before, number, after

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:  # noqa: ARG002
        return b"".join((start, self._before, self._number(seq), self._after))


class _Bare(dict[int, Encode]):
    """Encoders of rows as JSON without the braces, and with a comma in front."""

    def __init__(self, whole: Mapping[int, Encode]) -> None:
        super().__init__()
        self._whole = whole

    def __missing__(self, length: int) -> Encode:
        return _bare(self._whole[length])


def _bare(whole: Encode) -> Encode:
    def encode_bare(values: Sequence[Any]) -> bytes:
        fields = whole(values)[1:-1]
        return b"," + fields if fields else b""

    return encode_bare


def _pieces(form: SpaceForm, found: Mapping[int, Encode], openings: Openings, row_of_key: Encode | None) -> SpacePieces:
    """Return a form's pieces, given the encoders of its rows."""
    json = RowEncoder(form)
    return SpacePieces(
        key=json.key,
        key_of=json.key_of,
        rows=found,
        patch=_no_patch(form),
        table=b"",
        schema=b"",
        openings=openings,
        row_of_key=row_of_key,
        shows_before=False,
    )


class _Flat(Envelope):
    """What flat events in all formats share: of what surrounds a row they have only the operation and the `seq`."""

    _BEFORE_SEQ: bytes
    _AFTER_SEQ: bytes = b""

    def shared(
        self,
        timestamp: float,  # noqa: ARG002
        previous_lsn: bytes,  # noqa: ARG002
        place: tuple[int, int],  # noqa: ARG002
        vclock: Mapping[int, int],  # noqa: ARG002
    ) -> SharedPieces:
        """Do as Envelope.shared."""
        return _Shared(self._BEFORE_SEQ, self.number, self._AFTER_SEQ)

    def batch_time(self, now_us: int) -> bytes:  # noqa: ARG002
        """Return nothing: an event has no time."""
        return b""

    @staticmethod
    def vclock(components: VClock) -> bytes:  # noqa: ARG004
        """Return nothing: an event has no vclock."""
        return b""

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:  # noqa: ARG002
        """Do as Envelope.snapshot_pieces."""
        return self._BEFORE_SEQ, self._AFTER_SEQ


class FlatEnvelope(_Flat):
    """Flat events in JSON."""

    _BEFORE_SEQ = b',"%b":' % SEQ_NAME.encode()
    _AFTER_SEQ = b"}"

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:  # noqa: ARG002
        check_flat(form)
        json = RowEncoder(form)
        row_of_key = None if server_version is None else _bare(json.key)
        return self._flat_pieces(form, _Bare(json.rows), row_of_key, b"")

    @staticmethod
    def _flat_pieces(form: SpaceForm, found: Mapping[int, Encode], row_of_key: Encode | None, before: bytes) -> SpacePieces:
        def opening(op: str, deleted: str) -> bytes:
            return before + encode({OP: op, DELETED: deleted})[:-1]

        return _pieces(form, found, _openings(opening), row_of_key)


class FlatConnectEnvelope(connect_events.ConnectEnvelope, FlatEnvelope):
    """Flat events with a schema block."""

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:  # noqa: ARG002
        check_flat(form)
        columns = schemas.columns(form, self._options, has_images=server_version is None, all_optional=True)
        assemble = connect_events.assemble(columns)
        row_of_key = None if server_version is None else rows.row_of_key(form, columns, assemble)
        return self._flat_pieces(
            form,
            _Bare(shown_rows(form, rows.ColumnRows(form, columns, assemble))),
            None if row_of_key is None else _bare(row_of_key),
            self._beginning(_struct(f"{self._prefix}.{form.name}", columns), topic),
        )


class FlatRegisteredJsonEnvelope(FlatConnectEnvelope, connect_events.RegisteredJsonEnvelope):
    """Flat events as JSON whose schema a registry has."""


class FlatProtoEnvelope(_Flat, ProtoEnvelope):
    """Flat events in Protobuf."""

    _BEFORE_SEQ = tag(FLAT[SEQ_NAME], FIXED64)

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:  # noqa: ARG002
        check_fields(form)
        check_flat(form)
        columns = schemas.columns(form, self._options, has_images=server_version is None, all_optional=True)
        in_message = proto_events.assemble(columns)
        before = header(self._options, topic, "value", _struct(f"{self._prefix}.{form.name}", columns), "PROTOBUF")

        def opening(op: str, deleted: str) -> bytes:
            own = tag(FLAT[OP], BYTES) + text(op) + tag(FLAT[DELETED], BYTES) + text(deleted)
            return before + proto_events.FIRST_MESSAGE + own

        found = shown_rows(form, rows.ColumnRows(form, columns, in_message))
        row_of_key = None if server_version is None else rows.row_of_key(form, columns, in_message)
        return _pieces(form, found, _openings(opening), row_of_key)


class FlatAvroEnvelope(_Flat, avro_events.AvroEnvelope):
    """Flat events in Avro."""

    _BEFORE_SEQ = PRESENT

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:  # noqa: ARG002
        check_fields(form)
        check_flat(form)
        columns = schemas.columns(form, self._options, has_images=server_version is None, all_optional=True)
        assemble = avro_events.assemble(columns)
        before = header(self._options, topic, "value", _struct(f"{self._prefix}.{form.name}", columns), "AVRO")
        nothing = assemble([None] * len(columns))
        openings = _openings(lambda op, deleted: before + string(op) + string(deleted))
        openings = openings._replace(delete=openings.delete + nothing, truncate=openings.truncate + nothing)
        found = shown_rows(form, rows.ColumnRows(form, columns, assemble))
        row_of_key = None if server_version is None else rows.row_of_key(form, columns, assemble)
        return _pieces(form, found, openings, row_of_key)
