"""Publishes all rows of some spaces again, as `r` events made from the images, for a consumer that has lost its own rows.

    chunk │ transactions of the stream │ chunk │ transactions │ …        STARTED before the first chunk, COMPLETED with the last

The images are as of the stream's position. A chunk that is made between two transactions therefore shows the rows as the earlier
transactions left them, and the later transactions change them. The daemon needn't compare or hold back anything: changes to a
space between two chunks are published as events of their own, and the next chunk continues after the last key. If between two
chunks a space is

    truncated   `t` has been published; the rows that exist now come after it
    dropped     there are no rows, and COMPLETED doesn't name the space
    altered     the next rows have the new form, as those of the stream do
    renamed     the events go to another topic, which must get all rows: the space starts again at its first key
    rekeyed     as renamed: `t` and all rows under their new keys have been published (cdc.stream.snapshots.rekeying)

The open requests, and how far the first one has come, are a part of the position. So a pipeline that begins at a checkpoint
continues where that checkpoint was written, whatever ended the one before it: each row is published once. With at-least-once
delivery, events are visible before they are committed, and the daemon publishes a request's events after the checkpoint again,
under other seqs. Therefore the checkpoint records that a request has begun before the request's first row is made.

A request takes the next snapshot number and stores it in the position, so no two requests or snapshots have the same number.
The position still rests on the previous snapshot, which stays complete. A snapshot that is taken meanwhile ends the request with
the record ABORTED (`abort`), as consumers may take a snapshot's rows as one unit; after it, the request begins again, with
another number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from cdc.errors import CdcError, ConfigurationError, EncodingError, RequestError, SchemaError, WiderRowError
from cdc.events import topics
from cdc.events.envelope import SpaceCount, SpaceEvents, snapshot_record
from cdc.events.row_encoder import RowEncoder
from cdc.events.row_filter import RowFilter
from cdc.positions.position import Position
from cdc.positions.requests import Request
from cdc.protocol.codec import tuple_values
from cdc.protocol.constants import Type
from cdc.schema.forms import SpaceForm
from cdc.schema.keys import space_prefix
from cdc.stream.batches.covered import Covered
from cdc.stream.batches.event_context import EventContext
from cdc.stream.batches.notifier import PROGRESS_US
from cdc.stream.batches.routed_messages import RowWriter
from cdc.stream.batches.row_errors import SNAPSHOT, stored_body
from cdc.stream.batches.spaces import Spaces

CHUNK_ROWS: Final = 2_000
CHUNK_BYTES: Final = 1024 * 1024
"""Maximum rows and bytes of one chunk; a single row may exceed the bytes. Live events wait no longer than one chunk takes."""

FILTERED_ROWS: Final = 200
"""Maximum rows of a chunk from a space with a filter: somebody may send one that takes milliseconds for each row."""

OTHER_RULES: Final = (
    "since the daemon's last run, other rules for columns, topics or rows apply to a space: all its rows are published by them, "
    "as `r`, once the next row of any space arrives"
)
"""Why no request is carried out until then: it would have the daemon take the rules for carried out."""

IsWanted = Callable[[Sequence[Any]], bool]
"""Function that says whether a row, given as its values, is to be published. Raises RequestError."""


class Chunk(NamedTuple):
    """Result of `write_rows`: the last key seen, the numbers of rows shown and seen, and whether no more rows follow."""

    after: bytes
    row_count: int
    seen_count: int
    is_last: bool


class Backfill:
    """Publisher of the open requests' rows, in one pipeline."""

    def __init__(self, context: EventContext) -> None:
        self._context = context
        # Compiled filters by space; each with the form and the expression that it was made of.
        self._filters: dict[int, tuple[SpaceForm, str, IsWanted]] = {}
        # When progress was notified last.
        self._notified_us = 0
        self.failure: CdcError | None = None
        """Why the last call of `advance` ended the request before its last row; None if it didn't."""

    def advance(self, position: Position, now_us: int, *, starts_alone: bool = False) -> Position:
        """Put the next chunk of the first request into the batch; return the position after it.

        At `position`, a request is open, and neither a transaction nor a snapshot is. With `starts_alone`, the first chunk has no
        rows, and must be durable before the next one is made. A request that can't be continued ends with ABORTED, for
        instance if a row can't be encoded, and such rows aren't set aside. Raises KeysChangedError and ConfigurationError.
        """
        context, spaces = self._context, self._context.spaces
        if has_other_rules(spaces):
            return self._fail(RequestError(OTHER_RULES), position, now_us)
        spaces.publish_schema_changes(position, now_us, None)
        position = replace(position, schema_version=spaces.schema.schema_version)
        request, self.failure = position.requests.current, None
        assert request is not None
        if context.images is None:
            return self._fail(RequestError("the daemon keeps no rows any more that it could publish again"), position, now_us)
        if not request.snapshot_id:
            position = self._begin(position, request, now_us)
            if starts_alone:
                return position
        try:
            position = self._chunk(position, now_us)
        except (RequestError, EncodingError, SchemaError) as error:
            # What ended the daemon would end it again at every start, as the request goes on then.
            return self._fail(error, replace(position, seq=context.builder.seq), now_us)
        return self._complete(position, now_us)

    def _fail(self, error: CdcError, position: Position, now_us: int) -> Position:
        """End the request by an error, of which consumers and the status see what quotes no row; return the position after it."""
        self.failure = error
        return end(position, now_us, self._context, error.public)

    def _begin(self, position: Position, request: Request, now_us: int) -> Position:
        position, number = next_request(position)
        assert position.snapshot is not None
        request = replace(request, snapshot_id=number)
        position = replace(
            position,
            snapshot=replace(position.snapshot, open_request=number),
            requests=position.requests.with_current(request),
        )
        self._context.builder.control(topics.SNAPSHOT, *snapshot_record("STARTED", position, now_us))
        self._context.notifier.request(request, "STARTED", now_us, self._names(request))
        return position

    def _chunk(self, position: Position, now_us: int) -> Position:
        context, builder = self._context, self._context.builder
        vclock = context.envelope.vclock(position.vclock)
        bytes_max, rows_left = builder.byte_count + CHUNK_BYTES, CHUNK_ROWS
        request = position.requests.current
        assert request is not None
        while request.space_ids and rows_left > 0 and builder.byte_count < bytes_max:
            space_id = request.space_ids[0]
            space = published_space(context.spaces, space_id)
            if space is None:
                request = _next_space(request)
                continue
            shown = zlib.crc32(repr((space.topic, space.form.primary_key)).encode())
            if shown != request.shown:
                request = replace(request, after=b"", shown=shown, row_count=0, since_seq=builder.seq)
                self._notify(request, space.form, now_us, None)
            assert context.images is not None
            prefix = space_prefix(context.images.number(space_id))
            pieces = context.envelope.snapshot_pieces(space, request.snapshot_id, vclock, now_us)
            is_wanted = self._is_wanted(request, space.form)
            if is_wanted is not None:
                rows_left = min(rows_left, FILTERED_ROWS)
            chunk = write_rows(
                context,
                space,
                prefix + request.after if request.after else b"",
                pieces,
                rows_max=rows_left,
                bytes_max=bytes_max,
                is_wanted=is_wanted,
            )
            # Filters are compiled when their space begins, one in a chunk: that may take long, too.
            rows_left = rows_left - chunk.seen_count if is_wanted is None else 0
            request = replace(request, after=chunk.after[len(prefix) :], row_count=request.row_count + chunk.row_count)
            if chunk.is_last:
                if is_wanted is None:
                    builder.covered.append(Covered(space.topic, space.form.name, request.since_seq))
                context.notifier.request(
                    request,
                    "TABLE_SCAN_COMPLETED",
                    now_us,
                    self._names(request),
                    scanned_collection=context.notifier.collection(space.form.name),
                    total_rows_scanned=str(request.row_count),
                    status="SUCCEEDED",
                )
                request = _next_space(replace(request, counts=(*request.counts, (space_id, request.row_count))))
            else:
                self._notify(request, space.form, now_us, chunk.after)
        return replace(position, seq=builder.seq, requests=position.requests.with_current(request))

    def _complete(self, position: Position, now_us: int) -> Position:
        """If all rows of the first request have been shown, write COMPLETED, and remove the request from the position."""
        request, state = position.requests.current, position.snapshot
        assert request is not None
        assert state is not None
        if request.space_ids:
            return position
        names = {form.space_id: form.name for form in self._context.spaces.published_forms()}
        # Consumers take a space that is named for one of which they have got all rows.
        named = names.keys() - dict(request.filters).keys()
        counts = [SpaceCount(names[space_id], space_id, rows, 0) for space_id, rows in request.counts if space_id in named]
        position = replace(position, snapshot=replace(state, open_request=0), requests=position.requests.without_current())
        record = snapshot_record("COMPLETED", position, now_us, counts, number=request.snapshot_id)
        self._context.builder.control(topics.SNAPSHOT, *record)
        done = names_of(self._context.spaces, [space_id for space_id, _ in request.counts])
        self._context.notifier.request(request, "COMPLETED", now_us, done, total_rows_scanned=str(request.all_rows))
        return position

    def _notify(self, request: Request, form: SpaceForm, now_us: int, last: bytes | None) -> None:
        """Tell that rows of this space are being published: at its beginning, without a `last` key, and then now and then."""
        context = self._context
        if not context.notifier.is_on or (last is not None and now_us < self._notified_us + PROGRESS_US):
            return
        self._notified_us = now_us
        data = {"current_collection_in_progress": context.notifier.collection(form.name)}
        if last is not None:
            data["total_rows_scanned"] = str(request.row_count)
            data |= _key_shown(context, form, last)
        context.notifier.request(request, "IN_PROGRESS", now_us, self._names(request), **data)

    def _names(self, request: Request) -> list[str]:
        return names_of(self._context.spaces, (*(space_id for space_id, _ in request.counts), *request.space_ids))

    def _is_wanted(self, request: Request, form: SpaceForm) -> IsWanted | None:
        expression = dict(request.filters).get(form.space_id)
        if expression is None:
            return None
        known = self._filters.get(form.space_id)
        if known is None or known[:2] != (form, expression):
            known = self._filters[form.space_id] = form, expression, new_filter(self._context, form, expression)
        return known[2]


