"""Turns complete transactions of the stream into events in the batch, in order.

The transactions are certain, and are handled by the schema at their position. Rows of spaces whose encoder is compiled are looked
up in a dict; all others take the way through `_slow_path_encoder`: system rows, and rows of spaces that are met anew.

This module doesn't know whether a transaction had to wait, whether its events are already published, and what a batch is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from cdc.errors import CdcError, EncodingError, ImageError, KeysChangedError, SchemaError
from cdc.events import topics
from cdc.events.envelope import (
    COLLECTION_ORDER,
    MALFORMED_BODY,
    SEQ,
    Change,
    Envelope,
    SpaceEvents,
)
from cdc.images.overlay import Images
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Body, body_of
from cdc.protocol.constants import DATA_TYPES, SYNCHRO_TYPES, Key, Type
from cdc.protocol.system_spaces import TRUNCATE_SPACE
from cdc.schema.forms import SpaceForm
from cdc.schema.tracker import TRACKED_SPACES
from cdc.stream.batch import BatchBuilder
from cdc.stream.fragments import EventFragments, OriginTexts
from cdc.stream.options import PipelineOptions
from cdc.stream.row_errors import at_row, dead_letter, malformed
from cdc.stream.spaces import Spaces
from cdc.stream.transaction import Row, Transaction

SPACE_ID: Final = Key.SPACE_ID
DELETE: Final = Type.DELETE


class StreamEvents:
    """Maker of events from transactions. Moves the vclock over them."""

    def __init__(
        self,
        options: PipelineOptions,
        base: Position,
        envelope: Envelope,
        builder: BatchBuilder,
        spaces: Spaces,
        images: Images | None,
    ) -> None:
        self.base = base
        """The position without the components that rows move; `position` is complete."""
        self.now_us = 0
        self._options = options
        self._envelope = envelope
        self._builder = builder
        self._spaces = spaces
        self.images = images
        """The images, if events contain them."""
        # The vclock under construction: mutable here, a VClock at each boundary.
        self.vclock: dict[int, int] = dict(base.vclock)
        self.texts = OriginTexts()
        self.place = (0, 0)
        """Origin and lsn of the transaction that was begun last."""
        # Spaces with a changed primary key: those whose rows are still under the old one, and all of them.
        self._to_rekey: list[SpaceForm] = []
        self._rekeyed: dict[int, None] = {}
        # Lsn and row number of the last row that changed the schema.
        self._schema_row_at = (0, 0)

    @property
    def position(self) -> Position:
        """The boundary up to which transactions have been handled."""
        return replace(
            self.base,
            vclock=VClock(self.vclock),
            seq=self._builder.seq,
            schema_version=self._spaces.schema.schema_version,
            doubtful=self.images.doubts if self.images is not None else frozenset(),
        )

    def jump(self, vclock: Mapping[int, int], *, is_whole: bool = False) -> None:
        """Continue from these components without an event. If `is_whole`, there are no other components."""
        self.vclock = dict(vclock) if is_whole else {**self.vclock, **vclock}
        self.texts = OriginTexts()

    def begin(self, transaction: Transaction, suffix: bytes) -> EventFragments:
        """Prepare the text that all events of a transaction share, and move the position over the transaction."""
        texts, replica_id, lsn = self.texts, transaction.replica_id, transaction.lsn
        self.place = replica_id, lsn
        if replica_id != texts.origin:
            texts.turn_to(replica_id, self.vclock)
        lsn_text = b"%d" % lsn
        tsn_text = lsn_text if transaction.tsn == lsn else b"%d" % transaction.tsn
        time = self._envelope.source + self._envelope.stream_time(transaction.timestamp, texts.previous_lsn)
        self.vclock[replica_id] = lsn
        texts.previous_lsn = lsn_text
        tail = b'%b%b%b%b%b","total_order":' % (texts.before, lsn_text, texts.after, texts.transaction_text, tsn_text)
        return EventFragments(transaction, time, texts.origin_text, b',"tsn":%b,"row":' % tsn_text, tail, suffix, {})

    def encode_rows(self, pieces: EventFragments, rows: Iterator[Row]) -> bool:
        """Make the events of a transaction's next rows, in order; return whether all of `rows` are done. The hot path.

        If not, the batch is full, and must be taken before the remaining rows.
        """
        builder, spaces = self._builder, self._spaces.compiled
        add = builder.parts.append
        seq, byte_count = builder.seq, builder.byte_count
        row_number, total_order, orders = pieces.row_number, pieces.total_order, pieces.orders
        time, origin, tsn, tail, suffix = pieces.time, pieces.origin, pieces.tsn, pieces.tail, pieces.suffix
        tombstones, bytes_max = self._options.tombstones, self._options.batch_bytes_max
        first_number, row_count, is_done = row_number, pieces.transaction.row_count, True
        for kind, lsn, body, frame in rows:
            space_id = body.get(SPACE_ID)
            try:
                is_compiled = space_id in spaces
            except TypeError as error:  # an array or a map
                raise malformed(pieces.transaction, kind, lsn, body_of(frame)) from error
            if is_compiled:
                space = spaces[space_id]
            else:
                # The slow path may write events of its own: it must see the counters, and this loop must read them afterwards.
                builder.seq, builder.byte_count = seq, byte_count
                pieces.row_number, pieces.total_order = row_number, total_order
                space = self._slow_path_encoder(pieces, kind, lsn, body, frame)
                seq, byte_count, total_order = builder.seq, builder.byte_count, pieces.total_order
            if space is None:
                row_number += 1
                continue
            try:
                change = space.changes[kind](body, frame)
            except (EncodingError, SchemaError) as error:
                builder.byte_count = byte_count
                self.refuse(error, pieces.transaction, kind, lsn, body_of(frame), space_id)
                byte_count = builder.byte_count
                row_number += 1
                continue
            except ImageError as error:
                builder.byte_count = byte_count
                self._refuse_unappliable(error, pieces.transaction, kind, lsn, body_of(frame), space_id)
                byte_count = builder.byte_count
                row_number += 1
                continue
            except MALFORMED_BODY as error:
                raise malformed(pieces.transaction, kind, lsn, body_of(frame)) from error
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
                    b"%d" % row_number,
                    SEQ,
                    b"%d" % seq,
                    space.schema,
                    tail,
                    b"%d" % total_order,
                    COLLECTION_ORDER,
                    b"%d" % order,
                    suffix,
                )
            )
            byte_count += len(value)
            add((space.topic, key, value))
            if kind == DELETE and tombstones:
                add((space.topic, key, None))
            row_number += 1
            if byte_count > bytes_max and row_number != row_count:
                is_done = False
                break
        builder.seq, builder.byte_count = seq, byte_count
        builder.row_count += row_number - first_number
        pieces.row_number, pieces.total_order = row_number, total_order
        return is_done

    def _slow_path_encoder(self, pieces: EventFragments, kind: int, lsn: int, body: Body, frame: bytes) -> SpaceEvents | None:
        """Return the encoder for a row whose space isn't compiled, or None if the row has no event."""
        if kind not in DATA_TYPES:
            if kind in SYNCHRO_TYPES and pieces.transaction.row_count > 1:
                raise malformed(pieces.transaction, kind, lsn, body_of(frame))  # the master always writes it by itself
            return None  # NOP, and messages between the cluster's members, publish nothing
        space_id = body.get(SPACE_ID)
        if type(space_id) is not int:
            raise malformed(pieces.transaction, kind, lsn, body_of(frame))
        try:
            if space_id in TRACKED_SPACES:
                self._schema_row(pieces, kind, lsn, body)
            return self._space(space_id, pieces)
        except (EncodingError, SchemaError) as error:
            raise at_row(error, pieces.transaction, kind, lsn, body_of(frame)) from error

    def _schema_row(self, pieces: EventFragments, kind: int, lsn: int, body: Body) -> None:
        """Fold a system row. If it removes a space's rows, publish that while the space still has the form of these rows."""
        self._rekey_at_once()
        self._schema_row_at = lsn, pieces.row_number
        if body[SPACE_ID] == TRUNCATE_SPACE:
            self._publish_changed_forms(pieces)  # a truncation's event refers to the space's form, which must be published before
        emptied = self._spaces.apply(kind, body)
        if emptied is not None:
            self._truncate(pieces, emptied, *self._schema_row_at)

    def _space(self, space_id: int, pieces: EventFragments) -> SpaceEvents | None:
        """Return a newly compiled encoder for a space's rows; None if they aren't published."""
        self._publish_changed_forms(pieces)
        if space_id in self._rekeyed:
            self._rekey_at_once()
        form = self._spaces.form(space_id)
        space = self._spaces.compile(form)
        if space is not None and space_id in self._rekeyed:
            self._suppress_events(space)
        if space_id not in TRACKED_SPACES:  # their rows must take the slow path every time
            self._spaces.compiled.put(space_id, space, is_synchronous=form.is_sync)
        return space

    def _publish_changed_forms(self, pieces: EventFragments) -> None:
        """Publish the changed forms."""
        if self._spaces.schema.touched:
            transaction = pieces.transaction
            self._spaces.publish_schema_changes(
                self.position,
                self.now_us,
                (transaction.replica_id, transaction.lsn, transaction.tsn),
                lambda form: self._truncate(pieces, form, *self._schema_row_at),
            )
            for form in self._spaces.take_rekeyed():
                self._to_rekey.append(form)
                self._rekeyed[form.space_id] = None
                self._broadcast_truncation(pieces, self._spaces.plain_events_of(form), *self._schema_row_at)

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

    def end(self, pieces: EventFragments) -> None:
        """Finish a transaction after its last row."""
        transaction = pieces.transaction
        self._publish_changed_forms(pieces)
        self._spaces.end_transaction()
        self._builder.timestamp = transaction.timestamp
        wanted = self._options.transaction_topic
        if wanted != "none" and pieces.total_order > (1 if wanted == "multi" else 0):
            for key, value in pieces.records(self._spaces.schema):
                self._builder.control(topics.TRANSACTION, key, value)

    def _truncate(self, pieces: EventFragments, form: SpaceForm, lsn: int, row_number: int) -> None:
        """Clear a space's images, and publish in every partition of its topic that all its rows are gone."""
        if self.images is not None:
            self.images.clear(form.space_id)
        self._broadcast_truncation(pieces, self._spaces.plain_events_of(form), lsn, row_number)

    def _broadcast_truncation(self, pieces: EventFragments, space: SpaceEvents, lsn: int, row_number: int) -> None:
        self._builder.seq += 1
        self._builder.broadcast(space.topic, pieces.truncation(space, lsn, row_number, self._builder.seq))

    def refuse(self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object) -> None:
        """Raise the error of a row that can't be encoded, or write the row and its body as received to the dead-letter topic."""
        if self._options.on_error == "fail":
            raise at_row(error, transaction, kind, lsn, body, self._space_text(space_id)) from error
        self._write_dead_letter(error, transaction, kind, lsn, body, space_id)

    def _refuse_unappliable(
        self, error: ImageError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object
    ) -> None:
        """Raise the error of a row that can't be applied to the images, or mark its key as doubtful and set the row aside."""
        assert self.images is not None
        if self._options.on_image_error == "fail" or error.key is None or not self.images.mark_doubtful(error.key):
            raise at_row(error, transaction, kind, lsn, body, self._space_text(space_id)) from error
        self._write_dead_letter(error, transaction, kind, lsn, body, space_id)

    def _space_text(self, space_id: object) -> str:
        try:
            return f" of space {self._spaces.form(space_id).name!r}" if type(space_id) is int else ""
        except SchemaError:
            return ""  # it has rows here and no name; the error gives the reason, and the body contains the space's id

    def _write_dead_letter(
        self, error: CdcError, transaction: Transaction, kind: int, lsn: int, body: bytes, space_id: object
    ) -> None:
        server_uuid = str(self.base.server_uuid)
        self._builder.control(topics.DLQ, *dead_letter(error, transaction, kind, lsn, body, space_id, server_uuid))
