"""Keys and events in Protobuf, in Confluent's wire form: after the schema's id comes the index of the message, a zero byte.

0 id 0 │ op: "c" │ after: │length row│ source: length, version … │ transaction │ ts_ms …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.events.columns import shown_rows
from cdc.events.envelope import Envelope, KeyEncoders, KeyPieces, Openings, SharedPieces, SpaceEvents, SpacePieces
from cdc.events.moves import Move
from cdc.events.row_encoder import RowEncoder
from cdc.formats import rows, schemas
from cdc.formats.names import check_fields, check_key
from cdc.formats.options import FormatOptions
from cdc.formats.proto_schema import BLOCK, ENVELOPE, SOURCE
from cdc.formats.proto_values import BYTES, FIXED64, VARINT, fixed64, long_by_text, prefixed, tag, text, varint, writer
from cdc.formats.schemas import Column
from cdc.formats.wire import header
from cdc.positions.vclock import VClock
from cdc.schema.forms import SpaceForm

FIRST_MESSAGE: Final = b"\x00"
SEQ_BYTES: Final = 8
_OF_ENVELOPE: Final = {name: tag(number, VARINT if name.startswith("ts_") else BYTES) for name, number in ENVELOPE.items()}
_SERVER: Final = ("server_uuid", "server_version")
_TEXTS: Final = frozenset(
    ("version", "connector", "name", "shard", "snapshot", "db", "sequence", "table", *_SERVER, "snapshot_id", "move"),
)
_OF_SOURCE: Final = {
    name: tag(number, FIXED64 if name == "seq" else BYTES if name in _TEXTS else VARINT) for name, number in SOURCE.items()
}


def source_field(name: str, value: str | int) -> bytes:
    """Return a field of the source."""
    return _OF_SOURCE[name] + (text(value) if isinstance(value, str) else varint(value))


def shard_field(options: FormatOptions) -> bytes:
    """Return the source's field `shard`, which only a fleet's events have."""
    return source_field("shard", options.shard) if options.shard else b""


def assemble(columns: Sequence[Column]) -> rows.Assemble:
    """Return a function from converted values to a message."""
    writers = [writer(number, column.type) for number, column in enumerate(columns, 1)]

    def in_message(values: Sequence[Any]) -> bytes:
        pairs = zip(writers, values, strict=True)
        return b"".join([before + write(value) for (before, write), value in pairs if value is not None])

    return in_message


def key_pieces(prefix: str, options: FormatOptions) -> KeyPieces:
    """Return the function that makes the encoders of a form's keys."""

    def of_form(form: SpaceForm, topic: str) -> KeyEncoders:
        check_key(form)
        columns = schemas.key_columns(form, options)
        struct, in_message = schemas.key_struct(f"{prefix}.{form.name}", columns), assemble(columns)
        before = header(options, topic, "key", struct, "PROTOBUF") + FIRST_MESSAGE
        return rows.key_encoders(form, columns, lambda values: before + in_message(values))

    return of_form