def has_other_rules(spaces: Spaces) -> bool:
    """Return whether rules that the events so far don't follow apply to rows of published spaces."""
    return spaces.schema.has_other_rules(form.space_id for form in spaces.published_forms())


def new_filter(context: EventContext, form: SpaceForm, expression: str) -> IsWanted:
    """Compile the filter of a request. Raises RequestError.

    Whoever may send signals needn't be one who may see the masked columns, and could guess their values by asking for rows. So
    filters of requests read only what is published as it is.
    """
    try:
        found = RowFilter(expression, form, "the filter of a request")
    except ConfigurationError as error:
        raise RequestError(error.message, error.hint, detail=error.detail) from error
    plan = context.envelope.columns.plan(form)
    masked = [form.field_name(place) for place in sorted(found.places) if plan is not None and plan.treatment(place) is not None]
    if masked:
        raise RequestError(
            f"the filter of a request reads {masked[0]!r}, which [columns] leaves out or masks", "Read other columns."
        )

    def is_wanted(values: Sequence[Any]) -> bool:
        try:
            return found(values)
        except EncodingError as error:
            hint = "Change the filter so that it holds or doesn't hold for each row."
            raise RequestError(error.message, hint, detail=error.detail) from error

    return is_wanted


def end(position: Position, now_us: int, context: EventContext, reason: str) -> Position:
    """End the first request before all its rows are published: its rows so far are valid. Return the position after it."""
    request = position.requests.current
    assert request is not None
    if request.snapshot_id:
        position = abort(position, now_us, context)
    context.notifier.request(
        request, "ABORTED", now_us, names_of(context.spaces, request.space_ids), reason=reason, status="ABORTED"
    )
    return replace(position, requests=position.requests.without_current())


