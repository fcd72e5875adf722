"""The start of a connection, around the decision of cdc.upstream.start: what is known, and a pipeline as the plan says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from cdc.config import Config
from cdc.positions.position import Position
from cdc.store.writer import StateWriter
from cdc.stream import patterns
from cdc.stream.checkpoint import Checkpoint
from cdc.stream.options import PipelineOptions
from cdc.stream.pipeline import Pipeline
from cdc.stream.spaces import newly_published
from cdc.stream.transaction import Spool
from cdc.upstream.selection import Rules
from cdc.upstream.start import Known, StartPlan


def options_of(config: Config) -> PipelineOptions:
    """What the configuration says about events."""
    return PipelineOptions(
        prefix=config.kafka.topic_prefix,
        include=list(config.spaces.include),
        exclude=list(config.spaces.exclude),
        tombstones=config.kafka.tombstones,
        transaction_topic=config.kafka.transaction_topic,
        on_error=config.format.on_error,
        on_image_error=config.format.on_image_error,
        transaction_bytes_max=config.source.transaction_bytes_max,
    )


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
    is_store_ours: bool = True,
) -> Known:
    """What the next connection begins from; the store is brought to what Kafka has. Raises StateError."""
    store: Position | None = None
    if writer is not None:
        writer.flush(is_forced=True)
        store = writer.checkpoint().position
    known = _known(config, checkpoint, store, has_store=writer is not None, forced=forced, is_first_connect=is_first_connect)
    return replace(known, is_store_ours=is_store_ours)


def supposed_before(
    config: Config, checkpoint: Checkpoint, stored: Checkpoint | None = None, *, is_store_ours: bool = True
) -> Known:
    """What a first connection would begin from, with what the state store says; None if it is where the checkpoint is."""
    store = checkpoint.position if stored is None else stored.position
    has_store = config.state.images == "full"
    known = _known(config, checkpoint, store, has_store=has_store, forced=None, is_first_connect=True)
    return replace(known, is_store_ours=is_store_ours)


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
    return Known(
        checkpoint=checkpoint.position,
        has_store=has_store,
        store=store,
        newly_published=newly_published(checkpoint.spaces.values(), options_of(config).space_filter()) if has_store else (),
        forced=forced,
        is_first_connect=is_first_connect,
        store_name=str(config.state.path / "images"),
        mode=mode,
        on_gap=source.on_gap,
        on_divergence=source.on_divergence,
        ignored=frozenset(source.exclude_origins),
        # A snapshot that nobody follows needs no id.
        wants_id=source.mode == "registered" and mode != "initial_only",
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a pipeline is made with, besides the place where it begins: of the server `server_uuid` and `version`."""

    options: PipelineOptions
    server_uuid: UUID
    version: tuple[int, ...]
    new_spool: Callable[[], Spool]


def begin(plan: StartPlan, checkpoint: Checkpoint, writer: StateWriter | None, surroundings: Surroundings) -> Pipeline:
    """Bring the store to where the plan wants it, and make a pipeline there. Raises StateError."""
    begins_at, images = checkpoint, None
    if writer is not None and plan.clears_store is not None:
        writer.restart()
        images = writer.begin((), surroundings.version)
    elif writer is not None:
        stored = writer.checkpoint()
        images = writer.begin(stored.published_forms(), surroundings.version)
        if plan.catch_up_to is not None:
            begins_at = stored
    pipeline = Pipeline(
        surroundings.options,
        begins_at.position or Position(),
        list(begins_at.spaces.values()),
        server_uuid=surroundings.server_uuid,
        version=surroundings.version,
        new_spool=surroundings.new_spool,
        images=images,
        catch_up_to=plan.catch_up_to,
    )
    if writer is not None and plan.clears_store is None and plan.catch_up_to is None:
        # Whether a space has been left out since, the checkpoint says with the first change; until then its rows are good,
        # and should it be taken in again before that, nobody would notice that they are missing.
        writer.keep_only(form.space_id for form in checkpoint.published_forms())
    return pipeline


def doubts_about_spaces(config: Config, checkpoint: Checkpoint) -> list[str]:
    """Sentences about patterns that fit none of the spaces that the schema has so far, or leave none to be published."""
    include, exclude = list(config.spaces.include), list(config.spaces.exclude)
    is_default = "include" not in config.spaces.model_fields_set
    return list(patterns.doubts(include, exclude, checkpoint.spaces.values(), is_default=is_default))
