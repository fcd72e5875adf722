"""The names of a daemon's topics, and how its events are told from those of others on the same topics."""

from __future__ import annotations

from cdc.config import KafkaSection
from cdc.events.topics import CHECKPOINT, TopicNames
from cdc.kafka.hanging import Whose


def names_of(config: KafkaSection) -> TopicNames:
    """Return the names of the topics that a daemon of this configuration writes to."""
    shard = config.shard
    return TopicNames(config.topic_prefix, config.control_prefix, shard.co_writers if shard is not None else ())


def claim_topic(config: KafkaSection) -> str | None:
    """Return the topic with the claim of a shard's fleet to its prefix; None without a fleet."""
    return TopicNames(config.shard.fleet_prefix).control(CHECKPOINT) if config.shard is not None else None


def whose(config: KafkaSection) -> Whose:
    """Return what the events of a daemon of this configuration say of their origin."""
    return Whose(config.topic_prefix, config.shard.name if config.shard is not None else None)
