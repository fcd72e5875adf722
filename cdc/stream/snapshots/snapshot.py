"""Turns a snapshot's rows into events: all rows as `r`, or only their differences from the images.

The rows arrive in the order of the space ids: first `_schema`, `_space` and `_index`, then the users' spaces. So the schema is
complete when the first user's row arrives. Only then can rows of the other system spaces be published, if the configuration names
these spaces.

Every event carries the snapshot's number. An interrupted snapshot is taken again under the next number.

With images, an unchanged row makes no event, a changed row makes a `u`, and each key that the snapshot lacks makes a `d` at its
end: exact corrections close a gap in the stream. A new row is `c` if its space was complete before, else `r`. Without images,
or while there are none yet, consumers find out which rows are gone: COMPLETED names a `sweep_seq` for each space, and a row is
gone if its last event isn't after that seq.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc import native
from cdc.errors import EncodingError, ProtocolError, SchemaError, WiderRowError
from cdc.events import topics
from cdc.events.envelope import MALFORMED_BODY, SpaceCount, SpaceEvents, snapshot_record
from cdc.events.refused_requests import arrow_error
from cdc.images.image_events import ImageChanges
from cdc.positions.position import Position, SnapshotState
from cdc.protocol.codec import Body, Frames, Header, body_of, tuple_values
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.protocol.constants import Key, Type
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX, replicaset_uuid_in
from cdc.schema.forms import SpaceForm
from cdc.schema.tracker import TRACKED_SPACES
from cdc.stream.batches.event_context import EventContext
from cdc.stream.batches.routed_messages import RowWriter
from cdc.stream.batches.row_errors import SNAPSHOT, stored_body
from cdc.stream.snapshots.backfill import abort
from cdc.stream.snapshots.choice import SnapshotChoice
from cdc.stream.snapshots.news import SnapshotNews
from cdc.stream.snapshots.reading import SnapshotReading

SPACE_ID: Final = Key.SPACE_ID
TUPLE: Final = Key.TUPLE
INSERT: Final = Type.INSERT
_SILENT: Final = (b"", b"")
"""In place of the pieces of a space's events: its rows only become images."""
_PREFIX_BYTES: Final = 4
_DELETES_MAX: Final = 10_000
_MANY: Final = 512


