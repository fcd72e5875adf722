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
    rekeyed     as renamed: `t` and all rows under their new keys have been published (cdc.stream.rekeying)

After a restart, the daemon doesn't publish the request's events again, but it does publish the stream's again. With at-least-once
delivery, events are visible before they are committed, so other events would then reuse the seqs of the request's events.
Therefore the checkpoint records that a request is open before the request's first row is made.

The request takes the next snapshot number and stores it in the position, so no two requests or snapshots have the same number.
The position still rests on the previous snapshot, which stays complete: a restart during the request forgets the request. But
consumers may take a snapshot's rows as one unit, and mustn't wait for this one's end for ever. So the next connection begins with
the record ABORTED (`abort`), before the stream or before a snapshot's STARTED, whatever cut the request off: the end of the
connection, of the process, or of the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from cdc.errors import EncodingError, RequestError, SchemaError, WiderRowError
from cdc.events import topics
from cdc.events.envelope import SpaceCount, SpaceEvents, snapshot_record
from cdc.images.overlay import Images
from cdc.positions.position import Position
from cdc.protocol.codec import tuple_values
from cdc.protocol.constants import Type
from cdc.stream.batch import BatchBuilder
from cdc.stream.event_context import EventContext
from cdc.stream.row_errors import SNAPSHOT, stored_body
from cdc.stream.spaces import Spaces

CHUNK_ROWS: Final = 2_000
CHUNK_BYTES: Final = 1024 * 1024
"""Maximum rows and bytes of one chunk; a single row may exceed the bytes. Live events wait no longer than one chunk takes."""

_NAMES_SHOWN: Final = 20


class Chunk(NamedTuple):
    """Result of `write_rows`: the last key shown, the number of rows shown, and whether no more rows follow."""

    after: bytes
    row_count: int
    is_last: bool


class Backfill:
    """Progress of one request in one pipeline."""

    def __init__(self, names: Iterable[str], *, starts_alone: bool = False) -> None:
        """If `starts_alone`, the first chunk has no rows, and must be durable before the next one is made."""
        self.names = tuple(dict.fromkeys(names))
        """Names of the requested spaces."""
        self._starts_alone = starts_alone
        self._waiting: deque[int] = deque()
        self._counts: list[SpaceCount] = []
        self._after = b""
        # Topic and primary key of the rows that were shown last.
        self._shown: tuple[str, object] | None = None
        self._space_rows = 0
        self.snapshot_id = 0
        """The request's number; 0 before its first chunk."""
        self.row_count = 0
        """Number of rows shown so far."""
        self.is_complete = False
        """Whether all rows have been shown."""

    def advance(
        self,
        position: Position,
        now_us: int,
        context: EventContext,
    ) -> Position:
        """Put the next chunk into the batch; return the position with the request's number.

        At `position`, neither a transaction nor a snapshot may be open. The first chunk raises RequestError if one of the spaces
        isn't published or has no images; the pipeline remains usable then. Raises EncodingError for a row that can't be
        encoded, if such rows aren't set aside. Also raises KeysChangedError and ConfigurationError.
        """
        spaces, builder, images = context.spaces, context.builder, context.images
        if images is None:
            raise RequestError(
                "the daemon keeps no rows that it could publish again", 'Set state.images = "full" and start it again.'
            )
        if not self.snapshot_id:
            self._waiting = deque(self._admitted(spaces, images))
        spaces.publish_schema_changes(position, now_us, None)
        position = replace(position, schema_version=spaces.schema.schema_version)
        if not self.snapshot_id:
            position = self._begin(position, now_us, builder)
            if self._starts_alone:
                return position
        vclock = context.envelope.vclock(position.vclock)
        bytes_max = builder.byte_count + CHUNK_BYTES
        rows_left = CHUNK_ROWS
        while self._waiting and rows_left > 0 and builder.byte_count < bytes_max:
            space = _space(spaces, self._waiting[0])
            if space is None:
                self._next_space()
                continue
            shown = space.topic, space.form.primary_key
            if shown != self._shown:
                self._after, self._shown, self._space_rows = b"", shown, 0
            pieces = context.envelope.snapshot_pieces(space, self.snapshot_id, vclock, now_us)
            chunk = write_rows(context, space, self._after, pieces, rows_max=rows_left, bytes_max=bytes_max)
            self._after = chunk.after
            self._space_rows += chunk.row_count
            self.row_count += chunk.row_count
            rows_left -= chunk.row_count
            if chunk.is_last:
                self._counts.append(SpaceCount(space.form.name, space.form.space_id, self._space_rows, 0))
                self._next_space()
        position = replace(position, seq=builder.seq)
        if not self._waiting:
            self.is_complete = True
            assert position.snapshot is not None
            position = replace(position, snapshot=replace(position.snapshot, open_request=0))
            completed = snapshot_record("COMPLETED", position, now_us, self._counts, number=self.snapshot_id)
            builder.control(topics.SNAPSHOT, *completed)
        return position

    def _admitted(self, spaces: Spaces, images: Images) -> Iterator[int]:
        published = {form.name: form for form in spaces.published_forms()}
        for name in self.names:
            form = published.get(name)
            if form is None:
                shown = ", ".join(sorted(published)[:_NAMES_SHOWN]) + (", …" if len(published) > _NAMES_SHOWN else "")
                raise RequestError(f"no space {name!r} is published", f"Published are: {shown or 'none'}.")
            if _space(spaces, form.space_id) is None:
                reason = images.spaces_without_images.get(name, "it is just being made")
                raise RequestError(f"space {name!r} has no images to be shown again: {reason}", "Name only spaces that have.")
            yield form.space_id

    def _begin(self, position: Position, now_us: int, builder: BatchBuilder) -> Position:
        position = next_request(position)
        assert position.snapshot is not None
        self.snapshot_id = position.snapshot.snapshot_id
        position = replace(position, snapshot=replace(position.snapshot, open_request=self.snapshot_id))
        builder.control(topics.SNAPSHOT, *snapshot_record("STARTED", position, now_us))
        return position

    def _next_space(self) -> None:
        self._waiting.popleft()
        self._after, self._shown, self._space_rows = b"", None, 0


