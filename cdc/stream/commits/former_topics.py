"""Topics and records that must exist according to the checkpoint: those of the spaces that it lists as published, their forms,
and the end of the last snapshot.

A space's form enters the checkpoint in the commit for which its topic was created, so a topic that is missing now was deleted.
During a snapshot a missing topic doesn't matter: the snapshot publishes all rows again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping

from cdc import __version__
from cdc.errors import ConfigurationError
from cdc.events.envelope import Envelope, snapshot_record
from cdc.events.topics import SCHEMA, SNAPSHOT, TopicNames
from cdc.schema.forms import ChangeKind, SchemaChange
from cdc.stream.batches.batch import Message
from cdc.stream.commits.checkpoint import Checkpoint


def spaces_by_topic(stored: Checkpoint, names: TopicNames) -> dict[str, list[str]]:
    """Return the topics that have received the rows of published spaces, with those spaces' names; none during a snapshot.

    `names` are the daemon's names of topics, none taken yet. A topic has several spaces only if the rules for topics say so.
    """
    state = stored.position.snapshot if stored.position is not None else None
    found: dict[str, list[str]] = {}
    if state is None or not state.is_complete:
        return found
    for form in stored.published_forms():
        # If two spaces have the same topic because one isn't published any more, the rows there belong to the other space.
        with contextlib.suppress(ConfigurationError):
            found.setdefault(names.of_space(form.space_id, form.name, form.routing), []).append(form.name)
    return found


def form_records(stored: Checkpoint, names: TopicNames, shard: str, now_us: Callable[[], int]) -> list[Message]:
    """Return the minimum content of the schema topic: the current form of each published space, recorded as by a snapshot."""
    forms = stored.published_forms()
    if not forms or stored.position is None:
        return []
    topic, envelope, now = names.control(SCHEMA), Envelope(__version__, names.prefix, shard=shard), now_us()
    changes = (SchemaChange(ChangeKind.CREATE, form) for form in forms)
    return [(topic, *envelope.schema_record(change, stored.position, now, None)) for change in changes]


def missing_end(stored: Checkpoint, names: TopicNames, found: Mapping[bytes, bytes], now_us: Callable[[], int]) -> Message | None:
    """Return the record that ends the last snapshot if the snapshot topic lacks it, else None.

    `found` has the topic's newest record of each key. The checkpoint doesn't say how many rows of each space there were, and
    which rows the snapshot swept, so the record names no space. If rows are being published again, their own end follows.
    """
    position = stored.position
    state = position.snapshot if position is not None else None
    if position is None or state is None or not state.is_complete or state.open_request or position.rekeyed:
        return None
    key, value = snapshot_record("COMPLETED", position, now_us(), ())
    if _status(found.get(key)) in ("COMPLETED", "ABORTED"):
        return None
    return names.control(SNAPSHOT), key, value


def _status(record: bytes | None) -> str | None:
    try:
        status = json.loads(record or b"null")["status"]
    except (ValueError, KeyError, TypeError):
        return None
    return status if isinstance(status, str) else None