class ProtoEnvelope(Envelope):
    """Events in Protobuf."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None, options: FormatOptions) -> None:
        super().__init__(version, prefix, keys, options.shard)
        self._options = options
        name = source_field("name", prefix) + shard_field(options)
        self._proto_source = source_field("version", version) + source_field("connector", "tarantool") + name

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:
        check_fields(form)
        has_images = server_version is None
        name = f"{self._prefix}.{form.name}"
        columns = schemas.columns(form, self._options, has_images=has_images)
        value = schemas.value_struct(name, columns)
        envelope = schemas.envelope(name, value, self._options, has_images=has_images)
        before = header(self._options, topic, "value", envelope, "PROTOBUF") + FIRST_MESSAGE
        in_message = assemble(columns)
        json = RowEncoder(form)
        version = b"" if server_version is None else source_field("server_version", server_version)
        table, schema = self._source_pieces(form, server_uuid, version)

        def nested(values: Sequence[Any]) -> bytes:
            return prefixed(in_message(values))

        return SpacePieces(
            key=json.key,
            key_of=json.key_of,
            rows=shown_rows(form, rows.ColumnRows(form, columns, nested)),
            patch=lambda operations, base: prefixed(json.patch(operations, base)),
            table=table,
            schema=schema,
            openings=_openings(before),
            row_of_key=None if has_images else rows.row_of_key(form, columns, nested),
        )

    @staticmethod
    def _source_pieces(form: SpaceForm, server_uuid: str, version: bytes) -> tuple[bytes, bytes]:
        """Return a form's pieces `table` and `schema`; `version` is the field `server_version`."""
        table = source_field("table", form.name) + source_field("space_id", form.space_id)
        return table, source_field("schema_version", form.schema_version) + source_field("server_uuid", server_uuid) + version

    def with_move(self, schema: bytes, move: Move) -> bytes:
        """Do as Envelope.with_move."""
        generation = b"" if move.generation is None else source_field("generation", move.generation)
        return schema + source_field("move", move.kind) + source_field("bucket_id", move.bucket_id) + generation

    def shared(self, timestamp: float, previous_lsn: bytes, place: tuple[int, int], vclock: Mapping[int, int]) -> SharedPieces:
        """Return the pieces that the events of a transaction share."""
        return _Shared(self._proto_source, timestamp, previous_lsn, place, vclock)

    def batch_time(self, now_us: int) -> bytes:
        """Return the event's own times; they are the same for an entire batch."""
        times = zip(("ts_ms", "ts_us", "ts_ns"), (now_us // 1000, now_us, now_us * 1000), strict=True)
        return b"".join(_OF_ENVELOPE[name] + varint(time) for name, time in times)

    @staticmethod
    def number(value: int) -> bytes:
        """Return a number that stands between two pieces."""
        return fixed64(value)

    @staticmethod
    def vclock(components: VClock) -> bytes:
        """Return a vclock that stands between two pieces."""
        return _vclock(components)

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:
        """Return the piece between a snapshot row and its `seq`, and the piece after the `seq`."""
        before = b"".join(
            (
                self._proto_source,
                _source_times(now_us),
                source_field("snapshot", "true"),
                source_field("db", ""),
                space.table,
            )
        )
        after = b"".join((space.schema, vclock, source_field("snapshot_id", str(snapshot_id))))
        return source_until_seq(before, after), after + self.batch_time(now_us)


def source_until_seq(before: bytes, after: bytes) -> bytes:
    """Return the field `source` up to its `seq`, given the fields before and after it."""
    before += _OF_SOURCE["seq"]
    return _OF_ENVELOPE["source"] + varint(len(before) + SEQ_BYTES + len(after)) + before


def lean_time(now_us: int) -> bytes:
    """Return the event's own time in a lean event."""
    return _OF_ENVELOPE["ts_ms"] + varint(now_us // 1000)


def _vclock(components: Mapping[int, int]) -> bytes:
    return long_by_text(SOURCE["vclock"], {str(origin): components[origin] for origin in sorted(components)})


def _source_times(now_us: int) -> bytes:
    times = zip(("ts_ms", "ts_us", "ts_ns"), (now_us // 1000, now_us, now_us * 1000), strict=True)
    return b"".join(source_field(name, time) for name, time in times)


def _openings(before: bytes) -> Openings:
    """Return the openings of a form's events; `before` ends before the event's first field."""

    def opening(op: str) -> bytes:
        return before + _OF_ENVELOPE["op"] + text(op)

    after = _OF_ENVELOPE["after"]
    return Openings(
        create=opening("c") + after,
        update=opening("u") + after,
        snapshot=opening("r") + after,
        update_image=opening("u") + _OF_ENVELOPE["before"],
        delete_image=opening("d") + _OF_ENVELOPE["before"],
        after=after,
        no_after=b"",
        patch=opening("u") + _OF_ENVELOPE["patch"],
        upsert=_OF_ENVELOPE["upsert"],
        delete=opening("d"),
        truncate=opening("t"),
    )


class _Shared:
    """Pieces that all events of one transaction share."""

    def __init__(
        self, source: bytes, timestamp: float, previous_lsn: bytes, place: tuple[int, int], vclock: Mapping[int, int]
    ) -> None:
        origin, tsn = place
        times = _source_times(round(timestamp * 1e6))
        self._time = source + times + source_field("snapshot", "false") + source_field("db", "") + _OF_SOURCE["sequence"]
        self._sequence = b'["%b","' % previous_lsn
        self._origin = source_field("replica_id", origin) + _OF_SOURCE["lsn"]
        self._tsn = source_field("tsn", tsn) + _OF_SOURCE["row"]
        self._vclock = _vclock(vclock)
        self._id = tag(BLOCK["id"], BYTES) + text(f"{origin}:{tsn}") + tag(BLOCK["total_order"], VARINT)
        self._order = tag(BLOCK["data_collection_order"], VARINT)

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:
        """Return an event up to its times. `start` is its operation and images, `orders` its orders in the transaction."""
        source = b"".join(
            (
                self._time,
                prefixed(b'%b%d"]' % (self._sequence, lsn)),
                space.table,
                self._origin,
                varint(lsn),
                self._tsn,
                varint(row_number),
                _OF_SOURCE["seq"],
                fixed64(seq),
                space.schema,
                self._vclock,
            )
        )
        block = b"".join((self._id, varint(orders[0]), self._order, varint(orders[1])))
        return b"".join((start, _OF_ENVELOPE["source"], prefixed(source), _OF_ENVELOPE["transaction"], prefixed(block)))
