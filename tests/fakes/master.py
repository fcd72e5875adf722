"""A master of the replication protocol, without a socket: a small database with a log, and the server's side of a connection.

`Master` keeps spaces and writes the log as Tarantool does: DDL is rows of system spaces, a transaction of several rows
carries TSN and ends with COMMIT. `MasterConnection` answers a replica as 2.6, 2.11 and 3.3 do, dialects included, and
checks what the replica says: a request out of turn, a wrong scramble or an ACK that no replica may send is an error.

It shares no decoder with the program, only the numbers of the wire.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import msgpack

from cdc.protocol.constants import Flag, Key, Type
from tests.fakes import wire

VERSIONS: Final[dict[str, tuple[int, int, int]]] = {"2.6": (2, 6, 0), "2.11": (2, 11, 5), "3.3": (3, 3, 0)}
SERVER: Final = UUID("aaaaaaaa-0000-4000-8000-000000000001")
REPLICASET: Final = UUID("bbbbbbbb-0000-4000-8000-000000000001")
SALT: Final = bytes(range(32))
EPOCH: Final = 1_700_000_000.0

SCHEMA, SPACE, SEQUENCE, INDEX, CLUSTER, TRUNCATE = 272, 280, 284, 288, 320, 330
_SYSTEM: Final = {
    SCHEMA: "_schema",
    SPACE: "_space",
    SEQUENCE: "_sequence",
    INDEX: "_index",
    CLUSTER: "_cluster",
    TRUNCATE: "_truncate",
}
_SYSTEM_FORMATS: Final = {
    SCHEMA: ("key", "value"),
    SPACE: ("id", "owner", "name", "engine", "field_count", "flags", "format"),
    SEQUENCE: ("id", "owner", "name", "step", "min", "max", "start", "cache", "cycle"),
    INDEX: ("id", "iid", "name", "type", "opts", "parts"),
    CLUSTER: ("id", "uuid"),
    TRUNCATE: ("id", "count"),
}

Row = list[Any]

_USERS_MIN: Final = 512


@dataclass(slots=True)
class LogRow:
    """One row of the log."""

    origin: int
    lsn: int
    kind: int
    body: dict[int, Any]
    timestamp: float
    tsn: int | None = None
    flags: int | None = None

    def packet(self, sync: int) -> bytes:
        """As a relay sends it."""
        header: dict[int, Any] = {
            Key.REQUEST_TYPE: self.kind,
            Key.SYNC: sync,
            Key.REPLICA_ID: self.origin,
            Key.LSN: self.lsn,
            Key.TIMESTAMP: self.timestamp,
        }
        if self.tsn is not None:
            header[Key.TSN] = self.lsn - self.tsn
        if self.flags is not None:
            header[Key.FLAGS] = self.flags
        return wire.frame(header, self.body)


@dataclass(slots=True)
class _Space:
    rows: dict[bytes, Row] = field(default_factory=dict)


class Master:
    """The database and its log. One instance serves any number of connections."""

    def __init__(
        self, version: str = "2.11", *, user: str = "cdc", password: str = "secret", replicaset_uuid: UUID = REPLICASET
    ) -> None:
        self.version = VERSIONS[version]
        self.user, self.password = user, password
        self.uuid, self.replicaset_uuid = SERVER, replicaset_uuid
        self.origin = 1
        """Whose changes the next ones are: its own, or those of another member that it relays."""
        self.id = 1
        self.term = 1
        self.is_loading = self.is_read_only = False
        self.writes_images = False
        """Whether its log has the rows before and after, as Tarantool Enterprise's may."""
        self.may_write_cluster = True
        """Whether the user may."""
        self.during_join: Callable[[], None] | None = None
        """What happens to the contents while somebody joins, after they have been sent."""
        self.after_register: Callable[[], None] | None = None
        """What happens when somebody has been registered, before he subscribes."""
        self.consumers: dict[UUID, dict[int, int]] = {}
        """Of each registered replica, and from 3.3 on of each anonymous one: from where on it needs the log."""
        self.streaming: set[UUID] = set()
        """Who streams over a connection that isn't played here."""
        self.log: list[LogRow] = []
        self.gc_vclock: dict[int, int] = {}
        self.damaged_before = 0
        """Its own lsn up to which the log files can't be read, from whatever position in them."""
        self._spaces: dict[int, _Space] = {number: _Space() for number in _SYSTEM}
        self._lsns: dict[int, int] = {}
        self._open: list[LogRow] | None = None
        self._clock = EPOCH
        self._bootstrap()

    @property
    def vclock(self) -> dict[int, int]:
        """How far the log is."""
        return dict(self._lsns)

    # Changes.

    def insert(self, space: int | str, *row: Any) -> None:
        """INSERT."""
        self._store(Type.INSERT, space, list(row))

    def replace(self, space: int | str, *row: Any) -> None:
        """REPLACE."""
        self._store(Type.REPLACE, space, list(row))

    def delete(self, space: int | str, *key: Any) -> None:
        """DELETE by primary key; of a key that isn't there too, as Tarantool logs it."""
        space_id = self.id_of(space)
        old = self._spaces[space_id].rows.pop(wire.pack(list(key)), None)
        self._write(Type.DELETE, {Key.SPACE_ID: space_id, Key.KEY: list(key)} | self._images(space_id, old, None))

    def delete_range(self, space: int | str, begin: Sequence[Any] = (), end: Sequence[Any] = ()) -> None:
        """DELETE_RANGE by primary key, as servers from 3.9 on log it; its keys must compare as Python's values do."""
        space_id = self.id_of(space)
        rows = self._spaces[space_id].rows
        places = self._places(space_id)
        for packed, row in list(rows.items()):
            key = [row[place] for place in places]
            if key[: len(begin)] >= list(begin) and (not end or key[: len(end)] < list(end)):
                del rows[packed]
        self._write(Type.DELETE_RANGE, {Key.SPACE_ID: space_id, Key.BEGIN_KEY: list(begin), Key.END_KEY: list(end)})

    def update(self, space: int | str, key: Sequence[Any], *operations: Row, base: int = 1) -> None:
        """UPDATE with these operations; nothing is logged if the key isn't there, or a number overflows."""
        space_id = self.id_of(space)
        rows = self._spaces[space_id].rows
        old = rows.get(wire.pack(list(key)))
        if old is None:
            return
        try:
            new = self._operated(space_id, old, operations, base)
        except OverflowError:
            return
        del rows[wire.pack(list(key))]
        rows[self._key(space_id, new)] = new
        body: dict[int, Any] = {Key.SPACE_ID: space_id, Key.KEY: list(key), Key.TUPLE: list(operations)}
        self._write(Type.UPDATE, body | ({Key.INDEX_BASE: base} if base else {}) | self._images(space_id, old, new))

    def upsert(self, space: int | str, row: Row, *operations: Row, base: int = 1) -> None:
        """UPSERT."""
        space_id = self.id_of(space)
        rows, key = self._spaces[space_id].rows, self._key(space_id, row)
        old = rows.get(key)
        try:
            rows[key] = self._operated(space_id, rows[key], operations, base) if key in rows else row
        except OverflowError:
            return  # a server would skip the one operation alone
        body: dict[int, Any] = {Key.SPACE_ID: space_id, Key.TUPLE: row, Key.OPS: list(operations)}
        self._write(Type.UPSERT, body | ({Key.INDEX_BASE: base} if base else {}) | self._images(space_id, old, rows[key]))

    def nop(self) -> None:
        """A change that a trigger turned down, or the last row of a transaction that ended in a local space."""
        self._write(Type.NOP, {})

    def synchro(self, kind: int, owner: int, lsn: int, **more: Any) -> None:
        """CONFIRM, ROLLBACK, PROMOTE or DEMOTE."""
        body: dict[int, Any] = {Key.REPLICA_ID: owner, Key.LSN: lsn}
        if "term" in more:
            body[Key.TERM] = more["term"]
        self._write(kind, body)

    def begin(self) -> None:
        """A transaction begins."""
        assert self._open is None, "a transaction is open"
        self._open = []

    def commit(self, *, is_sync: bool = False, waits: bool = False) -> None:
        """It ends; `is_sync` and `waits` set the flags that masters from 2.8 on set.

        If it has become one of NOPs alone, it waits for nothing, and masters from 3.0 on leave WAIT_ACK on it.
        """
        rows, self._open = self._open, None
        assert rows, "an empty transaction is never logged"
        flags = Flag.COMMIT
        if is_sync and all(row.kind == Type.NOP for row in rows):
            flags |= Flag.WAIT_ACK if self.version >= (3, 0, 0) else 0
        elif self.version >= (2, 8, 1):
            flags |= (Flag.WAIT_SYNC | Flag.WAIT_ACK) if is_sync else Flag.WAIT_SYNC if waits else 0
        if len(rows) > 1:
            for row in rows:
                row.tsn = rows[0].lsn
            rows[-1].flags = flags
        elif flags != Flag.COMMIT:
            rows[-1].flags = flags & ~Flag.COMMIT
        self.log += rows

    def commit_unseen(self) -> None:
        """It ends, before 2.8.4, by emptying a temporary space: the row that does has the flags, and isn't relayed."""
        rows, self._open = self._open, None
        assert rows, "an empty transaction is never logged"
        for row in rows:
            row.tsn = rows[0].lsn
        self.log += rows

    # Data definition.

    def create_space(
        self,
        name: str,
        fields: Sequence[Any] = (),
        parts: Sequence[Any] | None = ((0, "unsigned"),),
        *,
        space_id: int | None = None,
        flags: Mapping[str, Any] | None = None,
        engine: str = "memtx",
        index: str = "tree",
    ) -> int:
        """CREATE, and its primary key unless `parts` is None: two transactions, as in Lua."""
        number = space_id if space_id is not None else max(512, *(self._space_row(n)[0] + 1 for n in self._space_ids()))
        self._spaces[number] = _Space()
        self.insert(SPACE, number, 1, name, engine, 0, dict(flags or {}), list(fields))
        if parts is not None:
            self.create_index(number, parts, index=index)
        return number

    def create_index(
        self, space: int | str, parts: Sequence[Any], *, index_id: int = 0, name: str = "pk", index: str = "tree"
    ) -> None:
        """An index; number 0 is the primary key."""
        shaped = [list(part) if isinstance(part, tuple) else part for part in parts]
        self.insert(INDEX, self.id_of(space), index_id, name, index, {"unique": True}, shaped)

    def drop_index(self, space: int | str, index_id: int) -> None:
        """With the primary one the rows go too."""
        space_id = self.id_of(space)
        self.delete(INDEX, space_id, index_id)
        if index_id == 0:
            self._spaces[space_id].rows.clear()

    def format(self, space: int | str, fields: Sequence[Any]) -> None:
        """Another format."""
        self.update(SPACE, [self.id_of(space)], ["=", 7, list(fields)])

    def rename(self, space: int | str, name: str) -> None:
        """Another name."""
        self.update(SPACE, [self.id_of(space)], ["=", 3, name])

    def alter_key(self, space: int | str, parts: Sequence[Any]) -> None:
        """Another primary key over the same rows."""
        space_id = self.id_of(space)
        rows = list(self._spaces[space_id].rows.values())
        self.update(INDEX, [space_id, 0], ["=", 6, [list(part) if isinstance(part, tuple) else part for part in parts]])
        self._spaces[space_id].rows = {self._key(space_id, row): row for row in rows}

    def alter_index(self, space: int | str, index: str) -> None:
        """The primary key's index of another type, over the same rows."""
        self.update(INDEX, [self.id_of(space), 0], ["=", 4, index])

    def truncate(self, space: int | str) -> None:
        """All rows go."""
        space_id = self.id_of(space)
        self._spaces[space_id].rows.clear()
        self.upsert(TRUNCATE, [space_id, 1], ["+", 2, 1])

    def drop(self, space: int | str) -> None:
        """The space goes: its truncation counter, its indexes, itself; three or more transactions unless one is open."""
        space_id = self.id_of(space)
        self.delete(TRUNCATE, space_id)
        indexes = [row[1] for row in self._spaces[INDEX].rows.values() if row[0] == space_id]
        for index_id in sorted(indexes, reverse=True):
            self.drop_index(space_id, index_id)
        self.delete(SPACE, space_id)
        del self._spaces[space_id]

    def create_sequence(self, number: int, name: str) -> None:
        """A row of a system space that nobody asked for."""
        self.insert(SEQUENCE, number, 1, name, 1, 1, 2**63 - 1, 1, 0, False)

    # Members.

    def members(self) -> dict[UUID, int]:
        """Instances with an id."""
        return {UUID(uuid): number for number, uuid in self._spaces[CLUSTER].rows.values()}

    def enroll(self, uuid: UUID) -> int:
        """Give an instance the smallest free id, unless it has one."""
        members = self.members()
        if uuid not in members:
            members[uuid] = next(number for number in range(1, 32) if number not in members.values())
            self.insert(CLUSTER, members[uuid], str(uuid))
        return members[uuid]

    def collect_garbage(self) -> None:
        """Remove the log that no registered replica needs."""
        needed = [*self.consumers.values(), self.vclock]
        self.gc_vclock = {origin: min(vclock.get(origin, 0) for vclock in needed) for origin in self.vclock}

    # What it holds.

    def id_of(self, space: int | str) -> int:
        """A space's number by its name, or itself."""
        if isinstance(space, int):
            return space
        return next(number for number in self._space_ids() if self._space_row(number)[2] == space)

    def contents(self, space: int | str) -> list[Row]:
        """A space's rows in the order of their keys' bytes."""
        rows = self._spaces[self.id_of(space)].rows
        return [rows[key] for key in sorted(rows)]

    def snapshot(self) -> Iterator[dict[int, Any]]:
        """Bodies of the snapshot's rows, system spaces first; rows of local and temporary spaces are not in it."""
        for space_id in sorted(self._spaces):
            flags = self._space_row(space_id)[5]
            if flags.get("group_id") == 1 or flags.get("temporary") or flags.get("type") in ("temporary", "data-temporary"):
                continue
            for row in self.contents(space_id):
                yield {Key.SPACE_ID: space_id, Key.TUPLE: row}

    def _space_ids(self) -> list[int]:
        return sorted(row[0] for row in self._spaces[SPACE].rows.values())

    def _space_row(self, space_id: int) -> Row:
        return self._spaces[SPACE].rows[wire.pack([space_id])]

    def _bootstrap(self) -> None:
        """What every database has; its rows are in the first snapshot, not in the log."""
        name = "replicaset_uuid" if self.version >= (3, 0, 0) else "cluster"
        self.insert(SCHEMA, name, str(self.replicaset_uuid))
        for space_id in _SYSTEM:
            if space_id != CLUSTER:
                self._define_system_space(space_id)
        # The members' own space takes no lsns: recorded scenarios and golden files begin with the ones from before it.
        lsns, clock = dict(self._lsns), self._clock
        self._define_system_space(CLUSTER)
        self.enroll(self.uuid)
        self._lsns, self._clock = lsns, clock
        self.log.clear()
        self.gc_vclock = self.vclock

    def _define_system_space(self, space_id: int) -> None:
        fields = [{"name": item, "type": "any"} for item in _SYSTEM_FORMATS[space_id]]
        self.insert(SPACE, space_id, 1, _SYSTEM[space_id], "memtx", 0, {}, fields)
        parts = [[0, "unsigned"], [1, "unsigned"]] if space_id == INDEX else [[0, "unsigned"]]
        self.insert(INDEX, space_id, 0, "primary", "tree", {"unique": True}, parts)

    def _key(self, space_id: int, row: Row) -> bytes:
        if space_id not in _SYSTEM:
            parts = self._spaces[INDEX].rows[wire.pack([space_id, 0])][5]
            if any(isinstance(part, dict) and part.get("path") for part in parts):
                return wire.pack(row)  # nothing here looks rows up by a path
        return wire.pack([row[place] for place in self._places(space_id)])

    def _places(self, space_id: int) -> list[int]:
        """Which fields the primary key has."""
        if space_id in _SYSTEM:
            return [0, 1] if space_id == INDEX else [0]
        parts = self._spaces[INDEX].rows[wire.pack([space_id, 0])][5]
        return [part["field"] if isinstance(part, dict) else part[0] for part in parts]

    def _operated(self, space_id: int, row: Row, operations: Sequence[Row], base: int) -> Row:
        """What the tests' updates do; any other operation leaves the row alone, for nobody reads it back.

        Raises OverflowError for a number past 64 bits.
        """
        changed = list(row)
        names = [item["name"] if isinstance(item, dict) else item for item in self._space_row(space_id)[6]]
        for code, reference, *arguments in operations:
            if isinstance(reference, str) and reference not in names:
                continue
            place = names.index(reference) if isinstance(reference, str) else reference - base if reference >= 0 else reference
            if code == "=":
                changed[place : place + 1 or None] = arguments
            elif code == "+" and isinstance((changed[place:] or [None])[0], int | float):
                changed[place] += arguments[0]
                if isinstance(changed[place], int) and changed[place] >= 1 << 64:
                    raise OverflowError
            elif code == "!":
                changed.insert(place if place >= 0 else len(changed) + place + 1, arguments[0])
            elif code == "#":
                del changed[place : place + arguments[0]]
        return changed

    def _store(self, kind: int, space: int | str, row: Row) -> None:
        space_id = self.id_of(space)
        rows, key = self._spaces[space_id].rows, self._key(space_id, row)
        images = self._images(space_id, rows.get(key), row)
        rows[key] = row
        self._write(kind, {Key.SPACE_ID: space_id, Key.TUPLE: row} | images)

    def _images(self, space_id: int, old: Row | None, new: Row | None) -> dict[int, Any]:
        """What Tarantool Enterprise adds to a row's body with wal_ext, here for users' spaces."""
        if not self.writes_images or space_id < _USERS_MIN:
            return {}
        return {key: row for key, row in ((Key.OLD_TUPLE, old), (Key.NEW_TUPLE, new)) if row is not None}

    def _write(self, kind: int, body: dict[int, Any]) -> None:
        lsn = self._lsns[self.origin] = self._lsns.get(self.origin, 0) + 1
        self._clock += 0.001
        row = LogRow(self.origin, lsn, kind, body, round(self._clock, 3))
        (self.log if self._open is None else self._open).append(row)


