"""A snapshot's rows as `r` events.

The rows come by space id: `_schema`, `_space` and `_index` first, then the users'. So the schema is complete when the first
user's row arrives, and only then can rows of the other system spaces be shown, if somebody asked for them by name.

Every event carries the snapshot's number. A snapshot that was interrupted is taken again under the next one, and COMPLETED
tells consumers that what they have not seen under this number is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from cdc import topics
from cdc.envelope import MALFORMED_BODY, OPEN_SNAPSHOT, OPEN_TRUNCATE, Envelope, SpaceEvents, snapshot_record
from cdc.errors import CdcError, EncodingError, ProtocolError, SchemaError
from cdc.json_values import encode
from cdc.outbox import Outbox
from cdc.position import Position, SnapshotState
from cdc.protocol.codec import Body, Frames, Header
from cdc.protocol.constants import Key, Type
from cdc.row_errors import SNAPSHOT, at_row, malformed_in_snapshot
from cdc.schema import SYSTEM_SPACE_MAX, TRACKED_SPACES, SpaceForm, replicaset_uuid_in
from cdc.spaces import Spaces

SPACE_ID: Final = Key.SPACE_ID
TUPLE: Final = Key.TUPLE
INSERT: Final = Type.INSERT

Refuse = Callable[[CdcError, Body], None]
"""What to do about a row that can't be shown: raise the error, or set the row aside."""


class Snapshot:
    """One snapshot on its way into the outbox. `position` is where its stream will begin, and becomes complete with `end`."""

    def __init__(
        self, position: Position, spaces: Spaces, envelope: Envelope, outbox: Outbox, refuse: Refuse, now_us: int
    ) -> None:
        previous = position.snapshot
        self._id = previous.snapshot_id + 1 if previous is not None else 1
        self.position = replace(position, replicaset_uuid=None, snapshot=SnapshotState(self._id, is_complete=False))
        self._spaces = spaces
        self._envelope = envelope
        self._outbox = outbox
        self._refuse = refuse
        self._now_us = now_us
        self._publishes = True
        self._vclock = encode(position.vclock.to_json())
        # By space: what stands around the row and the seq of each event, and how many there were.
        self._pieces: dict[Any, tuple[bytes, bytes]] = {}
        self._counts: dict[Any, int] = {}
        self._is_schema_complete = False
        self._early_rows: list[tuple[Header, Body]] = []
        spaces.compiled.clear()
        spaces.schema.begin_snapshot()
        outbox.control(topics.SNAPSHOT, *snapshot_record("STARTED", self.position, now_us))

    def feed(self, frames: Frames, now_us: int, *, publish: bool) -> None:
        """Take rows. Without `publish` only the schema is taken from them."""
        self._now_us = now_us
        self._publishes = publish
        self._pieces.clear()
        self._outbox.row_count += len(frames)
        self._rows(zip(frames.headers, frames.bodies, strict=True))

    def end(self, now_us: int) -> Position:
        """The snapshot is complete: spaces that it lacks are gone, and the position is good to subscribe from."""
        self._now_us = now_us
        if self.position.replicaset_uuid is None:
            raise ProtocolError("the snapshot doesn't say which replica set it belongs to: _schema has neither name for it")
        self._complete_schema()
        self._settle()
        # In the stream rows of some spaces mean more than their event, so there each space is looked at anew.
        self._spaces.compiled.clear()
        counts = [(form.name, form.space_id, self._counts.get(form.space_id, 0)) for form in self._spaces.published_forms()]
        state = SnapshotState(self._id, is_complete=True, row_count=sum(count for _, _, count in counts))
        self.position = replace(
            self.position, snapshot=state, seq=self._outbox.seq, schema_version=self._spaces.schema.schema_version
        )
        self._outbox.control(topics.SNAPSHOT, *snapshot_record("COMPLETED", self.position, now_us, counts))
        return self.position

    def _rows(self, rows: Iterable[tuple[Header, Body]]) -> None:
        outbox, compiled, pieces_by_space, counts = self._outbox, self._spaces.compiled, self._pieces, self._counts
        add, publishes = outbox.messages.append, self._publishes
        for header, body in rows:
            space_id = body.get(SPACE_ID)
            try:
                is_compiled = space_id in compiled
            except TypeError as error:  # an array or a map
                raise malformed_in_snapshot(header, body) from error
            space = compiled[space_id] if is_compiled else self._special(header, body)
            if space is None or not publishes:
                continue
            try:
                tuple_ = body[TUPLE]
                key = space.key_of(tuple_)
                row = space.rows[len(tuple_)](tuple_)
            except (EncodingError, SchemaError) as error:
                self._refuse(error, body)
                continue
            except MALFORMED_BODY as error:
                raise malformed_in_snapshot(header, body) from error
            if space_id in pieces_by_space:
                before, after = pieces_by_space[space_id]
            else:
                before, after = self._envelope.snapshot_pieces(space, self._id, self._vclock, self._now_us)
                pieces_by_space[space_id] = before, after
            outbox.seq += 1
            value = b"".join((OPEN_SNAPSHOT, row, before, b"%d" % outbox.seq, after))
            outbox.byte_count += len(value)
            counts[space_id] = counts.get(space_id, 0) + 1
            add((space.topic, key, value))

    def _special(self, header: Header, body: Body) -> SpaceEvents | None:
        """A row of a system space, or the first of a space: what its event is made with, None if it has none."""
        space_id, tuple_ = body.get(SPACE_ID), body.get(TUPLE)
        if header.get(Key.REQUEST_TYPE) != INSERT or type(space_id) is not int or not isinstance(tuple_, list):
            raise malformed_in_snapshot(header, body)
        if space_id > SYSTEM_SPACE_MAX:
            self._complete_schema()
        replicaset_uuid = replicaset_uuid_in(body)
        if replicaset_uuid is not None:
            self.position = replace(self.position, replicaset_uuid=replicaset_uuid)
        if space_id in TRACKED_SPACES:
            self._spaces.apply(INSERT, body)
        if not self._is_schema_complete:
            self._early_rows.append((header, body))
            return None
        self._settle()
        try:
            space = self._spaces.compile(self._spaces.form(space_id))
        except SchemaError as error:
            raise at_row(error, SNAPSHOT, INSERT, 0, body) from error
        self._spaces.compiled[space_id] = space
        return space

    def _complete_schema(self) -> None:
        """The system spaces are through: now their own rows can be shown, where they were asked for."""
        if self._is_schema_complete:
            return
        self._is_schema_complete = True
        self._settle()
        rows, self._early_rows = self._early_rows, []
        for space_id in {row[1][SPACE_ID] for row in rows}:
            if self._spaces.is_wanted(space_id):
                form = self._spaces.form(space_id)
                self._spaces.compiled[space_id] = self._spaces.compile(form)
        self._rows(row for row in rows if self._spaces.compiled.get(row[1][SPACE_ID]) is not None)

    def _settle(self) -> None:
        position = replace(self.position, seq=self._outbox.seq, schema_version=self._spaces.schema.schema_version)
        self._spaces.settle(position, self._now_us, None, self._emptied_unseen)

    def _emptied_unseen(self, form: SpaceForm) -> None:
        """The snapshot lacks a space that was published: its rows went while nobody looked."""
        space = self._spaces.events_of(form)
        before, after = self._envelope.snapshot_pieces(space, self._id, self._vclock, self._now_us)
        self._outbox.seq += 1
        self._outbox.broadcast(space.topic, b"".join((OPEN_TRUNCATE, before, b"%d" % self._outbox.seq, after)))
