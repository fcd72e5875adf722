"""Lets rows of buckets go on that have waited, and answers what other shards ask (cdc.stream.moves.queues has the theory).

    another shard's record ─▶ heard ─┐
    a bucket's state in the stream ──┴─▶ BucketQueues decides ─▶ the rows as if they came only now ─▶ batches

A batch that ends between two such rows ends at a boundary: the position is that of the stream, and the buckets' records say which
rows wait there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from cdc.events import topics
from cdc.events.envelope import SpaceCount, snapshot_record
from cdc.positions.position import Rekeyed
from cdc.positions.vclock import VClock
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import SpaceForm
from cdc.stream import shown_again
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.bucket_gate import BucketGate
from cdc.stream.batches.event_context import EventContext
from cdc.stream.batches.routed_messages import RowWriter
from cdc.stream.boundaries import Boundaries
from cdc.stream.fragments import EventFragments
from cdc.stream.moves.queues import BucketQueues, Question, Whole
from cdc.stream.snapshots.backfill import encoder_of, next_request, write_gone, write_row
from cdc.stream.stream_events import StreamEvents


class MovedBuckets:
    """What happens to one shard's buckets besides their rows in the stream."""

    def __init__(self, gate: BucketGate, context: EventContext, events: StreamEvents, boundaries: Boundaries) -> None:
        self._gate = gate
        self._context = context
        self._builder = context.builder
        self._events = events
        self._boundaries = boundaries
        self._writer = RowWriter(context.builder, context.envelope, tombstones=context.options.tombstones)

    @property
    def queues(self) -> BucketQueues:
        """The buckets, and what waits."""
        return self._gate.queues

    @property
    def is_ready(self) -> bool:
        """Whether `heard` has something to do without news."""
        return self.queues.is_ready or self.queues.beginnings.must_settle

    def resume(self, now_us: int) -> Iterator[Batch]:
        """Yield the batches of what is to be done at the position where a connection begins."""
        for row in self._gate.leftovers():
            # Its event is published; it changes the images.
            self._events.handle_waiting(row, None, b"")
        if self.queues.is_past:
            return
        if self._gate.must_begin:
            self.begin()
        yield self._boundaries.take_batch()
        yield from self.go_on(self._context.envelope.batch_time(now_us))
        if self._builder.parts:
            yield self._boundaries.take_batch()

    def heard(self, bucket_ids: Iterable[int | None], now_us: int) -> Iterator[Batch]:
        """Let rows go on that waited for other shards, whose records of these buckets have changed, between two calls of `feed`.

        None in the place of a bucket: that a shard's daemon has begun. Yields batches, and raises the errors, as `feed` does.
        """
        self._events.now_us = now_us
        for bucket_id in bucket_ids:
            self.queues.heard(bucket_id)
        if not self.queues.is_past:
            yield from self.go_on(self._context.envelope.batch_time(now_us))
            yield from self._settle()
            if self._builder.parts:
                yield self._boundaries.take_batch()

    def answer(self, questions: Iterable[Question]) -> Batch | None:
        """Answer questions of `queues`: the rows so far include all that the servers had when they were asked."""
        if self.queues.is_past:
            return None
        self.queues.answer(questions)
        self._gate.write_news()
        return self._boundaries.take_batch() if self._builder.parts else None

    def begin(self) -> None:
        """Record all buckets, at the end of a snapshot, or where none are recorded."""
        uuid = self._events.base.replicaset_uuid
        if uuid is not None:
            self._gate.begin(str(uuid), self._events.now_us)

    def go_on(self, suffix: bytes) -> Iterator[Batch]:
        """Make the events of rows that need wait no longer; yield full batches."""
        if not self._gate.is_ready or self.queues.is_past:
            return
        fragments: EventFragments | None = None
        for each in self._gate.advance(self._events.now_us):
            if isinstance(each, tuple):
                yield from self._publish(*each)
                continue  # a daemon that ended here would publish the bucket again: its state goes on next
            fragments = self._events.handle_waiting(each, fragments, suffix)
            if self._builder.is_full:
                if fragments is not None:
                    # A daemon that ends here goes on behind these rows, and knows nothing of their transaction's others.
                    self._events.record(fragments)
                    fragments = None
                if self.queues.is_settled:
                    self._gate.write_news()
                yield self._boundaries.take_batch(is_boundary=self.queues.is_settled)
        if fragments is not None:
            self._events.record(fragments)
        self._gate.write_news()

    def _settle(self) -> Iterator[Batch]:
        """Draw the conclusion once all daemons have seen each other begin."""
        if not self.queues.beginnings.must_settle:
            return
        events = self._events
        if self.queues.beginnings.settle():
            known = {one.space_id for one in events.base.rekeyed}
            again = [form.space_id for form in self._sharded_forms() if form.space_id not in known]
            events.base = replace(events.base, rekeyed=(*events.base.rekeyed, *map(Rekeyed, again)))
        self._gate.write_news()
        yield self._boundaries.take_batch()
        yield from shown_again.publish(self._context, events, self._boundaries)

    def _sharded_forms(self) -> Iterator[SpaceForm]:
        """Yield the forms of the spaces whose rows are in buckets."""
        for form in self._context.spaces.published_forms():
            # Known once there is an encoder: since this start, the space may have had no row.
            if encoder_of(self._context.spaces, form.space_id) is not None and form.space_id in self._gate.sharded:
                yield form

    def _publish(self, bucket_id: int, whole: Whole) -> Iterator[Batch]:
        """Publish all rows of a bucket, as a snapshot of its own number does: as they are now, or as gone.

        It is one Kafka transaction from STARTED to COMPLETED: if the daemon ends in the middle, the bucket is published anew.
        """
        context, events = self._context, self._events
        vclock = context.envelope.vclock(VClock(events.vclock))
        counts: list[SpaceCount] = []
        number = 0
        for form in self._sharded_forms():
            rows = self._rows_of(bucket_id, form)
            first = next(rows, None)
            if first is None:
                continue
            if not number:
                events.base, number = next_request(events.base)
                self._builder.control(topics.SNAPSHOT, *snapshot_record("STARTED", events.position, events.now_us))
            space = encoder_of(context.spaces, form.space_id)
            assert space is not None
            pieces = context.envelope.snapshot_pieces(space, number, vclock, events.now_us)
            count = 0
            for tuple_, values in chain((first,), rows):
                if whole is Whole.SHOWN:
                    count += write_row(context, self._writer, space, tuple_, values, pieces)
                else:
                    write_gone(context, self._writer, space, tuple_, values, pieces)
                if self._builder.is_full:
                    yield self._boundaries.take_batch(is_boundary=False)
            counts.append(SpaceCount(form.name, form.space_id, count, 0))
        if number:
            record = snapshot_record("COMPLETED", events.position, events.now_us, counts, number=number)
            self._builder.control(topics.SNAPSHOT, *record)

    def _rows_of(self, bucket_id: int, form: SpaceForm) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield a bucket's rows in a space: the tuple, and its values."""
        assert self._context.images is not None
        field = self._gate.sharded[form.space_id]
        for _, tuple_ in self._context.images.scan(form.space_id):
            values = tuple_values(tuple_)
            if field < len(values) and values[field] == bucket_id:
                yield tuple_, values
