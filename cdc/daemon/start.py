"""The start of a connection, around the decision of cdc.upstream.start: what is known, and a pipeline as the plan says."""

from __future__ import annotations

from typing import Protocol

from cdc.config import Config
from cdc.events.topics import SpaceFilter
from cdc.images.overlay import Images
from cdc.position import Position
from cdc.schema.tracker import published_forms
from cdc.store.writer import StateWriter
from cdc.stream.checkpoint import Checkpoint
from cdc.stream.pipeline import Pipeline
from cdc.stream.spaces import newly_published
from cdc.upstream.selection import Rules
from cdc.upstream.start import Known, StartPlan


def rules(config: Config) -> Rules:
    """What the configuration says about choosing a member."""
    source = config.source
    return Rules(source.prefer, config.snapshot.mode, source.on_gap, source.on_divergence, source.divergence_wait_ms)


def known_before(
    config: Config,
    checkpoint: Checkpoint,
    writer: StateWriter | None,
    *,
    forced: str | None = None,
    is_first_connect: bool = True,
) -> Known:
    """What the next connection begins from; the store is brought to what Kafka has. Raises StateError."""
    store: Position | None = None
    if writer is not None:
        writer.flush(is_forced=True)
        store = writer.checkpoint().position
    return _known(config, checkpoint, store, has_store=writer is not None, forced=forced, is_first_connect=is_first_connect)


def supposed_before(config: Config, checkpoint: Checkpoint) -> Known:
    """What a first connection would begin from, were the state store where the checkpoint is."""
    has_store = config.state.images == "full"
    return _known(config, checkpoint, checkpoint.position, has_store=has_store, forced=None, is_first_connect=True)


def _known(
    config: Config,
    checkpoint: Checkpoint,
    store: Position | None,
    *,
    has_store: bool,
    forced: str | None,
    is_first_connect: bool,
) -> Known:
    source, mode = config.source, config.snapshot.mode
    is_included = SpaceFilter(list(config.spaces.include), list(config.spaces.exclude))
    return Known(
        checkpoint=checkpoint.position,
        has_store=has_store,
        store=store,
        newly_published=newly_published(checkpoint.spaces.values(), is_included) if has_store else (),
        forced=forced,
        is_first_connect=is_first_connect,
        mode=mode,
        on_gap=source.on_gap,
        on_divergence=source.on_divergence,
        ignored=frozenset(source.exclude_origins),
        # A snapshot that nobody follows needs no id.
        wants_id=source.mode == "registered" and mode != "initial_only",
    )


class NewPipeline(Protocol):
    """Makes a pipeline."""

    def __call__(self, begins_at: Checkpoint, *, images: Images | None, catch_up_to: Position | None) -> Pipeline:
        """One with the position and the schema of `begins_at`."""


def begin(
    plan: StartPlan, checkpoint: Checkpoint, writer: StateWriter | None, version: tuple[int, ...], new_pipeline: NewPipeline
) -> Pipeline:
    """Bring the store to where the plan wants it, and make a pipeline there. Raises StateError.

    `version` is the server's.
    """
    if writer is None:
        return new_pipeline(checkpoint, images=None, catch_up_to=None)
    if plan.clears_store is not None:
        writer.restart()
        return new_pipeline(checkpoint, images=writer.begin((), version), catch_up_to=None)
    stored = writer.checkpoint()
    images = writer.begin(published_forms(stored.spaces.values()), version)
    if plan.catch_up_to is not None:
        return new_pipeline(stored, images=images, catch_up_to=plan.catch_up_to)
    pipeline = new_pipeline(checkpoint, images=images, catch_up_to=None)
    # Whether a space has been left out since, the checkpoint says with the first change; until then its rows are good,
    # and should it be taken in again before that, nobody would notice that they are missing.
    writer.keep_only(form.space_id for form in published_forms(checkpoint.spaces.values()))
    return pipeline