class Snapshot:
    """One snapshot on its way to the batch. `position` is where its stream will begin; `end` makes it complete.

    Until the snapshot has said its replica set, the position keeps the former one: a process that begins there must know it.
    """

    def __init__(self, position: Position, context: EventContext, now_us: int, *, publish: bool = True) -> None:
        """Without `publish`, only the schema is taken from the rows."""
        spaces, builder, images = context.spaces, context.builder, context.images
        if position.snapshot is not None and position.snapshot.open_request:
            position = abort(position, now_us, context)
        previous = position.snapshot
        self._id = previous.snapshot_id + 1 if previous is not None else 1
        self._images = images
        self._begin_seq = position.seq
        is_repeated = previous is not None and not previous.is_complete
        if images is not None:
            images.begin_snapshot()
        # If a snapshot compares with nothing, rows from before it stay to be swept, however often it is interrupted.
        sweep_seq = position.seq
        if images is not None and images.is_comparing:
            sweep_seq = previous.sweep_seq if previous is not None and is_repeated else 0
        rows_before = previous.row_count if previous is not None else 0
        is_first = previous is None or previous.is_first
        state = SnapshotState(self._id, False, rows_before, sweep_seq, is_silent=not publish, is_first=is_first)
        state = replace(state, choice=SnapshotChoice.number_of(context.options) if is_first else 0)
        self.position = replace(position, snapshot=state, rekeyed=(), last_rows=())
        self._is_base = not is_repeated and previous is not None
        self._seen: list[bytes] = []
        self._spaces = spaces
        self._envelope = context.envelope
        self._builder = builder
        self._writer = RowWriter(builder, context.envelope, tombstones=context.options.tombstones)
        self._refusals = context.refusals
        self._now_us, self._publishes = now_us, publish
        self._choice = SnapshotChoice(context.options, is_first=state.is_first)
        # By id: whether a space's rows aren't published.
        self._silent: dict[Any, bool] = {}
        self._vclock = context.envelope.vclock(position.vclock)
        # By space: the bytes between an event's row and its seq, and those after its seq; in `_counts`, the number of its rows.
        self._pieces: dict[Any, tuple[bytes, bytes]] = {}
        # The compiled path handles rows that can only be new, and has a copy of `_pieces`.
        is_compared = images.is_comparing if images is not None else not publish
        self._row_path = spaces.row_path if not is_compared else None
        self._handed_back_count = 1
        # It also skips rows that the images have.
        self._comparing_path = spaces.row_path if self._row_path is None else None
        if spaces.row_path is not None:
            spaces.row_path.begin_snapshot()
        self._counts: dict[Any, int] = {}
        self._is_schema_complete = self._is_read = self._has_replicaset = False
        self._early_rows: list[tuple[Header, Body, bytes]] = []
        # By space: whether the images had its rows before this snapshot, so that a row that they lack is new.
        self._known: dict[int, bool] = {}
        # The ids of the spaces whose keys begin with these bytes.
        self._space_ids: dict[bytes, int] = {}
        # Spaces that existed and weren't published: consumers may have rows of them from an earlier time.
        self._returning = self._unpublished_before(previous)
        # Spaces of which consumers have only a part of the rows, because these were being published again.
        self._emptied: set[int] = set()
        builder.control(topics.SNAPSHOT, *snapshot_record("STARTED", self.position, now_us))
        self._news = SnapshotNews(context, self._id, previous, now_us, is_silent=not publish)
        if images is not None and images.is_comparing:
            self._empty({rekeyed.space_id for rekeyed in position.rekeyed})
        spaces.encoders.clear()
        spaces.schema.begin_snapshot()

    def _unpublished_before(self, previous: SnapshotState | None) -> set[int]:
        """Return the spaces that existed before this snapshot, and weren't published."""
        if self._images is None or not self._images.is_comparing or previous is None:
            return set()
        new = (form.space_id for form in self._spaces.published_forms() if not form.schema_version)
        return {*self._spaces.unpublished_spaces_with_rows, *new}

    def _empty(self, space_ids: set[int]) -> None:
        """Have consumers drop the rows of these spaces, of which they have only a part under the new keys."""
        for form in self._spaces.published_forms():
            if form.space_id in space_ids:
                self._emptied.add(form.space_id)
                self._broadcast_truncation(form)

    @property
    def reading(self) -> SnapshotReading:
        """How far it has been read."""
        rows = sum(self._counts.values())
        if not self._is_schema_complete:
            return SnapshotReading(rows)
        forms = self._spaces.published_forms()
        if self._is_read:
            return SnapshotReading(rows, None, len(forms), len(forms))
        # A new space is counted when its first row comes, so the last one in the dict is the present one.
        present = next(reversed(self._counts), None)
        name = next((form.name for form in forms if form.space_id == present), None)
        return SnapshotReading(rows, name, max(0, len(self._counts) - 1), len(forms))

    def feed(self, frames: Frames, now_us: int) -> Iterator[None]:
        """Process rows; yield whenever the batch is full."""
        self._now_us = now_us
        self._pieces.clear()
        self._builder.row_count += len(frames)
        if self._row_path is not None and isinstance(frames, CompiledFrames):
            yield from self._feed_compiled(self._row_path, frames)
            return
        if self._comparing_path is not None and isinstance(frames, CompiledFrames):
            yield from self._feed_comparing(self._comparing_path, frames)
            return
        if self._row_path is not None:
            self._row_path.mark_unread()
        for _ in self._rows(zip(frames.headers, frames.bodies, frames.raws(), strict=True)):
            self._record_seen_keys()
            yield
        self._record_seen_keys()

    def _feed_compiled(self, path: native.CompiledRowPath, frames: CompiledFrames) -> Iterator[None]:
        """Make events in the compiled path, and in the Python path for the rows that it hands back, e.g. a space's first row."""
        builder, rows, at, count = self._builder, frames.rows, 0, len(frames)
        path.set_snapshot_spaces([])
        while at < count:
            start, images = at, self._images.reading if self._images is not None else None
            run = path.run_snapshot(rows, at, builder.seq, builder.byte_count, images)
            at = run.at
            builder.native_row_count += at - start
            if len(run.messages):
                builder.parts.append(run.messages)
            builder.seq, builder.byte_count = run.seq, run.byte_count
            for space_id, row_count in run.counts.items():
                self._counts[space_id] = self._counts.get(space_id, 0) + row_count
            if builder.is_full:
                yield
                continue
            # If the compiled path makes no progress, the Python path gets more and more rows.
            self._handed_back_count = 1 if at - start >= self._handed_back_count else min(self._handed_back_count * 2, _MANY)
            stop = min(at + self._handed_back_count, count)
            if at < stop:
                part = frames.part(at, stop)
                known_count = len(self._pieces)
                yield from self._rows(zip(part.headers, part.bodies, part.raws(), strict=True))
                path.mark_handled(rows, at, stop)
                if len(self._pieces) > known_count:
                    new = (space_id for space_id in self._pieces if not self._known.get(space_id, False))
                    path.set_snapshot_spaces(
                        [(space_id, *self._pieces[space_id]) for space_id in new if space_id not in self._choice.filters]
                    )
                at = stop

    def _feed_comparing(self, path: native.CompiledRowPath, frames: CompiledFrames) -> Iterator[None]:
        """As `_feed_compiled`, for a snapshot that is compared with the images, or isn't published."""
        rows, at, count = frames.rows, 0, len(frames)
        while at < count:
            start, at = at, self._skipped(path, rows, at)
            if at < count:
                at = self._new_rows(path, rows, at)
            self._builder.native_row_count += at - start
            if self._builder.is_full:
                yield
                continue
            self._handed_back_count = 1 if at - start >= self._handed_back_count else min(self._handed_back_count * 2, _MANY)
            stop = min(at + self._handed_back_count, count)
            if at < stop:
                part = frames.part(at, stop)
                for _ in self._rows(zip(part.headers, part.bodies, part.raws(), strict=True)):
                    self._record_seen_keys()
                    yield
                self._record_seen_keys()
                at = stop

    def _skipped(self, path: native.CompiledRowPath, rows: native.Rows, at: int) -> int:
        """Skip the rows from `at` on that are equal to their images, and return the index of the next row."""
        comparison = self._images.comparison if self._images is not None else None
        progress = comparison.current if comparison is not None else None
        if progress is None:
            return at
        while True:
            has_more = progress.next_key is not None
            found = path.skip_stored(rows, at, progress.last, progress.stored, progress.index)
            at, progress.index, row_count, last, lacking = found
            progress.extend(last)
            if row_count:
                space_id = self._space_ids[last[:_PREFIX_BYTES]]
                self._counts[space_id] = self._counts.get(space_id, 0) + row_count
            if lacking is not None:
                progress.skip_lacking(lacking)
            elif not has_more or progress.index < len(progress.stored):
                return at

    def _new_rows(self, path: native.CompiledRowPath, rows: native.Rows, at: int) -> int:
        """Publish the rows from `at` on that have no images, and return the index of the next row."""
        comparison = self._images.comparison if self._images is not None else None
        progress = comparison.current if comparison is not None else None
        space_id = self._space_ids.get(progress.last[:_PREFIX_BYTES]) if progress is not None else None
        pieces = self._pieces.get(space_id)
        if progress is None or space_id is None or pieces is None or self._known.get(space_id, False):
            return at
        if space_id in self._choice.filters:
            return at
        builder, images = self._builder, self._images
        assert images is not None
        path.set_snapshot_spaces([(space_id, *pieces)])
        path.continue_snapshot_after(space_id, progress.last, progress.next_key)
        run = path.run_snapshot(rows, at, builder.seq, builder.byte_count, images.reading)
        if len(run.messages):
            builder.parts.append(run.messages)
        builder.seq, builder.byte_count = run.seq, run.byte_count
        for found, row_count in run.counts.items():
            self._counts[found] = self._counts.get(found, 0) + row_count
        last = path.last_snapshot_key(space_id)
        if last is not None:
            progress.extend(last)
        return run.at

    def tell(self) -> None:
        """Write notifications of the spaces that have begun or ended since the last call."""
        if self._news.is_on and self._is_schema_complete:
            forms = [form for form in self._spaces.published_forms() if not self._choice.leaves_out(form)]
            names = {form.space_id: form.name for form in forms}
            self._news.tell(self._counts, names, self._now_us, is_read=self._is_read)

    def _record_seen_keys(self) -> None:
        if self._images is not None and self._images.comparison is not None:
            self._images.comparison.see(self._seen)
        self._seen = []

    def missing(self, now_us: int) -> Iterator[None]:
        """Delete the rows that the snapshot lacks, after its last row has arrived. Yields now and then, with events to be taken.

        Raises ProtocolError if the snapshot can't be complete.
        """
        self._now_us = now_us
        self._pieces.clear()
        if not self._has_replicaset:
            raise ProtocolError("the snapshot doesn't say which replica set it belongs to: _schema has neither name for it")
        self._complete_schema()
        self._is_read = True
        self._publish_changed_forms()
        self._record_seen_keys()
        if self._images is None:
            return
        gate = self._spaces.gate
        for form in self._spaces.published_forms():
            changes = self._spaces.image_changes.get(form.space_id)
            if changes is None:
                # No row of the space has arrived, but the store may have some.
                self._record_whether_known(form)
                self._spaces.new_encoder(form)
                changes = self._spaces.image_changes.get(form.space_id)
            if changes is None:
                continue
            space = changes.space
            for count, (key, tuple_) in enumerate(self._images.missing(form.space_id), 1):
                try:
                    change = self._deleted(form, key, tuple_)
                except EncodingError as error:
                    self._refusals.refuse(error, SNAPSHOT, INSERT, 0, stored_body(form.space_id, tuple_), form.space_id)
                    continue
                is_hidden = gate is not None and gate.hides_missing(form.space_id, tuple_values(tuple_))
                if change is not None and not is_hidden and not self._silent[form.space_id]:
                    shown, opening, content = change
                    self._writer.put_gone(space, shown, opening, content, self._pieces_of(space))
                if count % _DELETES_MAX == 0 or self._builder.is_full:
                    yield
        self._images.end_snapshot()

    def _deleted(self, form: SpaceForm, key: bytes, tuple_: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Delete a key; return the key, the opening and the content of the event, if it has one. Raises EncodingError."""
        try:
            return self._spaces.image_changes[form.space_id].delete(key, tuple_)
        except WiderRowError as error:
            self._spaces.widen(form, error.width)
            return self._deleted(form, key, tuple_)

    def end(self, now_us: int) -> Position:
        """Complete the snapshot after `missing`; return the position, from which the stream can be subscribed to."""
        self._now_us = now_us
        # In the stream, rows of some spaces need more than their event, so every space takes the slow path again.
        self._spaces.encoders.clear()
        forms = self._spaces.published_forms()
        assert self.position.snapshot is not None
        sweep_seq = self.position.snapshot.sweep_seq
        counts = [
            SpaceCount(
                form.name,
                form.space_id,
                self._counts.get(form.space_id, 0),
                sweep_seq if form.space_id in self._spaces.image_changes else self._begin_seq,
            )
            for form in forms
            # With images, consumers would take the rows of a named space for all that it has; without, they must sweep.
            if not self._choice.leaves_out(form)
            and not (form.space_id in self._choice.filters and form.space_id in self._spaces.image_changes)
        ]
        row_count = sum(self._counts.get(form.space_id, 0) for form in forms)
        state = replace(self.position.snapshot, is_complete=True, is_silent=False, is_first=False, choice=0, row_count=row_count)
        self.position = replace(
            self.position, snapshot=state, seq=self._builder.seq, schema_version=self._spaces.schema.schema_version
        )
        self._builder.control(topics.SNAPSHOT, *snapshot_record("COMPLETED", self.position, now_us, counts))
        self.tell()
        self._news.complete(row_count, counts, now_us, since_seq=self._begin_seq, filtered=self._choice.filters)
        return self.position

    def _rows(self, rows: Iterable[tuple[Header, Body, bytes]]) -> Iterator[None]:
        """Make the events of rows, in order; yield whenever the batch is full."""
        builder, bytes_max = self._builder, self._builder.bytes_max
        encoders, counts, silent = self._spaces.encoders, self._counts, self._silent
        image_changes = self._spaces.image_changes
        for header, body, frame in rows:
            space_id = body.get(SPACE_ID)
            try:
                has_encoder = space_id in encoders
            except TypeError as error:  # an array or a map
                raise self._refusals.malformed_in_snapshot(frame, space_id) from error
            space = encoders[space_id] if has_encoder else self._slow_path_encoder(header, body, frame)
            if space is None:
                continue
            try:
                if space_id in image_changes:
                    counts[space_id] = counts.get(space_id, 0) + self._compared(image_changes[space_id], frame)
                elif not silent[space_id]:
                    tuple_ = body[TUPLE]
                    is_routed = space.route is None or space.route.takes(tuple_)
                    if not is_routed or not self._choice.is_wanted(space_id, tuple_):
                        counts.setdefault(space_id, 0)
                        continue
                    key = space.key_of(tuple_)
                    row = space.rows[len(tuple_)](tuple_)
                    counts[space_id] = counts.get(space_id, 0) + 1
                    self._event(space, key, space.openings.snapshot, row)
            except (EncodingError, SchemaError) as error:
                if space_id in image_changes:
                    counts[space_id] = counts.get(space_id, 0) + 1
                self._refusals.refuse(error, SNAPSHOT, INSERT, 0, body_of(frame), space_id)
                continue
            except WiderRowError as error:
                encoders[space_id] = self._spaces.widen(space.form, error.width)
                yield from self._rows(((header, body, frame),))
            except MALFORMED_BODY as error:
                if header[Key.REQUEST_TYPE] == Type.INSERT_ARROW:
                    raise arrow_error(space.form) from error
                raise self._refusals.malformed_in_snapshot(frame, space_id) from error
            if builder.byte_count > bytes_max:
                yield

    def _compared(self, changes: ImageChanges, frame: bytes) -> bool:
        """Make the event of a row whose space has images, if the row differs from its image.

        Return whether consumers have the row: not if rules leave it out.
        """
        assert self._images is not None
        tuple_, found = changes.tuple_of(frame)
        key = changes.store_key(tuple_)
        if self._images.is_comparing:
            self._seen.append(key)
            self._space_ids[key[:_PREFIX_BYTES]] = changes.space.form.space_id
        before = self._images.current(key)
        if found == before:
            return True
        space = changes.space
        if self._spaces.gate is not None and self._spaces.gate.hides(space.form.space_id, tuple_):
            self._images.put(key, found)
            return False
        if self._silent[space.form.space_id]:
            self._images.put(key, found)
            self._pieces[space.form.space_id] = _SILENT
            return True
        if not self._choice.is_wanted(space.form.space_id, tuple_):
            self._images.put(key, found)
            return False
        change = changes.put(key, before, found, tuple_)
        if change is None:
            return False
        opening, content = change
        if before is None and not self._known.get(space.form.space_id, False):
            opening = space.openings.snapshot
        self._event(space, space.key_of(tuple_), opening, content)
        return True

    def _event(self, space: SpaceEvents, key: bytes, opening: bytes, content: bytes) -> None:
        self._writer.put(space, key, opening, content, self._pieces_of(space))

    def _pieces_of(self, space: SpaceEvents) -> tuple[bytes, bytes]:
        """Return the bytes between an event's row and its seq, and those after its seq; built once per call of `feed`."""
        space_id = space.form.space_id
        pieces = self._pieces.get(space_id)
        if pieces is None:
            pieces = self._envelope.snapshot_pieces(space, self._id, self._vclock, self._now_us)
            self._pieces[space_id] = pieces
        return pieces

    def _record_whether_known(self, form: SpaceForm) -> None:
        """Note whether the images had a space's rows, before these are compared, and whether its rows are published."""
        images = self._images
        self._silent[form.space_id] = not self._publishes or self._choice.leaves_out(form)
        if not self._spaces.is_published(form):
            return
        self._choice.begin_space(form)
        if images is not None:
            self._known[form.space_id] = self._is_base and images.is_kept(form.space_id) and form.space_id not in self._emptied

    def _slow_path_encoder(self, header: Header, body: Body, frame: bytes) -> SpaceEvents | None:
        """Return the encoder for a row of a system space or the first row of a space, None if the row has no event."""
        space_id, tuple_ = body.get(SPACE_ID), body.get(TUPLE)
        kind = header.get(Key.REQUEST_TYPE)
        is_row = isinstance(tuple_, list) if kind == INSERT else kind == Type.INSERT_ARROW
        if not is_row or type(space_id) is not int:
            raise self._refusals.malformed_in_snapshot(frame, space_id)
        if space_id > SYSTEM_SPACE_MAX:
            self._complete_schema()
        if (replicaset_uuid := replicaset_uuid_in(body)) is not None:
            self._has_replicaset = True
            self.position = replace(self.position, replicaset_uuid=replicaset_uuid)
        if space_id in TRACKED_SPACES:
            self._spaces.apply(INSERT, body)
        if not self._is_schema_complete:
            self._early_rows.append((header, body, frame))
            return None
        self._publish_changed_forms()
        try:
            form = self._spaces.form(space_id)
            self._record_whether_known(form)
            space = self._spaces.new_encoder(form)
        except SchemaError as error:
            raise self._refusals.at_row(error, SNAPSHOT, INSERT, 0, body_of(frame), space_id) from error
        if self._silent[space_id] and space_id not in self._spaces.image_changes:
            space = None  # neither an event nor an image is made of its rows
        self._spaces.encoders[space_id] = space
        return space

    def _complete_schema(self) -> None:
        """Note that all system spaces have been read: now their rows can be published, if the configuration names them."""
        if self._is_schema_complete:
            return
        self._is_schema_complete = True
        self._publish_changed_forms()
        rows, self._early_rows = self._early_rows, []
        for space_id in {row[1][SPACE_ID] for row in rows}:
            if self._spaces.is_wanted(space_id):
                form = self._spaces.form(space_id)
                self._record_whether_known(form)
                self._spaces.encoders[space_id] = self._spaces.new_encoder(form)
        for _ in self._rows(row for row in rows if self._spaces.encoders.get(row[1][SPACE_ID]) is not None):
            pass  # the rows of system spaces go into the batch of the first user's row

    def _publish_changed_forms(self) -> None:
        if not self._spaces.schema.is_touched:
            return
        position = replace(self.position, seq=self._builder.seq, schema_version=self._spaces.schema.schema_version)
        self._spaces.publish_schema_changes(
            position,
            self._now_us,
            None,
            self._broadcast_truncation,
            on_moved=partial(self._broadcast_truncation, is_former=True),
            in_snapshot=True,
        )
        if self._images is None:
            return
        # Done together with the schema records: a daemon that resumes at a later moment of this snapshot finds these spaces
        # known.
        for form in self._spaces.published_forms():
            is_shown_otherwise = form.space_id in self._spaces.shown_otherwise
            if form.space_id in self._returning or is_shown_otherwise or self._images.has_other_keys(form):
                # The rows under the old keys are dropped all at once, and every row is published under its new key.
                self._emptied.add(form.space_id)
                self._broadcast_truncation(form)
        self._returning.clear()
        self._spaces.shown_otherwise.clear()

    def _broadcast_truncation(self, form: SpaceForm, *, is_former: bool = False) -> None:
        """Report that the snapshot lacks a published space, or has its rows under other keys; in the topic that it had before if
        `is_former`.

        If the configuration leaves a space out from now on, consumers keep its rows, as they do if no snapshot is taken.
        """
        if self._images is not None and not is_former:
            self._images.clear(form.space_id)
        if not self._publishes or self._spaces.is_left_out(form):
            return
        space = self._spaces.plain_events_of(form, is_former=True) if is_former else self._spaces.events_of(form)
        before, after = self._envelope.snapshot_pieces(space, self._id, self._vclock, self._now_us)
        self._builder.seq += 1
        seq = self._builder.seq
        value = b"".join((space.openings.truncate, before, self._envelope.number(seq), after))
        self._builder.broadcast(space.topic, value, space.route.headers(b"t", seq, None) if space.route is not None else None)
