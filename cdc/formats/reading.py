"""Reading the `source` of published events, in any format that this daemon has written, without a registry.

An event in Avro has its source after the rows, and only its schema says where the rows end. The source begins with the version,
the connector and the prefix, and after it only the transaction and the times follow. So each place where the connector's name
stands may be in the source, and it is if the rest of the event, read from there, ends exactly where the event does.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from cdc.formats.avro_values import PRESENT, string
from cdc.formats.names import SEQ_NAME
from cdc.formats.proto_events import FIRST_MESSAGE
from cdc.formats.proto_schema import ENVELOPE, FLAT, SOURCE
from cdc.formats.proto_values import FIXED32, FIXED64, VARINT

_CONNECTOR: Final = string("tarantool")
_HEADER_BYTES: Final = 5
_FLAT: Final = re.compile(rb"\x02[crudt](?:\x0afalse|\x08true)")
"""The first two fields of a flat event."""
_VARINT_BITS_MAX: Final = 70


def source_of(value: bytes) -> dict[str, Any] | None:
    """Return the fields `name`, `shard`, `seq`, `schema_version` and `snapshot_id` of an event's source, and possibly others.

    A flat event has only `seq`. None if the value isn't an event.
    """
    if value[:1] == b"\x00" and value[_HEADER_BYTES : _HEADER_BYTES + 1] == b"{":
        value = value[_HEADER_BYTES:]
    elif value[:1] == b"\x00" and value[_HEADER_BYTES : _HEADER_BYTES + 1] == FIRST_MESSAGE:
        return _proto_source(value)
    elif value[:1] == b"\x00":
        return _avro_source(value) or _flat_avro_source(value)
    try:
        event = json.loads(value)
        if event.keys() == {"schema", "payload"}:
            event = event["payload"]
        if SEQ_NAME in event:
            return {"seq": event[SEQ_NAME]}
        source = event["source"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return source if isinstance(source, dict) else None


def _proto_source(value: bytes) -> dict[str, Any] | None:
    """Return the source of an event in Protobuf, whose fields say where they end."""
    try:
        fields = _proto_fields(value[_HEADER_BYTES + 1 :])
        if FLAT[SEQ_NAME] in fields:
            return {"seq": int.from_bytes(fields[FLAT[SEQ_NAME]], "little")}
        found = _proto_fields(fields[ENVELOPE["source"]])
        source: dict[str, Any] = {"name": found[SOURCE["name"]].decode(), "seq": int.from_bytes(found[SOURCE["seq"]], "little")}
        source["schema_version"] = int.from_bytes(found[SOURCE["schema_version"]], "little")
        for name in ("snapshot_id", "shard"):
            if SOURCE[name] in found:
                source[name] = found[SOURCE[name]].decode()
    except (IndexError, ValueError, KeyError):
        return None
    return source


def _proto_fields(data: bytes) -> dict[int, bytes]:
    """Return the fields of a message by their numbers; integers as bytes, the lowest first."""
    found: dict[int, bytes] = {}
    reader = _Reader(data, 0)
    while not reader.is_at_end:
        number, kind = divmod(reader.varint(), 8)
        if kind == VARINT:
            found[number] = reader.varint().to_bytes(10, "little")
        else:
            found[number] = reader.take({FIXED64: 8, FIXED32: 4}.get(kind) or reader.varint())
    return found


def _flat_avro_source(value: bytes) -> dict[str, Any] | None:
    """Return the seq with which a flat event ends: all its bytes but the last have the highest bit, the one before it hasn't."""
    begin = len(value) - 1
    while begin > _HEADER_BYTES and value[begin - 1] & 0x80:
        begin -= 1
    if not _FLAT.match(value, _HEADER_BYTES) or value[begin - 1 : begin] != PRESENT:
        return None
    try:
        return {"seq": _Reader(value, begin).seq()}
    except (IndexError, ValueError):
        return None