def abort(position: Position, now_us: int, context: EventContext) -> Position:
    """Record that the open request was cut off: its rows so far are valid, and no others follow under its number.

    Return the position after that, in which the request has yet to begin.
    """
    state, request = position.snapshot, position.requests.current
    assert state is not None
    context.builder.control(topics.SNAPSHOT, *snapshot_record("ABORTED", position, now_us, (), number=state.open_request))
    if request is not None and request.snapshot_id == state.open_request:
        position = replace(position, requests=position.requests.with_current(request.from_the_beginning()))
    return replace(position, snapshot=replace(state, open_request=0))


def _key_shown(context: EventContext, form: SpaceForm, key: bytes) -> dict[str, str]:
    """Return the last row's key for a notification; nothing if it can't be shown as JSON."""
    assert context.images is not None
    tuple_ = context.images.current(key)
    try:
        return {"last_processed_key": RowEncoder(form).key_of(tuple_values(tuple_)).decode()} if tuple_ is not None else {}
    except (EncodingError, SchemaError):
        return {}


def _next_space(request: Request) -> Request:
    return replace(request, space_ids=request.space_ids[1:], after=b"", shown=0, row_count=0)


def names_of(spaces: Spaces, space_ids: Sequence[int]) -> list[str]:
    """Return the names of spaces, without those that are gone."""
    return [name for space_id in space_ids if (name := spaces.schema.name(space_id)) is not None]


