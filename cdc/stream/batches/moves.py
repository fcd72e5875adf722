"""Which rows a bucket's move has brought, and which it has removed, as their log doesn't say that.

vshard moves a bucket by INSERTs at its destination while `_bucket` has it there as `receiving`, and by DELETEs at its source once
it is `garbage`. It lets users write to a bucket only in other states:

    destination   receiving ── INSERTs: `in` ─┬─▶ active
                                              └─ failed ─▶ garbage ── DELETEs: `gc` ──▶ gone
    source        sending ─▶ sent ─▶ garbage ── DELETEs: `gc` ──▶ gone

`_bucket` is an ordinary space in the same log. So its rows tell, in their order, which state a bucket has at each row. Only the
buckets that move are kept: while there are any, the rows of sharded spaces take the Python path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from cdc.events.envelope import Change, Envelope, SpaceEvents
from cdc.events.moves import Move
from cdc.images.image_events import ImageChanges
from cdc.images.overlay import Images
from cdc.protocol.codec import Body, tuple_values
from cdc.protocol.constants import Type
from cdc.schema.forms import SpaceForm
from cdc.schema.sharding import BUCKETS
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.bucket_spaces import bucket_field_of, bucket_space, steps_in
from cdc.stream.moves.records import GARBAGE, RECEIVING, Step


class Buckets:
    """The buckets that are arriving, or being collected, at the row that is handled."""

    def __init__(self) -> None:
        self._moving: dict[int, Step] = {}

    @property
    def are_moving(self) -> bool:
        """Whether there are any."""
        return bool(self._moving)

    def clear(self) -> None:
        """Forget all."""
        self._moving.clear()

    def set(self, bucket_id: int, step: Step) -> None:
        """Record a bucket's row in `_bucket`."""
        if step.status in (RECEIVING, GARBAGE):
            self._moving[bucket_id] = step
        else:
            self._moving.pop(bucket_id, None)

    def move(self, kind: int, bucket_id: object) -> Move | None:
        """Return the move that has made a row of this type and bucket; None if it is a user's."""
        if type(bucket_id) is not int or bucket_id not in self._moving:
            return None
        step = self._moving[bucket_id]
        if kind == Type.INSERT and step.status == RECEIVING:
            return Move("in", bucket_id, step.generation)
        if kind == Type.DELETE and step.status == GARBAGE:
            return Move("gc", bucket_id, step.generation)
        return None


class MoveMarks:
    """Marks of one space's events: which move has made the row that was handled last."""

    def __init__(self, envelope: Envelope) -> None:
        self.last: Move | None = None
        self._envelope = envelope
        # The space's pieces with the last mark: a move has many rows.
        self._marked: tuple[Move, SpaceEvents] | None = None

    def shown(self, space: SpaceEvents) -> SpaceEvents:
        """Return the space with the pieces for the event of the row that was handled last."""
        if self.last is None:
            return space
        if self._marked is None or self._marked[0] != self.last:
            marked = copy.copy(space)
            marked.schema = self._envelope.with_move(space.schema, self.last)
            self._marked = self.last, marked
        return self._marked[1]


class MoveWatch:
    """Watch of all spaces of a replica set, which keeps the buckets and marks what moves make."""

    def __init__(self, schema: SchemaTracker, images: Images, envelope: Envelope, discard: Callable[[int], None]) -> None:
        """`discard` forgets a space's encoder, so that it is made again."""
        self._schema = schema
        self._images = images
        self._envelope = envelope
        self._discard = discard
        self._buckets = Buckets()
        self._is_loaded = False
        self._sharded: set[int] = set()

    def forget(self) -> None:
        """Read the buckets again, when they are needed next: a snapshot has changed their images."""
        self._is_loaded = False

    def watch(self, space: SpaceEvents, changes: ImageChanges) -> None:
        """Have a space's changes noticed, if they matter. To be called for each encoder with images when it is made."""
        form = space.form
        if form.name == BUCKETS:
            self._load(form)
            space.is_compiled = False
            space.changes = {kind: self._noticed(change, changes) for kind, change in space.changes.items()}
            return
        field = bucket_field_of(self._schema, form.space_id)
        if field is None:
            self._sharded.discard(form.space_id)
            return
        self._sharded.add(form.space_id)
        if not self._is_loaded:
            self._load(bucket_space(self._schema))
        if self._buckets.are_moving:
            space.is_compiled, space.marks = False, MoveMarks(self._envelope)
            marked = {kind: self._marked(kind, change, space.marks, changes, field) for kind, change in space.changes.items()}
            space.changes = marked

    def _load(self, space: SpaceForm | None) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        self._buckets.clear()
        for bucket_id, step in steps_in(self._images, space).items():
            self._buckets.set(bucket_id, step)

    def _noticed(self, change: Change, changes: ImageChanges) -> Change:
        """Return a change of a row of `_bucket` that tells the bucket's state after it."""

        def apply(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            found = change(body, frame)
            key, after = changes.row_after(frame)
            were_moving = self._buckets.are_moving
            self._buckets.set(key[0], Step.of(after))
            if self._buckets.are_moving != were_moving:
                for space_id in self._sharded:
                    self._discard(space_id)
            return found

        return apply

    def _marked(self, kind: int, change: Change, marks: MoveMarks, changes: ImageChanges, field: int) -> Change:
        """Return a change of a row of a sharded space that notes which move has made it."""

        def apply(body: Body, frame: bytes) -> tuple[bytes, bytes, bytes] | None:
            row: Sequence[Any] | None = None
            if kind in (Type.INSERT, Type.DELETE):
                _, before, row = changes.place_of(kind, frame)
                row = tuple_values(before) if before is not None else row
            marks.last = self._buckets.move(kind, row[field]) if row is not None and field < len(row) else None
            return change(body, frame)

        return apply