def _avro_source(value: bytes) -> dict[str, Any] | None:
    at = len(value)
    while (at := value.rfind(_CONNECTOR, _HEADER_BYTES, at)) >= 0:
        for read, has_shard, has_move in _SOURCES:
            try:
                reader = _Reader(value, at + len(_CONNECTOR))
                return read(reader, reader.whose(has_shard=has_shard), has_move=has_move)
            except (IndexError, ValueError):
                continue
    return None


class _Reader:
    """Reader of an event, from the field `name` of its source on. Methods raise IndexError or ValueError for other bytes."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def whose(self, *, has_shard: bool) -> dict[str, Any]:
        """Return the fields with which the source begins. No name of a shard can be read as a time, nor the other way round."""
        return {name: self._string() for name in (("name", "shard") if has_shard else ("name",))}

    def _move(self) -> None:
        """Read the fields of a move. What they can be tells them from what another event has there."""
        if self._optional_string() not in (None, "in", "gc"):
            raise ValueError("not a move")
        self._optional_long()
        self._optional_long()

    def rest(self, source: dict[str, Any], *, has_move: bool) -> dict[str, Any]:
        """Return the source, given what it begins with."""
        self._long()
        self._optional_long()
        self._optional_long()
        if not self._is_null_last():
            self._string()  # snapshot
        self._string()  # db
        self._optional_string()  # sequence
        self._string()  # table
        self._long()  # space_id
        for _ in range(4):  # replica_id, lsn, tsn, row
            self._optional_long()
        source["seq"], source["schema_version"] = self._long(), self._long()
        self._string()  # server_uuid
        self._optional_string()  # server_version
        if has_move:
            self._move()
        self._map()
        snapshot_id = self._optional_string()
        if snapshot_id is not None:
            source["snapshot_id"] = snapshot_id
        if self._has_value():  # transaction
            self._string()
            self._long()
            self._long()
        for _ in range(3):
            self._optional_long()
        self._end()
        return source

    def lean_rest(self, source: dict[str, Any], *, has_move: bool) -> dict[str, Any]:
        """Do as `rest`, for a lean source."""
        self._long()
        self._string()  # table
        self._optional_long()
        source["seq"], source["schema_version"] = self._long(), self._long()
        self._optional_string()  # server_version
        if has_move:
            self._move()
        snapshot_id = self._optional_string()
        if snapshot_id is not None:
            source["snapshot_id"] = snapshot_id
        self._optional_long()
        self._end()
        return source

    def seq(self) -> int:
        """Return the number with which the event ends."""
        number = self._long()
        self._end()
        return number

    def _end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("the event goes on")

    def _byte(self) -> int:
        found = self._data[self._at]
        self._at += 1
        return found

    @property
    def is_at_end(self) -> bool:
        """Whether everything has been read."""
        return self._at >= len(self._data)

    def varint(self) -> int:
        """Read an integer without a sign."""
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift >= _VARINT_BITS_MAX:
                raise ValueError("a number is too long")

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        if not 0 <= count <= len(self._data) - self._at:
            raise ValueError("it ends before")
        self._at += count
        return self._data[self._at - count : self._at]

    def _long(self) -> int:
        number = self.varint()
        return number >> 1 ^ -(number & 1)

    def _string(self) -> str:
        return self.take(self._long()).decode()

    def _has_value(self) -> bool:
        which = self._byte()
        if which not in (0, 2):
            raise ValueError("not one of two types")
        return which == 2

    def _is_null_last(self) -> bool:
        """Read the index of a union whose first type isn't null; return whether it is null."""
        return self._has_value()

    def _optional_long(self) -> int | None:
        return self._long() if self._has_value() else None

    def _optional_string(self) -> str | None:
        return self._string() if self._has_value() else None

    def _map(self) -> None:
        while (count := self._long()) > 0:
            for _ in range(min(count, len(self._data))):
                self._string()
                self._long()
        if count:
            raise ValueError("not a map as the daemon writes it")


_SOURCES: Final = [
    (read, *fields) for fields in ((False, False), (True, True), (True, False)) for read in (_Reader.rest, _Reader.lean_rest)
]
"""The forms of a source: the function that reads it, whether the name of a shard follows that of the prefix, and whether it says
which events moves of buckets have made."""
