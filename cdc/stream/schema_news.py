"""What an operator wants to know of a batch beside its events: spaces that are new, have another form or are gone.

A snapshot tells of every space that there is, which is no news.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdc.schema.forms import StoredSpace
from cdc.stream.batch import Batch, Broadcast

News = tuple[str, dict[str, Any]]
"""A sentence, and what it is about."""


def news(batch: Batch, known: Mapping[int, StoredSpace]) -> Iterator[News]:
    """Of the spaces that are published; `known` are those before the batch."""
    snapshot = batch.position.snapshot
    if batch.stored and (snapshot is None or snapshot.is_complete):
        for space_id, space in batch.stored.items():
            found = _of_space(known.get(space_id), space)
            if found is not None:
                yield found
    if batch.has_broadcast:
        for message in batch.messages:
            if isinstance(message, Broadcast):
                yield "all rows of a space are gone", {"topic": message.topic}


def _of_space(before: StoredSpace | None, now: StoredSpace | None) -> News | None:
    former_version = before.schema_version if before is not None else 0
    if now is None or not now.schema_version:
        if before is None or not former_version:
            return None
        return "a space is gone, or not published any more", {"space": _name(before), "space_id": before.space_id}
    if now.schema_version == former_version:
        return None
    about: dict[str, Any] = {"space": _name(now), "space_id": now.space_id, "schema_version": now.schema_version}
    if before is None or not former_version:
        return "a new space is published", about
    if _name(before) != _name(now):
        about["former_name"] = _name(before)
    return "a space has another form", about


def _name(space: StoredSpace) -> str:
    return str(space.space_row[2])
