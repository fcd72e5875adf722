"""Doubts about spaces that vshard doesn't shard, and whose rows go to topics that all shards of a fleet write.

vshard shards the spaces with an index of a certain name, whose first part is the number of the row's bucket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from cdc.events.topics import BUCKETS as BUCKET_TOPIC
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.sharding import BUCKETS, SHARD_INDEX, bucket_field
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.options import PipelineOptions


class Doubt(NamedTuple):
    """A sentence about a published space; `loses_rows`: consumers that keep rows by their keys lose some."""

    sentence: str
    loses_rows: bool


def doubts(options: PipelineOptions, spaces: Iterable[StoredSpace]) -> list[Doubt]:
    """Return what is wrong with published spaces that aren't sharded and go to topics that all shards write, and with moves."""
    spaces = list(spaces)
    hides_moves = BUCKET_TOPIC in options.optional_topics
    if (options.formats.marks_moves or hides_moves) and any(
        space.space_row[2] == BUCKETS and not space.schema_version for space in spaces
    ):
        sentence = (
            f"the space {BUCKETS!r} isn't published, so nothing tells which events moves of buckets have made, and shared "
            "topics show moves as users' changes: only its rows tell that. Let spaces.include and spaces.exclude publish it"
        )
        return [Doubt(sentence, loses_rows=hides_moves)]
    if not options.shards:
        return []
    routes, own = options.routes(), f"{options.formats.shard}."
    return [
        Doubt(
            f"the space {name!r} has no index {SHARD_INDEX!r}, so it isn't sharded: equal keys of two shards are different rows, "
            "and replace each other in the topic that all shards write, so consumers lose all but one. Give it a topic of each "
            f'shard ([[routing.rules]] with spaces = "{name}" and topic = "{{shard}}.{{space}}"), or leave it out '
            '(spaces.exclude). If no two shards ever have the same key there, say so by such a rule with topic = "{space}"',
            loses_rows=True,
        )
        for name in unsharded(spaces)
        if not routes.of(name).topic.startswith(own) and not routes.is_chosen(name)
    ]


def doubts_about(options: PipelineOptions, schema: SchemaTracker, published: Iterable[SpaceForm]) -> list[Doubt]:
    """Return the same about spaces that would be published."""
    ids = {form.space_id for form in published}
    stored = (schema.stored(form.space_id) for form in schema.forms())
    return doubts(options, [replace(space, schema_version=int(space.space_id in ids)) for space in stored if space is not None])


def unsharded(spaces: Iterable[StoredSpace]) -> list[str]:
    """Return the names of the published spaces that aren't sharded; none if vshard isn't in use."""
    spaces = list(spaces)
    names = {space.space_id: str(space.space_row[2]) for space in spaces}
    if BUCKETS not in names.values():
        return []
    return [names[space.space_id] for space in spaces if space.schema_version and bucket_field(space.index_rows.values()) is None]
