"""Changes to the published spaces in a batch, as reports for the operator: spaces that are new, have another form, or are gone.

A snapshot names every existing space, which isn't worth a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cdc.events.topics import routed_suffix
from cdc.schema.forms import KeyPart, StoredSpace
from cdc.schema.tracker import SchemaTracker
from cdc.stream.batches.batch import Batch, Broadcast

Report = tuple[str, dict[str, Any]]
"""A sentence, and the details that it is about."""

REKEYED: Final = (
    "a space has another primary key: a `t` event reports that its rows are gone, and all of them follow as `r` events under "
    "their new keys; no action is needed"
)
OTHER_COLUMNS: Final = (
    "other rules for columns apply to a space: a `t` event has consumers drop its rows, and all of them follow as `r` events by "
    "the new rules; no action is needed"
)
OTHER_ROUTING: Final = (
    "other rules for topics apply to a space: a `t` event has consumers drop its rows where they were, and all of them follow as "
    "`r` events by the new rules; no action is needed"
)
EMPTIED: Final = "all rows of a space are gone"
PUBLISHED_AGAIN: Final = (
    "a snapshot publishes a space again: a `t` event has consumers drop their rows, and the snapshot's rows follow as `r`"
)
BARE: Final = (
    "a space without images has another primary key: later events use it, but no event tells consumers that the rows under "
    "the former keys are gone"
)
REKEYED_EMPTY: Final = "a space that has no rows has another primary key"


def schema_reports(batch: Batch, known: Mapping[int, StoredSpace], *, has_images: bool) -> Iterator[Report]:
    """Yield the reports about published spaces. `known` are the spaces before the batch."""
    snapshot = batch.position.snapshot
    # Ends of the names of topics whose rows are published again.
    ends: list[str] = []
    if batch.stored and (snapshot is None or snapshot.is_complete):
        rekeyed = {each.space_id for each in batch.position.rekeyed}
        for space_id, space in batch.stored.items():
            found = _of_space(known.get(space_id), space, is_published_again=space_id in rekeyed, has_images=has_images)
            if found is not None:
                yield found
                if found[0] in (REKEYED, OTHER_COLUMNS, OTHER_ROUTING):
                    ends += [f".{routed_suffix(_name(each), each.routing)}" for each in (known.get(space_id), space) if each]
    if batch.has_broadcast:
        for message in batch.parts:
            if isinstance(message, Broadcast) and not message.topic.endswith(tuple(ends)):
                yield EMPTIED if snapshot is None or snapshot.is_complete else PUBLISHED_AGAIN, {"topic": message.topic}


def _of_space(
    before: StoredSpace | None, now: StoredSpace | None, *, is_published_again: bool, has_images: bool
) -> Report | None:
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
    former_key, key = _key(before), _key(now)
    if former_key == key or not former_key or not key:
        if not is_published_again:
            return "a space has another form", about
        return (OTHER_COLUMNS if before.routing == now.routing else OTHER_ROUTING), about
    about |= {"former_key": ", ".join(name for name, _ in former_key), "key": ", ".join(name for name, _ in key)}
    return (REKEYED if is_published_again else REKEYED_EMPTY if has_images else BARE), about


def _key(space: StoredSpace) -> tuple[tuple[str, KeyPart], ...]:
    return next((form.primary_key for form in SchemaTracker([space]).forms()), ())


def _name(space: StoredSpace) -> str:
    return str(space.space_row[2])
