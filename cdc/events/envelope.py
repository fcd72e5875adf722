"""Events as bytes: the Debezium envelope of docs/events.md, split into pieces that are built only when they change.

    {"op":"c","before":null,"after":│{"id":1}│,"source":{"version":…,"name":"shop",│"ts_ms":…,"sequence":"[\\"41\\",\\"│42│
      per operation                   per row   per daemon                            per transaction                  per row
    \\"]","table":"users","space_id":513,"replica_id":│1,"lsn":│42│,"tsn":42,"row":│0│,"seq":│7│,"schema_version":3,
      per form                                         per origin    per transaction               per form
    "server_uuid":"…","vclock":│{"1":42}},"transaction":{"id":"1:42","total_order":│1│,"data_collection_order":│1│},"ts_ms":…}
                                per transaction                                                                per batch

An event of a stream is one `b"".join` of such pieces; building the envelope as a dict and dumping that costs several times as
much. This module builds rare records (snapshot rows, truncations, control records) completely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Protocol

from cdc.events.columns import NO_COLUMN_RULES, ColumnPlan, ColumnRules, plan_of
from cdc.events.json_values import encode
from cdc.events.moves import Move
from cdc.events.refused_requests import arrow_rows, deleted_range
from cdc.events.row_encoder import Encode, RowEncoder
from cdc.events.row_route import RowRoute
from cdc.events.topics import routed_suffix
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key, Type
from cdc.schema.fitting import Fitting
from cdc.schema.forms import SHARED_NAME, SPACE, ChangeKind, SchemaChange, SpaceForm

OPEN_CREATE: Final = b'{"op":"c","before":null,"after":'
OPEN_UPDATE: Final = b'{"op":"u","before":null,"after":'
OPEN_DELETE: Final = b'{"op":"d","before":null,"after":null'
OPEN_PATCH: Final = b'{"op":"u","before":null,"after":null,"patch":'
OPEN_SNAPSHOT: Final = b'{"op":"r","before":null,"after":'
OPEN_TRUNCATE: Final = b'{"op":"t","before":null,"after":null'
OPEN_UPDATE_IMAGE: Final = b'{"op":"u","before":'
OPEN_DELETE_IMAGE: Final = b'{"op":"d","before":'
AFTER: Final = b',"after":'
NO_AFTER: Final = b',"after":null'
UPSERT: Final = b',"upsert":'
SEQ: Final = b',"seq":'
COLLECTION_ORDER: Final = b',"data_collection_order":'

MALFORMED_BODY: Final = (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError)
"""Exceptions raised by reading a row's body that doesn't match the row's type."""

_KEY: Final = Key.KEY
_TUPLE: Final = Key.TUPLE
_OPS: Final = Key.OPS
_INDEX_BASE: Final = Key.INDEX_BASE

_JDBC_TYPES: Final = {
    "unsigned": -5,
    "integer": -5,
    "string": 12,
    "number": 8,
    "double": 8,
    "boolean": 16,
    "varbinary": -3,
    "decimal": 3,
    "datetime": 2014,
}
_JDBC_OTHER: Final = 1111


_VCLOCK: Final = b',"vclock":'


def move_text(move: Move) -> bytes:
    """Return the fields of the source that say which move has made an event."""
    generation = b"" if move.generation is None else b',"generation":%d' % move.generation
    return b',"move":"%b","bucket_id":%d%b' % (move.kind.encode(), move.bucket_id, generation)


def origin_text(prefix: str, shard: str) -> bytes:
    """Return the source's `name`, and `shard` if the daemon is one of a fleet's, up to the comma behind them."""
    return b'"name":%b,' % encode(prefix) + (b'"shard":%b,' % encode(shard) if shard else b"")