def abort(position: Position, now_us: int, builder: BatchBuilder) -> Position:
    """Record that the open request was cut off: its rows so far are valid, and no others follow. Return the position after it."""
    state = position.snapshot
    assert state is not None
    builder.control(topics.SNAPSHOT, *snapshot_record("ABORTED", position, now_us, (), number=state.open_request))
    return replace(position, snapshot=replace(state, open_request=0))


def next_request(position: Position) -> Position:
    """Return the position with the number of the next request."""
    state = position.snapshot
    assert state is not None
    assert state.is_complete
    state = replace(state, snapshot_id=state.snapshot_id + 1, request_count=state.request_count + 1)
    return replace(position, snapshot=state)


def write_rows(
    context: EventContext,
    space: SpaceEvents,
    after: bytes,
    pieces: tuple[bytes, bytes],
    *,
    rows_max: int,
    bytes_max: int,
) -> Chunk:
    """Put rows of a space into the batch, in the order of their keys, beginning after the key `after`.

    Stops after `rows_max` rows, or once the batch holds `bytes_max` bytes. Raises the errors of `Refusals.refuse`.
    """
    shown, images, builder = 0, context.images, context.builder
    assert images is not None, "without images there are no rows to publish again"
    for count, (key, tuple_) in enumerate(images.scan(space.form.space_id, after), 1):
        after = key
        shown += _row(context, space, tuple_, pieces)
        if count >= rows_max or builder.byte_count >= bytes_max:
            return Chunk(after, shown, is_last=False)
    return Chunk(after, shown, is_last=True)


def _row(context: EventContext, space: SpaceEvents, tuple_: bytes, pieces: tuple[bytes, bytes]) -> bool:
    values = tuple_values(tuple_)
    try:
        key, row = space.key_of(values), space.rows[len(values)](values)
    except (EncodingError, SchemaError) as error:
        space_id = space.form.space_id
        context.refusals.refuse(error, SNAPSHOT, Type.INSERT, 0, stored_body(space_id, tuple_), space_id)
        return False
    except WiderRowError as error:
        wider = context.spaces.widen(space.form, error.width)
        if space.form.space_id in context.spaces.encoders:
            context.spaces.encoders.put(space.form.space_id, wider, is_synchronous=space.form.is_sync)
        return _row(context, wider, tuple_, pieces)
    builder, (before, after) = context.builder, pieces
    builder.seq += 1
    value = b"".join((space.openings.snapshot, row, before, context.envelope.number(builder.seq), after))
    builder.byte_count += len(value)
    builder.parts.append((space.topic, key, value))
    return True


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


def _space(spaces: Spaces, space_id: int) -> SpaceEvents | None:
    """Return the encoder as `encoder_of` does; None also if the space's rows aren't kept."""
    space = encoder_of(spaces, space_id)
    return space if space_id in spaces.image_changes else None
