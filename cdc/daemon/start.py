"""Start of a connection: the inputs of the decision in cdc.upstream.start, and a pipeline according to the resulting plan."""

from __future__ import annotations

from dataclasses import replace

import structlog

from cdc.config import Config
from cdc.formats.options import FormatOptions, SchemaIds
from cdc.kafka import checkpoint_topic
from cdc.positions.position import Position
from cdc.store.writer import StateWriter
from cdc.stream.batches.options import PipelineOptions, Surroundings
from cdc.stream.batches.spaces import newly_published
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.pipeline import Pipeline
from cdc.stream.reports import patterns, sharding
from cdc.stream.snapshots.choice import SnapshotChoice
from cdc.upstream.resume import WITHOUT_STREAM
from cdc.upstream.selection import Rules
from cdc.upstream.start import Known, StartPlan
from cdc.upstream.witnesses import Witnesses


def options_of(config: Config) -> PipelineOptions:
    """Return the configuration's options for events."""
    return PipelineOptions(
        prefix=config.kafka.topic_prefix,
        control_prefix=config.kafka.control_prefix,
        shards=config.kafka.shard.co_writers if config.kafka.shard is not None else (),
        include=list(config.spaces.include),
        exclude=list(config.spaces.exclude),
        has_source_images=config.state.images == "source",
        snapshot_spaces=list(config.snapshot.spaces),
        snapshot_filters=list(config.snapshot.filters.items()),
        optional_topics=config.kafka.optional_topics,
        tombstones=config.kafka.tombstones,
        transaction_topic=config.kafka.transaction_topic,
        on_error=config.format.on_error,
        on_image_error=config.format.on_image_error,
        formats=formats_of(config),
        column_rules=config.columns.rules,
        topic_template=config.routing.topic,
        routing_rules=config.routing.rules,
        headers=config.routing.headers,
        salt=config.columns.secret(),
        transaction_bytes_max=config.source.transaction_bytes_max,
    )


def formats_of(config: Config, schema_ids: SchemaIds | None = None) -> FormatOptions:
    """Return the configuration's formats of keys and values. `schema_ids` asks the registry, for a pipeline."""
    section = config.format
    found = FormatOptions(
        section.key,
        section.value,
        section.unsigned,
        section.decimal,
        section.source,
        section.envelope,
        section.registry.subject,
        shard=config.kafka.shard.name if config.kafka.shard is not None else "",
        marks_moves=_marks_moves(config),
    )
    return found if schema_ids is None else replace(found, schema_ids=schema_ids)


def _marks_moves(config: Config) -> bool:
    """Return whether events say which of them moves of buckets have made: images tell the state of a bucket at each row."""
    shard = config.kafka.shard
    return shard is not None and not shard.shares_topics and config.state.images == "full"


def rules(config: Config) -> Rules:
    """Return the configuration's rules for choosing a member."""
    source = config.source
    return Rules(source.prefer, config.snapshot.mode, source.on_gap, source.on_divergence, round(source.timeouts.wait * 1000))


def known_before(
    config: Config,
    checkpoint: Checkpoint,
    writer: StateWriter | None,
    *,
    forced: str | None = None,
    is_first_connect: bool = True,
    is_store_ours: bool = True,
    witnesses: Witnesses | None = None,
) -> Known:
    """Return what is known before the next connection, after writing all committed changes to the store.

    The checkpoint gets the forms back that its topic has lost and the store has. Raises StateError.
    """
    store: Position | None = None
    if writer is not None:
        writer.flush(is_forced=True)
        if writer.catch_up(checkpoint.position):
            structlog.get_logger().info(
                "the state store has an interrupted snapshot's rows up to the checkpoint", name=config.name
            )
        stored = writer.checkpoint()
        store = stored.position
        restored = checkpoint.restore_forms(stored)
        if restored:
            structlog.get_logger().warning(lost_forms_sentence(config, len(restored)), name=config.name)
    known = _known(config, checkpoint, store, has_store=writer is not None, forced=forced, is_first_connect=is_first_connect)
    return replace(_weighed(known, witnesses), is_store_ours=is_store_ours)


def _weighed(known: Known, witnesses: Witnesses | None) -> Known:
    """Add what follows from the witnesses and the store."""
    all_ = replace(witnesses or Witnesses(), store=known.store)
    return replace(known, given=all_.given(known.checkpoint), thrown_back=all_.thrown_back(known.checkpoint))


def lost_forms_sentence(config: Config, count: int) -> str:
    """Return a warning about forms that the checkpoint topic has lost, and the state store has."""
    topic = checkpoint_topic.name_of(config.kafka.control_prefix)
    return (
        f"the topic {topic} has lost the forms of {count} space{'s' if count > 1 else ''}, which are taken from the state store: "
        "its cleanup.policy must be compact, and its records must not be deleted. The daemon writes the forms again with the "
        "next change"
    )


def supposed_before(
    config: Config,
    checkpoint: Checkpoint,
    stored: Checkpoint | None = None,
    *,
    is_store_ours: bool = True,
    witnesses: Witnesses | None = None,
) -> Known:
    """Return what would be known before a first connection.

    `stored` is the checkpoint in the state store; None means that the store is at the checkpoint's position.
    """
    store = checkpoint.position if stored is None else stored.position
    has_store = config.state.images == "full"
    known = _known(config, checkpoint, store, has_store=has_store, forced=None, is_first_connect=True)
    return replace(_weighed(known, witnesses), is_store_ours=is_store_ours)


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
        choice=SnapshotChoice.number_of(options_of(config)),
        mode=mode,
        on_gap=source.on_gap,
        on_divergence=source.on_divergence,
        ignored=frozenset(source.exclude_origins),
        # A snapshot without a stream after it needs no id.
        wants_id=source.mode == "registered" and mode not in WITHOUT_STREAM,
    )


def begin(plan: StartPlan, checkpoint: Checkpoint, writer: StateWriter | None, surroundings: Surroundings) -> Pipeline:
    """Prepare the store as the plan says, and make a pipeline at the plan's position. Raises StateError."""
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
        surroundings,
        begins_at.position or Position(),
        list(begins_at.spaces.values()),
        images=images,
        catch_up_to=plan.catch_up_to,
        published=list(checkpoint.spaces.values()) if plan.catch_up_to is not None else (),
    )
    if writer is not None and plan.clears_store is None and plan.catch_up_to is None:
        # The checkpoint records that a space is no longer published with the first change after that. Until then the space's
        # rows are kept: if it were published again before, nothing would reveal that they are missing.
        writer.keep_only(form.space_id for form in checkpoint.published_forms())
    return pipeline


def doubts_about_spaces(config: Config, checkpoint: Checkpoint) -> list[str]:
    """Return warnings about patterns that match no space or column of the current schema, or leave no space to be published."""
    include, exclude = list(config.spaces.include), list(config.spaces.exclude)
    is_default = "include" not in config.spaces.model_fields_set
    found = list(patterns.doubts(include, exclude, checkpoint.spaces.values(), is_default=is_default))
    options, forms = options_of(config), checkpoint.published_forms()
    rules = [*options.columns().without_effect(forms), *options.routes().without_effect(forms)]
    return [*found, *rules, *(doubt.sentence for doubt in sharding.doubts(options, checkpoint.spaces.values()))]
