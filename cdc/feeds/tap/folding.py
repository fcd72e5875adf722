"""Reduction of topic messages to a store of rows: the last value of every key, in whatever order partitions are read.

Each row has the `seq` of the change that wrote it, and older changes don't affect it. An event that empties a space only raises
the space's `floor`: the `seq` up to which its rows are removed. Readers of the rows leave out rows at or below the floor, and
the store deletes them later.

    change of a key        the row, if its seq is higher than the key's current seq
    t                      floor = its seq
    COMPLETED, sweep_seq   floor = sweep_seq
    COMPLETED, and the snapshot delivered all of the space's rows     floor = the seq at which it began

The last case repairs a store that lacks changes because the topics don't go back far enough. `gap` is the last seq that may be
missing. The rows above the floor are complete if the floor isn't below the gap.

A row's key in the store is the space's id and the primary key as in the topics, so renaming a space moves no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from cdc.feeds.tap.changes import UNREADABLE, MalformedError, Seq

_NULL: Final = b"null"
_ROW_BYTES: Final = 200
"""Memory of a change in addition to its key and value, in bytes."""


class Row(NamedTuple):
    """A new value or the removal of one key."""

    seq: int
    space_id: int
    table: str
    """The space's name at that time."""
    key: bytes
    value: bytes | None
    snapshot_id: int
    """Id of the snapshot that delivered the row; 0: no snapshot."""


class Emptied(NamedTuple):
    """Removal of all rows of a space."""

    seq: int
    space_id: int


class _Source(msgspec.Struct, gc=False):
    name: str
    table: str
    space_id: int
    seq: Seq
    snapshot_id: str | None = None


class _Event(msgspec.Struct, gc=False):
    op: str
    source: _Source
    after: msgspec.Raw = msgspec.Raw(_NULL)


class _Completed(msgspec.Struct):
    space_id: int
    rows: int = 0
    sweep_seq: int = 0


class SnapshotRecord(msgspec.Struct):
    """A STARTED, COMPLETED or ABORTED record of a snapshot."""

    snapshot_id: str
    status: str
    seq: int
    spaces: list[_Completed] = []


class _Table(msgspec.Struct):
    primaryKeyColumnNames: list[str] = []  # noqa: N815 - the record's name for it


class _TableChange(msgspec.Struct):
    type: str
    table: _Table | None = None


class _SchemaSource(msgspec.Struct):
    name: str
    table: str
    space_id: int
    schema_version: int
    seq: int = 0


class _SchemaRecord(msgspec.Struct):
    source: _SchemaSource
    tableChanges: list[_TableChange] = []  # noqa: N815 - the record's name for it


class SchemaRecord(NamedTuple):
    """A new form of a space."""

    seq: int
    space_id: int
    version: int
    name: str
    key_columns: list[str]
    is_dropped: bool


_event: Final = msgspec.json.Decoder(_Event).decode
_snapshot: Final = msgspec.json.Decoder(SnapshotRecord).decode
_schema: Final = msgspec.json.Decoder(_SchemaRecord).decode


def event_of(name: str, key: bytes | None, value: bytes | None) -> Row | Emptied | None:
    """Decode a message of a space's topic. Return None for a tombstone or a message of another program. Raises MalformedError."""
    if value is None:
        return None
    try:
        event = _event(value)
    except UNREADABLE as error:
        raise MalformedError(f"a message with the key {(key or b'')[:100]!r} isn't an event of this daemon: {error}") from error
    source = event.source
    if source.name != name:
        return None
    if event.op == "t":
        return Emptied(source.seq, source.space_id)
    after, snapshot_id = bytes(event.after), source.snapshot_id
    # An event without images says only that the key has changed, so its value is unknown here.
    return Row(
        source.seq,
        source.space_id,
        source.table,
        key or b"",
        after if after != _NULL else None,
        int(snapshot_id) if snapshot_id is not None and snapshot_id.isdecimal() else 0,
    )


def snapshot_of(value: bytes | None) -> SnapshotRecord | None:
    """Decode a record of `<prefix>.snapshot`. Return None for anything else."""
    try:
        record = _snapshot(value or b"")
    except UNREADABLE:
        return None
    return record if record.snapshot_id.isdecimal() else None


def schema_of(name: str, value: bytes | None) -> SchemaRecord | None:
    """Decode a record of `<prefix>.schema`. Return None for anything else."""
    try:
        record = _schema(value or b"")
    except UNREADABLE:
        return None
    source = record.source
    if source.name != name or not record.tableChanges:
        return None
    change = record.tableChanges[0]
    columns = change.table.primaryKeyColumnNames if change.table is not None else []
    return SchemaRecord(
        source.seq, source.space_id, source.schema_version, source.table, columns, is_dropped=change.type == "DROP"
    )


