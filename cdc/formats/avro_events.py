"""Keys and events in Avro, in the form of Confluent's serializers: a zero byte, the schema's id in four bytes, and the value.

    0 id "c" null │row│ … source: version, connector, name, ts_ms … "[\\"41\\",\\"│42│\\"]" table, space_id │replica_id│ lsn …
    per operation       per daemon       per transaction                 per row     per form

The fields have the order of cdc.formats.schemas.envelope, and an event is one join of such pieces, as in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.events.columns import shown_rows
from cdc.events.envelope import Envelope, KeyEncoders, KeyPieces, Openings, SharedPieces, SpaceEvents, SpacePieces
from cdc.events.moves import Move
from cdc.events.row_encoder import RowEncoder
from cdc.formats import rows, schemas
from cdc.formats.avro_values import NULL, PRESENT, binary, long, long_by_text, string, writer
from cdc.formats.names import check_fields, check_key
from cdc.formats.options import FormatOptions
from cdc.formats.schemas import Column
from cdc.formats.wire import header
from cdc.positions.vclock import VClock
from cdc.schema.forms import SpaceForm

_FALSE: Final = NULL + string("false") + string("")
"""`snapshot`, whose default is the first type of its union, and `db`."""
_TRUE: Final = NULL + string("true") + string("")


def assemble(columns: Sequence[Column]) -> rows.Assemble:
    """Return a function from converted values to a record."""
    writers = [(writer(column.type), column.field.is_optional) for column in columns]
    if not any(is_optional for _, is_optional in writers):
        required = [write for write, _ in writers]
        return lambda values: b"".join([write(value) for write, value in zip(required, values, strict=True)])

    def in_record(values: Sequence[Any]) -> bytes:
        found = []
        for (write, is_optional), value in zip(writers, values, strict=True):
            if is_optional:
                found.append(NULL if value is None else PRESENT + write(value))
            else:
                found.append(write(value))
        return b"".join(found)

    return in_record


def key_pieces(prefix: str, options: FormatOptions) -> KeyPieces:
    """Return the function that makes the encoders of a form's keys."""

    def of_form(form: SpaceForm, topic: str) -> KeyEncoders:
        check_key(form)
        columns = schemas.key_columns(form, options)
        before = header(options, topic, "key", schemas.key_struct(f"{prefix}.{form.name}", columns), "AVRO")
        in_record = assemble(columns)
        # The compiled path writes the space's name, if there is one, as a part of what precedes each key.
        name = string(form.routing.shared_as) if form.routing.shared_as else b""
        plan = before + name, [column.type.kind for column in columns[-len(form.key_parts) :]]
        return rows.key_encoders(form, columns, lambda values: before + in_record(values), plan)

    return of_form


_MOVE_FIELDS: Final = 3


def shard_of(options: FormatOptions) -> bytes:
    """Return the source's field `shard`, which only a fleet's events have."""
    return string(options.shard) if options.shard else b""