def next_request(position: Position) -> tuple[Position, int]:
    """Return the position with the number of the next request, and that number."""
    state = position.snapshot
    assert state is not None
    assert state.is_complete
    state = replace(state, snapshot_id=state.snapshot_id + 1, request_count=state.request_count + 1)
    return replace(position, snapshot=state), state.snapshot_id


def write_rows(
    context: EventContext,
    space: SpaceEvents,
    after: bytes,
    pieces: tuple[bytes, bytes],
    *,
    rows_max: int,
    bytes_max: int,
    is_wanted: IsWanted | None = None,
) -> Chunk:
    """Put rows of a space into the batch, in the order of their keys, beginning after the key `after`.

    Stops after `rows_max` rows, or once the batch holds `bytes_max` bytes. Raises the errors of `Refusals.refuse`, and those of
    `is_wanted`.
    """
    shown, count, images, builder = 0, 0, context.images, context.builder
    assert images is not None, "without images there are no rows to publish again"
    writer, gate = RowWriter(builder, context.envelope, tombstones=False), context.spaces.gate
    for count, (key, tuple_) in enumerate(images.scan(space.form.space_id, after), 1):
        after, values = key, tuple_values(tuple_)
        is_hidden = gate is not None and gate.hides(space.form.space_id, values)
        if not is_hidden and (is_wanted is None or is_wanted(values)):
            shown += write_row(context, writer, space, tuple_, values, pieces)
        if count >= rows_max or builder.byte_count >= bytes_max:
            return Chunk(after, shown, count, is_last=False)
    return Chunk(after, shown, count, is_last=True)


def write_row(
    context: EventContext, writer: RowWriter, space: SpaceEvents, tuple_: bytes, values: list[Any], pieces: tuple[bytes, bytes]
) -> bool:
    """Put one row of a space into the batch; return whether it has an event. Raises the errors of `Refusals.refuse`."""
    try:
        if space.route is not None and not space.route.takes(values):
            return False
        key, row = space.key_of(values), space.rows[len(values)](values)
    except (EncodingError, SchemaError) as error:
        space_id = space.form.space_id
        context.refusals.refuse(error, SNAPSHOT, Type.INSERT, 0, stored_body(space_id, tuple_), space_id)
        return False
    except WiderRowError as error:
        wider = context.spaces.widen(space.form, error.width)
        if space.form.space_id in context.spaces.encoders:
            context.spaces.encoders.put(space.form.space_id, wider, is_synchronous=space.form.is_sync)
        return write_row(context, writer, wider, tuple_, values, pieces)
    writer.put(space, key, space.openings.snapshot, row, pieces)
    return True


def write_gone(
    context: EventContext, writer: RowWriter, space: SpaceEvents, tuple_: bytes, values: list[Any], pieces: tuple[bytes, bytes]
) -> None:
    """Put the event that one row of a space is gone into the batch. The images keep it. Raises as `write_row` does."""
    changes = context.spaces.image_changes[space.form.space_id]
    try:
        if changes.space.route is None or changes.space.route.takes(values):
            writer.put_gone(changes.space, *changes.event_of(tuple_, is_gone=True), pieces)
    except (EncodingError, SchemaError) as error:
        space_id = space.form.space_id
        context.refusals.refuse(error, SNAPSHOT, Type.DELETE, 0, stored_body(space_id, tuple_), space_id)


def encoder_of(spaces: Spaces, space_id: int) -> SpaceEvents | None:
    """Return the encoder of a space's rows; None if the space is gone or isn't published."""
    space = spaces.encoders.get(space_id)
    if space is None:
        try:
            # Not added to `spaces.encoders`: for some spaces, the stream must do more at the first row than make its event.
            space = spaces.new_encoder(spaces.form(space_id))
        except SchemaError:
            return None
    return space


def published_space(spaces: Spaces, space_id: int) -> SpaceEvents | None:
    """Return the encoder as `encoder_of` does; None also if the space's rows aren't kept."""
    space = encoder_of(spaces, space_id)
    return space if space_id in spaces.image_changes else None
