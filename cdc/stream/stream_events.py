"""Turns complete transactions of the stream into events in the batch, in order.

The transactions are certain, and are handled by the schema at their position. Rows of spaces that have an encoder are looked
up in a dict; all others take the way through `_slow_path_encoder`: system rows, and rows of spaces that are met anew.

This module doesn't know whether a transaction had to wait, whether its events are already published, and what a batch is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc.errors import (
    EncodingError,
    ImageError,
    KeysChangedError,
    ManyRowsError,
    SchemaError,
    UnsupportedRowError,
    WiderRowError,
)
from cdc.events import topics
from cdc.events.envelope import MALFORMED_BODY, Change, SpaceEvents
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Body, FrameDecoder, body_of
from cdc.protocol.constants import DATA_TYPES, ROW_TYPES, SYNCHRO_TYPES, Key, Type
from cdc.protocol.system_spaces import TRUNCATE_SPACE
from cdc.schema.forms import SpaceForm
from cdc.schema.tracker import TRACKED_SPACES
from cdc.stream.batches.event_context import EventContext
from cdc.stream.batches.routed_messages import ChangeWriter
from cdc.stream.fragments import BinaryFragments, EventFragments, OriginTexts, deletes
from cdc.stream.moves.held import HeldRow
from cdc.stream.transactions.assembler import rows_of
from cdc.stream.transactions.transaction import Row, Transaction

SPACE_ID: Final = Key.SPACE_ID
DELETE: Final = Type.DELETE


class StreamEvents:
    """Maker of events from transactions. Moves the vclock over them."""

    def __init__(self, base: Position, context: EventContext) -> None:
        self.base = base
        """The position without the components that rows move; `position` is complete."""
        self.now_us = 0
        self._options = context.options
        self._envelope = context.envelope
        self._builder = context.builder
        self._spaces = context.spaces
        self._images = context.images
        self._refusals = context.refusals
        # The vclock under construction: mutable here, a VClock at each boundary.
        self.vclock: dict[int, int] = dict(base.vclock)
        self._texts = OriginTexts()
        self.place = (0, 0)
        """Origin and lsn of the transaction that was begun last."""
        # Spaces with a changed primary key: those whose rows are still under the old one, and all of them.
        self._to_rekey: list[SpaceForm] = []
        self._rekeyed: dict[int, None] = {}
        # Lsn and row number of the last row that changed the schema.
        self._schema_row_at = (0, 0)
        # What is left of a row that stands for many others, while a full batch is taken.
        self._left: Iterator[Row] | None = None

    @property
    def position(self) -> Position:
        """The boundary up to which transactions have been handled."""
        return replace(
            self.base,
            vclock=VClock(self.vclock),
            seq=self._builder.seq,
            schema_version=self._spaces.schema.schema_version,
            doubtful=self._images.doubts if self._images is not None else frozenset(),
        )

    def jump(self, vclock: Mapping[int, int], *, is_whole: bool = False) -> None:
        """Continue from these components without an event. If `is_whole`, there are no other components."""
        self.vclock = dict(vclock) if is_whole else {**self.vclock, **vclock}
        self._texts = OriginTexts()

    def fill(self, transaction: Transaction, suffix: bytes) -> Iterator[None]:
        """Fill the batch with a transaction's events; yield whenever it is full, or a chunk has been read from disk."""
        fragments, spool = self._begin(transaction, suffix), transaction.spool
        if spool is None:
            rows = iter(transaction.rows)
            while not self._encode_rows(fragments, rows):
                yield
        else:
            try:
                decoder = FrameDecoder()
                for chunk in spool.chunks():
                    rows = iter(rows_of(decoder.feed(chunk)))
                    while not self._encode_rows(fragments, rows):
                        yield
                    yield
            finally:
                spool.close()
        self._end(fragments)

    def _begin(self, transaction: Transaction, suffix: bytes) -> EventFragments:
        """Prepare the text that all events of a transaction share, and move the position over the transaction."""
        texts, replica_id, lsn = self._texts, transaction.replica_id, transaction.lsn
        self.place = replica_id, lsn
        if replica_id != texts.origin:
            texts.turn_to(replica_id, self.vclock)
        self.vclock[replica_id] = lsn
        fragments = self._fragments(transaction, texts, self.vclock, suffix)
        texts.previous_lsn = b"%d" % lsn
        return fragments

    def _fragments(
        self, transaction: Transaction, texts: OriginTexts, vclock: Mapping[int, int], suffix: bytes
    ) -> EventFragments:
        """Return the text that all events of a transaction share; `vclock` is the position at its end."""
        replica_id, previous_lsn = transaction.replica_id, texts.previous_lsn
        lsn_text = b"%d" % transaction.lsn
        tsn_text = lsn_text if transaction.tsn == transaction.lsn else b"%d" % transaction.tsn
        last_number = transaction.row_count - 1
        shared = self._envelope.shared(transaction.timestamp, previous_lsn, (replica_id, transaction.tsn), vclock)
        if shared is not None:
            return BinaryFragments(
                transaction, b"", b"", b"", b"", suffix, {}, last_row_number=last_number, previous_lsn=previous_lsn, shared=shared
            )
        time = self._envelope.source + self._envelope.stream_time(transaction.timestamp, previous_lsn)
        tail = b'%b%b%b%b%b","total_order":' % (texts.before, lsn_text, texts.after, texts.transaction_text, tsn_text)
        place = time, texts.origin_text, b',"tsn":%b,"row":' % tsn_text, tail
        return EventFragments(transaction, *place, suffix, {}, last_row_number=last_number, previous_lsn=previous_lsn)

    def _encode_rows(self, fragments: EventFragments, rows: Iterator[Row]) -> bool:
        """Make the events of a transaction's next rows, in order; return whether all of `rows` are done. The hot path.

        If not, the batch is full, and must be taken before the remaining rows.
        """
        if self._left is not None and not self._encode_in_place(fragments, self._left):
            return False
        builder, encoders, refusals, transaction = self._builder, self._spaces.encoders, self._refusals, fragments.transaction
        tombstones, bytes_max, last_number = self._options.tombstones, builder.bytes_max, fragments.last_row_number
        for kind, lsn, body, frame in rows:
            space_id = body.get(SPACE_ID)
            row_number = fragments.row_number
            try:
                has_encoder = space_id in encoders
            except TypeError as error:  # an array or a map
                raise refusals.malformed(transaction, kind, lsn, body_of(frame), space_id) from error
            space = encoders[space_id] if has_encoder else self._slow_path_encoder(fragments, kind, lsn, body, frame)
            fragments.row_number = row_number + 1
            builder.row_count += 1
            if space is None:
                continue
            if space.gate is not None:
                space.gate.turn_to(fragments, lsn, row_number, self.vclock)
            try:
                change = space.changes[kind](body, frame)
            except (EncodingError, SchemaError) as error:
                refusals.refuse(error, transaction, kind, lsn, body_of(frame), space_id)
                continue
            except ImageError as error:
                refusals.refuse_unappliable(error, transaction, kind, lsn, body_of(frame), space_id)
                continue
            except ManyRowsError as error:
                if not self._encode_in_place(fragments, deletes(fragments, lsn, error.requests)):
                    return False
                continue
            except UnsupportedRowError as error:
                raise refusals.at_row(error, transaction, kind, lsn, body_of(frame), space_id) from error
            except WiderRowError as error:
                # As if the row came only now.
                fragments.row_number, builder.row_count = row_number, builder.row_count - 1
                self._widen(space_id, error.width)
                if not self._encode_rows(fragments, iter(((kind, lsn, body, frame),))):
                    return False
                continue
            except MALFORMED_BODY as error:
                raise refusals.malformed(transaction, kind, lsn, body_of(frame), space_id) from error
            if change is None:
                continue
            key, opening, content = change
            shown = space if space.marks is None else space.marks.shown(space)
            if space.route is not None:
                make = partial(fragments.event, shown, lsn, row_number)
                ChangeWriter(builder, space, lsn, make, tombstones=tombstones).put(key, opening, content)
            else:
                builder.seq += 1
                value = fragments.event(shown, lsn, row_number, builder.seq, opening + content)
                builder.byte_count += len(value)
                builder.parts.append((space.topic, key, value))
                if kind == DELETE and tombstones:
                    builder.parts.append((space.topic, key, None))
            if builder.byte_count > bytes_max and row_number != last_number:
                return False
        return True

    def _encode_in_place(self, fragments: EventFragments, rows: Iterator[Row]) -> bool:
        """Make the events of rows that one row stands for; return whether all are done."""
        # Also while a full batch is taken in the middle of the transaction's last row, something is left.
        last_number, fragments.last_row_number = fragments.last_row_number, None
        self._left = None
        is_done = self._encode_rows(fragments, rows)
        fragments.last_row_number = last_number
        self._left = None if is_done else rows
        return is_done

    def _widen(self, space_id: Any, width: int) -> None:
        """Make an encoder for longer tuples of a space."""
        form = self._spaces.form(space_id)
        space = self._spaces.widen(form, width)
        if space_id in self._rekeyed:
            self._suppress_events(space)
        self._spaces.encoders.put(space_id, space, is_synchronous=form.is_sync)

    def _slow_path_encoder(self, fragments: EventFragments, kind: int, lsn: int, body: Body, frame: bytes) -> SpaceEvents | None:
        """Return the encoder for a row whose space has none, or None if the row has no event."""
        if kind not in DATA_TYPES:
            if kind not in ROW_TYPES or (kind in SYNCHRO_TYPES and fragments.transaction.row_count > 1):
                # The master always writes what concerns the limbo by itself.
                raise self._refusals.malformed(fragments.transaction, kind, lsn, body_of(frame), body.get(SPACE_ID))
            return None  # NOP, and messages between the cluster's members, publish nothing
        space_id = body.get(SPACE_ID)
        if type(space_id) is not int:
            raise self._refusals.malformed(fragments.transaction, kind, lsn, body_of(frame), None)
        try:
            if space_id in TRACKED_SPACES:
                self._schema_row(fragments, kind, lsn, body)
            return self._space(space_id, fragments)
        except (EncodingError, SchemaError) as error:
            raise self._refusals.at_row(error, fragments.transaction, kind, lsn, body_of(frame), space_id) from error

    def _schema_row(self, fragments: EventFragments, kind: int, lsn: int, body: Body) -> None:
        """Fold a system row. If it removes a space's rows, publish that while the space still has the form of these rows."""
        self._rekey_at_once()
        self._schema_row_at = lsn, fragments.row_number
        if body[SPACE_ID] == TRUNCATE_SPACE:
            # A truncation's event refers to the space's form, which must be published before.
            self._publish_changed_forms(fragments)
        emptied = self._spaces.apply(kind, body)
        if emptied is not None:
            self._truncate(fragments, emptied, *self._schema_row_at, keeps_form=body[SPACE_ID] == TRUNCATE_SPACE)

    def _space(self, space_id: int, fragments: EventFragments) -> SpaceEvents | None:
        """Return a new encoder for a space's rows; None if they aren't published."""
        self._publish_changed_forms(fragments)
        if space_id in self._rekeyed:
            self._rekey_at_once()
        form = self._spaces.form(space_id)
        space = self._spaces.new_encoder(form)
        if space is not None and space_id in self._rekeyed:
            self._suppress_events(space)
        if space_id not in TRACKED_SPACES:  # their rows must take the slow path every time
            self._spaces.encoders.put(space_id, space, is_synchronous=form.is_sync)
        return space

    def _publish_changed_forms(self, fragments: EventFragments) -> None:
        """Publish the changed forms."""
        if self._spaces.schema.is_touched:
            transaction = fragments.transaction
            self._spaces.publish_schema_changes(
                self.position,
                self.now_us,
                (transaction.replica_id, transaction.lsn, transaction.tsn),
                lambda form: self._truncate(fragments, form, *self._schema_row_at),
                on_moved=lambda form: self._broadcast_truncation(
                    fragments, self._spaces.plain_events_of(form, is_former=True), *self._schema_row_at
                ),
            )
            for form in self._spaces.take_rekeyed():
                self._to_rekey.append(form)
                self._rekeyed[form.space_id] = None
                self._broadcast_truncation(fragments, self._spaces.plain_events_of(form), *self._schema_row_at)

    # Changed primary keys.

    @property
    def has_rekeyed(self) -> bool:
        """Whether spaces have got another primary key since `take_rekeyed`."""
        return bool(self._rekeyed)

    def rekey(self) -> Iterator[None]:
        """Move the rows of these spaces to their new keys, as far as not done yet.

        Yields now and then. Raises KeysChangedError.
        """
        while self._to_rekey:
            yield from self._spaces.rekey(self._to_rekey.pop(0))

    def _rekey_at_once(self) -> None:
        """Do the same within a transaction, whose next row may need it."""
        for _ in self.rekey():
            pass

    def take_rekeyed(self) -> list[int]:
        """Return these spaces, after `rekey`. From here on their rows have events again."""
        found, self._rekeyed = list(self._rekeyed), {}
        for space_id in found:
            self._spaces.discard_encoder(space_id)
        return found

    def _suppress_events(self, space: SpaceEvents) -> None:
        """Suppress a space's events for the rest of the transaction that alters its primary key: all its rows follow later."""
        if space.form.space_id not in self._spaces.image_changes:
            raise KeysChangedError(
                f"space {space.form.name!r} has been given a primary key under which its rows can't be kept, "
                "and one of them was changed in the same transaction"
            )

        def muted(change: Change) -> Change:
            def apply(body: Body, frame: bytes) -> None:
                change(body, frame)

            return apply

        space.changes_by, space.changes = "nobody", {kind: muted(change) for kind, change in space.changes.items()}

    def _end(self, fragments: EventFragments) -> None:
        """Finish a transaction after its last row."""
        if self._spaces.schema.is_touched:
            self._publish_changed_forms(fragments)
        self._spaces.end_transaction()
        self._builder.timestamp = fragments.transaction.timestamp
        self.record(fragments)
        if self._spaces.gate is not None:
            self._spaces.gate.write_news()

    def record(self, fragments: EventFragments) -> None:
        """Write the records of a transaction, or of a part of it, if it has so many events that it has any.

        A transaction's parts have records of their own, whose counts add up to the transaction's.
        """
        wanted = self._options.transaction_topic
        count = sum(fragments.counts().values()) if fragments.is_part else fragments.total_order
        if wanted != "none" and count > (wanted == "multi" and not fragments.is_part):
            for key, value in fragments.records(self._spaces.schema):
                self._builder.control(topics.TRANSACTION, key, value)

    # Rows of buckets that have waited.

    def handle_waiting(self, row: HeldRow, last: EventFragments | None, suffix: bytes) -> EventFragments:
        """Handle a row that has waited; return its transaction's text, for the next row. `last` is that of the row before."""
        origin = row.origin
        if last is None or (last.transaction.replica_id, last.transaction.lsn) != (origin.replica_id, origin.lsn):
            if last is not None:
                self.record(last)
            transaction = Transaction(
                origin.replica_id, origin.tsn, origin.lsn, origin.timestamp, 0, [], row_count=origin.row_count
            )
            texts = OriginTexts()
            texts.turn_to(origin.replica_id, origin.vclock)
            texts.previous_lsn = origin.previous_lsn
            last = self._fragments(transaction, texts, origin.vclock, suffix)
        if row.orders is not None:
            last.turn_to_place(row.space_id, *row.orders)
        last.is_part = last.is_part or row.is_part
        last.row_number, last.last_row_number = row.row_number, row.row_number
        self._encode_rows(last, iter(rows_of(FrameDecoder().feed(row.frame))))
        self._builder.row_count -= 1  # it was counted when it arrived
        return last

    def _truncate(
        self, fragments: EventFragments, form: SpaceForm, lsn: int, row_number: int, *, keeps_form: bool = False
    ) -> None:
        """Clear a space's images, and publish in every partition of its topic that all its rows are gone.

        `keeps_form` says that the space is there as it was: earlier rows that wait can be handled later.
        """
        space, gate = self._spaces.plain_events_of(form), self._spaces.gate
        self._broadcast_truncation(fragments, space, lsn, row_number)
        if gate is not None:
            gate.turn_to(fragments, lsn, row_number, self.vclock)
            gate.clear(space, keeps_form=keeps_form)
        elif self._images is not None:
            self._images.clear(form.space_id)

    def _broadcast_truncation(self, fragments: EventFragments, space: SpaceEvents, lsn: int, row_number: int) -> None:
        self._builder.seq += 1
        seq = self._builder.seq
        headers = space.route.headers(b"t", seq, lsn) if space.route is not None else None
        self._builder.broadcast(space.topic, fragments.truncation(space, lsn, row_number, seq), headers)
