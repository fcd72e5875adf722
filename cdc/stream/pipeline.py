"""The core of the daemon: it turns frames into batches of messages, and keeps the ledger of their settlement.

    frames ─▶ Assembler ─▶ transactions ─▶ Limbo ─▶ StreamEvents (schema at this position) ─▶ Batch ─▶ publisher
                                                                                                │
                                              Ledger ◀── settle(position) ◀─────────────────────┘

A pipeline lives as long as one connection. It begins at a checkpoint. After any error it is discarded, and a new one begins at
the last checkpoint. So there is one way to recover, which is also the way to start.

With images, a pipeline may begin before the checkpoint, at the state store's position, and is given the position up to which
events are published. Up to there it only updates the images. Another server may send the origins of the log in another order than
the server that was followed before. Therefore a transaction past the published position waits until all published transactions
have been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

from cdc import __version__
from cdc.errors import CdcError, SnapshotNeededError
from cdc.events import topics
from cdc.events.envelope import Envelope
from cdc.events.topics import TopicNames
from cdc.images.overlay import Images
from cdc.images.pending import no_changes
from cdc.positions.last_row import LastRow
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, Rekeyed
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.constants import Type
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.ahead import Ahead
from cdc.stream.assembler import HEARTBEATS_END_BEFORE, Assembler, rows_of
from cdc.stream.backfill import Republication, abort
from cdc.stream.batch import Batch, BatchBuilder
from cdc.stream.compiled_rows import compiled_row_path
from cdc.stream.compiled_stream import CompiledStream
from cdc.stream.event_context import EventContext
from cdc.stream.ledger import Ledger
from cdc.stream.limbo import Limbo, LimboState, is_control
from cdc.stream.options import PipelineOptions
from cdc.stream.recognition import at_position, last_rows_of, noted
from cdc.stream.rekeying import advance
from cdc.stream.row_errors import SNAPSHOT
from cdc.stream.savepoint import Savepoint
from cdc.stream.snapshot import Snapshot
from cdc.stream.spaces import Spaces
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transaction import Spool, Transaction
from cdc.stream.transaction_buffer import TransactionBuffer

REPLAYED_CHANGES_MAX: Final = 10_000
"""Maximum number of already published row changes that are passed on together."""


class Pipeline:
    """Conversion of one connection's rows into batches. Pure: the caller passes the time with the frames, and nothing is sent."""

    def __init__(
        self,
        options: PipelineOptions,
        position: Position,
        stored: list[StoredSpace],
        *,
        server_uuid: UUID,
        version: tuple[int, ...],
        new_spool: Callable[[], Spool],
        images: Images | None = None,
        catch_up_to: Position | None = None,
    ) -> None:
        """Begin at `position`, with the schema `stored` there. If there are `images` at that position, events contain images.

        Rows between `position` and `catch_up_to` are already published: they only change the images. `version` is the master's
        version, which determines what its rows contain.
        """
        self._catch_up_to = catch_up_to
        self._catch_up_changes = no_changes()
        self._waiting = TransactionBuffer(options.transaction_bytes_max, new_spool)
        self._ahead = Ahead(self._waiting)
        self.images = images
        if images is not None:
            images.restore_doubtful(position.doubtful)
        self._envelope = Envelope(__version__, options.prefix)
        self._assembler = Assembler(memory_bytes_max=options.transaction_bytes_max, new_spool=new_spool)
        names = TopicNames(options.prefix)
        self._builder = BatchBuilder(names, position.seq, options.batch_bytes_max)
        transaction_topic = names.control(topics.TRANSACTION)
        row_path = compiled_row_path(options, self._envelope.source, transaction_topic)
        self._spaces = Spaces(
            SchemaTracker(stored, position.schema_version),
            options.space_filter(),
            names,
            self._envelope,
            self._builder,
            str(server_uuid),
            version,
            images,
            row_path,
        )
        base = replace(position, server_uuid=server_uuid, last_rows=last_rows_of(position, server_uuid))
        self._events = StreamEvents(options, base, self._envelope, self._builder, self._spaces, images)
        self._context = EventContext(self._spaces, self._envelope, self._builder, images, self._events.refuse)
        self._version = version
        self._limbo = Limbo(self._spaces.schema, self._waiting, version)
        self._row_path = row_path
        self._compiled: CompiledStream | None = None
        if row_path is not None:
            self._compiled = CompiledStream(
                row_path,
                self._builder,
                self._events,
                self._assembler,
                self._limbo,
                transaction_topic=transaction_topic,
                open_bytes_max=options.transaction_bytes_max,
                may_run=self._has_only_rows,
                feed=self._feed,
                batch=self._batch,
            )
        self._options = options
        self._snapshot: Snapshot | None = None
        self.ledger = Ledger(position)

    # State for the caller.

    @property
    def position(self) -> Position:
        """The boundary up to which rows have been handled; waiting transactions come after it."""
        return self._events.position

    @property
    def published_position(self) -> Position:
        """Position up to which events are published: while the images are being brought up to it, it is ahead of `position`."""
        return self._catch_up_to if self._catch_up_to is not None else self.position

    @property
    def seq(self) -> int:
        """The last seq that was assigned, also within a source transaction."""
        return self._builder.seq

    @property
    def open_byte_count(self) -> int:
        """Size of the source transaction whose end has not arrived, in bytes."""
        return self._assembler.open_byte_count + (self._compiled.open_byte_count if self._compiled is not None else 0)

    @property
    def limbo(self) -> LimboState:
        """Number and size of the transactions that wait for a quorum."""
        return self._limbo.state

    @property
    def is_catching_up(self) -> bool:
        """Whether the images have yet to reach the position of the published events."""
        return self._catch_up_to is not None

    @property
    def merging_upsert_count(self) -> int:
        """Number of UPSERTs of vinyl spaces that were received from a server that merges them."""
        return self._spaces.merging_upsert_count

    def published_forms(self) -> list[SpaceForm]:
        """Return the published spaces' forms at this position."""
        return self._spaces.published_forms()

    def resume_unfinished_work(self, now_us: int) -> Iterator[Batch]:
        """Yield the batches of work left undone at the position, before the first rows of the stream.

        Raises the errors of `feed`.
        """
        self._events.now_us = now_us
        if self._catch_up_to is None:
            yield from self._finish_former_work()

    def _finish_former_work(self) -> Iterator[Batch]:
        """Yield the batches of work that the previous connection left undone."""
        state = self._events.base.snapshot
        if state is not None and state.open_request:
            self._events.base = abort(self.position, self._events.now_us, self._builder)
            yield self._batch()
        yield from self._publish_rekeyed()

    def close(self) -> None:
        """Discard the incomplete and uncertain transactions: the connection has ended."""
        self.discard_open()
        self._waiting.close()

    # The stream.

    def feed(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Process rows of the stream; yield the resulting batches, usually one. `now_us` is the present time.

        Batches contain only complete and certain transactions, so a row's events may be yielded by a later call. The caller must
        take each batch before it asks for the next. Raises ProtocolError, SchemaError, EncodingError, ConfigurationError or
        SynchronousReplicationError. The pipeline is unusable then, but the transactions before the faulty one have been yielded.
        """
        self._events.now_us = now_us
        suffix = self._envelope.batch_time(now_us)
        feed = self._feed if self._compiled is None else self._compiled.feed
        yield from feed(frames, suffix)
        self._events.base = noted(self._events.base, at_position(frames, self._events.vclock))
        yield from self._rest()

    def heartbeat(self, now_us: int) -> Iterator[Batch]:
        """Process a heartbeat, which ends an open transaction whose last row isn't relayed; yield batches as `feed` does."""
        if not self.open_byte_count or self._version >= HEARTBEATS_END_BEFORE:
            return
        self._events.now_us = now_us
        suffix = self._envelope.batch_time(now_us)
        if self._compiled is not None:
            yield from self._compiled.give_up(suffix)
        yield from self._complete(self._assembler.end(), suffix)
        yield from self._rest()

    def discard_open(self) -> None:
        """Discard the incomplete transaction, which the master will send again."""
        self._assembler.close()
        if self._compiled is not None:
            self._compiled.close()

    def _rest(self) -> Iterator[Batch]:
        """Yield what isn't yielded yet."""
        if self._catch_up_to is not None:
            yield self._caught_up()
        elif self._builder.row_count:
            yield self._batch()
        elif not self._limbo.is_empty:
            self.ledger.receive(self._received())

    def recognize(self, rows: Iterable[LastRow]) -> Batch | None:
        """Note rows at the position that were seen again; return a batch that makes the checkpoint record them, if it is news."""
        base = noted(self._events.base, rows)
        if self._catch_up_to is not None or base is self._events.base:
            return None
        self._events.base = base
        return self._batch()

    def _has_only_rows(self) -> bool:
        """Return whether events depend on rows and the limbo alone: nothing is replayed, no schema change is unpublished."""
        return self._catch_up_to is None and not self._spaces.schema.touched

    def _feed(self, frames: Frames, suffix: bytes, *, are_certain: bool = False) -> Iterator[Batch]:
        """Process rows in the Python path. If they `are_certain`, the limbo has released them."""
        yield from self._complete(self._assembler.feed(frames), suffix, are_certain=are_certain)

    def _complete(self, transactions: list[Transaction], suffix: bytes, *, are_certain: bool = False) -> Iterator[Batch]:
        """Process complete transactions."""
        process = self._handle if are_certain else self._arrive
        for transaction in transactions:
            try:
                yield from process(transaction, suffix)
            except SnapshotNeededError as error:
                error.place = self._events.place
                raise

    def _arrive(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Handle the transactions that can be handled now that this one has arrived.

        During the replay, a transaction past the published events is set aside; as a control row it may decide over earlier ones.
        """
        until, limbo, origin = self._catch_up_to, self._limbo, transaction.replica_id
        if until is not None and transaction.lsn > until.vclock.get(origin, 0):
            known_lsn = limbo.received.get(origin, self._events.vclock.get(origin, 0))
            self._ahead.check(origin, known_lsn, until.vclock)
            if is_control(transaction) and not limbo.is_empty:
                for ready in self._decided(transaction):
                    yield from self._handle_certain(ready, suffix)
            self._ahead.put(transaction)
        else:
            for ready in self._certain(transaction):
                yield from self._handle_certain(ready, suffix)
        while self._ahead and self._catch_up_to is None:
            for ready in self._certain(self._ahead.take()):
                yield from self._handle(ready, suffix)

    def _certain(self, transaction: Transaction) -> Iterator[Transaction]:
        """Yield the transactions that are certain now, in order; `transaction` itself only if it is certain and new."""
        events, limbo, origin = self._events, self._limbo, transaction.replica_id
        if transaction.lsn <= limbo.received.get(origin, events.vclock.get(origin, 0)):
            # It was received before.
            if transaction.spool is not None:
                transaction.spool.close()
        elif is_control(transaction):
            yield from self._decided(transaction)
            if limbo.advance_or_defer(origin, transaction.lsn):
                yield transaction
        elif not limbo.enqueue_if_waiting(transaction, events.now_us):
            yield transaction

    def _decided(self, control: Transaction) -> Iterator[Transaction]:
        """Yield the transactions that a control row releases, in order.

        The position passes over rolled back transactions together with the control row, so no position lies between the two.
        """
        yield from self._limbo.apply(control)
        if freed := self._limbo.take_unblocked():
            self._events.jump(freed)

    def _handle_certain(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Handle a certain transaction: publish it if it is new to consumers, else only update the images."""
        until = self._catch_up_to
        if until is None:
            yield from self._handle(transaction, suffix)
            return
        yield from self._replay(transaction, suffix)
        if VClock(self._events.vclock) == until.vclock:
            assert self.images is not None
            self.images.restore_doubtful(until.doubtful)
            batch = self._caught_up()
            self._builder.restart(until.seq)
            self._spaces.schema.schema_version = until.schema_version
            self._events.base = replace(self._events.base, snapshot=until.snapshot, rekeyed=until.rekeyed)
            # The configuration may publish other spaces than before, and Kafka's checkpoint has to record that.
            self._spaces.schema.touch_all()
            # A caller that only wants to catch up checks `is_catching_up` after each batch.
            self._catch_up_to = None
            yield batch
            yield from self._finish_former_work()
        elif self._replayed_count > REPLAYED_CHANGES_MAX:
            yield self._caught_up()

    def _handle(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Make the events of a transaction.

        A large one is split into several batches, of which only the last ends at a boundary.
        """
        builder = self._builder
        if builder.stored and (transaction.row_count > 1 or transaction.spool is not None):
            yield self._batch()  # DDL that comes before the transaction must not be taken for its own
        before: Savepoint | None = Savepoint(self._context, self._events, transaction.replica_id)
        try:
            for _ in self._rows(transaction, suffix):
                if before is not None and before.has_rows:
                    self._reach(before.position)
                    yield before.take_batch(self._events.base)
                before = None
                if builder.row_count:
                    yield self._batch(is_boundary=False)
        except CdcError:
            # The transactions before the faulty one are good.
            if before is not None and before.has_rows:
                before.back_to()
                yield self._batch()
            raise
        if self._events.has_rekeyed:
            yield from self._rekey(transaction)
            yield self._batch()
            yield from self._publish_rekeyed()
        elif builder.is_full or before is None:
            yield self._batch()

    def _rows(self, transaction: Transaction, suffix: bytes) -> Iterator[None]:
        """Fill the batch with a transaction's events; yield whenever it is full, or a chunk has been read from disk."""
        events, spool = self._events, transaction.spool
        pieces = events.begin(transaction, suffix)
        if spool is None:
            rows = iter(transaction.rows)
            while not events.encode_rows(pieces, rows):
                yield
        else:
            try:
                decoder = FrameDecoder()
                for chunk in spool.chunks():
                    rows = iter(rows_of(decoder.feed(chunk)))
                    while not events.encode_rows(pieces, rows):
                        yield
                    yield
            finally:
                spool.close()
        events.end(pieces)

    def _replay(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Update the images by a transaction whose events are published."""
        assert self.images is not None
        for _ in self._rows(transaction, suffix):
            self._catch_up_changes.extend(self.images.take())
            self._builder.forget_messages()
        yield from self._rekey(transaction)

    @property
    def _replayed_count(self) -> int:
        assert self.images is not None
        return len(self._catch_up_changes) + self.images.change_count + len(self._builder.parts)

    # Changed primary keys.

    def _rekey(self, transaction: Transaction) -> Iterator[Batch]:
        """If the transaction changed primary keys, move the images to the new keys, and schedule publishing the spaces' rows."""
        events, until = self._events, self._catch_up_to
        for _ in events.rekey():
            yield Batch.pause(events.base)
        for space_id in events.take_rekeyed():
            assert self.images is not None
            if until is None:
                again = tuple(one for one in events.base.rekeyed if one.space_id != space_id)
                events.base = replace(events.base, rekeyed=(*again, Rekeyed(space_id)))
            elif self.images.is_unknown(space_id):
                # Rows whose new keys can't be stored are kept until they have been published, which may have been interrupted.
                is_last = transaction.lsn == until.vclock.get(transaction.replica_id)
                if not (is_last and any(one.space_id == space_id for one in until.rekeyed)):
                    self.images.clear(space_id)

    def _publish_rekeyed(self) -> Iterator[Batch]:
        """Publish the rows of spaces with changed primary keys; the stream waits meanwhile."""
        while self._events.base.rekeyed:
            self._events.base = advance(self.position, self._events.now_us, self._context)
            yield self._batch()
            yield Batch.pause(self._events.base)

    def _caught_up(self) -> Batch:
        """Return the batch of the replayed transactions' changes to the images. Their events are already published."""
        assert self.images is not None
        self._move()
        self._catch_up_changes.extend(self.images.take())
        batch = self._builder.discard(self._events.base, self._catch_up_changes)
        self._catch_up_changes = no_changes()
        batch.numbers = self.images.numbers
        return batch

    def _batch(self, *, is_boundary: bool = True) -> Batch:
        """Return everything filled since the last batch, as a batch."""
        if is_boundary:
            self._move()
        batch = self._builder.take(self._events.base, is_boundary=is_boundary)
        if self.images is not None:
            batch.changes, batch.numbers = self.images.take(), self.images.numbers
        return batch

    def _move(self) -> None:
        """Record that a boundary has been reached."""
        self._reach(self._events.position)

    def _reach(self, position: Position) -> None:
        self._events.base = position
        self.ledger.receive(self._received())
        self.ledger.release(position.vclock)
        self.ledger.publish(position)

    def _received(self) -> VClock:
        """Return the vclock of the received rows: the position, and the waiting transactions after it."""
        return VClock(self._ahead.received(self._events.vclock | self._limbo.received))

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int, *, after: Numbers | None = None, publish: bool = True) -> Batch:
        """Begin a snapshot whose stream will begin at `vclock`.

        The schema is published again. All numbers continue after `after`, in case events are published that the position doesn't
        cover. Without `publish`, only the schema is taken from the snapshot's rows. The ledger is replaced: the position may be
        another history's.
        """
        events = self._events
        assert self._limbo.is_empty
        if self.images is not None:
            self.images.doubtful = frozenset()  # the snapshot has the correct rows of these keys
        numbers = Numbers.of(events.position) | (after or Numbers())
        self._builder.restart(numbers.seq)
        self._spaces.schema.schema_version = numbers.schema_version
        events.jump(vclock, is_whole=True)
        self._snapshot = Snapshot(
            numbers.applied_to(events.position),
            self._spaces,
            self._envelope,
            self._builder,
            lambda error, space_id, body: events.refuse(error, SNAPSHOT, Type.INSERT, 0, body, space_id),
            now_us,
            self.images,
            tombstones=self._options.tombstones,
            publish=publish,
            row_path=self._row_path,
        )
        events.base = self._snapshot.position
        self.ledger = Ledger(events.base)
        return self._batch()

    def feed_snapshot(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Process rows of the snapshot; yield the resulting batches, as `feed` does."""
        assert self._snapshot is not None
        for _ in self._snapshot.feed(frames, now_us):
            self._events.base = self._snapshot.position
            yield self._batch()
        self._events.base = self._snapshot.position
        yield self._batch()

    def end_snapshot(self, now_us: int) -> Iterator[Batch]:
        """Complete the snapshot. After the last batch, the stream can be subscribed to from the position.

        Raises ProtocolError if something is missing.
        """
        assert self._snapshot is not None
        for _ in self._snapshot.missing(now_us):
            yield self._batch()
        self._events.base = self._snapshot.end(now_us)
        self._snapshot = None
        yield self._batch()

    def republish(self, request: Republication, now_us: int) -> Batch:
        """Return the next chunk of the requested rows, between two calls of `feed`.

        Raises the errors of `feed`, and RequestError.
        """
        self._events.base = request.advance(self.position, now_us, self._context)
        return self._batch()