class SpaceState(msgspec.Struct):
    """State of a space, stored with its rows."""

    name: str
    version: int = -1
    """Version of the schema record that gave the space its name."""
    key_columns: list[str] = []
    is_dropped: bool = False
    floor: int = 0
    """Seq up to which the space's rows are removed."""
    gap: int = 0
    """Seq up to which changes may be missing."""
    swept: int = 0
    """Floor up to which removed rows have been deleted from the store."""
    snapshot_id: int = 0
    """Id of the last snapshot that delivered a row of the space."""
    shown: int = 0
    """Number of rows that this snapshot has delivered."""

    @property
    def is_complete(self) -> bool:
        """Whether the store has all of the space's rows."""
        return self.floor >= self.gap


class Found(NamedTuple):
    """Newest change of a key."""

    seq: int
    value: bytes | None


class Fold:
    """Changes that aren't in the store yet, and the spaces' state after these changes."""

    def __init__(self, spaces: dict[int, SpaceState], is_wanted: Callable[[str], bool]) -> None:
        """`spaces` is the store's state of its spaces, which this object changes.

        `is_wanted` tells by name whether a space's rows are kept.
        """
        self.spaces = spaces
        self.rows: dict[tuple[int, bytes], Found] = {}
        self.byte_count = 0
        self.is_reset = False
        """Whether keys were removed without an event that names them."""
        self.is_outgrown = False
        """Whether a space is wanted now whose rows weren't kept before: all topics must be read again."""
        self._is_wanted = is_wanted
        self._wanted: dict[tuple[int, str], bool] = {}
        self._starts: dict[int, int] = {}

    def add(self, event: Row | Emptied) -> None:
        """Add one change, in any order."""
        if isinstance(event, Emptied):
            space = self.spaces.get(event.space_id)
            if space is not None:
                space.floor = max(space.floor, event.seq)
            else:
                self.spaces[event.space_id] = SpaceState("", is_dropped=True, floor=event.seq)
            return
        seq, space_id, table, key, value, snapshot_id = event
        wanted = self._wanted.get((space_id, table))
        if wanted is None:
            wanted = self._looked_at(space_id, table)
        if snapshot_id and value is not None:
            self._count(self.spaces[space_id], snapshot_id)
        if not wanted:
            return
        place = space_id, key
        found = self.rows.get(place)
        if found is None or found[0] < seq:
            self.rows[place] = Found(seq, value)
            self.byte_count += _ROW_BYTES + len(key) + (len(value) if value is not None else 0)

    def schema(self, record: SchemaRecord) -> None:
        """Apply a new form of a space. A form that is already known changes nothing."""
        space = self.spaces.setdefault(record.space_id, SpaceState(record.name))
        # A DROP has the version of the form that it ends.
        if (record.version, record.is_dropped) <= (space.version, space.is_dropped):
            return
        is_known = space.version >= 0
        if is_known and not record.is_dropped and not space.is_dropped and record.name != space.name:
            was_wanted, is_wanted = self._is_wanted(space.name), self._is_wanted(record.name)
            self.is_reset |= was_wanted or is_wanted
            self.is_outgrown |= is_wanted and not was_wanted
        # Keys of the new primary key can't be told apart from the stored ones. With images, a `t` event and all rows follow.
        if is_known and not space.is_dropped and record.key_columns and record.key_columns != space.key_columns:
            space.gap = max(space.gap, record.seq)
        space.name, space.version, space.is_dropped = record.name, record.version, record.is_dropped
        if record.key_columns:
            space.key_columns = record.key_columns
        self._wanted.clear()

    def snapshot(self, record: SnapshotRecord) -> None:
        """Apply the start or the completion of a snapshot. All rows of a completed snapshot must have been added before."""
        number = int(record.snapshot_id)
        if record.status == "STARTED":
            self._starts[number] = record.seq
        if record.status != "COMPLETED":
            return
        for told in record.spaces:
            space = self.spaces.get(told.space_id)
            if space is None:
                continue
            floor = told.sweep_seq
            shown = space.shown if space.snapshot_id == number else 0
            if not space.is_complete and shown >= told.rows:
                floor = max(floor, self._starts.get(number, 0))
            if floor > space.floor:
                space.floor = floor
                self.is_reset = True

    def lacks(self, space_id: int, gap: int) -> None:
        """Record that changes of a space up to the seq `gap` may be missing."""
        space = self.spaces.get(space_id)
        if space is not None:
            space.gap = max(space.gap, gap)

    def _looked_at(self, space_id: int, table: str) -> bool:
        space = self.spaces.get(space_id)
        if space is None:
            space = self.spaces[space_id] = SpaceState(table)
        elif not space.name:
            space.name, space.is_dropped = table, False
        wanted = self._wanted[space_id, table] = self._is_wanted(space.name) or self._is_wanted(table)
        return wanted

    @staticmethod
    def _count(space: SpaceState, snapshot_id: int) -> None:
        if snapshot_id > space.snapshot_id:
            space.snapshot_id, space.shown = snapshot_id, 0
        if snapshot_id == space.snapshot_id:
            space.shown += 1


def decoded_spaces(value: bytes) -> dict[int, SpaceState]:
    """Decode the result of `encoded_spaces`."""
    return msgspec.msgpack.decode(value, type=dict[int, SpaceState])


def encoded_spaces(spaces: dict[int, SpaceState]) -> Any:
    """Encode the spaces' state for the store."""
    return msgspec.msgpack.encode(spaces)
