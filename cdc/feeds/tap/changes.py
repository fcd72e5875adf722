"""Topic messages decoded into changes of keys, each with the frame that clients get.

All clients share one frame: its opaque is the low bits of the change's `seq`. Clients that want no values get a different frame,
which is made when the first such client needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from cdc.errors import CdcError
from cdc.feeds.tap.keys import KeyTemplate, vbucket_of
from cdc.feeds.tap.wire import KEY_BYTES_MAX, delete, mutation

OPAQUE_MASK: Final = 0x7FFF_FFFF
"""Bits of a `seq` that a change's opaque has; the opaques of all other messages have the highest bit set."""


class Kind(IntEnum):
    """Effect of a change."""

    MUTATION = 0
    DELETE = 1
    TRUNCATE = 2
    """All keys of the space were removed."""


class Change(NamedTuple):
    """A new value or the removal of one key, or the removal of all keys of a space."""

    seq: int
    kind: Kind
    space: str
    key: bytes
    vbucket: int
    frame: bytes


EventChanges = Change | list[Change]
"""Changes made by one event.

There are two if the client's key contains fields outside the primary key, and the row gets another key.
"""


class MalformedError(CdcError):
    """A message isn't one of this daemon's events."""


UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError)
"""Errors of msgspec for bytes that no daemon writes: also text that isn't UTF-8, and integers too large for MessagePack."""

Seq = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Range of a `seq`: no daemon assigns a higher number, and no TAP message has room for one."""


class _Source(msgspec.Struct, gc=False):
    name: str
    table: str
    seq: Seq


_MUTATION: Final = Kind.MUTATION
_DELETE: Final = Kind.DELETE
_new: Final = tuple.__new__
_NULL: Final = b"null"
_NOTHING: Final = msgspec.Raw(_NULL)


class _Event(msgspec.Struct, gc=False):
    op: str
    source: _Source
    after: msgspec.Raw = _NOTHING


class _EventWithRows(msgspec.Struct, gc=False):
    op: str
    source: _Source
    before: msgspec.Raw = _NOTHING
    after: msgspec.Raw = _NOTHING


class _Completed(msgspec.Struct):
    sweep_seq: int = 0


class _Snapshot(msgspec.Struct):
    status: str
    seq: int
    spaces: list[_Completed] = []


_decode_values: Final = msgspec.json.Decoder(dict[str, Any]).decode
_snapshot: Final = msgspec.json.Decoder(_Snapshot).decode
_pack: Final = msgspec.msgpack.Encoder().encode


def packed(row: bytes) -> bytes:
    """Return a row of the topics (a JSON object) as a MessagePack array of its values."""
    return _pack(list(_decode_values(row).values()))


def swept_at(value: bytes) -> int | None:
    """Return the seq at which a snapshot swept rows without naming their keys, or None for any other snapshot record."""
    try:
        record = _snapshot(value)
    except UNREADABLE:
        return None
    is_swept = record.status == "COMPLETED" and any(space.sweep_seq for space in record.spaces)
    return record.seq if is_swept else None


class _TableChange(msgspec.Struct):
    id: str = ""
    previousId: str | None = None  # noqa: N815 - the record's name for it


class Renaming(NamedTuple):
    """A space was renamed."""

    version: int
    """Version of the schema that renamed the space."""
    seq: int
    """Seq of the last change before the renaming."""
    former: str
    name: str


class _SchemaSource(msgspec.Struct):
    name: str
    table: str
    schema_version: int
    seq: int = 0


class _Schema(msgspec.Struct):
    source: _SchemaSource
    tableChanges: list[_TableChange] = []  # noqa: N815 - the record's name for it


_schema: Final = msgspec.json.Decoder(_Schema).decode


def renamed(value: bytes) -> Renaming | None:
    """Return the renaming that a schema record reports, or None for any other schema record."""
    try:
        record = _schema(value)
    except UNREADABLE:
        return None
    source = record.source
    former = next((change.previousId for change in record.tableChanges if change.previousId is not None), None)
    return Renaming(source.schema_version, source.seq, former[1:-1], source.table) if former is not None else None


class SpaceNames:
    """Container of the space names that match the patterns, including names that haven't been seen yet."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._known: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        is_wanted = self._known.get(name)
        if is_wanted is None:
            is_wanted = self._known[name] = any(pattern.fullmatch(str(name)) for pattern in self._patterns)
        return is_wanted


