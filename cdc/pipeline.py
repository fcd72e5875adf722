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

import msgpack
import msgspec

from cdc import __version__, limbo, topics
from cdc.assembler import Assembler, rows_of
from cdc.change import Batch, Broadcast, Message, Row, Spool, Transaction
from cdc.envelope import (
    COLLECTION_ORDER,
    MALFORMED_BODY,
    OPEN_SNAPSHOT,
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
    snapshot_record,
    transaction_records,
)
from cdc.errors import CdcError, EncodingError, ProtocolError, SchemaError
from cdc.json_values import encode
from cdc.ledger import Ledger
from cdc.position import Position, SnapshotState
from cdc.protocol.codec import Body, FrameDecoder, Frames, Header
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, TYPE_NAMES, Flag, Key, Type
from cdc.protocol.extensions import OpaqueExtension
from cdc.schema import (
    SYSTEM_SPACE_MAX,
    TRACKED_SPACES,
    TRUNCATE_SPACE,
    ChangeKind,
    SchemaTracker,
    SpaceForm,
    StoredSpace,
    replicaset_uuid_in,
)
from cdc.topics import SpaceFilter, TopicNames
from cdc.vclock import VClock

SPACE_ID: Final = Key.SPACE_ID
TUPLE: Final = Key.TUPLE
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
        self._server_uuid = str(server_uuid)
        self._schema = SchemaTracker(stored, position.schema_version)
        self._filter = SpaceFilter(options.include, options.exclude)
        self._topics = TopicNames(options.prefix)
        self._envelope = Envelope(__version__, options.prefix)
        self._assembler = Assembler(memory_bytes_max=options.transaction_bytes_max, new_spool=new_spool)
        self.ledger = Ledger(position)

        # The position that is being built: mutable here, a Position at each boundary.
        self._vclock: dict[int, int] = dict(position.vclock)
        self._seq = position.seq
        # Texts of the vclock around the component of one origin; rebuilt when another origin's row comes.
        self._vclock_origin = 0
        self._vclock_before = self._vclock_after = self._origin_text = self._transaction_text = b""
        self._previous_lsn = b"0"

        # Compiled spaces by id; None is a space whose rows are not published. What isn't in it takes the slow way.
        self._spaces: dict[Any, SpaceEvents | None] = {}
        self._topics_announced: set[str] = set()
        self._snapshot_id = 0
        self._publishes_snapshot = True
        # Rows of system spaces wait until the snapshot's `_index` rows are through.
        self._is_schema_complete = False
        self._early_rows: list[tuple[Header, Body]] = []
        self._snapshot_pieces: dict[Any, tuple[bytes, bytes]] = {}
        self._snapshot_counts: dict[Any, int] = {}

        # The batch that is being filled.
        self._messages: list[Message | Broadcast] = []
        self._byte_count = 0
        self._event_count = 0
        self._row_count = 0
        self._timestamp = 0.0
        self._stored: dict[int, StoredSpace | None] = {}
        self._new_topics: list[str] = []
        self._now_us = 0
        self._schema.touch_all()

    # What is asked from outside.

    @property
    def position(self) -> Position:
        """The boundary up to which rows have been taken in."""
        return replace(self._position, vclock=VClock(self._vclock), seq=self._seq, schema_version=self._schema.schema_version)

    @property
    def open_byte_count(self) -> int:
        """Bytes of the source transaction whose end has not arrived."""
        return self._assembler.open_byte_count

    def published_forms(self) -> list[SpaceForm]:
        """The spaces that are published, as they look at this position."""
        return [form for form in self._schema.forms() if self._is_published(form)]

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
                continue  # came by another way already
            if transaction.spool is not None:
                yield from self._spooled(transaction, suffix)
                continue
            message_count, seq, row_count = len(self._messages), self._seq, self._row_count
            try:
                if transaction.flags > Flag.COMMIT:
                    limbo.refuse_flagged(transaction)
                self._transaction(transaction, suffix)
            except CdcError:
                # What came before the transaction that can't be handled is good, unless DDL ties the two together.
                if row_count and not self._stored and not self._schema.touched:
                    del self._messages[message_count:]
                    self._seq, self._row_count = seq, row_count
                    self._vclock[transaction.replica_id] = known
                    yield self._batch()
                raise
        if self._row_count:
            yield self._batch()

    def _singles(self, transactions: list[Transaction], start: int, suffix: bytes) -> int:
        """The events of a run of transactions that are one ordinary row each; returns where the run ends.

        This is the other half of the hot path: what `_begin`, `_rows` and `_end` do for a transaction is drawn together
        here, because for a single row it would cost more than the row.
        """
        if self._options.transaction_topic == "all":
            return start
        spaces, add = self._spaces, self._messages.append
        source, tombstones = self._envelope.source, self._options.tombstones
        replica_id, origin, after = self._vclock_origin, self._origin_text, self._vclock_after
        before, tail = self._vclock_before, self._transaction_text
        known, previous = self._vclock.get(replica_id, 0), self._previous_lsn
        seq, byte_count, timestamp = self._seq, self._byte_count, self._timestamp
        first_seq, done = seq, start
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
            self._seq, self._byte_count, self._timestamp = seq, byte_count, timestamp
            self._event_count += seq - first_seq
            self._row_count += done - start
        return done

    def _transaction(self, transaction: Transaction, suffix: bytes) -> None:
        pieces = self._begin(transaction, suffix)
        self._rows(pieces, transaction.rows)
        self._end(pieces)

    def _spooled(self, transaction: Transaction, suffix: bytes) -> Iterator[Batch]:
        """A transaction that waited on disk comes out in pieces, of which only the last ends at a boundary."""
        assert transaction.spool is not None
        if self._row_count:
            yield self._batch()
        pieces = self._begin(transaction, suffix)
        decoder = FrameDecoder()
        try:
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
        spaces, add = self._spaces, self._messages.append
        seq, byte_count = self._seq, self._byte_count
        row_number, total_order, orders = pieces.row_number, pieces.total_order, pieces.orders
        time, origin, tsn, tail, suffix = pieces.time, pieces.origin, pieces.tsn, pieces.tail, pieces.suffix
        tombstones = self._options.tombstones
        for kind, lsn, body in rows:
            space_id = body.get(SPACE_ID)
            try:
                is_compiled = space_id in spaces
            except TypeError as error:  # an array or a map
                raise _malformed(pieces.transaction, kind, lsn, body) from error
            if is_compiled:
                space = spaces[space_id]
            else:
                # The slow way may write events of its own, so it must see the counters, and we what it made of them.
                self._seq, self._byte_count = seq, byte_count
                pieces.row_number, pieces.total_order = row_number, total_order
                space = self._special(pieces, kind, lsn, body)
                seq, byte_count, total_order = self._seq, self._byte_count, pieces.total_order
            if space is None:
                row_number += 1
                continue
            try:
                key, opening, content = space.changes[kind](body)
            except (EncodingError, SchemaError) as error:
                if self._options.on_error == "fail":
                    raise _at_row(error, pieces.transaction, kind, lsn, body) from error
                self._dead_letter(error, pieces.transaction, kind, lsn, body)
                row_number += 1
                continue
            except MALFORMED_BODY as error:
                raise _malformed(pieces.transaction, kind, lsn, body) from error
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
        self._seq, self._byte_count = seq, byte_count
        self._row_count += len(rows)
        pieces.row_number, pieces.total_order = row_number, total_order

    def _special(self, pieces: _Pieces, kind: int, lsn: int, body: Body) -> SpaceEvents | None:
        """A row that the loop can't handle by looking its space up: what its event is made with, or None if it has none."""
        if kind not in DATA_TYPES:
            if kind in SYNCHRO_TYPES:
                limbo.pass_control_row(kind, body, lambda: VClock(self._vclock))
            return None  # NOP, and the cluster's own talk, publish nothing
        space_id = body.get(SPACE_ID)
        if type(space_id) is not int:
            raise _malformed(pieces.transaction, kind, lsn, body)
        try:
            if space_id in TRACKED_SPACES:
                self._schema_row(pieces, kind, lsn, body)
            return self._space(space_id, pieces)
        except (EncodingError, SchemaError) as error:
            raise _at_row(error, pieces.transaction, kind, lsn, body) from error

    def _schema_row(self, pieces: _Pieces, kind: int, lsn: int, body: Body) -> None:
        """Fold a system row; if it takes a space's rows away, say so before the space changes."""
        self._settle_schema_of_emptied(kind, body, pieces)
        emptied = self._schema.apply(kind, body)
        if emptied is not None and self._is_published(emptied):
            self._truncate(pieces, emptied, lsn)
        for space_id in self._schema.touched:
            self._spaces.pop(space_id, None)

    def _space(self, space_id: int, pieces: _Pieces | None) -> SpaceEvents | None:
        """Compile what a space's rows need, and remember it until its form changes."""
        if self._schema.touched:
            self._settle_schema(pieces)
        if space_id in self._spaces:
            return self._spaces[space_id]
        form = self._schema.form(space_id)
        if form.is_sync and pieces is not None:
            raise limbo.refuse_space(pieces.transaction, form.name)
        space: SpaceEvents | None = None
        if self._is_published(form):
            topic = self._topics.of_space(form.space_id, form.name)
            self._announce(topic)
            space = SpaceEvents(form, topic, str(self._position.server_uuid))
        if space_id not in TRACKED_SPACES and not form.is_sync:
            self._spaces[space_id] = space
        return space

    def _end(self, pieces: _Pieces) -> None:
        """The transaction's last row has been handled."""
        transaction = pieces.transaction
        if self._schema.touched:
            self._settle_schema(pieces)
        self._event_count += pieces.total_order
        self._timestamp = transaction.timestamp
        wanted = self._options.transaction_topic
        if wanted != "none" and pieces.total_order > (1 if wanted == "multi" else 0):
            counts = [(str(self._schema.name(space_id)), count) for space_id, count in pieces.orders.items()]
            transaction_id = f"{transaction.replica_id}:{transaction.tsn}"
            for key, value in transaction_records(transaction_id, counts, transaction.timestamp):
                self._control(topics.TRANSACTION, key, value)

    def _batch(self, *, is_boundary: bool = True) -> Batch:
        """What has been filled since the last one."""
        if is_boundary:
            self._position = self.position
            self.ledger.receive(self._position.vclock)
            self.ledger.release(self._position.vclock)
            self.ledger.publish(self._position)
        batch = Batch(
            self._messages,
            self._byte_count,
            self._event_count,
            self._row_count,
            self._position,
            is_boundary,
            self._stored,
            self._new_topics,
            self._timestamp,
        )
        self._messages, self._stored, self._new_topics = [], {}, []
        self._byte_count = self._event_count = self._row_count = 0
        return batch

    # The schema.

    def _is_published(self, form: SpaceForm) -> bool:
        return form.is_replicated and self._filter(form.space_id, form.name)

    def _settle_schema_of_emptied(self, kind: int, body: Body, pieces: _Pieces) -> None:
        """A truncation speaks of a space by its form, which must be known outside before."""
        if body[SPACE_ID] == TRUNCATE_SPACE and kind != DELETE and self._schema.touched:
            self._settle_schema(pieces)

    def _settle_schema(self, pieces: _Pieces | None) -> None:
        """Tell the outside about forms that have become different, and have them kept with the checkpoint."""
        touched = self._schema.touched
        origin = None
        if pieces is not None:
            transaction = pieces.transaction
            origin = (transaction.replica_id, transaction.lsn, transaction.tsn)
        for change in self._schema.changes(self._is_published):
            form = change.form
            self._spaces.pop(form.space_id, None)
            if change.kind is ChangeKind.DROP or change.previous_name is not None:
                self._topics.release(form.space_id)
            if change.kind is not ChangeKind.DROP:
                self._announce(self._topics.of_space(form.space_id, form.name))
            elif pieces is None:
                # A snapshot that lacks the space: its rows went unseen.
                self._emptied_unseen(form)
            record = self._envelope.schema_record(change, self.position, self._now_us, origin)
            self._control(topics.SCHEMA, *record)
        for space_id in touched:
            self._stored[space_id] = self._schema.stored(space_id)

    def _announce(self, topic: str) -> None:
        if topic not in self._topics_announced:
            self._topics_announced.add(topic)
            self._new_topics.append(topic)

    def _control(self, name: str, key: bytes, value: bytes) -> None:
        topic = self._topics.control(name)
        self._announce(topic)
        self._messages.append((topic, key, value))
        self._byte_count += len(value)

    def _truncate(self, pieces: _Pieces, form: SpaceForm, lsn: int) -> None:
        """The event that all rows of a space are gone, for every partition of its topic."""
        topic = self._topics.of_space(form.space_id, form.name)
        self._announce(topic)
        space = SpaceEvents(form, topic, str(self._position.server_uuid))
        self._seq += 1
        pieces.total_order += 1
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
                b"%d" % self._seq,
                space.schema,
                pieces.tail,
                b"%d" % pieces.total_order,
                COLLECTION_ORDER,
                b"%d" % order,
                pieces.suffix,
            )
        )
        self._byte_count += len(value)
        self._messages.append(Broadcast(topic, value))

    def _dead_letter(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body) -> None:
        """A row that can't be shown goes where its operator can find it, with everything needed to do it again."""
        identity = {"replica_id": transaction.replica_id, "lsn": lsn}
        letter = {
            **identity,
            "error": str(error),
            "tsn": transaction.tsn,
            "type": TYPE_NAMES.get(kind, str(kind)),
            "space_id": body.get(SPACE_ID),
            "timestamp": transaction.timestamp,
            "server_uuid": str(self._position.server_uuid),
            "body": _repack(body),
        }
        self._control(topics.DLQ, encode(identity), encode(letter))

    # The snapshot.

    def begin_snapshot(self, vclock: VClock, now_us: int) -> Batch:
        """A snapshot begins; its stream will begin at `vclock`. The schema will be told afresh.

        From here on the ledger is a new one: the position may be another history's.
        """
        self._now_us = now_us
        previous = self._position.snapshot
        self._snapshot_id = previous.snapshot_id + 1 if previous is not None else 1
        self._position = replace(
            self.position, vclock=vclock, replicaset_uuid=None, snapshot=SnapshotState(self._snapshot_id, is_complete=False)
        )
        self._vclock = dict(vclock)
        self._vclock_origin = 0
        self._spaces.clear()
        self._snapshot_counts.clear()
        self._snapshot_pieces.clear()
        self._schema.begin_snapshot()
        self._is_schema_complete = False
        self._early_rows.clear()
        self.ledger = Ledger(self._position)
        self._control(topics.SNAPSHOT, *snapshot_record("STARTED", self._position, now_us))
        return self._batch()

    def feed_snapshot(self, frames: Frames, now_us: int, *, publish: bool = True) -> Batch:
        """Take rows of the snapshot. Without `publish` only the schema is taken from them."""
        self._now_us = now_us
        self._snapshot_pieces.clear()
        self._publishes_snapshot = publish
        self._snapshot_rows(frames)
        self._row_count += len(frames)
        return self._batch()

    def _snapshot_rows(self, frames: Frames) -> None:
        spaces, pieces_by_space, counts, add = self._spaces, self._snapshot_pieces, self._snapshot_counts, self._messages.append
        seq, byte_count, event_count = self._seq, self._byte_count, 0
        for header, body in zip(frames.headers, frames.bodies, strict=True):
            space_id = body.get(SPACE_ID)
            try:
                is_compiled = space_id in spaces
            except TypeError as error:  # an array or a map
                raise _malformed_in_snapshot(header, body) from error
            if is_compiled:
                space = spaces[space_id]
            else:
                self._seq, self._byte_count = seq, byte_count
                if not self._is_schema_complete and type(space_id) is int and space_id > SYSTEM_SPACE_MAX:
                    self._complete_schema()
                space = self._snapshot_special(header, body)
                seq, byte_count = self._seq, self._byte_count
            if space is None or not self._publishes_snapshot:
                continue
            try:
                tuple_ = body[TUPLE]
                key = space.key_of(tuple_)
                row = space.rows[len(tuple_)](tuple_)
            except (EncodingError, SchemaError) as error:
                transaction = Transaction(0, 0, 0, 0.0, 0, [])
                if self._options.on_error == "fail":
                    raise _at_row(error, transaction, INSERT, 0, body) from error
                self._dead_letter(error, transaction, INSERT, 0, body)
                continue
            except MALFORMED_BODY as error:
                raise _malformed_in_snapshot(header, body) from error
            pieces = pieces_by_space.get(space_id)
            if pieces is None:
                vclock = encode(self._position.vclock.to_json())
                pieces = self._envelope.snapshot_pieces(space, self._snapshot_id, vclock, self._now_us)
                pieces_by_space[space_id] = pieces
            seq += 1
            event_count += 1
            value = b"".join((OPEN_SNAPSHOT, row, pieces[0], b"%d" % seq, pieces[1]))
            byte_count += len(value)
            counts[space_id] = counts.get(space_id, 0) + 1
            add((space.topic, key, value))
        self._event_count += event_count
        self._seq, self._byte_count = seq, byte_count

    def end_snapshot(self, now_us: int) -> Batch:
        """The snapshot is complete: spaces that it lacks are gone, and the position is good to subscribe from."""
        self._now_us = now_us
        if self._position.replicaset_uuid is None:
            raise ProtocolError("the snapshot doesn't say which replica set it belongs to: _schema has neither name for it")
        if not self._is_schema_complete:
            self._complete_schema()
        self._settle_schema(None)
        counts = [(form.name, form.space_id, self._snapshot_counts.get(form.space_id, 0)) for form in self.published_forms()]
        state = SnapshotState(self._snapshot_id, is_complete=True, row_count=sum(count for _, _, count in counts))
        self._position = replace(self._position, snapshot=state)
        self._control(topics.SNAPSHOT, *snapshot_record("COMPLETED", self.position, now_us, counts))
        return self._batch()

    def _snapshot_special(self, header: Header, body: Body) -> SpaceEvents | None:
        space_id, tuple_ = body.get(SPACE_ID), body.get(TUPLE)
        if header.get(Key.REQUEST_TYPE) != INSERT or type(space_id) is not int or not isinstance(tuple_, list):
            raise _malformed_in_snapshot(header, body)
        replicaset_uuid = replicaset_uuid_in(body)
        if replicaset_uuid is not None:
            self._position = replace(self._position, replicaset_uuid=replicaset_uuid)
        if space_id in TRACKED_SPACES:
            self._schema.apply(INSERT, body)
        if space_id <= SYSTEM_SPACE_MAX and not self._is_schema_complete:
            # Rows of system spaces come by id, so before `_index` has told what they look like.
            self._early_rows.append((header, body))
            return None
        return self._space(space_id, None)

    def _complete_schema(self) -> None:
        """The system spaces are through: now their own rows can be looked at, where they were asked for by name."""
        self._is_schema_complete = True
        rows, self._early_rows = self._early_rows, []
        wanted = [row for row in rows if self._filter(row[1][SPACE_ID], self._schema.name(row[1][SPACE_ID]) or "")]
        if wanted:
            headers, bodies = [header for header, _ in wanted], [body for _, body in wanted]
            self._snapshot_rows(Frames(headers, bodies, b"", []))

    def _emptied_unseen(self, form: SpaceForm) -> None:
        topic = self._topics.of_space(form.space_id, form.name)
        self._topics.release(form.space_id)
        self._announce(topic)
        space = SpaceEvents(form, topic, str(self._position.server_uuid))
        vclock = encode(self._position.vclock.to_json())
        before, after = self._envelope.snapshot_pieces(space, self._snapshot_id, vclock, self._now_us)
        self._seq += 1
        value = b"".join((OPEN_TRUNCATE, before, b"%d" % self._seq, after))
        self._byte_count += len(value)
        self._messages.append(Broadcast(topic, value))


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


def _at_row(error: CdcError, transaction: Transaction, kind: int, lsn: int, body: Body) -> CdcError:
    """The same error, with the row that it is about."""
    row = f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}), body {_repack(body).hex(' '):.2000}"
    return type(error)(f"{error.message}; {row}", error.hint)


def _malformed(transaction: Transaction, kind: int, lsn: int, body: Body) -> ProtocolError:
    return ProtocolError(
        f"row {transaction.replica_id}:{lsn} ({TYPE_NAMES.get(kind, kind)}) isn't what its type promises: "
        f"body {_repack(body).hex(' '):.2000}"
    )


def _malformed_in_snapshot(header: Header, body: Body) -> ProtocolError:
    packed = f"header {_repack(header).hex(' '):.500}, body {_repack(body).hex(' '):.2000}"
    return ProtocolError(f"a row of the snapshot can't be read: {packed}")


def _repack(body: Body) -> bytes:
    """A decoded body as MessagePack again."""

    def extension(value: Any) -> Any:
        if isinstance(value, OpaqueExtension):
            return msgpack.ExtType(value.code, value.data)
        return repr(value)

    packed: bytes = msgpack.packb(body, default=extension, unicode_errors="surrogateescape")
    return packed
