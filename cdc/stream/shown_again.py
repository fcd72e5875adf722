"""Publishes all rows of the spaces that the position says are to be shown again, before the stream goes on."""

from __future__ import annotations

from collections.abc import Iterator

from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.boundaries import Boundaries
from cdc.stream.snapshots import rekeying
from cdc.stream.stream_events import StreamEvents


def publish(context: EventContext, events: StreamEvents, boundaries: Boundaries) -> Iterator[Batch]:
    """Yield the batches with these rows; the stream waits meanwhile. Raises the errors of `rekeying.advance`."""
    while events.base.rekeyed:
        events.base = rekeying.advance(events.position, events.now_us, context)
        yield boundaries.take_batch()
        yield Batch.pause(events.base)