class Changes:
    """Decoder of one daemon's messages into changes."""

    def __init__(
        self,
        name: str,
        template: str,
        vbucket_count: int,
        is_wanted: Callable[[str], bool],
        *,
        is_packed: bool,
        on_missing: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """`name` is the events' `source.name`. For events of unwanted spaces, only the seq is returned, without a change.

        `on_missing` is called with the space and the field for each row that lacks a field of the key template.
        """
        self.name = name
        """`source.name` of the daemon's events. Readers correct it if the topics were renamed while they were copied."""
        self._is_wanted = is_wanted
        self._template = template
        self._mask = vbucket_count - 1
        self._is_packed = is_packed
        self._on_missing = on_missing
        self._templates: dict[str, KeyTemplate | None] = {}
        self._needs_row = KeyTemplate(template, "").needs_row
        self._decode: Any = msgspec.json.Decoder(_EventWithRows if self._needs_row else _Event).decode

    @property
    def spaces(self) -> frozenset[str]:
        """Wanted spaces that have been seen so far."""
        return frozenset(name for name, template in list(self._templates.items()) if template is not None)

    def template(self, space: str) -> KeyTemplate | None:
        """Return the space's key template, or None if the space isn't wanted."""
        if space not in self._templates:
            wanted = self._is_wanted(space)
            self._templates[space] = KeyTemplate(self._template, space, self._on_missing) if wanted else None
        return self._templates[space]

    def of(self, key: bytes | None, value: bytes | None) -> tuple[int, EventChanges] | None:
        """Return the seq of a message's event and its changes, or None for a tombstone or a message of another program.

        Raises MalformedError.
        """
        if value is None:
            return None
        try:
            event = self._decode(value)
        except UNREADABLE as error:
            raise MalformedError(
                f"a message with the key {(key or b'')[:100]!r} isn't an event of this daemon: {error}"
            ) from error
        source = event.source
        if source.name != self.name:
            return None
        seq, space = source.seq, source.table
        try:
            template = self._templates[space]
        except KeyError:
            template = self.template(space)
        if template is None:
            return seq, []
        if event.op == "t":
            return seq, Change(seq, Kind.TRUNCATE, space, b"", 0, b"")
        try:
            if self._needs_row:
                return seq, self._of_rows(template, key or b"", event)
            name = template.of_key(key or b"")
            if len(name) > KEY_BYTES_MAX:
                return seq, []
            return seq, self._change(seq, space, name, bytes(event.after))
        except UNREADABLE as error:
            raise MalformedError(f"an event with the key {(key or b'')[:100]!r} can't be read: {error}") from error

    def _of_rows(self, template: KeyTemplate, key: bytes, event: _EventWithRows) -> EventChanges:
        source = event.source
        before, after = bytes(event.before), bytes(event.after)
        former = template.of_row(key, before) if before != _NULL else None
        now = template.of_row(key, after) if after != _NULL else None
        changes = []
        if former is not None and former != now and len(former) <= KEY_BYTES_MAX:
            changes.append(self._change(source.seq, source.table, former, _NULL))
        if now is not None and len(now) <= KEY_BYTES_MAX:
            changes.append(self._change(source.seq, source.table, now, after))
        return changes[0] if len(changes) == 1 else changes

    def _change(self, seq: int, space: str, key: bytes, after: bytes) -> Change:
        vbucket = vbucket_of(key, self._mask)
        # An event without images says only that the key has changed: the client's value is invalid, so delete it.
        if after == _NULL:
            return Change(seq, _DELETE, space, key, vbucket, delete(key, vbucket, seq & OPAQUE_MASK, seq))
        value = packed(after) if self._is_packed else after
        # Same as Change(…), which takes three times as long.
        return _new(Change, (seq, _MUTATION, space, key, vbucket, mutation(key, value, vbucket, seq & OPAQUE_MASK, seq)))
