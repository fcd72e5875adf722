"""The core's spine: frames in, batches of messages out, and the ledger of what became of them.

    frames ─▶ Assembler ─▶ transactions ─▶ Limbo ─▶ StreamEvents (schema at this position) ─▶ Batch ─▶ publisher
                                                                                                │
                                              Ledger ◀── settle(position) ◀─────────────────────┘

One pipeline lives as long as one connection; it begins at a checkpoint, and after any error it is thrown away and a new one
begins at the last checkpoint. So there is one way to recover, and it is the way to start.

With images it may begin before the checkpoint, where the store of tuples is, and be told what is published already: up to
there it only brings the images along. Another server may serve the log's origins in another order than the one that was followed
before, so a transaction that lies past what is published waits until all that is published has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from cdc import __version__
from cdc.errors import CdcError, SnapshotNeededError, StoreBehindError
from cdc.events import topics
from cdc.events.envelope import Envelope
from cdc.events.topics import TopicNames
from cdc.images.overlay import Images
from cdc.images.pending import no_changes
from cdc.positions.position import Position, Rekeyed
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder, Frames
from cdc.protocol.constants import Type
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.assembler import Assembler, rows_of
from cdc.stream.backfill import Republication
from cdc.stream.batch import Batch, BatchBuilder, Forms, Mark
from cdc.stream.compiled_rows import compiled_row_path
from cdc.stream.compiled_stream import CompiledStream
from cdc.stream.ledger import Ledger
from cdc.stream.limbo import Limbo, LimboState, is_control
from cdc.stream.options import PipelineOptions
from cdc.stream.rekeying import advance
from cdc.stream.row_errors import SNAPSHOT
from cdc.stream.snapshot import Snapshot
from cdc.stream.spaces import Spaces
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transaction import Spool, Transaction
from cdc.stream.transaction_buffer import TransactionBuffer

REPLAYED_CHANGES_MAX: Final = 10_000
"""So many changes of rows that are out already are handed on at once."""


class _Before(NamedTuple):
    """What had been filled when a transaction came, and how far its origin was."""

    mark: Mark
    change_count: int
    doubtful: frozenset[bytes]
    doubts: frozenset[bytes]
    origin: int
    lsn: int | None
    numbers: Mapping[int, int]
    stored: Forms
    schema_version: int

    def vclock(self, now: Mapping[int, int]) -> dict[int, int]:
        """The vclock that there was then."""
        others = {origin: lsn for origin, lsn in now.items() if origin != self.origin}
        return others if self.lsn is None else {**others, self.origin: self.lsn}


class Pipeline:
    """Turns one connection's rows into batches. Pure: time comes in with the frames, and nothing is sent from here."""

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
        """Begins at `position`, with the schema `stored` there. Events have images if there are `images` at that position.

        What lies between `position` and `catch_up_to` is published already: it only changes the images. `version` is the
        master's: it tells what its rows tell.
        """
        self._catch_up_to = catch_up_to
        self._catch_up_changes = no_changes()
        # While replaying: what has arrived and is not out yet.
        self._waiting = TransactionBuffer(options.transaction_bytes_max, new_spool)
        self._ahead = self._waiting.line()
        self._ahead_received: dict[int, int] = {}
        self.images = images
        if images is not None:
            images.recall(position.doubtful)
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
        self._events = StreamEvents(
            options, replace(position, server_uuid=server_uuid), self._envelope, self._builder, self._spaces, images
        )
        self._limbo = Limbo(self._spaces.schema, self._waiting, version)
        self._row_path = row_path
        self._compiled: CompiledStream | None = None
        if row_path is not None:
            self._compiled = CompiledStream(
                row_path,
                self._builder,
                self._events,
                self._assembler,
                images,
                transaction_topic=transaction_topic,
                open_bytes_max=options.transaction_bytes_max,
                may_run=self._has_only_rows,
                feed=self._feed,
                batch=self._batch,
            )
        self._tombstones = options.tombstones
        self._takes_singles = options.transaction_topic != "all"
        self._snapshot: Snapshot | None = None
        self.ledger = Ledger(position)

    # What is asked from outside.

    @property
    def position(self) -> Position:
        """The boundary up to which rows have been handled; what waits lies behind it."""
        return self._events.position

    @property
    def open_byte_count(self) -> int:
        """Bytes of the source transaction whose end has not arrived."""
        return self._assembler.open_byte_count + (self._compiled.open_byte_count if self._compiled is not None else 0)

    @property
    def limbo(self) -> LimboState:
        """What waits for the word of a quorum."""
        return self._limbo.state

    @property
    def is_catching_up(self) -> bool:
        """Whether the images have yet to come to where events are out."""
        return self._catch_up_to is not None

    @property
    def merging_upsert_count(self) -> int:
        """UPSERTs of vinyl spaces that have come from a server which merges them."""
        return self._spaces.merging_upsert_count

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published, as they look at this position."""
        return self._spaces.published_forms()

    def go_on(self, now_us: int) -> Iterator[Batch]:
        """What was left undone at the position; to be taken before the first rows of the stream. Raises as `feed` does."""
        self._events.now_us = now_us
        if self._catch_up_to is None:
            yield from self._show_rekeyed()

    def close(self) -> None:
        """The connection has ended: what was not whole, or not certain, is forgotten."""
        self._assembler.close()
        self._waiting.close()
        if self._compiled is not None:
            self._compiled.close()

    # The stream.

    def feed(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Take rows of the stream, `now_us` being the time; yield what they come to, usually one batch.

        Only whole and certain transactions come out, so what was fed may come out later. Each batch must be taken before
        the next is asked for. Raises ProtocolError, SchemaError, EncodingError, ConfigurationError or
        SynchronousReplicationError; the pipeline is unusable then, but the transactions before the one at fault have come
        out.
        """
        self._events.now_us = now_us
        suffix = self._envelope.batch_time(now_us)
        feed = self._feed if self._compiled is None else self._compiled.feed
        yield from feed(frames, suffix)
        if self._catch_up_to is not None:
            yield self._caught_up()
        elif self._builder.row_count:
            yield self._batch()
        elif not self._limbo.is_empty:
            self.ledger.receive(self._received())

    def _has_only_rows(self) -> bool:
        """Whether nothing waits, has been published already, or has yet to be told, beside the rows themselves."""
        return self._limbo.is_empty and self._catch_up_to is None and not self._spaces.schema.touched

    def _feed(self, frames: Frames, suffix: bytes) -> Iterator[Batch]:
        """Take rows the Python way."""
        events, limbo = self._events, self._limbo
        transactions = self._assembler.feed(frames)
        done = 0
        while done < len(transactions):
            if self._takes_singles and limbo.is_empty and self._catch_up_to is None:
                done = events.singles(transactions, done, suffix)
                if self._builder.is_full:
                    yield self._batch()
                    continue
                if done == len(transactions):
                    break
            try:
                yield from self._arrive(transactions[done], suffix)
            except SnapshotNeededError as error:
                error.place = events.place
                raise
            done += 1

    def _arrive(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Handle what can be handled now that this transaction has arrived.

        While replaying, what lies past the events that are out is put aside, and looked at when all of those have been seen:
        only then the schema is the one at its position. But it may be what decides over a transaction that is published.
        """
        until = self._catch_up_to
        if until is not None and transaction.lsn > until.vclock.get(transaction.replica_id, 0):
            if transaction.replica_id not in self._ahead_received:
                self._check_catch_up(transaction.replica_id)
            if is_control(transaction) and not self._limbo.is_empty:
                for ready in self._decided(transaction):
                    yield from self._take(ready, suffix)
            self._ahead.put(transaction)
            self._ahead_received[transaction.replica_id] = transaction.lsn
        else:
            for ready in self._certain(transaction):
                yield from self._take(ready, suffix)
        while self._ahead and self._catch_up_to is None:
            for ready in self._certain(self._ahead.take()):
                yield from self._handle(ready, suffix)

    def _certain(self, transaction: Transaction) -> Iterator[Transaction]:
        """What is certain now that this transaction has arrived, in order; itself only if it is certain and new."""
        events, limbo, origin = self._events, self._limbo, transaction.replica_id
        if transaction.lsn <= limbo.received.get(origin, events.vclock.get(origin, 0)):
            # It came by another way already.
            if transaction.spool is not None:
                transaction.spool.close()
        elif is_control(transaction):
            yield from self._decided(transaction)
            if limbo.passes(origin, transaction.lsn):
                yield transaction
        elif not limbo.holds(transaction, events.now_us):
            yield transaction

    def _decided(self, control: Transaction) -> Iterator[Transaction]:
        """What a control row releases, in order.

        What it rolls back is passed over together with the row itself, so no position lies between the two.
        """
        yield from self._limbo.apply(control)
        if freed := self._limbo.unpinned():
            self._events.jump(freed)

    def _take(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Handle a transaction that is certain, if it is new to consumers; else only to the images."""
        until = self._catch_up_to
        if until is None:
            yield from self._handle(transaction, suffix)
            return
        yield from self._replay(transaction, suffix)
        if VClock(self._events.vclock) == until.vclock:
            assert self.images is not None
            self.images.recall(until.doubtful)
            batch = self._caught_up()
            self._builder.restart(until.seq)
            self._spaces.schema.schema_version = until.schema_version
            self._events.base = replace(self._events.base, snapshot=until.snapshot, rekeyed=until.rekeyed)
            # What is published may be decided otherwise than when these events came out, and Kafka's checkpoint has to say so.
            self._spaces.schema.touch_all()
            # Whoever wants no more than this asks after each batch whether it is there.
            self._catch_up_to = None
            yield batch
            yield from self._show_rekeyed()
        elif self._replayed_count > REPLAYED_CHANGES_MAX:
            yield self._caught_up()

    def _handle(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Make the events of a transaction; of a large one in pieces, of which only the last ends at a boundary."""
        builder = self._builder
        if builder.stored and (transaction.row_count > 1 or transaction.spool is not None):
            yield self._batch()  # DDL that comes before the transaction must not be taken for its own
        before: _Before | None = self._before(transaction.replica_id)
        try:
            for _ in self._rows(transaction, suffix):
                if before is not None and before.mark.row_count:
                    yield self._batch_before(before)
                before = None
                if builder.row_count:
                    yield self._batch(is_boundary=False)
        except CdcError:
            # What came before the transaction that can't be handled is good.
            if before is not None and before.mark.row_count:
                builder.back_to(before.mark)
                builder.stored = before.stored
                self._spaces.schema.schema_version = before.schema_version
                if self.images is not None:
                    self.images.forget_after(before.change_count)
                    self.images.doubtful, self.images.numbers = before.doubtful, before.numbers
                self._events.vclock = before.vclock(self._events.vclock)
                yield self._batch()
            raise
        if self._events.has_rekeyed:
            yield from self._rekey(transaction)
            yield self._batch()
            yield from self._show_rekeyed()
        elif builder.is_full or before is None:
            yield self._batch()

    def _rows(self, transaction: Transaction, suffix: bytes) -> Iterator[None]:
        """Fill the outbox with a transaction's events; yields whenever it is full, or much has been read from disk."""
        events, spool = self._events, transaction.spool
        pieces = events.begin(transaction, suffix)
        if spool is None:
            rows = iter(transaction.rows)
            while not events.rows(pieces, rows):
                yield
        else:
            try:
                decoder = FrameDecoder()
                for chunk in spool.chunks():
                    rows = iter(rows_of(decoder.feed(chunk)))
                    while not events.rows(pieces, rows):
                        yield
                    yield
            finally:
                spool.close()
        events.end(pieces)

    def _before(self, origin: int) -> _Before:
        """What has been filled by now, before a transaction of this origin."""
        images = self.images
        return _Before(
            self._builder.mark,
            images.change_count if images is not None else 0,
            images.doubtful if images is not None else frozenset(),
            images.doubts if images is not None else frozenset(),
            origin,
            self._events.vclock.get(origin),
            images.numbers if images is not None else {},
            dict(self._builder.stored),
            self._spaces.schema.schema_version,
        )

    def _batch_before(self, before: _Before) -> Batch:
        """What had been filled before a transaction that is handed on in pieces; no DDL is among it."""
        vclock = VClock(before.vclock(self._events.vclock))
        position = replace(self._events.base, vclock=vclock, seq=before.mark.seq, doubtful=before.doubts)
        self._reach(position)
        batch = self._builder.take_before(before.mark, position)
        if self.images is not None:
            batch.changes, batch.numbers = self.images.take_before(before.change_count), before.numbers
        return batch

    def _replay(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """Bring the images over a transaction whose events are out."""
        assert self.images is not None
        for _ in self._rows(transaction, suffix):
            self._catch_up_changes.extend(self.images.take())
            self._builder.forget_messages()
        yield from self._rekey(transaction)

    @property
    def _replayed_count(self) -> int:
        assert self.images is not None
        return len(self._catch_up_changes) + self.images.change_count + len(self._builder.parts)

    # Another primary key.

    def _rekey(self, transaction: Transaction) -> Iterator[Batch]:
        """If the transaction has given spaces another primary key: bring their rows under it, and have them published again."""
        events, until = self._events, self._catch_up_to
        for _ in events.rekey():
            yield Batch.pause(events.base)
        for space_id in events.take_rekeyed():
            assert self.images is not None
            if until is None:
                again = tuple(one for one in events.base.rekeyed if one.space_id != space_id)
                events.base = replace(events.base, rekeyed=(*again, Rekeyed(space_id)))
            elif self.images.is_unknown(space_id):
                # Rows that can't be kept are there until they have been published, which may have been broken off.
                is_last = transaction.lsn == until.vclock.get(transaction.replica_id)
                if not (is_last and any(one.space_id == space_id for one in until.rekeyed)):
                    self.images.clear(space_id)

    def _show_rekeyed(self) -> Iterator[Batch]:
        """Publish the rows of spaces that were given another primary key; the stream waits."""
        while self._events.base.rekeyed:
            assert self.images is not None
            parts = self._spaces, self._envelope, self._builder, self.images, self._events.refuse
            self._events.base = advance(self.position, self._events.now_us, *parts)
            yield self._batch()
            yield Batch.pause(self._events.base)

    def _check_catch_up(self, origin: int) -> None:
        """A replica id's first unpublished transaction is here. Raises StoreBehindError if others lack before it."""
        assert self._catch_up_to is not None
        vclock, known = self._catch_up_to.vclock, self._events.vclock | self._limbo.received
        if known.get(origin, 0) != vclock.get(origin, 0):
            raise StoreBehindError(
                f"this server's log can't bring the state store to the checkpoint {vclock}: of replica id "
                f"{origin} its next row follows lsn {known.get(origin, 0)}, and {vclock.get(origin, 0)} is published"
            )

    def _caught_up(self) -> Batch:
        """What the replayed transactions did to the images. Their events are out."""
        assert self.images is not None
        self._move()
        self._catch_up_changes.extend(self.images.take())
        batch = self._builder.discard(self._events.base, self._catch_up_changes)
        self._catch_up_changes = no_changes()
        batch.numbers = self.images.numbers
        return batch

    def _batch(self, *, is_boundary: bool = True) -> Batch:
        """What has been filled since the last one."""
        if is_boundary:
            self._move()
        batch = self._builder.take(self._events.base, is_boundary=is_boundary)
        if self.images is not None:
            batch.changes, batch.numbers = self.images.take(), self.images.numbers
        return batch

    def _move(self) -> None:
        """A boundary has been reached."""
        self._reach(self._events.position)

    def _reach(self, position: Position) -> None:
        self._events.base = position
        self.ledger.receive(self._received())
        self.ledger.release(position.vclock)
        self.ledger.publish(position)

    def _received(self) -> VClock:
        """The position, with what waits behind it."""
        if self._limbo.is_empty and not self._ahead:
            return VClock(self._events.vclock)
        received = self._events.vclock | self._limbo.received
        for origin, lsn in self._ahead_received.items():
            received[origin] = max(received.get(origin, 0), lsn)
        return VClock(received)

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int, *, after_seq: int = 0, publish: bool = True) -> Batch:
        """A snapshot begins; its stream will begin at `vclock`. The schema will be told afresh, and events go on after
        `after_seq` if some are out that the position doesn't know of. Without `publish` only the schema is taken from its rows.

        From here on the ledger is a new one: the position may be another history's.
        """
        events = self._events
        assert self._limbo.is_empty
        if self.images is not None:
            self.images.doubtful = frozenset()  # the snapshot has what they should have
        self._builder.restart(max(self._builder.seq, after_seq))
        events.jump(vclock, is_whole=True)
        self._snapshot = Snapshot(
            events.position,
            self._spaces,
            self._envelope,
            self._builder,
            lambda error, space_id, body: events.refuse(error, SNAPSHOT, Type.INSERT, 0, body, space_id),
            now_us,
            self.images,
            tombstones=self._tombstones,
            publish=publish,
            row_path=self._row_path,
        )
        events.base = self._snapshot.position
        self.ledger = Ledger(events.base)
        return self._batch()

    def feed_snapshot(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Take rows of the snapshot; yield what they come to, as `feed` does."""
        assert self._snapshot is not None
        for _ in self._snapshot.feed(frames, now_us):
            self._events.base = self._snapshot.position
            yield self._batch()
        self._events.base = self._snapshot.position
        yield self._batch()

    def end_snapshot(self, now_us: int) -> Iterator[Batch]:
        """The snapshot is complete; after the last batch the position is good to subscribe from.

        Raises ProtocolError if something is missing.
        """
        assert self._snapshot is not None
        for _ in self._snapshot.missing(now_us):
            yield self._batch()
        self._events.base = self._snapshot.end(now_us)
        self._snapshot = None
        yield self._batch()

    def republish(self, request: Republication, now_us: int) -> Batch:
        """The next chunk of rows that are wanted again, between two calls of `feed`. Raises as it does, and RequestError."""
        parts = self._spaces, self._envelope, self._builder, self.images, self._events.refuse
        self._events.base = request.advance(self.position, now_us, *parts)
        return self._batch()