@dataclass(frozen=True, slots=True)
class Ack:
    """What a replica acknowledged."""

    vclock: dict[int, int]
    term: int | None
    vclock_sync: int | None
    timestamp: float | None


class MasterConnection:
    """The server's side of one connection."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._incoming = b""
        self._outgoing = bytearray(self._greeting())
        self._user = "guest"
        self._sync = 0
        # The next row of the log to be sent, once the replica has subscribed.
        self._next: int | None = None
        self._since: dict[int, int] = {}
        self._id_filter: set[int] = set()
        self._sent_vclock: dict[int, int] = {}
        self._vclock_sync = 0
        self._told_version = True
        # Of a registered replica that streams: its UUID, and the id under which it has no changes sent back.
        self._member: UUID | None = None
        # Of a replica for which the log is kept.
        self._consumer: UUID | None = None
        self.acks: list[Ack] = []
        self.subscribed: dict[int, Any] | None = None
        self.is_closed = False

    def receive_data(self, data: bytes) -> None:
        """Take what the replica sent, and answer."""
        assert not self.is_closed, "the replica speaks on a closed connection"
        self._incoming += data
        while len(self._incoming) >= 5:
            (length,) = struct.unpack_from(">I", self._incoming, 1)
            if len(self._incoming) < 5 + length:
                return
            payload, self._incoming = self._incoming[5 : 5 + length], self._incoming[5 + length :]
            decoder = msgpack.Unpacker(strict_map_key=False)
            decoder.feed(payload)
            items = list(decoder)
            self._handle(items[0], items[1] if len(items) > 1 else None)

    def data_to_send(self) -> bytes:
        """What goes to the replica now."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    @property
    def is_streaming(self) -> bool:
        """Whether the replica has subscribed."""
        return self._next is not None

    def relay(self, row_count: int | None = None) -> None:
        """Send the rows of the log that the subscriber lacks, all of them or the next ones."""
        assert self._next is not None, "nobody has subscribed"
        log = self._master.log
        while self._next < len(log) and row_count != 0:
            row = log[self._next]
            self._next += 1
            if row.lsn <= self._since.get(row.origin, 0) or row.origin in self._id_filter:
                continue
            if self._member is not None and row.origin == self._master.members().get(self._member):
                continue
            self._send(row.packet(self._sync))
            self._sent_vclock[row.origin] = row.lsn
            if row_count is not None:
                row_count -= 1

    def heartbeat(self) -> None:
        """The relay's, in the version's dialect. Before 2.8.4 it comes only when all has been sent, so never in a transaction."""
        while self._master.version < (2, 8, 4) and self._is_within_transaction:
            self.relay(1)
        header = {Key.REQUEST_TYPE: Type.OK, Key.SYNC: self._sync, Key.REPLICA_ID: self._master.id, Key.TIMESTAMP: EPOCH}
        if self._master.version < (2, 11, 0):
            self._send(wire.frame(header))
            return
        self._vclock_sync += 1
        self._send(wire.frame(header, {Key.VCLOCK_SYNC: self._vclock_sync}))

    @property
    def _is_within_transaction(self) -> bool:
        """Whether the next row to be sent belongs to the transaction of the one before it."""
        if not self._next:
            return False
        around = [(row.origin, row.tsn) for row in self._master.log[self._next - 1 : self._next + 1]]
        return len(around) == 2 and around[0] == around[1] and around[0][1] is not None

    def raft(self) -> None:
        """The cluster's Raft state, as a registered replica gets it."""
        header = {Key.REQUEST_TYPE: Type.RAFT} | ({} if self._master.version >= (3, 2, 2) else {Key.GROUP_ID: 1})
        self._send(wire.frame(header, {0: self._master.term, 2: 1}))

    def fail(self, code: int, message: str, kind: str = "ClientError") -> None:
        """An error packet; the connection is over."""
        stack = {0: [{0: kind, 1: "./src/box/box.cc", 2: 1, 3: message, 4: 0, 5: code}]}
        body = {Key.ERROR_24: message, Key.ERROR: stack}
        self._send(wire.frame({Key.REQUEST_TYPE: Type.ERROR | code, Key.SYNC: self._sync, Key.SCHEMA_VERSION: 90}, body))
        self.is_closed = True

    # Answers.

    def _handle(self, header: dict[int, Any], body: dict[int, Any] | None) -> None:
        kind = header[Key.REQUEST_TYPE]
        if kind == Type.OK:
            self._acknowledged(header, body or {})
            return
        assert not self.is_streaming, f"a request of type {kind} on a connection that streams"
        assert header[Key.SYNC] > self._sync, "a SYNC that was used before"
        self._sync = header[Key.SYNC]
        match kind:
            case Type.AUTH:
                self._authenticate(body or {})
            case Type.ID if self._master.version >= (2, 10, 0):
                self._ok({Key.VERSION: 4, Key.FEATURES: [0, 1, 2, 3, 4]})
            case Type.VOTE:
                self._ok({Key.BALLOT: self._ballot()})
            case Type.FETCH_SNAPSHOT if self._is_allowed():
                self._snapshot(body)
            case Type.SUBSCRIBE if self._is_allowed():
                self._subscribe(body or {})
            case Type.JOIN if self._is_allowed():
                self._join(body or {})
            case Type.REGISTER if self._is_allowed():
                self._register(body or {})
            case Type.SELECT if self._is_allowed():
                self._select(body or {})
            case Type.DELETE if self._is_allowed():
                self._delete(body or {})
            case Type.FETCH_SNAPSHOT | Type.SUBSCRIBE | Type.JOIN | Type.REGISTER | Type.SELECT | Type.DELETE:
                self.fail(42, f"Read access to universe '' is denied for user '{self._user}'", "AccessDeniedError")
            case _:
                self.fail(48, f"Unknown request type {kind}")

    def _authenticate(self, body: dict[int, Any]) -> None:
        master = self._master
        first = hashlib.sha1(master.password.encode()).digest()  # noqa: S324 - the server's own scheme
        second = hashlib.sha1(first).digest()  # noqa: S324
        mask = hashlib.sha1(SALT[:20] + second).digest()  # noqa: S324
        method, scramble = body[Key.TUPLE]
        assert method == "chap-sha1"
        # Undo the scramble with the salt: what is left must hash to what the server stores.
        candidate = bytes(left ^ right for left, right in zip(scramble, mask, strict=True))
        if body[Key.USER_NAME] != master.user or hashlib.sha1(candidate).digest() != second:  # noqa: S324
            self.fail(47, f"Incorrect password supplied for user '{body[Key.USER_NAME]}'")
            return
        self._user = master.user
        self._ok({})

    def _is_allowed(self) -> bool:
        return self._user == self._master.user

    def _ballot(self) -> dict[int, Any]:
        master = self._master
        if master.version < (2, 10, 0):
            return {1: master.is_read_only, 4: master.is_loading, 2: master.vclock, 3: master.gc_vclock}
        return {
            1: False,
            4: master.is_read_only,
            5: False,
            6: not master.is_loading,
            2: master.vclock,
            3: master.gc_vclock,
            7: False,
            **({9: list(map(str, master.members()))} if master.version >= (2, 11, 0) else {}),
        }

    def _snapshot(self, body: dict[int, Any] | None) -> None:
        master = self._master
        if master.version >= (3, 0, 0) and body is None:
            self.fail(20, "Invalid MsgPack - request body")
            return
        self._contents(body or {})
        self._send(self._packet(Type.OK, {Key.VCLOCK: master.vclock}))

    def _contents(self, body: dict[int, Any]) -> None:
        """START, the META stage in the dialects that have it, and the rows of the snapshot."""
        master = self._master
        self._send(self._packet(Type.OK, {Key.VCLOCK: {0: 3, **master.vclock} if master.version >= (3, 2, 0) else master.vclock}))
        if master.version >= (2, 10, 0) and body.get(Key.SERVER_VERSION):
            self._send(self._packet(Type.JOIN_META))
            if master.version >= (3, 0, 0):
                self._send(self._packet(Type.RAFT, {0: master.term}))
            self._send(self._packet(Type.RAFT_PROMOTE, {Key.REPLICA_ID: 0, Key.LSN: 0, Key.TERM: master.term}))
            self._send(self._packet(Type.JOIN_SNAPSHOT))
        for row in master.snapshot():
            self._send(self._packet(Type.INSERT, row))

    def _join(self, body: dict[int, Any]) -> None:
        master, uuid = self._master, UUID(body[Key.INSTANCE_UUID])
        if uuid not in master.members() and not self._may_enroll():
            return
        start = master.vclock
        self._contents(body)
        if master.during_join is not None:
            master.during_join()
        self._send_final(uuid, start, is_join=True)

    def _register(self, body: dict[int, Any]) -> None:
        master, uuid = self._master, UUID(body[Key.INSTANCE_UUID])
        if uuid in master.members():
            self.fail(207, f"Replica '{uuid}' is not anonymous and cannot register.")
            return
        if not self._may_enroll():
            return
        # 2.6 doesn't look at what the replica has.
        start: dict[int, int] = master.vclock if master.version < (2, 7, 3) else body[Key.VCLOCK]
        if self._has_gap(start):
            return
        self._send_final(uuid, start, is_join=False)
        if master.after_register is not None:
            master.after_register()

    def _may_enroll(self) -> bool:
        if self._master.is_read_only:
            self.fail(7, "Can't modify data because this instance is in read-only mode.")
        elif not self._master.may_write_cluster:
            self.fail(42, f"Write access to space '_cluster' is denied for user '{self._user}'", "AccessDeniedError")
        return not self.is_closed

    def _send_final(self, uuid: UUID, start: dict[int, int], *, is_join: bool) -> None:
        """Give the id, and send the log from `start` to where it was given."""
        master = self._master
        master.enroll(uuid)
        stop = master.vclock
        if is_join:
            self._send(self._packet(Type.OK, {Key.VCLOCK: stop}))
        for row in master.log:
            if start.get(row.origin, 0) < row.lsn <= stop.get(row.origin, 0):
                self._send(row.packet(self._sync))
        self._send(self._packet(Type.OK, {Key.VCLOCK: master.vclock}))
        master.consumers[uuid] = stop

    def _select(self, body: dict[int, Any]) -> None:
        space_id, index_id, (key,) = body[Key.SPACE_ID], body[Key.INDEX_ID], body[Key.KEY]
        assert (space_id, index_id) in ((CLUSTER, 1), (SCHEMA, 0)), "nothing else is looked up"
        self._ok({Key.DATA: [row for row in self._master.contents(space_id) if row[index_id] == key]})

    def _delete(self, body: dict[int, Any]) -> None:
        master = self._master
        assert (body[Key.SPACE_ID], body[Key.INDEX_ID]) == (CLUSTER, 1), "nothing else is deleted"
        if not self._may_enroll():
            return
        gone = [row for row in master.contents(CLUSTER) if row[1:] == body[Key.KEY]]
        for number, uuid in gone:
            master.delete(CLUSTER, number)
            master.consumers.pop(UUID(uuid), None)
        self._ok({Key.DATA: gone})

    def _has_gap(self, since: dict[int, int]) -> bool:
        """Fail if the log doesn't lead from there on."""
        master = self._master
        if all(lsn <= since.get(origin, 0) for origin, lsn in master.gc_vclock.items()):
            return False
        code = 219 if master.version >= (2, 6, 1) else 32
        self.fail(code, f"Missing .xlog file between LSN {since} and {master.gc_vclock}", "XlogGapError")
        return True

    def _subscribe(self, body: dict[int, Any]) -> None:
        master = self._master
        uuid, is_anonymous = UUID(body[Key.INSTANCE_UUID]), body[Key.REPLICA_ANON]
        assert body[Key.SERVER_VERSION] <= (master.version[0] << 16 | master.version[1] << 8 | master.version[2])
        if master.version >= (2, 11, 0) and UUID(body[Key.REPLICASET_UUID]) != master.replicaset_uuid:
            self.fail(63, f"Replica set UUID mismatch: expected {master.replicaset_uuid}, got {body[Key.REPLICASET_UUID]}")
            return
        if is_anonymous and uuid in master.members() and master.version >= (2, 11, 0):
            self.fail(104, "Can't subscribe an anonymous replica having an ID assigned")
            return
        if not is_anonymous and uuid not in master.members():
            if master.version < (2, 6, 1):
                self.fail(62, f"Replica {uuid} is not registered with replica set {master.replicaset_uuid}")
            else:
                self.fail(220, f"Can't subscribe non-anonymous replica {uuid} until join is done")
            return
        if uuid in master.streaming:
            self.fail(59, "Incorrect value for option 'replication': duplicate connection with the same replica UUID")
            return
        since: dict[int, int] = body[Key.VCLOCK]
        answer = {Key.VCLOCK: master.vclock, Key.REPLICASET_UUID: str(master.replicaset_uuid)}
        header = {Key.REQUEST_TYPE: Type.OK, Key.SYNC: self._sync, Key.REPLICA_ID: master.id}
        self._send(wire.frame(header, answer))
        self.subscribed = body
        if is_anonymous and master.version >= (3, 3, 0):
            self._consumer = uuid
            master.consumers[uuid] = since
        if not is_anonymous:
            self._member = self._consumer = uuid
            master.consumers.setdefault(uuid, since)
            if master.version >= (2, 6, 1):
                self.raft()
        if self._has_gap(since):
            return
        self._since, self._sent_vclock = since, dict(since)
        self._id_filter = set(body.get(Key.ID_FILTER, ()))
        self._next = 0
        self.heartbeat()
        if since.get(master.id, 0) < master.damaged_before:
            self.fail(32, "tx checksum mismatch", "XlogError")

    def _acknowledged(self, header: dict[int, Any], body: dict[int, Any]) -> None:
        assert self.is_streaming, "an ACK outside of the stream"
        assert set(header) <= {Key.REQUEST_TYPE, Key.REPLICA_ID, Key.TIMESTAMP}
        is_old = self._master.version < (2, 11, 0)
        allowed = {Key.VCLOCK} if is_old else {Key.VCLOCK, Key.TERM, Key.VCLOCK_SYNC}
        assert set(body) <= allowed, f"an ACK with keys {sorted(body)}"
        vclock: dict[int, int] = body[Key.VCLOCK]
        assert 0 not in vclock, "an ACK of local changes"
        for origin, lsn in vclock.items():
            sent = self._sent_vclock.get(origin, 0)
            assert lsn <= sent, f"an ACK of {origin}:{lsn}, sent was {sent}"
        if self.acks:
            previous = self.acks[-1].vclock
            assert all(vclock.get(origin, 0) >= lsn for origin, lsn in previous.items()), "an ACK that goes back"
        term = body.get(Key.TERM)
        assert term is None or term <= self._master.term, "an invented term"
        assert body.get(Key.VCLOCK_SYNC, 0) <= self._vclock_sync, "an invented vclock_sync"
        if self._consumer is not None:
            self._master.consumers[self._consumer] = vclock
        self.acks.append(Ack(vclock, term, body.get(Key.VCLOCK_SYNC), header.get(Key.TIMESTAMP)))

    def _packet(self, kind: int, body: dict[int, Any] | None = None) -> bytes:
        return wire.frame({Key.REQUEST_TYPE: kind, Key.SYNC: self._sync}, body)

    def _ok(self, body: dict[int, Any]) -> None:
        self._send(wire.frame({Key.REQUEST_TYPE: Type.OK, Key.SYNC: self._sync, Key.SCHEMA_VERSION: 90}, body))

    def _send(self, data: bytes) -> None:
        assert not self.is_closed
        self._outgoing += data

    def _greeting(self) -> bytes:
        version = ".".join(map(str, self._master.version))
        line = f"Tarantool {version} (Binary) {self._master.uuid}".ljust(63) + "\n"
        return line.encode() + base64.b64encode(SALT).ljust(63) + b"\n"
