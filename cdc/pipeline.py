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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from cdc import __version__, limbo, topics
from cdc.assembler import Assembler, rows_of
from cdc.change import Batch, Row, Spool, Transaction
from cdc.envelope import (
    COLLECTION_ORDER,
    MALFORMED_BODY,
    OPEN_TRUNCATE,
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
    transaction_records,
)
from cdc.errors import CdcError, EncodingError, SchemaError
from cdc.ledger import Ledger
from cdc.outbox import Outbox
from cdc.position import Position
from cdc.protocol.codec import Body, FrameDecoder, Frames
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, Flag, Key, Type
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


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What an operator decides about events."""

    prefix: str
    include: list[str]
    exclude: list[str]
    tombstones: bool = True
    transaction_topic: Literal["none", "multi", "all"] = "multi"
    on_error: Literal["fail", "dlq"] = "fail"
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Past this a transaction of the source waits for its end on disk."""


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
    ) -> None:
        self._options = options
        self._position = replace(position, server_uuid=server_uuid)
        self._envelope = Envelope(__version__, options.prefix)
        self._assembler = Assembler(memory_bytes_max=options.transaction_bytes_max, new_spool=new_spool)
        names = TopicNames(options.prefix)
        self._outbox = Outbox(names, position.seq)
        self._spaces = Spaces(
            SchemaTracker(stored, position.schema_version),
            SpaceFilter(options.include, options.exclude),
            names,
            self._envelope,
            self._outbox,
            str(server_uuid),
        )
        self._snapshot: Snapshot | None = None
        self.ledger = Ledger(position)
        self._now_us = 0

        # The vclock that is being built: mutable here, a VClock at each boundary.
        self._vclock: dict[int, int] = dict(position.vclock)
        # Texts of the vclock around the component of one origin; rebuilt when another origin's row comes.
        self._vclock_origin = 0
        self._vclock_before = self._vclock_after = self._origin_text = self._transaction_text = b""
        self._previous_lsn = b"0"

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
        outbox = self._outbox
        self._now_us = now_us
        suffix = self._envelope.batch_time(now_us)
        transactions = self._assembler.feed(frames)
        done = 0
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
            try:
                if transaction.flags > Flag.COMMIT:
                    limbo.refuse_flagged(transaction)
                self._transaction(transaction, suffix)
            except CdcError:
                # What came before the transaction that can't be handled is good, unless DDL ties the two together.
                if row_count and not outbox.stored and not self._spaces.schema.touched:
                    del outbox.messages[message_count:]
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
        replica_id, origin, after = self._vclock_origin, self._origin_text, self._vclock_after
        before, tail = self._vclock_before, self._transaction_text
        known, previous = self._vclock.get(replica_id, 0), self._previous_lsn
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
            ((kind, _, body),) = transaction.rows
            try:
                space = spaces.get(body.get(SPACE_ID))
                if space is None:
                    break
                key, opening, content = space.changes[kind](body)
            except (EncodingError, SchemaError, *MALFORMED_BODY):
                break  # the other way deals with it
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
            self._vclock[replica_id], self._previous_lsn = known, previous
            outbox.seq, outbox.byte_count, outbox.timestamp = seq, byte_count, timestamp
            outbox.row_count += done - start
        return done

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

    def _begin(self, transaction: Transaction, suffix: bytes) -> _Pieces:
        """Prepare what all events of a transaction share, and move the position over it."""
        replica_id, lsn = transaction.replica_id, transaction.lsn
        if replica_id != self._vclock_origin:
            self._turn_to(replica_id)
        lsn_text = b"%d" % lsn
        tsn_text = lsn_text if transaction.tsn == lsn else b"%d" % transaction.tsn
        time = self._envelope.stream_time(transaction.timestamp, self._previous_lsn)
        self._vclock[replica_id] = lsn
        self._previous_lsn = lsn_text
        return _Pieces(
            transaction,
            self._envelope.source + time,
            self._origin_text,
            b',"tsn":%b,"row":' % tsn_text,
            b'%b%b%b%b%b","total_order":' % (self._vclock_before, lsn_text, self._vclock_after, self._transaction_text, tsn_text),
            suffix,
            {},
        )

    def _turn_to(self, replica_id: int) -> None:
        """Rebuild the texts that hold while one origin's transactions follow each other."""
        others = sorted((origin, lsn) for origin, lsn in self._vclock.items() if origin != replica_id)
        before = b"".join(b'"%d":%d,' % item for item in others if item[0] < replica_id)
        after = b"".join(b',"%d":%d' % item for item in others if item[0] > replica_id)
        self._vclock_origin = replica_id
        self._vclock_before = b'{%b"%d":' % (before, replica_id)
        self._vclock_after = after + b"}"
        self._origin_text = b'%d,"lsn":' % replica_id
        self._transaction_text = b'},"transaction":{"id":"%d:' % replica_id
        self._previous_lsn = b"%d" % self._vclock.get(replica_id, 0)

    def _rows(self, pieces: _Pieces, rows: list[Row]) -> None:
        """The events of a transaction's rows, in order. The hot path."""
        outbox, spaces = self._outbox, self._spaces.compiled
        add = outbox.messages.append
        seq, byte_count = outbox.seq, outbox.byte_count
        row_number, total_order, orders = pieces.row_number, pieces.total_order, pieces.orders
        time, origin, tsn, tail, suffix = pieces.time, pieces.origin, pieces.tsn, pieces.tail, pieces.suffix
        tombstones = self._options.tombstones
        for kind, lsn, body in rows:
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
                key, opening, content = space.changes[kind](body)
            except (EncodingError, SchemaError) as error:
                outbox.byte_count = byte_count
                self._refuse(error, pieces.transaction, kind, lsn, body)
                byte_count = outbox.byte_count
                row_number += 1
                continue
            except MALFORMED_BODY as error:
                raise malformed(pieces.transaction, kind, lsn, body) from error
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

    def _special(self, pieces: _Pieces, kind: int, lsn: int, body: Body) -> SpaceEvents | None:
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

    def _schema_row(self, pieces: _Pieces, kind: int, lsn: int, body: Body) -> None:
        """Fold a system row; if it takes a space's rows away, say so while the space's form is still the one they had."""
        if body[SPACE_ID] == TRUNCATE_SPACE:
            self._settle(pieces)  # a truncation speaks of a space by its form, which must be known outside before
        emptied = self._spaces.apply(kind, body)
        if emptied is not None:
            self._truncate(pieces, emptied, lsn)

    def _space(self, space_id: int, pieces: _Pieces) -> SpaceEvents | None:
        """Compile what a space's rows need; None if they aren't published."""
        self._settle(pieces)
        form = self._spaces.form(space_id)
        if form.is_sync:
            raise limbo.refuse_space(pieces.transaction, form.name)
        space = self._spaces.compile(form)
        if space_id not in TRACKED_SPACES:  # their rows must come this way every time
            self._spaces.compiled[space_id] = space
        return space

    def _settle(self, pieces: _Pieces) -> None:
        """Tell the outside about forms that have become different."""
        transaction = pieces.transaction
        origin = (transaction.replica_id, transaction.lsn, transaction.tsn)
        if self._spaces.schema.touched:
            self._spaces.settle(self.position, self._now_us, origin)

    def _end(self, pieces: _Pieces) -> None:
        """The transaction's last row has been handled."""
        transaction = pieces.transaction
        self._settle(pieces)
        self._outbox.timestamp = transaction.timestamp
        wanted = self._options.transaction_topic
        if wanted != "none" and pieces.total_order > (1 if wanted == "multi" else 0):
            schema = self._spaces.schema
            counts = [
                (schema.name(space_id) or pieces.emptied.get(space_id, str(space_id)), count)
                for space_id, count in pieces.orders.items()
            ]
            transaction_id = f"{transaction.replica_id}:{transaction.tsn}"
            for key, value in transaction_records(transaction_id, counts, transaction.timestamp):
                self._outbox.control(topics.TRANSACTION, key, value)

    def _batch(self, *, is_boundary: bool = True) -> Batch:
        """What has been filled since the last one."""
        if is_boundary:
            self._position = self.position
            self.ledger.receive(self._position.vclock)
            self.ledger.release(self._position.vclock)
            self.ledger.publish(self._position)
        return self._outbox.take(self._position, is_boundary=is_boundary)

    def _truncate(self, pieces: _Pieces, form: SpaceForm, lsn: int) -> None:
        """The event that all rows of a space are gone, for every partition of its topic."""
        space = self._spaces.events_of(form)
        self._outbox.seq += 1
        pieces.total_order += 1
        pieces.emptied[form.space_id] = form.name
        order = pieces.orders[form.space_id] = pieces.orders.get(form.space_id, 0) + 1
        value = b"".join(
            (
                OPEN_TRUNCATE,
                pieces.time,
                b"%d" % lsn,
                space.table,
                pieces.origin,
                b"%d" % lsn,
                pieces.tsn,
                b"%d" % pieces.row_number,
                SEQ,
                b"%d" % self._outbox.seq,
                space.schema,
                pieces.tail,
                b"%d" % pieces.total_order,
                COLLECTION_ORDER,
                b"%d" % order,
                pieces.suffix,
            )
        )
        self._outbox.broadcast(space.topic, value)

    def _refuse(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body) -> None:
        """A row that can't be shown stops the daemon, or goes where its operator can find it."""
        if self._options.on_error == "fail":
            raise at_row(error, transaction, kind, lsn, body) from error
        letter = dead_letter(error, transaction, kind, lsn, body, str(self._position.server_uuid))
        self._outbox.control(topics.DLQ, *letter)

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int) -> Batch:
        """A snapshot begins; its stream will begin at `vclock`. The schema will be told afresh.

        From here on the ledger is a new one: the position may be another history's.
        """
        self._vclock = dict(vclock)
        self._vclock_origin = 0
        self._snapshot = Snapshot(
            self.position,
            self._spaces,
            self._envelope,
            self._outbox,
            lambda error, body: self._refuse(error, SNAPSHOT, INSERT, 0, body),
            now_us,
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

    def end_snapshot(self, now_us: int) -> Batch:
        """The snapshot is complete; the position is good to subscribe from. Raises ProtocolError if something is missing."""
        assert self._snapshot is not None
        self._position = self._snapshot.end(now_us)
        self._snapshot = None
        return self._batch()


class _Pieces(msgspec.Struct, gc=False):
    """What the events of one transaction share, and where it stands."""

    transaction: Transaction
    time: bytes
    origin: bytes
    tsn: bytes
    tail: bytes
    suffix: bytes
    orders: dict[Any, int]
    row_number: int = 0
    total_order: int = 0
    emptied: dict[int, str] = {}
    """Names of spaces that lost their rows: the transaction may drop them, too."""
