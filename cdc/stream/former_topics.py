"""What the checkpoint tells of topics that must be there already: those of the spaces that it has as published.

A form becomes part of the checkpoint in the commit for which its topic was made, so a topic that is missing now was deleted.
While a snapshot is under way that is no matter: all rows come again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cdc import __version__
from cdc.errors import ConfigurationError
from cdc.events.envelope import Envelope
from cdc.events.topics import SCHEMA, TopicNames
from cdc.schema.forms import ChangeKind, SchemaChange
from cdc.stream.batch import Message
from cdc.stream.checkpoint import Checkpoint


def spaces_by_topic(stored: Checkpoint, prefix: str) -> dict[str, str]:
    """The topics that have had the rows of published spaces, and the names of those."""
    state = stored.position.snapshot if stored.position is not None else None
    found: dict[str, str] = {}
    if state is None or not state.is_complete:
        return found
    names = TopicNames(prefix)
    for form in stored.published_forms():
        # Spaces of which one isn't published any more may have the same topic: then its rows are the other's.
        with contextlib.suppress(ConfigurationError):
            found[names.of_space(form.space_id, form.name)] = form.name
    return found


def form_records(stored: Checkpoint, prefix: str, now_us: Callable[[], int]) -> list[Message]:
    """What the schema topic has to have at least: the present form of each published space, told as a snapshot tells it."""
    forms = stored.published_forms()
    if not forms or stored.position is None:
        return []
    topic, envelope, now = TopicNames(prefix).control(SCHEMA), Envelope(__version__, prefix), now_us()
    changes = (SchemaChange(ChangeKind.CREATE, form) for form in forms)
    return [(topic, *envelope.schema_record(change, stored.position, now, None)) for change in changes]
