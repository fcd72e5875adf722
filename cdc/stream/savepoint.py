"""State before a transaction, to which the pipeline returns if the transaction can't be handled, or must begin its own batch.

batch:  45  46  47 │ 48, first part       the batch is full: 45 to 47 are a batch of their own, and 48 begins another
                   │ 48, faulty           45 to 47 are good: they are published before the error is raised
               savepoint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.stream_events import StreamEvents

_NO_IMAGES: Final[tuple[int, frozenset[bytes], frozenset[bytes], Mapping[int, int]]] = (0, frozenset(), frozenset(), {})


class Savepoint:
    """The place in the batch, the images, the schema's version, and the vclock's component of the transaction's origin."""

    __slots__ = (
        "_change_count",
        "_context",
        "_doubtful",
        "_doubts",
        "_events",
        "_lsn",
        "_mark",
        "_numbers",
        "_origin",
        "_schema_version",
        "_stored",
    )

    def __init__(self, context: EventContext, events: StreamEvents, origin: int) -> None:
        """Remember the present state, before a transaction of this origin."""
        images, builder = context.images, context.builder
        self._context = context
        self._events = events
        self._origin = origin
        self._lsn = events.vclock.get(origin)
        self._mark = builder.mark
        self._stored = builder.stored.copy() if builder.stored else {}
        self._schema_version = context.spaces.schema.schema_version
        if images is None:
            self._change_count, self._doubtful, self._doubts, self._numbers = _NO_IMAGES
        else:
            self._change_count, self._doubtful, self._doubts = images.change_count, images.doubtful, images.doubts
            self._numbers = images.numbers

    @property
    def has_rows(self) -> bool:
        """Whether the batch had rows."""
        return bool(self._mark.row_count)

    @property
    def position(self) -> Position:
        """The position that these rows lead to."""
        return replace(self._events.base, vclock=VClock(self._vclock), seq=self._mark.seq, doubtful=self._doubts)

    @property
    def _vclock(self) -> dict[int, int]:
        others = {origin: lsn for origin, lsn in self._events.vclock.items() if origin != self._origin}
        return others if self._lsn is None else {**others, self._origin: self._lsn}

    def take_batch(self, position: Position) -> Batch:
        """Return the batch of these rows, which contains no DDL, and leave the transaction's part in the builder."""
        batch = self._context.builder.take_before(self._mark, position)
        if (images := self._context.images) is not None:
            batch.changes, batch.numbers = images.take_before(self._change_count), self._numbers
        return batch

    def back_to(self) -> None:
        """Forget everything since."""
        builder, images = self._context.builder, self._context.images
        builder.back_to(self._mark)
        builder.stored = self._stored
        self._context.spaces.schema.schema_version = self._schema_version
        if images is not None:
            images.forget_after(self._change_count)
            images.doubtful, images.numbers = self._doubtful, self._numbers
        self._events.vclock = self._vclock