class AvroEnvelope(Envelope):
    """Events in Avro."""

    def __init__(
        self,
        version: str,
        prefix: str,
        keys: KeyPieces | None,
        options: FormatOptions,
    ) -> None:
        super().__init__(version, prefix, keys, options.shard)
        self._options = options
        self._no_move = NULL * _MOVE_FIELDS if options.marks_moves else b""
        self._avro_source = string(version) + string("tarantool") + string(prefix) + shard_of(options)

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:
        check_fields(form)
        has_images = server_version is None
        name = f"{self._prefix}.{form.name}"
        columns = schemas.columns(form, self._options, has_images=has_images)
        value = schemas.value_struct(name, columns)
        envelope = schemas.envelope(name, value, self._options, has_images=has_images)
        before = header(self._options, topic, "value", envelope, "AVRO")
        in_record = assemble(columns)
        json = RowEncoder(form)
        row_of_key = None if has_images else rows.row_of_key(form, columns, in_record)
        version = NULL if has_images else PRESENT + string(server_version or "")
        table, schema = self._source_pieces(form, server_uuid, version + self._no_move)
        return SpacePieces(
            key=json.key,
            key_of=json.key_of,
            rows=shown_rows(form, rows.ColumnRows(form, columns, in_record)),
            patch=lambda operations, base: binary(json.patch(operations, base)),
            table=table,
            schema=schema,
            openings=_openings(before, has_patch=not has_images),
            row_of_key=row_of_key,
            row_plan=([(column.type.kind, column.field.is_optional) for column in columns], row_of_key is not None),
        )

    def with_move(self, schema: bytes, move: Move) -> bytes:
        """Do as Envelope.with_move."""
        generation = NULL if move.generation is None else PRESENT + long(move.generation)
        said = PRESENT + string(move.kind) + PRESENT + long(move.bucket_id) + generation
        return schema.removesuffix(self._no_move) + said

    @property
    def compiled_source(self) -> tuple[bytes, bool]:
        """Do as Envelope.compiled_source."""
        return self._avro_source, True

    def shared(self, timestamp: float, previous_lsn: bytes, place: tuple[int, int], vclock: Mapping[int, int]) -> SharedPieces:
        """Return the pieces that the events of a transaction share.

        `place` is the transaction's origin and the lsn of its first row; `vclock` is the position after it.
        """
        return AvroShared(self._avro_source, timestamp, previous_lsn, place, vclock)

    @staticmethod
    def _source_pieces(form: SpaceForm, server_uuid: str, version: bytes) -> tuple[bytes, bytes]:
        """Return a form's pieces `table` and `schema`; `version` is the field `server_version`."""
        return string(form.name) + long(form.space_id), long(form.schema_version) + string(server_uuid) + version

    def batch_time(self, now_us: int) -> bytes:
        """Return the event's own times; they are the same for an entire batch."""
        return _optional_times(now_us)

    @staticmethod
    def number(value: int) -> bytes:
        """Return a number that stands between two pieces."""
        return long(value)

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:
        """Return the piece between a snapshot row and its `seq`, and the piece after the `seq`."""
        times = _source_times(now_us)
        return (
            b"".join((self._avro_source, times, _TRUE, NULL, space.table, NULL * 4)),
            b"".join((space.schema, vclock, PRESENT, string(str(snapshot_id)), NULL, _optional_times(now_us))),
        )

    @staticmethod
    def vclock(components: VClock) -> bytes:
        """Return a vclock that stands between two pieces."""
        return _vclock(components)


def _vclock(components: Mapping[int, int]) -> bytes:
    return long_by_text({str(origin): components[origin] for origin in sorted(components)})


def _source_times(now_us: int) -> bytes:
    return b"".join((long(now_us // 1000), PRESENT, long(now_us), PRESENT, long(now_us * 1000)))


def _optional_times(now_us: int) -> bytes:
    return PRESENT + _source_times(now_us)


def _openings(header: bytes, *, has_patch: bool) -> Openings:
    """Return the openings of a form's events; `header` ends before the event's first field."""

    def opening(op: str) -> bytes:
        return header + string(op) + (NULL * 2 if has_patch else b"")

    return Openings(
        create=opening("c") + NULL + PRESENT,
        update=opening("u") + NULL + PRESENT,
        snapshot=opening("r") + NULL + PRESENT,
        update_image=opening("u") + PRESENT,
        delete_image=opening("d") + PRESENT,
        after=PRESENT,
        no_after=NULL,
        patch=header + string("u") + PRESENT,
        after_patch=NULL * 3,
        upsert=PRESENT,
        after_upsert=NULL * 2,
        delete=opening("d") + NULL * 2,
        truncate=opening("t") + NULL * 2,
    )


class AvroShared:
    """Pieces that all events of one transaction share."""

    def __init__(
        self, source: bytes, timestamp: float, previous_lsn: bytes, place: tuple[int, int], vclock: Mapping[int, int]
    ) -> None:
        origin, tsn = place
        self._time = source + _source_times(round(timestamp * 1e6)) + _FALSE + PRESENT
        self._sequence = b'["%b","' % previous_lsn
        self._origin = PRESENT + long(origin) + PRESENT
        self._tsn = PRESENT + long(tsn) + PRESENT
        self._tail = _vclock(vclock) + NULL + PRESENT + string(f"{origin}:{tsn}")

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:
        """Return an event up to its times. `start` is its operation and images, `orders` its orders in the transaction."""
        sequence = b'%b%d"]' % (self._sequence, lsn)
        return b"".join(
            (
                start,
                self._time,
                long(len(sequence)),
                sequence,
                space.table,
                self._origin,
                long(lsn),
                self._tsn,
                long(row_number),
                long(seq),
                space.schema,
                self._tail,
                long(orders[0]),
                long(orders[1]),
            )
        )
