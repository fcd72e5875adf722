"""What the spaces of a replica set say of its buckets: their states, and which field of a row names its bucket."""

from __future__ import annotations

from cdc.images.overlay import Images
from cdc.protocol.codec import tuple_values
from cdc.schema.forms import SpaceForm
from cdc.schema.sharding import BUCKETS, bucket_field
from cdc.schema.tracker import SchemaTracker
from cdc.stream.moves.records import Step


def bucket_space(schema: SchemaTracker) -> SpaceForm | None:
    """Return the space with the states of the buckets; None if there is none."""
    return next((form for form in schema.forms() if form.name == BUCKETS), None)


def bucket_field_of(schema: SchemaTracker, space_id: int) -> int | None:
    """Return the place of the field with the row's bucket; None if the space isn't sharded."""
    stored = schema.stored(space_id)
    return bucket_field(stored.index_rows.values()) if stored is not None else None


def steps_in(images: Images, space: SpaceForm | None) -> dict[int, Step]:
    """Return the states of all buckets, as far as the images have them. `space` is what `bucket_space` returns."""
    if space is None or not images.is_kept(space.space_id):
        return {}
    rows = (tuple_values(tuple_) for _, tuple_ in images.scan(space.space_id))
    return {row[0]: Step.of(row) for row in rows}
