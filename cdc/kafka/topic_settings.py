"""Settings of existing topics: which of them would let needed records expire, and their correction.

A consumer that begins later can't do without the control topics, and the daemon not without its checkpoint. Records of spaces'
topics may expire; these mustn't:

    checkpoint, schema,
    buckets              compact alone: the newest record of each key is kept
    snapshot             compact alone, or no limit of time and size

The daemon creates its topics like that. Others were created by older versions, by an operator or by a broker. The daemon corrects
what nobody has set for the topic, and reports the rest, with the command that corrects it.

Reading settings needs DESCRIBE_CONFIGS on the topics, and correcting them ALTER_CONFIGS. Without the first right nothing is
known; without the second the command is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are documented
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from cdc.config import KafkaSection
from cdc.events import topics
from cdc.events.topics import TopicNames
from cdc.kafka.names import names_of

COMPACTED: Final = frozenset({topics.CHECKPOINT, topics.SCHEMA, topics.BUCKETS})
"""Control topics that must keep the newest record of each key, whatever its age."""
KEPT: Final = frozenset({*COMPACTED, topics.SNAPSHOT})
"""Control topics whose needed records mustn't expire."""
UNLIMITED: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings with which no record expires."""
MESSAGE_BYTES: Final = "max.message.bytes"

_POLICY: Final = "cleanup.policy"
_TIMEOUT_SECONDS: Final = 10.0
_LOST: Final = {
    topics.CHECKPOINT: "the daemon's position",
    topics.SCHEMA: "the form of a space that hasn't changed for long",
    topics.BUCKETS: "the states of buckets, without which rows of buckets that have moved wait",
    topics.SNAPSHOT: "the ends of snapshots, without which consumers that begin later can't use the snapshots' rows",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Value of a topic's setting, and whether somebody has set it for this topic rather than for the brokers."""

    value: str
    is_own: bool = True


Settings = Mapping[str, Setting]
"""Settings of one topic by name."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A control topic that loses needed records, why, and the settings that correct it."""

    topic: str
    reason: str
    correct: Mapping[str, str]

    def sentence(self, servers: str) -> str:
        """Return the report, with the command that corrects the topic on the brokers `servers`."""
        added = ",".join(f"{name}={value}" for name, value in self.correct.items())
        return (
            f"{self.reason}. Correct it: kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics "
            f"--entity-name {self.topic} --add-config {added}"
        )


def expiries(names: TopicNames, found: Mapping[str, Settings]) -> Iterator[Expiry]:
    """Yield the control topics that lose needed records, given the known settings of topics."""
    for control in sorted(KEPT):
        topic = names.control(control)
        settings = found.get(topic, {})
        policy = settings[_POLICY].value if _POLICY in settings else "compact"
        if policy == "compact":
            continue
        if control in COMPACTED:
            reason = f"its cleanup.policy is {policy!r}, so Kafka deletes {_LOST[control]} one day"
            yield Expiry(topic, reason, {_POLICY: "compact"})
            continue
        limits = {name: settings[name].value for name in UNLIMITED if name in settings and settings[name].value != "-1"}
        if limits:
            limited = " and ".join(f"{name} is {value}" for name, value in limits.items())
            yield Expiry(topic, f"its {limited}, so Kafka deletes {_LOST[control]}", dict.fromkeys(limits, "-1"))


def read(admin: AdminClient, names: Iterable[str]) -> dict[str, Settings]:
    """Return the settings of those topics whose settings this user may read."""
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    found: dict[str, Settings] = {}
    if not wanted:
        return found
    for resource, answer in admin.describe_configs(wanted, request_timeout=_TIMEOUT_SECONDS).items():
        try:
            entries = answer.result()
        except KafkaException as error:
            structlog.get_logger().debug("a topic's settings can't be read", topic=resource.name, reason=error.args[0].str())
            continue
        found[resource.name] = {name: Setting(entry.value, _is_own(entry)) for name, entry in entries.items() if entry.value}
    return found


def keep_records(admin: AdminClient, config: KafkaSection, existing: Collection[str]) -> None:
    """Correct the existing control topics that lose needed records, where nobody has set that, and report the others."""
    names = names_of(config)
    found = read(admin, [topic for control in sorted(KEPT) if (topic := names.control(control)) in existing])
    for expiry in expiries(names, found):
        is_set = any(found[expiry.topic][name].is_own for name in expiry.correct)
        if not is_set and config.create_topics and _alter(admin, expiry):
            structlog.get_logger().info(
                "a topic's settings were corrected, so that it keeps its records", topic=expiry.topic, **expiry.correct
            )
        else:
            structlog.get_logger().warning(f"the topic {expiry.topic}: {expiry.sentence(config.bootstrap_servers)}")


def _alter(admin: AdminClient, expiry: Expiry) -> bool:
    """Correct a topic's settings, and return whether that was possible."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in expiry.correct.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, expiry.topic, incremental_configs=entries)
    try:
        for answer in admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT_SECONDS).values():
            answer.result()
    except KafkaException as error:
        structlog.get_logger().debug("a topic's settings can't be changed", topic=expiry.topic, reason=error.args[0].str())
        return False
    return True


def _is_own(entry: Any) -> bool:
    return bool(entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
