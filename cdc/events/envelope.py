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

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from cdc.events.json_values import encode
from cdc.events.row_encoder import RowEncoder
from cdc.positions.position import Position
from cdc.protocol.codec import Body
from cdc.protocol.constants import Key, Type
from cdc.schema.fitting import Fitting
from cdc.schema.forms import ChangeKind, SchemaChange, SpaceForm

OPEN_CREATE: Final = b'{"op":"c","before":null,"after":'
OPEN_UPDATE: Final = b'{"op":"u","before":null,"after":'
OPEN_DELETE: Final = b'{"op":"d","before":null,"after":null'
OPEN_PATCH: Final = b'{"op":"u","before":null,"after":null,"patch":'
OPEN_SNAPSHOT: Final = b'{"op":"r","before":null,"after":'
OPEN_TRUNCATE: Final = b'{"op":"t","before":null,"after":null'
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


def times(microseconds: int) -> bytes:
    """Return Debezium's three fields for a time, given in microseconds since the epoch."""
    return b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d' % (microseconds // 1000, microseconds, microseconds * 1000)


Change = Callable[[Body, bytes], tuple[bytes, bytes, bytes] | None]
"""Function from a row's body and frame to the key, the opening of its event, and the bytes that follow the opening; the result is
None if nothing changed."""


class SpaceEvents(RowEncoder):
    """The pieces of the envelope that one form determines, and its row encoders.

    `changes[type]` builds a row's event. It raises EncodingError, SchemaError, or, if the body doesn't match the row's type, one
    of MALFORMED_BODY. The functions in this class use only the row; cdc.images.image_events replaces them by others.
    """

    def __init__(self, form: SpaceForm, topic: str, server_uuid: str) -> None:
        super().__init__(form)
        self.topic = topic
        self.changes_by: Literal["row", "image", "nobody"] = "row"
        """Source of `changes`: the row alone, the image, or nothing, if the rows are published in another way."""
        self.key_number = form.space_id
        """Number with which the keys of the images begin, if `changes` use images."""
        self.fitting: Fitting | None = None
        """Check of the results of UPSERTs, if `changes` use images and the server ignores results that don't fit."""
        self.counts_upserts = False
        """Whether UPSERTs are counted."""
        self.changes: dict[int, Change] = {
            Type.INSERT: self._whole_row(OPEN_CREATE),
            Type.REPLACE: self._whole_row(OPEN_UPDATE),
            Type.DELETE: lambda body, _: (self.key(body[_KEY]), OPEN_DELETE, b""),
            Type.UPDATE: self._update,
            Type.UPSERT: self._upsert,
        }
        self.table = b'\\"]","table":%b,"space_id":%d,"replica_id":' % (encode(form.name), form.space_id)
        self._server = b',"schema_version":%d,"server_uuid":"%b"' % (form.schema_version, server_uuid.encode())
        self.schema = self._server + b',"vclock":'

    def count_upserts(self, count: Callable[[], None]) -> None:
        """Call `count` after each UPSERT that is encoded."""
        self.counts_upserts = True
        upsert = self.changes[Type.UPSERT]

        def counted(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            change = upsert(body, frame)
            count()
            return change

        self.changes[Type.UPSERT] = counted

    def add_server_version(self, server_version: str) -> None:
        """Add the server's version to each event, because versions differ in how they apply the operations in a patch."""
        self.schema = b'%b,"server_version":"%b","vclock":' % (self._server, server_version.encode())

    def _whole_row(self, opening: bytes) -> Change:
        key_of, rows = self.key_of, self.rows

        def change(body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
            tuple_ = body[_TUPLE]
            return key_of(tuple_), opening, rows[len(tuple_)](tuple_)

        return change

    def _update(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
        return self.key(body[_KEY]), OPEN_PATCH, self.patch(body[_TUPLE], body.get(_INDEX_BASE, 0))

    def _upsert(self, body: Body, _: bytes) -> tuple[bytes, bytes, bytes]:
        tuple_ = body[_TUPLE]
        patch = self.patch(body[_OPS], body.get(_INDEX_BASE, 0))
        return self.key_of(tuple_), OPEN_PATCH, patch + UPSERT + self.rows[len(tuple_)](tuple_)


class Envelope:
    """The pieces of the envelope that the daemon determines."""

    def __init__(self, version: str, prefix: str) -> None:
        self._prefix = prefix
        # Ends before the time, the first variable field.
        self.source = b',"source":{"version":%b,"connector":"tarantool","name":%b,' % (encode(version), encode(prefix))

    @staticmethod
    def stream_time(timestamp: float, previous_lsn: bytes) -> bytes:
        """Return the piece from the master's time of a transaction to the opening quote of its lsn in `sequence`."""
        return b'%b,"snapshot":"false","db":"","sequence":"[\\"%b\\",\\"' % (times(round(timestamp * 1e6)), previous_lsn)

    @staticmethod
    def batch_time(now_us: int) -> bytes:
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
        table["table"] = None if change.kind is ChangeKind.DROP else _table(form)
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
                "scale": None,
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

    Other rows are gone (cdc.stream.snapshot).
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
