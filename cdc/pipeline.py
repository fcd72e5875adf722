"""The core's spine: frames in, batches of messages out, and the ledger of what became of them.

    frames ─▶ Assembler ─▶ transactions ─▶ Limbo ─▶ (schema at this position) ─▶ events ─▶ Batch ─▶ publisher
                                                                                             │
                                           Ledger ◀── settle(position) ◀─────────────────────┘

One pipeline lives as long as one connection; it begins at a checkpoint, and after any error it is thrown away and a new one
begins at the last checkpoint. So there is one way to recover, and it is the way to start.

`feed` is the hot path. Its inner loop handles the rows of spaces that were seen before, by dict lookups alone; whatever else
comes (system rows, spaces whose encoder isn't compiled yet, synchronous ones) takes the way through `_special`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final
from uuid import UUID

from cdc import __version__, limbo, topics
from cdc.assembler import Assembler, rows_of
from cdc.change import Batch, Row, Spool, Transaction
from cdc.envelope import (
    COLLECTION_ORDER,
    MALFORMED_BODY,
    SEQ,
    SEQUENCE,
    SEQUENCE_NEXT,
    SINGLE_ORDER,
    SINGLE_ROW,
    SINGLE_TSN,
    SMALL_NUMBERS,
    TS_NS,
    TS_US,
    Envelope,
    SpaceEvents,
)
from cdc.errors import CdcError, EncodingError, ImageError, ReplayError, SchemaError
from cdc.images import Images
from cdc.ledger import Ledger
from cdc.options import PipelineOptions
from cdc.outbox import Outbox
from cdc.pieces import OriginTexts, Pieces
from cdc.position import Position
from cdc.protocol.codec import Body, FrameDecoder, Frames
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, Flag, Key, Type
from cdc.republish import Republication
from cdc.row_errors import SNAPSHOT, at_row, dead_letter, malformed
from cdc.schema import TRACKED_SPACES, TRUNCATE_SPACE, SchemaTracker, SpaceForm, StoredSpace
from cdc.snapshot import Snapshot
from cdc.spaces import Spaces
from cdc.topics import SpaceFilter, TopicNames
from cdc.vclock import VClock

SPACE_ID: Final = Key.SPACE_ID
INSERT: Final = Type.INSERT
DELETE: Final = Type.DELETE
COMMIT: Final = Flag.COMMIT


class Pipeline:
    """Turns one connection's rows into batches. Pure: time comes in with the frames, and nothing is sent from here."""

    def __init__(
        self,
        options: PipelineOptions,
        position: Position,
        stored: list[StoredSpace],
        *,
        server_uuid: UUID,
        new_spool: Callable[[], Spool],
        images: Images | None = None,
        replay_until: Position | None = None,
    ) -> None:
        """Begins at `position`, with the schema `stored` there. Events have images if there are `images` at that position.

        What lies between `position` and `replay_until` is out already: it only changes the images.
        """
        self._replay_until = replay_until
        self._replayed_changes: list[tuple[bytes, bytes | None]] = []
        self._options = options
        self.images = images
        self._position = replace(position, server_uuid=server_uuid)
        self._envelope = Envelope(__version__, options.prefix)
        self._assembler = Assembler(
            memory_bytes_max=options.transaction_bytes_max, new_spool=new_spool, keeps_frames=images is not None
        )
        names = TopicNames(options.prefix)
        self._outbox = Outbox(names, position.seq)
        self._spaces = Spaces(
            SchemaTracker(stored, position.schema_version),
            SpaceFilter(options.include, options.exclude),
            names,
            self._envelope,
            self._outbox,
            str(server_uuid),
            images,
        )
        self._snapshot: Snapshot | None = None
        self.ledger = Ledger(position)
        self._now_us = 0

        # The vclock that is being built: mutable here, a VClock at each boundary.
        self._vclock: dict[int, int] = dict(position.vclock)
        self._texts = OriginTexts()

    # What is asked from outside.

    @property
    def position(self) -> Position:
        """The boundary up to which rows have been taken in."""
        return replace(
            self._position,
            vclock=VClock(self._vclock),
            seq=self._outbox.seq,
            schema_version=self._spaces.schema.schema_version,
        )

    @property
    def open_byte_count(self) -> int:
        """Bytes of the source transaction whose end has not arrived."""
        return self._assembler.open_byte_count

    @property
    def is_replaying(self) -> bool:
        """Whether the images have yet to come to where events are out."""
        return self._replay_until is not None

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published, as they look at this position."""
        return self._spaces.published_forms()

    def close(self) -> None:
        """The connection has ended: what was not whole is forgotten."""
        self._assembler.close()

    # The stream.

    def feed(self, frames: Frames, now_us: int) -> Iterator[Batch]:
        """Take rows of the stream, `now_us` being the time; yield what they come to, usually one batch.

        Only whole transactions come out, so what was fed may come out later. Each batch must be taken before the next
        is asked for. Raises ProtocolError, SchemaError, EncodingError, ConfigurationError or SynchronousReplicationError;
        the pipeline is unusable then, but the transactions before the one at fault have come out.
        """
        outbox, self._now_us = self._outbox, now_us
        suffix = self._envelope.batch_time(now_us)
        transactions = self._assembler.feed(frames)
        done = 0
        if self._replay_until is not None:
            done = self._replay(transactions, suffix)
            yield self._replayed()
        while done < len(transactions):
            done = self._singles(transactions, done, suffix)
            if done == len(transactions):
                break
            transaction = transactions[done]
            done += 1
            known = self._vclock.get(transaction.replica_id, 0)
            if transaction.lsn <= known:
                if transaction.spool is not None:
                    transaction.spool.close()
                continue  # came by another way already
            if transaction.spool is not None:
                yield from self._spooled(transaction, suffix)
                continue
            message_count, seq, row_count = len(outbox.messages), outbox.seq, outbox.row_count
            mark = self.images.change_count if self.images is not None else 0
            try:
                if transaction.flags > Flag.COMMIT:
                    limbo.refuse_flagged(transaction)
                self._transaction(transaction, suffix)
            except CdcError:
                # What came before the transaction that can't be handled is good, unless DDL ties the two together.
                if row_count and not outbox.stored and not self._spaces.schema.touched:
                    del outbox.messages[message_count:]
                    if self.images is not None:
                        self.images.forget_after(mark)
                    outbox.seq, outbox.row_count = seq, row_count
                    self._vclock[transaction.replica_id] = known
                    yield self._batch()
                raise
        if outbox.row_count:
            yield self._batch()

    def _singles(self, transactions: list[Transaction], start: int, suffix: bytes) -> int:
        """The events of a run of transactions that are one ordinary row each; returns where the run ends.

        This is the other half of the hot path: what `_begin`, `_rows` and `_end` do for a transaction is drawn together
        here, because for a single row it would cost more than the row.
        """
        if self._options.transaction_topic == "all":
            return start
        outbox, spaces = self._outbox, self._spaces.compiled
        add = outbox.messages.append
        source, tombstones = self._envelope.source, self._options.tombstones
        replica_id, origin, after = self._texts.origin, self._texts.origin_text, self._texts.after
        before, tail = self._texts.before, self._texts.transaction_text
        known, previous = self._vclock.get(replica_id, 0), self._texts.previous_lsn
        seq, byte_count, timestamp = outbox.seq, outbox.byte_count, outbox.timestamp
        done = start
        for transaction in transactions[start:] if start else transactions:
            lsn = transaction.lsn
            if (
                transaction.row_count != 1
                or transaction.replica_id != replica_id
                or lsn <= known
                or transaction.flags > COMMIT
                or transaction.timestamp < 1.0
            ):
                break
            ((kind, _, body, frame),) = transaction.rows
            try:
                space = spaces.get(body.get(SPACE_ID))
                if space is None:
                    break
                change = space.changes[kind](body, frame)
            except (EncodingError, ImageError, SchemaError, *MALFORMED_BODY):
                if self.images is not None:
                    self.images.take_back()
                break  # the other way deals with it
            if change is None:
                timestamp, known, previous = transaction.timestamp, lsn, b"%d" % lsn
                done += 1
                continue
            key, opening, content = change
            timestamp, known = transaction.timestamp, lsn
            seq += 1
            done += 1
            lsn_text = b"%d" % lsn
            micro = b"%d" % round(timestamp * 1e6)
            value = b"".join(
                (
                    opening,
                    content,
                    source,
                    b'"ts_ms":',
                    micro[:-3],
                    TS_US,
                    micro,
                    TS_NS,
                    micro,
                    SEQUENCE,
                    previous,
                    SEQUENCE_NEXT,
                    lsn_text,
                    space.table,
                    origin,
                    lsn_text,
                    SINGLE_TSN,
                    lsn_text,
                    SINGLE_ROW,
                    b"%d" % seq,
                    space.schema,
                    before,
                    lsn_text,
                    after,
                    tail,
                    lsn_text,
                    SINGLE_ORDER,
                    suffix,
                )
            )
            previous = lsn_text
            byte_count += len(value)
            add((space.topic, key, value))
            if kind == DELETE and tombstones:
                add((space.topic, key, None))
        if done > start:
            self._vclock[replica_id], self._texts.previous_lsn = known, previous
            outbox.seq, outbox.byte_count, outbox.timestamp = seq, byte_count, timestamp
            outbox.row_count += done - start
        return done

    def _replay(self, transactions: list[Transaction], suffix: bytes) -> int:
        """Bring the images up to where events are out; returns how many of the transactions that took."""
        done = 0
        while self._replay_until is not None and done < len(transactions):
            transaction = transactions[done]
            done += 1
            if transaction.lsn <= self._vclock.get(transaction.replica_id, 0):
                if transaction.spool is not None:
                    transaction.spool.close()
                continue
            if transaction.spool is not None:
                for part in self._spooled(transaction, suffix):
                    self._replayed_changes += part.changes
                    self._outbox.stored.update(part.stored)
                    self._outbox.announce_again(part.topics)
            else:
                limbo.refuse_flagged(transaction)
                self._transaction(transaction, suffix)
            if self._vclock[transaction.replica_id] > self._replay_until.vclock.get(transaction.replica_id, 0):
                raise ReplayError(f"this server's log doesn't lead from the state store to {self._replay_until.vclock}")
            if VClock(self._vclock) == self._replay_until.vclock:
                self._outbox.restart(self._replay_until.seq)
                self._spaces.schema.schema_version = self._replay_until.schema_version
                self._position = replace(self._position, snapshot=self._replay_until.snapshot)
                self._replay_until = None
        return done

    def _replayed(self) -> Batch:
        """What the replayed transactions did to the images. Their events are out."""
        assert self.images is not None
        self._move()
        changes, self._replayed_changes = self._replayed_changes + self.images.take(), []
        return self._outbox.discard(self._position, changes)

    def _transaction(self, transaction: Transaction, suffix: bytes) -> None:
        pieces = self._begin(transaction, suffix)
        self._rows(pieces, transaction.rows)
        self._end(pieces)

    def _spooled(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """A transaction that waited on disk comes out in pieces, of which only the last ends at a boundary."""
        assert transaction.spool is not None
        if self._outbox.row_count:
            yield self._batch()
        try:
            limbo.refuse_flagged(transaction)
            pieces = self._begin(transaction, suffix)
            decoder = FrameDecoder()
            for chunk in transaction.spool.chunks():
                self._rows(pieces, rows_of(decoder.feed(chunk)))
                yield self._batch(is_boundary=False)
        finally:
            transaction.spool.close()
        self._end(pieces)
        yield self._batch()

    def _begin(self, transaction: Transaction, suffix: bytes) -> Pieces:
        """Prepare what all events of a transaction share, and move the position over it."""
        texts, replica_id, lsn = self._texts, transaction.replica_id, transaction.lsn
        if replica_id != texts.origin:
            texts.turn_to(replica_id, self._vclock)
        lsn_text = b"%d" % lsn
        tsn_text = lsn_text if transaction.tsn == lsn else b"%d" % transaction.tsn
        time = self._envelope.source + self._envelope.stream_time(transaction.timestamp, texts.previous_lsn)
        self._vclock[replica_id] = lsn
        texts.previous_lsn = lsn_text
        tail = b'%b%b%b%b%b","total_order":' % (texts.before, lsn_text, texts.after, texts.transaction_text, tsn_text)
        return Pieces(transaction, time, texts.origin_text, b',"tsn":%b,"row":' % tsn_text, tail, suffix, {})

    def _rows(self, pieces: Pieces, rows: list[Row]) -> None:
        """The events of a transaction's rows, in order. The hot path."""
        outbox, spaces = self._outbox, self._spaces.compiled
        add = outbox.messages.append
        seq, byte_count = outbox.seq, outbox.byte_count
        row_number, total_order, orders = pieces.row_number, pieces.total_order, pieces.orders
        time, origin, tsn, tail, suffix = pieces.time, pieces.origin, pieces.tsn, pieces.tail, pieces.suffix
        tombstones = self._options.tombstones
        for kind, lsn, body, frame in rows:
            space_id = body.get(SPACE_ID)
            try:
                is_compiled = space_id in spaces
            except TypeError as error:  # an array or a map
                raise malformed(pieces.transaction, kind, lsn, body) from error
            if is_compiled:
                space = spaces[space_id]
            else:
                # The slow way may write events of its own, so it must see the counters, and we what it made of them.
                outbox.seq, outbox.byte_count = seq, byte_count
                pieces.row_number, pieces.total_order = row_number, total_order
                space = self._special(pieces, kind, lsn, body)
                seq, byte_count, total_order = outbox.seq, outbox.byte_count, pieces.total_order
            if space is None:
                row_number += 1
                continue
            try:
                change = space.changes[kind](body, frame)
            except (EncodingError, SchemaError) as error:
                outbox.byte_count = byte_count
                self._refuse(error, pieces.transaction, kind, lsn, body)
                byte_count = outbox.byte_count
                row_number += 1
                continue
            except ImageError as error:
                raise at_row(error, pieces.transaction, kind, lsn, body) from error
            except MALFORMED_BODY as error:
                raise malformed(pieces.transaction, kind, lsn, body) from error
            if change is None:
                row_number += 1
                continue
            key, opening, content = change
            seq += 1
            total_order += 1
            order = orders[space_id] = orders[space_id] + 1 if space_id in orders else 1
            lsn_text = b"%d" % lsn
            value = b"".join(
                (
                    opening,
                    content,
                    time,
                    lsn_text,
                    space.table,
                    origin,
                    lsn_text,
                    tsn,
                    SMALL_NUMBERS[row_number] if row_number < 4096 else b"%d" % row_number,
                    SEQ,
                    b"%d" % seq,
                    space.schema,
                    tail,
                    SMALL_NUMBERS[total_order] if total_order < 4096 else b"%d" % total_order,
                    COLLECTION_ORDER,
                    SMALL_NUMBERS[order] if order < 4096 else b"%d" % order,
                    suffix,
                )
            )
            byte_count += len(value)
            add((space.topic, key, value))
            if kind == DELETE and tombstones:
                add((space.topic, key, None))
            row_number += 1
        outbox.seq, outbox.byte_count = seq, byte_count
        outbox.row_count += len(rows)
        pieces.row_number, pieces.total_order = row_number, total_order

    def _special(self, pieces: Pieces, kind: int, lsn: int, body: Body) -> SpaceEvents | None:
        """A row that the loop can't handle by looking its space up: what its event is made with, or None if it has none."""
        if kind not in DATA_TYPES:
            if kind in SYNCHRO_TYPES:
                limbo.pass_control_row(kind, body, lambda: VClock(self._vclock))
            return None  # NOP, and the cluster's own talk, publish nothing
        space_id = body.get(SPACE_ID)
        if type(space_id) is not int:
            raise malformed(pieces.transaction, kind, lsn, body)
        try:
            if space_id in TRACKED_SPACES:
                self._schema_row(pieces, kind, lsn, body)
            return self._space(space_id, pieces)
        except (EncodingError, SchemaError) as error:
            raise at_row(error, pieces.transaction, kind, lsn, body) from error

    def _schema_row(self, pieces: Pieces, kind: int, lsn: int, body: Body) -> None:
        """Fold a system row; if it takes a space's rows away, say so while the space's form is still the one they had."""
        if body[SPACE_ID] == TRUNCATE_SPACE:
            self._settle(pieces)  # a truncation speaks of a space by its form, which must be known outside before
        emptied = self._spaces.apply(kind, body)
        if emptied is not None:
            self._truncate(pieces, emptied, lsn)

    def _space(self, space_id: int, pieces: Pieces) -> SpaceEvents | None:
        """Compile what a space's rows need; None if they aren't published."""
        self._settle(pieces)
        form = self._spaces.form(space_id)
        if form.is_sync:
            raise limbo.refuse_space(pieces.transaction, form.name)
        space = self._spaces.compile(form)
        if space_id not in TRACKED_SPACES:  # their rows must come this way every time
            self._spaces.compiled[space_id] = space
        return space

    def _settle(self, pieces: Pieces) -> None:
        """Tell the outside about forms that have become different."""
        if self._spaces.schema.touched:
            transaction = pieces.transaction
            self._spaces.settle(self.position, self._now_us, (transaction.replica_id, transaction.lsn, transaction.tsn))

    def _end(self, pieces: Pieces) -> None:
        """The transaction's last row has been handled."""
        transaction = pieces.transaction
        self._settle(pieces)
        self._outbox.timestamp = transaction.timestamp
        wanted = self._options.transaction_topic
        if wanted != "none" and pieces.total_order > (1 if wanted == "multi" else 0):
            for key, value in pieces.records(self._spaces.schema):
                self._outbox.control(topics.TRANSACTION, key, value)

    def _batch(self, *, is_boundary: bool = True) -> Batch:
        """What has been filled since the last one."""
        if is_boundary:
            self._move()
        batch = self._outbox.take(self._position, is_boundary=is_boundary)
        if self.images is not None:
            batch.changes = self.images.take()
        return batch

    def _move(self) -> None:
        """A boundary has been reached."""
        self._position = self.position
        self.ledger.receive(self._position.vclock)
        self.ledger.release(self._position.vclock)
        self.ledger.publish(self._position)

    def _truncate(self, pieces: Pieces, form: SpaceForm, lsn: int) -> None:
        """The event that all rows of a space are gone, for every partition of its topic."""
        space = self._spaces.events_of(form)
        if self.images is not None:
            self.images.clear(form.space_id)
        self._outbox.seq += 1
        self._outbox.broadcast(space.topic, pieces.truncation(space, lsn, self._outbox.seq))

    def _refuse(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body) -> None:
        """A row that can't be shown stops the daemon, or goes where its operator can find it."""
        if self._options.on_error == "fail":
            raise at_row(error, transaction, kind, lsn, body) from error
        if self.images is not None:
            self.images.stand()
        server_uuid = str(self._position.server_uuid)
        self._outbox.control(topics.DLQ, *dead_letter(error, transaction, kind, lsn, body, server_uuid))

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int) -> Batch:
        """A snapshot begins; its stream will begin at `vclock`. The schema will be told afresh.

        From here on the ledger is a new one: the position may be another history's.
        """
        self._vclock = dict(vclock)
        self._texts = OriginTexts()
        self._snapshot = Snapshot(
            self.position,
            self._spaces,
            self._envelope,
            self._outbox,
            lambda error, body: self._refuse(error, SNAPSHOT, INSERT, 0, body),
            now_us,
            self.images,
            tombstones=self._options.tombstones,
        )
        self._position = self._snapshot.position
        self.ledger = Ledger(self._position)
        return self._batch()

    def feed_snapshot(self, frames: Frames, now_us: int, *, publish: bool = True) -> Batch:
        """Take rows of the snapshot. Without `publish` only the schema is taken from them."""
        assert self._snapshot is not None
        self._snapshot.feed(frames, now_us, publish=publish)
        self._position = self._snapshot.position
        return self._batch()

    def end_snapshot(self, now_us: int) -> Iterator[Batch]:
        """The snapshot is complete; after the last batch the position is good to subscribe from.

        Raises ProtocolError if something is missing.
        """
        assert self._snapshot is not None
        for _ in self._snapshot.missing(now_us):
            yield self._batch()
        self._position = self._snapshot.end(now_us)
        self._snapshot = None
        yield self._batch()

    def republish(self, request: Republication, now_us: int) -> Batch:
        """The next chunk of rows that are wanted again, between two calls of `feed`. Raises as it does, and RequestError."""
        parts = self._spaces, self._envelope, self._outbox, self.images, self._refuse
        self._position = request.advance(self.position, now_us, *parts)
        return self._batch()
