"""Brings the images from the state store's position up to the published one, by transactions whose events Kafka already has.

    store's position S         published position K
          │ 41  42  43  44  45 ║ 46  47
            └── catch-up ────┘     └ published as usual
                only images change

Each server sends the origins' rows in an order of its own. Therefore a transaction past K may come before published ones of
another origin. It is set aside (cdc.stream.transactions.ahead) until all of these have been seen: only then is the schema the one
at its position.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Final

from cdc.images.pending import no_changes
from cdc.positions.position import Position
from cdc.positions.vclock import VCLOCK_MAX, VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.boundaries import Boundaries
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions.ahead import Ahead
from cdc.stream.transactions.transaction import Transaction

CHANGES_MAX: Final = 10_000
"""Maximum number of row changes of the catch-up that are passed on together; fewer once their events would fill a batch."""

ENDLESS: Final = VClock(dict.fromkeys(range(1, VCLOCK_MAX), 2**63 - 1))
"""Vclock that no stream reaches. A pipeline that catches up to it never publishes: its caller passes only published rows."""


class CatchUp:
    """The catch-up from the beginning of a connection up to the position `until`."""

    def __init__(
        self, until: Position, context: EventContext, events: StreamEvents, boundaries: Boundaries, ahead: Ahead
    ) -> None:
        assert context.images is not None, "without images there is nothing to bring up to the published position"
        self.until = until
        self.is_endless = until.vclock is ENDLESS
        """Whether everything that comes is published, so that no row has to be looked at for that."""
        self.is_over = False
        self.on_end: Callable[[], None] = lambda: None
        """Called at the end: from there on, the configuration's rules apply."""
        self._images = context.images
        self._builder = context.builder
        self._spaces = context.spaces
        self._events = events
        self._boundaries = boundaries
        self._ahead = ahead
        self._changes = no_changes()

    def covers(self, transaction: Transaction) -> bool:
        """Return whether a transaction's events are published."""
        return transaction.lsn <= self.until.vclock.get(transaction.replica_id, 0)

    def set_aside(self, transaction: Transaction, known_lsn: int) -> None:
        """Keep a transaction past the published position, whose origin was known up to `known_lsn`.

        Raises StoreBehindError if published ones are missing before it.
        """
        self._ahead.check(transaction.replica_id, known_lsn, self.until.vclock)
        self._ahead.put(transaction)

    def apply(self, transaction: Transaction, suffix: bytes) -> Generator[Batch, None, bool]:
        """Update the images by the next transaction; yield the changes now and then, and at the end. Return whether it was the
        last one."""
        for _ in self._events.fill(transaction, suffix):
            self._changes.extend(self._images.take())
            self._builder.forget_messages()
        yield from self._rekey(transaction)
        if VClock(self._events.vclock) == self.until.vclock:
            yield self._end()
            return True
        count = len(self._changes) + self._images.change_count + len(self._builder.parts)
        if self._builder.is_full or count > CHANGES_MAX:
            yield self.take_batch()
        return False

    def take_batch(self) -> Batch:
        """Return the changes since the last batch."""
        # The rules of that time may have published fewer rows: spaces may have had names since then that they left out.
        self._builder.seq = min(self._builder.seq, self.until.seq)
        batch = self._boundaries.take_caught_up(self._changes)
        self._changes = no_changes()
        return batch

    def _rekey(self, transaction: Transaction) -> Iterator[Batch]:
        """If the transaction changed primary keys, move the images to the new keys."""
        events, until = self._events, self.until
        for _ in events.rekey():
            yield Batch.pause(events.base)
        for space_id in events.take_rekeyed():
            if self._images.is_unknown(space_id):
                # Rows whose new keys can't be stored are kept until they have been published, which may have been interrupted.
                is_last = transaction.lsn == until.vclock.get(transaction.replica_id)
                if not (is_last and any(one.space_id == space_id for one in until.rekeyed)):
                    self._images.clear(space_id)

    def _end(self) -> Batch:
        """Return the last batch. From here on, transactions are published."""
        until = self.until
        self._images.restore_doubtful(until.doubtful)
        batch = self.take_batch()
        self._builder.restart(until.seq)
        self._spaces.schema.schema_version = until.schema_version
        self._events.base = replace(self._events.base, snapshot=until.snapshot, rekeyed=until.rekeyed, requests=until.requests)
        # What the configuration publishes otherwise than before is recorded with Kafka's checkpoint from here on.
        self.on_end()
        if self._spaces.gate is not None:
            self._spaces.gate.queues.end_past()
            self._spaces.gate.note_moving()
        self._spaces.encoders.clear()
        self.is_over = True
        return batch
