"""Doubts about spaces that vshard doesn't shard, and whose rows go to topics that all shards of a fleet write.

vshard shards the spaces with an index of a certain name, whose first part is the number of the row's bucket. A replica set
without `_bucket` isn't vshard's: whether two of its shards have equal keys only its users know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from cdc.events.topics import BUCKETS as BUCKET_TOPIC
from cdc.schema.forms import SpaceForm, StoredSpace
from cdc.schema.sharding import BUCKETS, SHARD_INDEX, bucket_field
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.options import PipelineOptions

_ONE_ROW: Final = (
    "equal keys of two shards are different rows, and replace each other in the topic that all shards write, so consumers lose "
    "all but one"
)


class Doubt(NamedTuple):
    """A sentence about a published space; `loses_rows`: consumers that keep rows by their keys lose some."""

    sentence: str
    loses_rows: bool


def doubts(options: PipelineOptions, spaces: Collection[StoredSpace]) -> list[Doubt]:
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
    names = [name for name in unsharded(spaces) if not routes.of(name).topic.startswith(own) and not routes.is_chosen(name)]
    if not names:
        return []
    if not _has_buckets(spaces):
        return [Doubt(_without_buckets(names), loses_rows=True)]
    return [
        Doubt(
            f"the space {name!r} has no index {SHARD_INDEX!r}, so it isn't sharded: {_ONE_ROW}. {_remedy([name])}",
            loses_rows=True,
        )
        for name in names
    ]


def _without_buckets(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    spaces, are = (f"the space {listed}", "isn't") if len(names) == 1 else (f"the spaces {listed}", "aren't")
    return f"the replica set has no space {BUCKETS!r}, so {spaces} {are} sharded by vshard: {_ONE_ROW}. {_remedy(names)}"


def _remedy(names: list[str]) -> str:
    pattern = json.dumps("|".join(map(re.escape, names)), ensure_ascii=False)
    each, them, there = ("it", "it", "there") if len(names) == 1 else ("each", "them", "in any of them")
    return (
        f"Give {each} a topic of each shard ([[routing.rules]] with spaces = {pattern} and topic = "
        f'"{{shard}}.{{space}}"), or leave {them} out (spaces.exclude). If no two shards ever '
        f'have the same key {there}, say so by such a rule with topic = "{{space}}"'
    )


def doubts_about(options: PipelineOptions, schema: SchemaTracker, published: Iterable[SpaceForm]) -> list[Doubt]:
    """Return the same about spaces that would be published."""
    ids = {form.space_id for form in published}
    stored = (schema.stored(form.space_id) for form in schema.forms())
    return doubts(options, [replace(space, schema_version=int(space.space_id in ids)) for space in stored if space is not None])


def unsharded(spaces: Collection[StoredSpace]) -> list[str]:
    """Return the names of the published spaces that aren't sharded: all of them if vshard isn't in use."""
    has_buckets = _has_buckets(spaces)
    return [
        str(space.space_row[2])
        for space in spaces
        if space.schema_version and not (has_buckets and bucket_field(space.index_rows.values()) is not None)
    ]


def _has_buckets(spaces: Collection[StoredSpace]) -> bool:
    return any(space.space_row[2] == BUCKETS for space in spaces)
