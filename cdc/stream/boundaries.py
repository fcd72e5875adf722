"""The positions between transactions: batches end there, and the ledger records how far the stream has come.

A batch may also end within a large transaction. Its position is then the boundary before that transaction, and isn't committed.
"""

from __future__ import annotations

from cdc.images.pending import Changes
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.ledger import Ledger
from cdc.stream.savepoint import Savepoint
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions.ahead import Ahead
from cdc.stream.transactions.limbo import Limbo


class Boundaries:
    """Taker of batches."""

    def __init__(self, context: EventContext, events: StreamEvents, limbo: Limbo, ahead: Ahead, ledger: Ledger) -> None:
        self._builder = context.builder
        self._images = context.images
        self._events = events
        self._limbo = limbo
        self._ahead = ahead
        self.ledger = ledger

    def take_batch(self, *, is_boundary: bool = True) -> Batch:
        """Return everything that was filled since the last batch. If it `is_boundary`, the last transaction is complete."""
        if is_boundary:
            self._reach(self._events.position)
        batch = self._builder.take(self._events.base, is_boundary=is_boundary)
        if self._images is not None:
            batch.changes, batch.numbers = self._images.take(), self._images.numbers
        return batch

    def take_before(self, savepoint: Savepoint) -> Batch:
        """Return what had been filled at the savepoint."""
        self._reach(savepoint.position)
        return savepoint.take_batch(self._events.base)

    def take_caught_up(self, earlier: Changes) -> Batch:
        """Return the batch of the catch-up: its transactions' changes to the images, behind `earlier` ones, and no messages."""
        assert self._images is not None
        self._reach(self._events.position)
        earlier.extend(self._images.take())
        batch = self._builder.take_catch_up(self._events.base, earlier)
        batch.numbers = self._images.numbers
        return batch

    def receive(self) -> None:
        """Record the rows that have arrived: those up to the position, and the waiting transactions after it."""
        self.ledger.receive(VClock(self._ahead.received(self._events.vclock | self._limbo.received)))

    def _reach(self, position: Position) -> None:
        self._events.base = position
        self.receive()
        self.ledger.release(position.vclock)
        self.ledger.publish(position)
