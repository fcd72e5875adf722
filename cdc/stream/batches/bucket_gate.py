"""Gate before the events of sharded spaces, where shards share topics: rows of buckets that move wait, or publish nothing.

The decisions are in cdc.stream.moves.queues; this module tells it each row's key and bucket, and keeps what waits in the state
store, with the images: so both are as of the same position. A row that waits hasn't changed the images.

    row ─▶ its key waits already, or its bucket's state lets it wait ─▶ the queue, and the state store
        └▶ published, silent or lost ─▶ the images; an event only if it is published

While no bucket moves, the compiled path has the rows, and this module none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from cdc.events import topics
from cdc.events.envelope import Change, SpaceEvents
from cdc.images.image_events import ImageChanges
from cdc.images.notations import KeyNotation
from cdc.images.overlay import Images
from cdc.images.ranges import delete_start
from cdc.protocol.codec import Body, encode_frame, tuple_values
from cdc.protocol.constants import Key, Type
from cdc.schema.sharding import BUCKETS
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.batch import BatchBuilder
from cdc.stream.batches.bucket_spaces import bucket_field_of, bucket_space, steps_in
from cdc.stream.moves.comparison import row_hash, with_arrived, with_collected, with_emptied
from cdc.stream.moves.held import HELD_NUMBER, Held, HeldRow, Origin, TransactionTexts, unpack
from cdc.stream.moves.queues import BucketQueues, Fate, Whole
from cdc.stream.moves.records import OWNED, Place, Shards, Step, bucket_key
from cdc.stream.transactions.transaction import Transaction

_ROW_KINDS: Final = (Type.INSERT, Type.REPLACE, Type.UPDATE, Type.UPSERT, Type.DELETE)
_WAITING: Final = (Fate.WAITS, Fate.FOLLOWS)
_Event = tuple[bytes, bytes, bytes] | None


class _Emptied(NamedTuple):
    """A row whose DELETE is to wait, at a TRUNCATE, in a bucket: its place among all rows then, counted from 0, and its tuple."""

    fate: Fate
    bucket_id: int
    key: bytes
    place: int
    tuple_: bytes


class BucketGate:
    """The gate of one replica set's spaces."""

    def __init__(
        self, shards: Shards, schema: SchemaTracker, images: Images, builder: BatchBuilder, discard: Callable[[int], None]
    ) -> None:
        """`discard` forgets a space's encoder, so that it is made again."""
        self.queues = BucketQueues(shards)
        self.sharded: dict[int, int] = {}
        """Place of the field with the bucket, by sharded space whose topic all shards write."""
        self._schema = schema
        self._images = images
        self._builder = builder
        self._discard = discard
        self._own_prefix = f"{builder.names.prefix}.{shards.own_name}."
        self._has_records = shards.own.record is not None
        self._are_moving = self.queues.are_moving
        # The states of a snapshot whose rows are arriving, and those before it.
        self._snapshot: dict[int, Step] | None = None
        # The row that is handled: its transaction, its lsn and number, and the vclock.
        self._row: tuple[TransactionTexts, int, int, dict[int, int]] | None = None
        # What has waited and is handled now, and its fate.
        self._decided: tuple[Held, Fate] | None = None
        # Whether rows that moves have made are new, and not only missing in the images.
        self._counts_moved = True

    # Encoders.

    def watch(self, space: SpaceEvents, changes: ImageChanges) -> None:
        """Have a space's rows go through the gate. To be called for each encoder with images when it is made."""
        form = space.form
        if form.name == BUCKETS:
            space.is_compiled, space.gate = False, self
            space.changes = {kind: self._noticed(change, changes) for kind, change in space.changes.items()}
            return
        field = self._field_of(space)
        if field is None:
            self.sharded.pop(form.space_id, None)
            return
        self.sharded[form.space_id] = field
        if self._snapshot is not None:
            # Read once the images have them: `_bucket` may come later in the snapshot than this space.
            self._snapshot = self._snapshot or steps_in(self._images, bucket_space(self._schema))
            space.is_compiled = space.is_compiled and all(map(_is_shown, self._snapshot.values()))
        elif self.queues.are_moving or self._decided is not None:
            space.is_compiled, space.gate = False, self
            for kind in _ROW_KINDS:
                space.changes[kind] = self._through(kind, space.changes[kind], space, changes, field)

    def _field_of(self, space: SpaceEvents) -> int | None:
        """Return the place of a space's field with the bucket; None if it has none, or this shard alone writes its topic."""
        return None if space.topic.startswith(self._own_prefix) else bucket_field_of(self._schema, space.form.space_id)

    def turn_to(self, fragments: TransactionTexts, lsn: int, row_number: int, vclock: dict[int, int]) -> None:
        """Note which row is handled next: see cdc.events.envelope.Gate."""
        self._row = fragments, lsn, row_number, vclock

    def _noticed(self, change: Change, changes: ImageChanges) -> Change:
        """Return a change of a row of `_bucket` that tells the bucket's state after it."""

        def apply(body: Body, frame: bytes) -> _Event:
            found = change(body, frame)
            key, after = changes.row_after(frame)
            held = self.queues.step(key[0], Step.of(after), self._place)
            if held is not None:
                self._images.put(held.store_key, held.pack())
            self.note_moving()
            return found

        return apply

    def _through(self, kind: int, change: Change, space: SpaceEvents, changes: ImageChanges, field: int) -> Change:
        """Return a change of a row of a sharded space, as its bucket's state wants it."""

        def apply(body: Body, frame: bytes) -> _Event:
            key, before, arrived = changes.place_of(kind, frame)
            number: int | None = None
            if self._decided is not None:
                held, fate = self._decided
                bucket_id: Any = _bucket_of(before, arrived, field)
                queue, number = held.bucket_id, held.number
            else:
                if kind != Type.INSERT and self.queues.waiting.has(key):
                    before = self.queues.waiting.tuple_of(key)
                bucket_id = _bucket_of(before, arrived, field)
                fate, queue = self.queues.fate(kind, key, bucket_id, self._place)
                if fate in _WAITING:
                    after = changes.tuple_after(kind, frame, before)
                    orders = self._turn[0].keep_places(space.form.space_id)
                    self._hold(fate, queue, (space.form.space_id, key, kind, frame), after, orders)
                    return None
                if fate is Fate.LOST:
                    self.queues.note_lost(queue, space.form.space_id, key)
            found = change(body, frame)
            if fate is Fate.SILENT and self._counts_moved and not self.queues.is_past:
                moved = arrived if kind == Type.INSERT else tuple_values(before) if before is not None else None
                record = self.queues.records.get(queue)
                if moved is not None and record is not None:
                    with_row = with_arrived if kind == Type.INSERT else with_collected
                    self.queues.record(queue, with_row(record, row_hash(space.form.name, moved)))
            event = found if fate is Fate.PUBLISHED else None
            if before is not None and kind != Type.DELETE and fate is not Fate.SILENT and not self.queues.is_past:
                after, is_here = self._images.current(key), self.queues.is_here_at(bucket_id, number)
                bucket_after: Any = _bucket_in(tuple_values(after), field) if after is not None else None
                is_after_here = after is not None and self.queues.is_here_at(bucket_after, number)
                if fate is Fate.PUBLISHED and after is not None and not is_after_here and is_here:
                    # The row was given to a bucket that isn't this shard's any more: here it is gone.
                    self.queues.lost.add(bucket_after, None, space.form.space_id, key)
                    event = changes.event_of(before, is_gone=True)
                elif (
                    fate is not Fate.PUBLISHED and after is not None and is_after_here and (not is_here or bucket_after != queue)
                ):
                    # A row of a bucket that has left, or that leaves with what waits, may have been given to one that is here. Or
                    # its key has got a new row over a dead copy. Nothing of this shard's was there before.
                    event = changes.event_of(after, is_gone=False)
            if event is None and found is not None:
                # The places of the transaction's other events don't depend on it: a start may find it published.
                self._turn[0].keep_places(space.form.space_id)
            return event

        return apply

    def note_moving(self) -> None:
        """Have encoders made again if rows have to go through the gate from here on, or needn't any more."""
        if self.queues.are_moving != self._are_moving:
            self._are_moving = self.queues.are_moving
            for space_id in self.sharded:
                self._discard(space_id)

    # What waits.

    @property
    def is_ready(self) -> bool:
        """Whether rows may need wait no longer."""
        return self.queues.is_ready

    def advance(self, now_us: int) -> Iterator[HeldRow | tuple[int, Whole]]:
        """Yield the rows of sharded spaces that need wait no longer, and buckets that are published as a whole.

        The caller handles each before it asks for the next. The rows' fate is decided meanwhile.
        """
        for each, fate in self.queues.advance(now_us):
            if isinstance(fate, Whole):
                assert isinstance(each, int)
                yield each, fate
            else:
                assert isinstance(each, Held)
                yield from self._released(each, fate)
        self.note_moving()

    def clear(self, space: SpaceEvents, *, keeps_form: bool) -> None:
        """Clear the images of a space that has lost all its rows.

        Users may have changed rows before that, in changes that wait, and their bucket may have gone on to another shard since.
        So such rows stay, and a DELETE of each waits behind its changes. If the space itself is gone, what waits is forgotten:
        nothing can be made of it any more.
        """
        space_id, field = space.form.space_id, self._field_of(space)
        if field is not None and not self.queues.is_past:
            for bucket_id, record in list(self.queues.records.items()):
                self.queues.record(bucket_id, with_emptied(record))
        emptied, kept, count = self._emptied(space_id, field) if keeps_form and field is not None else ([], {}, 0)
        doubtful = self._images.doubtful & kept.keys()
        self._images.clear(space_id)
        if not keeps_form:
            for held in self.queues.forget_space(space_id):
                self._images.delete(held.store_key)
        for key, tuple_ in kept.items():
            self._images.put(key, tuple_)
        if emptied and field is not None:
            fragments, lsn, _, _ = self._turn
            header = {Key.REQUEST_TYPE: Type.DELETE, Key.REPLICA_ID: fragments.transaction.replica_id, Key.LSN: lsn}
            start, notation = delete_start(space.form), KeyNotation(space.form, self._images.version)
            total_order, order = fragments.keep_places(space_id, count)
            for fate, bucket_id, key, place, tuple_ in emptied:
                frame = encode_frame(header, start + b"".join(notation.parts_of_tuple(tuple_)))
                orders = total_order + place, order + place
                self._hold(fate, bucket_id, (space_id, key, Type.DELETE, frame), None, orders)
        if doubtful:
            self._images.doubtful |= doubtful

    def _emptied(self, space_id: int, field: int) -> tuple[list[_Emptied], dict[bytes, bytes], int]:
        """Return a space's rows whose DELETEs have to wait, the images of these and of what waits, and the number of all rows.

        A start may read the TRUNCATE again, and find other rows waiting. All together they are the same, so their places are.
        """
        waiting = self.queues.waiting
        emptied: list[_Emptied] = []
        kept: dict[bytes, bytes] = {}
        if not (self.queues.are_moving or self.queues.is_past):
            return emptied, kept, 0
        place = 0
        stored = ((key, False, tuple_) for key, tuple_ in self._images.scan(space_id))
        changed = ((key, True, waiting.tuple_of(key)) for key in sorted(waiting.keys_of(space_id)))
        for key, waits, tuple_ in heapq.merge(stored, changed):
            if tuple_ is None:
                continue
            if not waits and waiting.has(key):
                kept[key] = tuple_
                continue
            fate, bucket_id = self.queues.fate(Type.DELETE, key, _bucket_of(tuple_, None, field), self._place)
            if waits or fate is Fate.WAITS:
                emptied.append(_Emptied(fate, bucket_id, key, place, tuple_))
                if not waits:
                    kept[key] = tuple_
            place += 1
        return emptied, kept, place

    @property
    def _turn(self) -> tuple[TransactionTexts, int, int, dict[int, int]]:
        assert self._row is not None
        return self._row

    @property
    def _place(self) -> Place:
        """Place of the row that is handled."""
        fragments, lsn, row_number, _ = self._turn
        return fragments.transaction.replica_id, lsn, row_number

    def _hold(
        self, fate: Fate, bucket_id: int, row: tuple[int, bytes, int, bytes], after: bytes | None, orders: tuple[int, int]
    ) -> None:
        """Have a row wait (its space, key, kind and frame): the one that is handled, or one that it stands for.

        `after` is the tuple that it leaves. For `orders` see HeldRow.
        """
        fragments, lsn, row_number, vclock = self._turn
        space_id, key, kind, frame = row
        bucket_after = _bucket_of(after, None, self.sharded[space_id]) if after is not None else None
        held_row = HeldRow(
            space_id,
            key,
            kind,
            lsn,
            row_number,
            frame,
            _origin(fragments.transaction, fragments.previous_lsn, vclock),
            is_follower=fate is Fate.FOLLOWS,
            bucket_after=bucket_after if type(bucket_after) is int else None,
            tuple_after=after,
            orders=orders,
            # The rows of a TRUNCATE come behind its `t`.
            is_part=not fragments.is_alone or orders[0] > 1,
        )
        held = self.queues.hold(bucket_id, self._place, held_row)
        self._images.put(held.store_key, held.pack())

    def leftovers(self) -> Iterator[HeldRow]:
        """Yield the rows that the state store has as waiting, and that are published."""
        self._counts_moved = False
        for held, fate in self.queues.leftovers():
            yield from self._released(held, fate)
        self._counts_moved = True
        if not self.queues.is_past:
            self.queues.end_past()
        self.note_moving()

    def _released(self, held: Held, fate: Fate) -> Iterator[HeldRow]:
        self._images.delete(held.store_key)
        if held.row is not None:
            self._decided = held, fate
            try:
                yield held.row
            finally:
                self._decided = None

    def load(self, *, is_past: bool) -> None:
        """Take what waits from the state store, which is at the position of the images."""
        for _, value in self._images.scan(HELD_NUMBER):
            self.queues.append(unpack(value))
        self.queues.is_past = is_past
        self._are_moving = self.queues.are_moving

    def write_news(self) -> None:
        """Write the records that have changed to the batch."""
        if self._snapshot is None and not self.queues.is_past:
            for bucket_id, record in self.queues.take_news():
                self._builder.control(topics.BUCKETS, bucket_key(bucket_id), record.to_json())
            beginnings = self.queues.beginnings
            if beginnings.has_news:
                self._builder.control(topics.BUCKETS, bucket_key(None), beginnings.record.to_json())
                beginnings.has_news = False

    # Beginnings.

    @property
    def must_begin(self) -> bool:
        """Whether this shard has recorded no buckets yet."""
        return not self._has_records

    def begin_snapshot(self) -> None:
        """Expect the rows of a snapshot: all that waits is in it."""
        self._snapshot = {}
        for key, _ in list(self._images.scan(HELD_NUMBER)):
            self._images.delete(key)

    def hides(self, space_id: int, row: Sequence[Any]) -> bool:
        """Return whether a row that is shown whole isn't this shard's: its bucket is arriving, or has left."""
        field = self.sharded.get(space_id)
        if field is None or field >= len(row):
            return False
        if self._snapshot is not None:
            step = self._snapshot.get(row[field]) if type(row[field]) is int else None
            record = self.queues.records.get(row[field]) if step is not None else None
            # The last that this shard has of a bucket that had it at the last time.
            return step is not None and not _is_shown(step) and not (record is not None and record.is_owned)
        return not self.queues.is_here(row[field])

    def hides_missing(self, space_id: int, row: Sequence[Any]) -> bool:
        """Return whether a row that the snapshot lacks was hidden before it."""
        field = self.sharded.get(space_id)
        return field is not None and field < len(row) and not self.queues.is_here(row[field])

    def begin(self, replicaset_uuid: str, now_us: int) -> None:
        """Record all buckets, from the images."""
        self._snapshot = None
        self.queues.begin(steps_in(self._images, bucket_space(self._schema)), replicaset_uuid, now_us)
        self.write_news()
        self._has_records = True
        self._are_moving = not self.queues.are_moving
        self.note_moving()


def _bucket_of(tuple_: bytes | None, arrived: Sequence[Any] | None, field: int) -> Any:
    """Return the bucket of a tuple, or of a row that has arrived if there is no tuple."""
    return _bucket_in(tuple_values(tuple_) if tuple_ is not None else arrived, field)


def _bucket_in(row: Sequence[Any] | None, field: int) -> Any:
    """Return a row's bucket. The field may be nullable, and a row end before it: such a row is in none (None)."""
    return row[field] if row is not None and field < len(row) else None


def _is_shown(step: Step) -> bool:
    return step.status in OWNED


def _origin(transaction: Transaction, previous_lsn: bytes, vclock: dict[int, int]) -> Origin:
    return Origin(
        transaction.replica_id,
        transaction.tsn,
        transaction.lsn,
        transaction.timestamp,
        transaction.row_count,
        previous_lsn,
        dict(vclock),
    )
