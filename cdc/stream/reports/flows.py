"""Which space becomes which topic, and by which columns, at a checkpoint: what catalogs of lineage are told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdc.errors import ConfigurationError
from cdc.events.topics import TopicNames
from cdc.schema.forms import SpaceForm
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.commits.checkpoint import Checkpoint

Columns = tuple[tuple[str, str], ...]
"""Names and types of columns."""


class Flow(NamedTuple):
    """A space and the topic that has its events, each with its columns: those that are stored, and those that are published."""

    space: str
    columns: Columns
    topic: str
    published: Columns


def flows(stored: Checkpoint, names: TopicNames, options: PipelineOptions) -> Iterator[Flow]:
    """Yield what is published at a checkpoint."""
    rules = options.columns()
    for form in stored.published_forms():
        try:
            topic, shown = names.of_space(form.space_id, form.name, form.routing), rules.shown(form)
        except ConfigurationError:
            continue  # its topic is another space's since, or its rules don't fit any more: the stream decides about that
        yield Flow(form.name, _columns(form), topic, _columns(shown))


def _columns(form: SpaceForm) -> Columns:
    return tuple((field.name, field.type) for field in form.fields)
