"""Messages of the topics as changes of keys, each with the frame that clients get.

One frame serves all clients: its opaque is the end of its `seq`, and who wants no values gets another one that is made when the
first such client needs it.
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
"""Of changes; what else is sent has the highest bit set."""


class Kind(IntEnum):
    """What a change does."""

    MUTATION = 0
    DELETE = 1
    TRUNCATE = 2
    """All keys of the space are gone."""
    RESET = 3
    """Keys are gone that nobody can name any more."""


class Change(NamedTuple):
    """One key has another value or is gone, or a whole space is empty."""

    seq: int
    kind: Kind
    space: str
    key: bytes
    vbucket: int
    frame: bytes


Numbered = Change | list[Change]
"""What one event changes: a key that is made of other fields than the primary key's may become another one."""


class MalformedError(CdcError):
    """A message isn't one of this daemon's events."""


Seq = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""More than that no daemon gives out, and no message of TAP has room for."""


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
    """A row of the topics as a MessagePack array of its values."""
    return _pack(list(_decode_values(row).values()))


def swept_at(value: bytes) -> int | None:
    """The seq behind which a snapshot was complete that doesn't name what is gone; None for all other records of snapshots."""
    try:
        record = _snapshot(value)
    except msgspec.MsgspecError:
        return None
    is_swept = record.status == "COMPLETED" and any(space.sweep_seq for space in record.spaces)
    return record.seq if is_swept else None


class _TableChange(msgspec.Struct):
    id: str = ""
    previousId: str | None = None  # noqa: N815 - the record's name for it


class Renaming(NamedTuple):
    """A space has another name."""

    version: int
    """Of the schema, from which on it has it."""
    seq: int
    """The last change before it."""
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
    """What has got another name; None for all other records of schemas."""
    try:
        record = _schema(value)
    except msgspec.MsgspecError:
        return None
    source = record.source
    former = next((change.previousId for change in record.tableChanges if change.previousId is not None), None)
    return Renaming(source.schema_version, source.seq, former[1:-1], source.table) if former is not None else None


class SpaceNames:
    """The names that patterns fit: those too of spaces that nobody has met yet."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._known: dict[object, bool] = {}

    def __contains__(self, name: object) -> bool:
        is_wanted = self._known.get(name)
        if is_wanted is None:
            is_wanted = self._known[name] = any(pattern.fullmatch(str(name)) for pattern in self._patterns)
        return is_wanted


class Changes:
    """Makes changes of one daemon's messages."""

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
        """`name` is the events' `source.name`; of spaces that aren't wanted only the numbers are taken.

        `on_missing` is told the space and the field of each row that lacks one of the key's.
        """
        self._name = name
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
        """The wanted spaces that have been met."""
        return frozenset(name for name, template in list(self._templates.items()) if template is not None)

    def template(self, space: str) -> KeyTemplate | None:
        """How keys of a space are made; None if it isn't wanted."""
        if space not in self._templates:
            wanted = self._is_wanted(space)
            self._templates[space] = KeyTemplate(self._template, space, self._on_missing) if wanted else None
        return self._templates[space]

    def of(self, key: bytes | None, value: bytes | None) -> tuple[int, Numbered] | None:
        """The number of a message's event, and what it changes; None for a tombstone, and for what another program wrote.

        Raises MalformedError.
        """
        if value is None:
            return None
        try:
            event = self._decode(value)
        except msgspec.MsgspecError as error:
            raise MalformedError(f"a message with the key {(key or b'')[:100]!r} is no event: {error}") from error
        source = event.source
        if source.name != self._name:
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
        except (msgspec.MsgspecError, RecursionError) as error:
            raise MalformedError(f"an event with the key {(key or b'')[:100]!r} can't be read: {error}") from error

    def _of_rows(self, template: KeyTemplate, key: bytes, event: _EventWithRows) -> Numbered:
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
        # An event without images says that the key has changed and not how: what a client has of it is no good any more.
        if after == _NULL:
            return Change(seq, _DELETE, space, key, vbucket, delete(key, vbucket, seq & OPAQUE_MASK, seq))
        value = packed(after) if self._is_packed else after
        # As Change(…) makes it, which takes three times as long.
        return _new(Change, (seq, _MUTATION, space, key, vbucket, mutation(key, value, vbucket, seq & OPAQUE_MASK, seq)))
