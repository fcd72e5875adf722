"""Publishes all rows of a space again, as `r` events made from the images: under their new keys, after its primary key changed,
or because older events may have come behind them (cdc.stream.moves.beginnings).

    transaction that alters the key │ chunk │ chunk │ … │ transactions of the stream        STARTED before the first chunk,
      schema record, `t`            │ r r r │ r r r │   │                                   COMPLETED with the last

If the key changed, the space's `t` was published with the transaction, so consumers have none of its rows. The images have all
of them: under the new keys if such keys can be stored (cdc.images), else still under the old ones, which are dropped with the
last chunk. The stream waits meanwhile, so that consumers have the row that a later event changes.

Every chunk ends at a position that records its progress. So a table of any size needs no large Kafka transaction, and a daemon
that begins at such a position continues after it. A snapshot that is taken instead publishes the space from its beginning
(cdc.stream.snapshots.snapshot).
"""

from __future__ import annotations

from dataclasses import replace

from cdc.events import topics
from cdc.events.envelope import SpaceCount, snapshot_record
from cdc.positions.position import Position
from cdc.schema.keys import space_prefix
from cdc.stream.batches.event_context import EventContext
from cdc.stream.snapshots.backfill import CHUNK_BYTES, CHUNK_ROWS, encoder_of, next_request, write_rows


def advance(
    position: Position,
    now_us: int,
    context: EventContext,
) -> Position:
    """Put the next chunk into the batch; return the position after it.

    `position` has entries in `rekeyed`, and nothing is open there. Raises EncodingError for a row that can't be encoded, if such
    rows aren't set aside. Also raises ConfigurationError.
    """
    spaces, builder, images = context.spaces, context.builder, context.images
    assert images is not None, "without images there are no rows to publish again"
    rekeyed, *others = position.rekeyed
    space = encoder_of(spaces, rekeyed.space_id)
    if space is None:
        # The space is gone, or isn't published any more.
        return replace(position, rekeyed=tuple(others))
    if not rekeyed.snapshot_id:
        position, number = next_request(position)
        rekeyed = replace(rekeyed, snapshot_id=number)
        builder.control(topics.SNAPSHOT, *snapshot_record("STARTED", position, now_us))
    pieces = context.envelope.snapshot_pieces(space, rekeyed.snapshot_id, context.envelope.vclock(position.vclock), now_us)
    prefix = space_prefix(images.number(rekeyed.space_id))
    bytes_max = builder.byte_count + CHUNK_BYTES
    chunk = write_rows(context, space, prefix + rekeyed.after, pieces, rows_max=CHUNK_ROWS, bytes_max=bytes_max)
    rekeyed = replace(rekeyed, after=chunk.after[len(prefix) :], row_count=rekeyed.row_count + chunk.row_count)
    if not chunk.is_last:
        return replace(position, seq=builder.seq, rekeyed=(rekeyed, *others))
    if rekeyed.space_id not in spaces.image_changes:
        images.clear(rekeyed.space_id)
    position = replace(position, seq=builder.seq, rekeyed=tuple(others))
    counts = [SpaceCount(space.form.name, rekeyed.space_id, rekeyed.row_count, 0)]
    builder.control(topics.SNAPSHOT, *snapshot_record("COMPLETED", position, now_us, counts, number=rekeyed.snapshot_id))
    return position
