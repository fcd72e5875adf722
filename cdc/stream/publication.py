"""Makes batches of the transactions whose events are new to consumers.

    transaction ─▶ StreamEvents (schema at its position) ─▶ BatchBuilder ─▶ Batch
                                                               │ full within the transaction
                                                               └─▶ the transactions before it (Savepoint), then its parts

The transactions are certain. If one changes a space's primary key, the space's rows are published again right after it, under
their new keys, before the next transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc.errors import CdcError
from cdc.positions.position import Rekeyed
from cdc.stream import shown_again
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.boundaries import Boundaries
from cdc.stream.moved_buckets import MovedBuckets
from cdc.stream.savepoint import Savepoint
from cdc.stream.snapshots.backfill import abort, names_of
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions.transaction import Transaction


class Publication:
    """Maker of batches with events."""

    def __init__(self, context: EventContext, events: StreamEvents, boundaries: Boundaries, moves: MovedBuckets | None) -> None:
        """`moves` is None if moves of buckets aren't hidden."""
        self._context = context
        self._builder = context.builder
        self._events = events
        self._boundaries = boundaries
        self._moves = moves

    def resume(self) -> Iterator[Batch]:
        """Yield the batches of work that the previous connection left undone at this position."""
        events, request = self._events, self._events.base.requests.current
        state = events.base.snapshot
        if state is not None and state.open_request:
            if request is None or request.snapshot_id != state.open_request:
                events.base = abort(events.position, events.now_us, self._context)
            elif not events.base.requests.is_paused:
                names = names_of(self._context.spaces, request.space_ids)
                self._context.notifier.request(request, "RESUMED", events.now_us, names, total_rows_scanned=str(request.all_rows))
            if self._builder.parts:
                yield self._boundaries.take_batch()
        yield from shown_again.publish(self._context, self._events, self._boundaries)

    def publish(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Make the events of the next transaction; yield full batches.

        A large transaction is split into several batches, of which only the last ends at a boundary.
        """
        builder, boundaries = self._builder, self._boundaries
        if builder.stored and (transaction.row_count > 1 or transaction.spool is not None):
            yield boundaries.take_batch()  # DDL that comes before the transaction must not be taken for its own
        before: Savepoint | None = Savepoint(self._context, self._events, transaction.replica_id)
        try:
            for _ in self._events.fill(transaction, suffix):
                if before is not None and before.has_rows:
                    yield boundaries.take_before(before)
                before = None
                if builder.row_count:
                    yield boundaries.take_batch(is_boundary=False)
        except CdcError:
            # The transactions before the faulty one are good.
            if before is not None and before.has_rows:
                before.back_to()
                yield boundaries.take_batch()
            raise
        if self._events.has_rekeyed:
            yield from self._rekey()
            yield boundaries.take_batch()
            yield from shown_again.publish(self._context, self._events, self._boundaries)
        elif builder.is_full or before is None:
            yield boundaries.take_batch()
        if self._moves is not None:
            yield from self._moves.go_on(suffix)

    def _rekey(self) -> Iterator[Batch]:
        """Move the images of spaces with changed primary keys, and schedule publishing the spaces' rows."""
        events = self._events
        for _ in events.rekey():
            yield Batch.pause(events.base)
        for space_id in events.take_rekeyed():
            others = tuple(one for one in events.base.rekeyed if one.space_id != space_id)
            events.base = replace(events.base, rekeyed=(*others, Rekeyed(space_id)))