def times(microseconds: int) -> bytes:
    """Return Debezium's three fields for a time, given in microseconds since the epoch."""
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (microseconds // 1000, microseconds, microseconds * 1000)


Change = Callable[[Body, bytes], tuple[bytes, bytes, bytes] | None]
"""Function from a row's body and frame to the key, the opening of its event, and the bytes that follow the opening; the result is
None if nothing changed."""


class Openings(NamedTuple):
    """The parts of events around their rows, in one format.

    `create`, `update` and `snapshot` end where the row begins. `update_image` and `delete_image` end where the row before begins,
    which `after` and then the row after follow, or `no_after`. `patch` ends where the operations begin, which `after_patch`
    follows, or `upsert`, a row and `after_upsert`. `delete` and `truncate` have no row.
    """

    create: bytes = OPEN_CREATE
    update: bytes = OPEN_UPDATE
    snapshot: bytes = OPEN_SNAPSHOT
    update_image: bytes = OPEN_UPDATE_IMAGE
    delete_image: bytes = OPEN_DELETE_IMAGE
    after: bytes = AFTER
    no_after: bytes = NO_AFTER
    patch: bytes = OPEN_PATCH
    after_patch: bytes = b""
    upsert: bytes = UPSERT
    after_upsert: bytes = b""
    delete: bytes = OPEN_DELETE
    truncate: bytes = OPEN_TRUNCATE

    def op_of(self, opening: bytes) -> bytes:
        """Return the operation of an event with this opening."""
        if opening == self.create:
            return b"c"
        if opening in (self.delete, self.delete_image):
            return b"d"
        return b"r" if opening == self.snapshot else b"u"


OPENINGS: Final = Openings()
"""Those of the format json."""


@dataclass(frozen=True)
class SpacePieces:
    """What one form determines of a space's keys and events, in the configured formats."""

    key: Encode
    """Encodes a key as in a DELETE or UPDATE: its parts in order."""
    key_of: Encode
    """Encodes the key of a tuple."""
    rows: Mapping[int, Encode]
    """`rows[n]` encodes a tuple of n fields."""
    patch: Callable[[object, int], bytes]
    """Encodes an UPDATE's or UPSERT's operations; the second argument is the request's INDEX_BASE."""
    table: bytes
    """The piece between the lsn in `sequence` and the replica id."""
    schema: bytes
    """The piece between `seq` and the vclock."""
    openings: Openings = OPENINGS
    columns: ColumnPlan | None = None
    """What is published of the rows' columns; None if rows are published as they are."""
    is_compiled: bool = True
    """Whether the compiled row path can make the space's events, if it makes those of the formats."""
    row_of_key: Encode | None = None
    """Encodes a row of which only the key is known, for the `before` of a `d`; None if such a `before` is null."""
    shows_before: bool = True
    """Whether a `u` has the row before."""
    row_plan: RowPlan | None = None
    key_plan: KeyPlan | None = None
    """For the compiled row path, if rows or keys are in Avro."""


RowPlan = tuple[list[tuple[str, bool]], bool]
"""For each column its kind, and whether it is optional; and whether there are rows of which only the key is known."""
KeyPlan = tuple[bytes, list[str]]
"""What precedes each key, and the kinds of its parts."""


class KeyEncoders(NamedTuple):
    """Encoders of keys in another format than the values': as in SpacePieces."""

    key: Encode
    key_of: Encode
    plan: KeyPlan | None = None


KeyPieces = Callable[[SpaceForm, str], KeyEncoders]
"""Function from a form and its topic."""


class SharedPieces(Protocol):
    """Pieces that the events of one transaction share."""

    def event(self, space: SpaceEvents, lsn: int, row_number: int, seq: int, start: bytes, orders: tuple[int, int]) -> bytes:
        """Return an event up to its times. `start` is its operation and images, `orders` its orders in the transaction."""


class Marks(Protocol):
    """What is known of moves of buckets."""

    def shown(self, space: SpaceEvents) -> SpaceEvents:
        """Return the space with the pieces for the event of the row that was handled last."""


class Gate(Protocol):
    """What decides whether rows of a space have to wait (cdc.stream.batches.bucket_gate)."""

    def turn_to(self, fragments: Any, lsn: int, row_number: int, vclock: dict[int, int]) -> None:
        """Note which row is handled next: what its transaction's events share (cdc.stream.fragments), the row's lsn, its number
        in the transaction, and the position after it."""


class SpaceEvents:
    """The pieces of the envelope that one form determines, and its row encoders.

    `changes[type]` builds a row's event. It raises EncodingError, SchemaError, or, if the body doesn't match the row's type, one
    of MALFORMED_BODY. The functions in this class use only the row; cdc.images.image_events replaces them by others.
    """

    def __init__(self, form: SpaceForm, topic: str, pieces: SpacePieces) -> None:
        self.form = form
        self.topic = topic
        self.key, self.key_of, self.rows, self.patch = pieces.key, pieces.key_of, pieces.rows, pieces.patch
        self.table, self.schema, self.openings = pieces.table, pieces.schema, pieces.openings
        self.is_compiled, self.columns = pieces.is_compiled, pieces.columns
        self._row_of_key = pieces.row_of_key
        self.shows_before = pieces.shows_before
        self.row_plan, self.key_plan = pieces.row_plan, pieces.key_plan
        self.changes_by: Literal["row", "image", "source", "nobody"] = "row"
        """Source of `changes`: the row alone, the image, the images in the row, or nothing, if the rows are published in another
        way."""
        self.key_number = form.space_id
        """Number with which the keys of the images begin, if `changes` use images."""
        self.fitting: Fitting | None = None
        """Check of the results of UPSERTs, if `changes` use images and the server ignores results that don't fit."""
        self.marks: Marks | None = None
        """Which event has been made by a bucket's move; None if none of the space's has."""
        self.gate: Gate | None = None
        """What wants to know which row is handled, as rows of this space may have to wait; None if none has."""
        self.route: RowRoute | None = None
        """What rules say of the rows and their messages; None if all are published as they are."""
        self.counts_upserts = False
        """Whether UPSERTs are counted."""
        self.changes: dict[int, Change] = {
            Type.INSERT: self._whole_row(self.openings.create),
            Type.REPLACE: self._whole_row(self.openings.update),
            Type.DELETE: self._delete,
            Type.UPDATE: self._update,
            Type.UPSERT: self._upsert,
            Type.DELETE_RANGE: deleted_range(form),
            Type.INSERT_ARROW: arrow_rows(form),
        }

    def count_upserts(self, count: Callable[[], None]) -> None:
        """Call `count` after each UPSERT that is encoded."""
        self.counts_upserts = True
        upsert = self.changes[Type.UPSERT]

        def counted(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            change = upsert(body, frame)
            count()
            return change

        self.changes[Type.UPSERT] = counted

    def _whole_row(self, opening: bytes) -> Change:
        key_of, rows = self.key_of, self.rows

        def change(body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
            tuple_ = body[_TUPLE]
            return key_of(tuple_), opening, rows[len(tuple_)](tuple_)

        return change

    def _delete(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
        values = body[_KEY]
        key = self.key(values)
        if self._row_of_key is None:
            return key, self.openings.delete, b""
        return key, self.openings.delete_image, self._row_of_key(values) + self.openings.no_after

    def _update(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
        patch = self.patch(body[_TUPLE], body.get(_INDEX_BASE, 0))
        return self.key(body[_KEY]), self.openings.patch, patch + self.openings.after_patch

    def _upsert(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
        tuple_ = body[_TUPLE]
        patch = self.patch(body[_OPS], body.get(_INDEX_BASE, 0))
        openings = self.openings
        content = patch + openings.upsert + self.rows[len(tuple_)](tuple_) + openings.after_upsert
        return self.key_of(tuple_), openings.patch, content


class Envelope:
    """The pieces of the envelope that the daemon determines. Classes for other formats than JSON derive from this one."""

    def __init__(self, version: str, prefix: str, keys: KeyPieces | None = None, shard: str = "") -> None:
        """`keys` is given if keys have another format than values, `shard` if the daemon is one of a fleet's."""
        self._prefix = prefix
        self._keys = keys
        self.columns: ColumnRules = NO_COLUMN_RULES
        """Rules that say which fields of rows are published, and which are masked."""
        # Ends before the time, the first variable field.
        origin = origin_text(prefix, shard)
        self.source = b',"source":{"version":%b,"connector":"tarantool",%b' % (encode(version), origin)

    @property
    def compiled_source(self) -> tuple[bytes, bool]:
        """The beginning of each event's source for the compiled row path, and whether it is Avro."""
        return self.source, False

    def pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:
        """Return the pieces of one form.

        `server_version` is given for a space without images: its events contain the version, because versions differ in how they
        apply the operations in a patch. Raises ConfigurationError if the format has no name for a part of the form, or if the
        rules for columns don't fit the form.
        """
        shown = self.columns.shown(form)
        found = self._value_pieces(shown, topic, server_uuid, server_version)
        if shown is not form:
            found = replace(found, is_compiled=found.row_plan is None, columns=plan_of(shown))
        if self._keys is None:
            return found if not form.routing.shared_as else _with_name(found, form.routing.shared_as)
        keys = self._keys(form, topic)
        return replace(found, key=keys.key, key_of=keys.key_of, key_plan=keys.plan)

    def _value_pieces(self, form: SpaceForm, topic: str, server_uuid: str, server_version: str | None) -> SpacePieces:  # noqa: ARG002
        encoder = RowEncoder(form)
        table, schema = self._text_pieces(form, server_uuid, server_version)
        return SpacePieces(encoder.key, encoder.key_of, encoder.rows, encoder.patch, table, schema)

    def shared(
        self,
        timestamp: float,  # noqa: ARG002
        previous_lsn: bytes,  # noqa: ARG002
        place: tuple[int, int],  # noqa: ARG002
        vclock: Mapping[int, int],  # noqa: ARG002
    ) -> SharedPieces | None:
        """Return the pieces that the events of a transaction share in a format that isn't text; None if it is text.

        `place` is the transaction's origin and the lsn of its first row; `vclock` is the position after it.
        """
        return None

    @staticmethod
    def _text_pieces(form: SpaceForm, server_uuid: str, server_version: str | None) -> tuple[bytes, bytes]:
        """Return a form's pieces `table` and `schema` as JSON."""
        table = b'\\"]","table":%b,"space_id":%d,"replica_id":' % (encode(form.name), form.space_id)
        server = b',"schema_version":%d,"server_uuid":"%b"' % (form.schema_version, server_uuid.encode())
        if server_version is not None:
            server += b',"server_version":"%b"' % server_version.encode()
        return table, server + _VCLOCK

    def with_move(self, schema: bytes, move: Move) -> bytes:
        """Return a form's piece `schema` with what it says of a move."""
        return schema.removesuffix(_VCLOCK) + move_text(move) + _VCLOCK

    @staticmethod
    def number(value: int) -> bytes:
        """Return a number that stands between two pieces."""
        return b"%d" % value

    @staticmethod
    def vclock(components: VClock) -> bytes:
        """Return a vclock that stands between two pieces."""
        return encode(components.to_json())

    @staticmethod
    def stream_time(timestamp: float, previous_lsn: bytes) -> bytes:
        """Return the piece from the master's time of a transaction to the opening quote of its lsn in `sequence`."""
        return b'%b,"snapshot":"false","db":"","sequence":"[\\"%b\\",\\"' % (times(round(timestamp * 1e6)), previous_lsn)

    def batch_time(self, now_us: int) -> bytes:
        """Return the piece with the event's own time and closing brace; it is the same for an entire batch."""
        return b"}," + times(now_us) + b"}"

    def snapshot_pieces(self, space: SpaceEvents, snapshot_id: int, vclock: bytes, now_us: int) -> tuple[bytes, bytes]:
        """Return the piece between a snapshot row and its `seq`, and the piece after the `seq`."""
        return (
            self.source + times(now_us) + b',"snapshot":"true","db":"","sequence":null,"table":%b,"space_id":%d,'
            b'"replica_id":null,"lsn":null,"tsn":null,"row":null,"seq":' % (encode(space.form.name), space.form.space_id),
            space.schema + vclock + b',"snapshot_id":"%d"},"transaction":null,' % snapshot_id + times(now_us) + b"}",
        )

    def schema_record(
        self, change: SchemaChange, position: Position, now_us: int, origin: tuple[int, int, int] | None
    ) -> tuple[bytes, bytes]:
        """Return key and value for the schema topic. `origin` is (replica id, lsn, tsn) of the row, None in a snapshot."""
        form = change.form
        table_of = self.columns.shown
        replica_id, lsn, tsn = origin if origin is not None else (None, None, None)
        source = {
            **_times(now_us),
            "snapshot": "false" if origin is not None else "true",
            "db": "",
            "sequence": None,
            "table": form.name,
            "space_id": form.space_id,
            "replica_id": replica_id,
            "lsn": lsn,
            "tsn": tsn,
            "row": None,
            "seq": position.seq,
            "schema_version": form.schema_version,
            "server_uuid": str(position.server_uuid),
            "vclock": position.vclock.to_json(),
        }
        table: dict[str, Any] = {"type": change.kind.value, "id": f'"{form.name}"'}
        if change.previous_name is not None:
            table["previousId"] = f'"{change.previous_name}"'
        if form.routing.topic != SPACE:
            table["topic"] = routed_suffix(form.name, form.routing)
        table["table"] = None if change.kind is ChangeKind.DROP else _table(table_of(form))
        value = (
            b"{"
            + self.source[1:]
            + encode(source)[1:]
            + b","
            + encode({"ts_ms": now_us // 1000, "databaseName": "", "schemaName": None, "ddl": None, "tableChanges": [table]})[1:]
        )
        # The key of a DROP must differ, so that it doesn't replace the record of the form that old events refer to.
        key: dict[str, Any] = {"space_id": form.space_id, "schema_version": form.schema_version}
        if change.kind is ChangeKind.DROP:
            key["dropped"] = True
        return encode(key), value


def _with_name(found: SpacePieces, name: str) -> SpacePieces:
    """Return a form's pieces with the space's name in front of each key, in JSON."""
    key, key_of, beginning = found.key, found.key_of, b"{%b," % shared_name(name)
    return replace(
        found,
        key=lambda values: beginning + key(values)[1:],
        key_of=lambda tuple_: beginning + key_of(tuple_)[1:],
    )


def shared_name(name: str) -> bytes:
    """Return the field that says in a key in JSON whose it is, without the braces."""
    return b"%b:%b" % (encode(SHARED_NAME), encode(name))


def _times(now_us: int) -> dict[str, int]:
    return {"ts_ms": now_us // 1000, "ts_us": now_us, "ts_ns": now_us * 1000}


def _table(form: SpaceForm) -> dict[str, Any]:
    as_written = [name for name, part in form.primary_key if part.is_as_written]
    collated = [name for name, part in form.primary_key if part.is_collated]
    return {
        "defaultCharsetName": None,
        "primaryKeyColumnNames": [form.part_name(index) for index in range(len(form.key_parts))],
        "columns": [
            {
                "name": item.name,
                "jdbcType": _JDBC_TYPES.get(item.type, _JDBC_OTHER),
                "nativeType": None,
                "typeName": item.type,
                "typeExpression": item.type,
                "charsetName": None,
                "length": None,
                "scale": item.scale,
                "position": place,
                "optional": item.is_nullable,
                "autoIncremented": False,
                "generated": False,
                "comment": None,
                "defaultValueExpression": None,
                "enumValues": None,
            }
            for place, item in enumerate(form.fields, 1)
        ],
        "comment": None,
        **({"primaryKeyColumnsAsWritten": as_written} if as_written else {}),
        **({"primaryKeyColumnsCollated": collated} if collated else {}),
    }


def transaction_records(transaction_id: str, counts: Sequence[tuple[str, int]], timestamp: float) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a transaction's BEGIN and END; `counts` are the numbers of events by space."""
    key = encode({"id": transaction_id})
    ts_ms = round(timestamp * 1000)
    begin = {"status": "BEGIN", "id": transaction_id, "event_count": None, "data_collections": None, "ts_ms": ts_ms}
    end = {
        "status": "END",
        "id": transaction_id,
        "event_count": sum(count for _, count in counts),
        "data_collections": [{"data_collection": name, "event_count": count} for name, count in counts],
        "ts_ms": ts_ms,
    }
    return [(key, encode(begin)), (key, encode(end))]


class SpaceCount(NamedTuple):
    """One space in a snapshot record: its number of rows, and the seq after which the last event of each row must come.

    Other rows are gone (cdc.stream.snapshots.snapshot).
    """

    space: str
    space_id: int
    rows: int
    sweep_seq: int


def snapshot_record(
    status: str, position: Position, now_us: int, counts: Sequence[SpaceCount] | None = None, *, number: int = 0
) -> tuple[bytes, bytes]:
    """Return key and value for the snapshot topic.

    `counts` is None until the counts are known. `number` is the snapshot's number, by default that of the position's snapshot.
    """
    assert position.snapshot is not None
    snapshot_id = str(number or position.snapshot.snapshot_id)
    value: dict[str, Any] = {
        "snapshot_id": snapshot_id,
        "status": status,
        "vclock": position.vclock.to_json(),
        "seq": position.seq,
    }
    if counts is not None:
        value["spaces"] = [count._asdict() for count in counts]
    value["ts_ms"] = now_us // 1000
    return encode({"snapshot_id": snapshot_id}), encode(value)
