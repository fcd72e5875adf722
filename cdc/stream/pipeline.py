"""The core of the daemon: it turns frames into batches of messages, and keeps the ledger of their settlement.

    frames ─▶ CompiledStream ─▶ batches ─▶ publisher ─▶ ledger.settle(position)
                  │      ▲
                  ▼      │ what the compiled path hands back
              PythonStream ─▶ transactions ─┬─▶ CatchUp        events are published: only the images change
                                            └─▶ Publication    events are new

A pipeline lives as long as one connection. It begins at a checkpoint. After any error it is discarded, and a new one begins at
the last checkpoint. So there is one way to recover, which is also the way to start.

With images, a pipeline may begin before the checkpoint, at the state store's position, and is given the position up to which
events are published.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from cdc import __version__
from cdc.errors import CdcError
from cdc.events.routes import Routes
from cdc.formats.choice import new_envelope
from cdc.images.overlay import Images
from cdc.positions.last_row import LastRow
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.positions.requests import Requests
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.batch import Batch, BatchBuilder
from cdc.stream.batches.event_context import EventContext
from cdc.stream.batches.notifier import Notifier
from cdc.stream.batches.options import Surroundings
from cdc.stream.batches.row_errors import Refusals
from cdc.stream.batches.spaces import Spaces
from cdc.stream.boundaries import Boundaries
from cdc.stream.catch_up import CatchUp
from cdc.stream.compiled_stream import CompiledStream
from cdc.stream.ledger import Ledger
from cdc.stream.moved_buckets import MovedBuckets
from cdc.stream.publication import Publication
from cdc.stream.python_stream import PythonStream
from cdc.stream.recognition import RecentFrames, last_rows_of, noted
from cdc.stream.snapshots.backfill import Backfill
from cdc.stream.snapshots.orders import Received
from cdc.stream.snapshots.reading import SnapshotReading
from cdc.stream.snapshots.requests import Outcome, RequestDesk
from cdc.stream.snapshots.snapshot import Snapshot
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions.ahead import Ahead
from cdc.stream.transactions.assembler import HEARTBEATS_END_BEFORE, Assembler
from cdc.stream.transactions.limbo import Limbo, LimboState
from cdc.stream.transactions.transaction_buffer import TransactionBuffer


class Pipeline:
    """Conversion of one connection's rows into batches. Pure: the caller passes the time with the frames, and nothing is sent."""

    def __init__(
        self,
        surroundings: Surroundings,
        position: Position,
        stored: list[StoredSpace],
        *,
        images: Images | None = None,
        catch_up_to: Position | None = None,
        published: Collection[StoredSpace] = (),
    ) -> None:
        """Begin at `position`, with the schema `stored` there. If there are `images` at that position, events contain images.

        Rows between `position` and `catch_up_to` are already published: they only change the images. The rules by which they are
        published are those of the spaces `published` there, and the configuration's rules apply behind them.
        """
        options, server_uuid = surroundings.options, surroundings.server_uuid
        if images is not None:
            images.restore_doubtful(position.doubtful)
        envelope = new_envelope(__version__, options.prefix, options.formats)
        columns = envelope.columns = options.columns()
        names = surroundings.new_names(options.prefix, options.control_prefix, options.shards)
        names.reserve(options.optional_topics)
        names.are_past = is_behind = catch_up_to is not None
        builder = BatchBuilder(names, position.seq, options.batch_bytes_max)
        routes = options.routes()
        mark, routing = (None, routes.of_past) if is_behind else (columns.mark, routes.of)
        if is_behind:
            stored = [replace(space, routing=routes.of_past(str(space.space_row[2]))) for space in stored]
        schema = SchemaTracker(stored, position.schema_version, mark, routing)
        spaces = Spaces(surroundings, schema, envelope, builder, images, published if is_behind else ())
        refusals = Refusals(options, spaces, builder, images, str(server_uuid))
        refusals.are_past = is_behind
        notifier = Notifier(builder, options.prefix, is_on=options.has_notifications)
        context = EventContext(options, spaces, envelope, builder, images, refusals, notifier)
        base = replace(position, server_uuid=server_uuid, last_rows=last_rows_of(position, server_uuid))
        events = StreamEvents(base, context)
        if spaces.gate is not None:
            spaces.gate.load(is_past=is_behind)
        self.images = images
        self.checksum = columns.checksum
        """Makes the checksums of the rows at positions."""
        self._version = surroundings.version
        self._context = context
        self._events = events
        self._waiting = TransactionBuffer(options.transaction_bytes_max, surroundings.new_spool)
        self._limbo = Limbo(spaces.schema, self._waiting, surroundings.version)
        ahead = Ahead(self._waiting)
        self._boundaries = Boundaries(context, events, self._limbo, ahead, Ledger(position))
        self.moves: MovedBuckets | None = None
        """Buckets that move between shards, if their moves are hidden. To be used between two calls of `feed`."""
        if spaces.gate is not None:
            self.moves = MovedBuckets(spaces.gate, context, events, self._boundaries)
        self._publication = Publication(context, events, self._boundaries, self.moves)
        catch_up = None
        if catch_up_to is not None:
            catch_up = CatchUp(catch_up_to, context, events, self._boundaries, ahead)
            catch_up.on_end = partial(_end_past, context, routes, published)
        assembler = Assembler(memory_bytes_max=options.transaction_bytes_max, new_spool=surroundings.new_spool)
        self._python = PythonStream(assembler, self._limbo, events, self._publication, catch_up, ahead)
        self._stream: PythonStream | CompiledStream = self._python
        if spaces.row_path is not None:
            self._stream = CompiledStream(spaces.row_path, self._python, self._limbo, context, events, self._boundaries)
        self._backfill, self._desk = Backfill(context), RequestDesk(context)
        self._snapshot: Snapshot | None = None
        self._reading, self._recent = SnapshotReading(), RecentFrames()

    # State for the caller.

    @property
    def ledger(self) -> Ledger:
        """The order of settlement."""
        return self._boundaries.ledger

    @property
    def position(self) -> Position:
        """The boundary up to which rows have been handled; waiting transactions come after it."""
        return self._events.position

    @property
    def published_position(self) -> Position:
        """Position up to which events are published: while the images are being brought up to it, it is ahead of `position`."""
        catch_up = self._python.catch_up
        return catch_up.until if catch_up is not None else self.position

    @property
    def seq(self) -> int:
        """The last seq that was assigned, also within a source transaction."""
        return self._context.builder.seq

    @property
    def open_byte_count(self) -> int:
        """Size of the source transaction whose end has not arrived, in bytes."""
        return self._stream.open_byte_count

    @property
    def limbo(self) -> LimboState:
        """Number and size of the transactions that wait for a quorum."""
        return self._limbo.state

    @property
    def is_catching_up(self) -> bool:
        """Whether the images have yet to reach the position of the published events."""
        return self._python.catch_up is not None

    @property
    def merging_upsert_count(self) -> int:
        """Number of UPSERTs of vinyl spaces that were received from a server that merges them."""
        return self._context.spaces.merging_upsert_count

    def published_forms(self) -> list[SpaceForm]:
        """Return the published spaces' forms at this position."""
        return self._context.spaces.published_forms()

    def resume_unfinished_work(self, now_us: int) -> Iterator[Batch]:
        """Yield the batches of work left undone at the position, before the first rows of the stream.

        Raises the errors of `feed`.
        """
        self._events.now_us = now_us
        if self.moves is not None:
            yield from self.moves.resume(now_us)
        if not self.is_catching_up:
            yield from self._publication.resume()

    def close(self) -> None:
        """Discard the incomplete and uncertain transactions: the connection has ended."""
        self.discard_open()
        self._waiting.close()

    # The stream.

    def feed(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Process rows of the stream; yield the resulting batches, usually one. `now_us` is the present time.

        Batches contain only complete and certain transactions, so a row's events may be yielded by a later call. The caller must
        take each batch before it asks for the next. Raises ProtocolError, SchemaError, EncodingError, ImageError,
        ConfigurationError, SynchronousReplicationError or SnapshotNeededError. The pipeline is unusable then, but the
        transactions before the faulty one have been yielded.
        """
        self._events.now_us = now_us
        yield from self._stream.feed(frames, self._context.envelope.batch_time(now_us))
        events = self._events
        events.base = noted(events.base, self._recent.at_position(frames, events.base, events.vclock, self.checksum))
        yield from self._rest()

    def heartbeat(self, now_us: int) -> Iterator[Batch]:
        """Process a heartbeat, which ends an open transaction whose last row isn't relayed; yield batches as `feed` does."""
        if not self.open_byte_count or self._version >= HEARTBEATS_END_BEFORE:
            return
        self._events.now_us = now_us
        yield from self._stream.end_open(self._context.envelope.batch_time(now_us))
        yield from self._rest()

    def discard_open(self) -> None:
        """Discard the incomplete transaction, which the master will send again."""
        self._stream.close()

    def _rest(self) -> Iterator[Batch]:
        """Yield what isn't yielded yet."""
        if (catch_up := self._python.catch_up) is not None:
            yield catch_up.take_batch()
        elif self._context.builder.row_count or self._context.builder.parts:
            # Also what is left behind a full batch: rows that had waited, and records of buckets, aren't counted as rows.
            yield self._batch()
        elif not self._limbo.is_empty:
            self._boundaries.receive()

    def recognize(self, rows: Iterable[LastRow]) -> Batch | None:
        """Note rows at the position that were seen again; return a batch that makes the checkpoint record them, if it is news."""
        vclock = self._events.vclock
        # Rows that came together with one of them may have moved the position on, and one of these is noted then.
        base = noted(self._events.base, [row for row in rows if vclock.get(row.replica_id) == row.lsn])
        if self.is_catching_up or base is self._events.base:
            return None
        self._events.base = base
        return self._batch()

    def _batch(self) -> Batch:
        return self._boundaries.take_batch()

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int, *, after: Numbers | None = None, publish: bool = True) -> Batch:
        """Begin a snapshot whose stream will begin at `vclock`.

        The schema is published again. All numbers continue after `after`, in case events are published that the position doesn't
        cover. Without `publish`, only the schema is taken from the snapshot's rows. The ledger is replaced: the position may be
        another history's.
        """
        events, context = self._events, self._context
        assert self._limbo.is_empty
        if context.images is not None:
            context.images.doubtful = frozenset()  # the snapshot has the correct rows of these keys
        numbers = Numbers.of(events.position) | (after or Numbers())
        context.builder.restart(numbers.seq)
        context.spaces.schema.schema_version = numbers.schema_version
        events.jump(vclock, is_whole=True)
        if (gate := context.spaces.gate) is not None:
            gate.begin_snapshot()
        self._snapshot = Snapshot(numbers.applied_to(events.position), context, now_us, publish=publish)
        events.base = self._snapshot.position
        self._boundaries.ledger = Ledger(events.base)
        return self._batch()

    def feed_snapshot(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Process rows of the snapshot; yield the resulting batches, as `feed` does."""
        assert self._snapshot is not None
        for _ in self._snapshot.feed(frames, now_us):
            self._events.base = self._snapshot.position
            yield self._batch()
        self._snapshot.tell()
        self._events.base = self._snapshot.position
        yield self._batch()

    @property
    def snapshot_reading(self) -> SnapshotReading:
        """How far the snapshot has been read."""
        if self._snapshot is not None:
            self._reading = self._snapshot.reading
        return self._reading

    def end_snapshot(self, now_us: int) -> Iterator[Batch]:
        """Complete the snapshot. After the last batch, the stream can be subscribed to from the position.

        Raises ProtocolError if something is missing.
        """
        assert self._snapshot is not None
        for _ in self._snapshot.missing(now_us):
            yield self._batch()
        self._reading = self._snapshot.reading
        self._events.base = self._snapshot.end(now_us)
        self._snapshot = None
        if self._context.spaces.moves is not None:
            self._context.spaces.moves.forget()
        if self.moves is not None:
            self.moves.begin()
        yield self._batch()

    # Requests.

    @property
    def requests(self) -> Requests:
        """The open requests, as `position` has them. The follower asks in each turn, and a position costs more."""
        return self._events.base.requests

    def take_order(self, received: Received, now_us: int) -> tuple[Batch | None, Outcome]:
        """Carry out an order, between two calls of `feed`; return a batch if that changed anything, and what became of it.

        Raises the errors of `feed`.
        """
        before = self.position
        self._events.base, outcome = self._desk.take(received, before, now_us)
        return (self._batch() if self._events.base is not before else None), outcome

    def backfill(self, now_us: int, *, starts_alone: bool = False) -> tuple[Batch, CdcError | None]:
        """Return the next chunk of the first open request's rows, between two calls of `feed`, and why that ended the request.

        The reason is None if the request goes on, or if all its rows are published. If it `starts_alone`, the chunk with which a
        request begins has no rows. Raises the errors of `feed`.
        """
        self._events.base = self._backfill.advance(self.position, now_us, starts_alone=starts_alone)
        return self._batch(), self._backfill.failure


def _end_past(context: EventContext, routes: Routes, published: Collection[StoredSpace]) -> None:
    """Have the rows behind the catch-up published by the configuration's rules; for `published` see Pipeline."""
    context.refusals.are_past = context.builder.names.are_past = False
    context.builder.forget_topics()
    context.spaces.begin_rules()
    context.spaces.schema.begin_rules(context.envelope.columns.mark, routes.of, published)
