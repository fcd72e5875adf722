"""The section `[routing]`, which says where the spaces' events go, and the settings of topics by pattern."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from cdc.config.formats import FormatSection
from cdc.config.section import Pattern, Section

_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_SPACE: Final = "space"
SHARD: Final = "shard"
"""In a fleet's file (cdc.config.fleet)."""


def _template(text: str) -> str:
    """Check a topic's name with places to fill in. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", _PLACE.sub("x", text)):
        raise ValueError(
            f"{text!r} must be a topic's name behind the prefix: letters, digits, '.', '_' and '-', and places such as {{space}}"
        )
    return text


def _only_space(text: str) -> str:
    for place in _PLACE.findall(text):
        if place not in (_SPACE, SHARD):
            raise ValueError(f"{text!r} may have {{space}} only: {{{place}}} needs the pattern of a rule")
    return text


Template = Annotated[str, AfterValidator(_template)]


class RoutingRuleSection(Section):
    """What is done with the events of some spaces."""

    spaces: Pattern
    """Regular expression that matches the spaces' complete names. The first rule that matches a space applies to it."""
    topic: Template | None = None
    """Name of the topic behind the prefix; by default as `routing.topic` says. It may have `{space}`, and `{1}`, `{2}` and so on
    for groups of the pattern. Without `{space}`, all spaces with this topic share it: their keys then begin with the space's name
    (`__dbz__physicalTableIdentifier`)."""

    partition_by: list[str] = Field(default=[])
    """Fields whose values decide the partition of a row's events; none: the key does."""
    where: str = ""
    """Expression in CEL, such as `row.status != 'draft'`: only rows for which it is true have events. Empty: all rows."""

    @model_validator(mode="after")
    def _says_something(self) -> RoutingRuleSection:
        if self.topic is None and not self.where and not self.partition_by:
            raise ValueError(f"the rule for spaces = {self.spaces!r} has no effect: give topic, where or partition_by")
        count = re.compile(self.spaces).groups
        for place in _PLACE.findall(self.topic or ""):
            if place not in (_SPACE, SHARD) and not (place.isdecimal() and 0 < int(place) <= count):
                raise ValueError(
                    f"topic = {self.topic!r}: {{{place}}} must be {{space}}, or the number of one of the {count} groups of "
                    f"{self.spaces!r}"
                )
        return self


class RoutingSection(Section):
    """Where the spaces' events go."""

    topic: Annotated[Template, AfterValidator(_only_space)] = "{space}"
    """Name of a space's topic behind the prefix."""
    headers: list[Literal["op", "space", "seq", "lsn"]] = Field(default=[])
    """Headers of the events, for programs that route messages without reading them: any of `op`, `space`, `seq` and `lsn`."""
    rules: list[RoutingRuleSection] = Field(default=[])
    """The rules, one `[[routing.rules]]` each (see below). The first one that matches a space applies to it."""

    @property
    def shares_topics(self) -> bool:
        """Whether several spaces may have the same topic."""
        templates = [self.topic, *(rule.topic for rule in self.rules if rule.topic is not None)]
        return any(f"{{{_SPACE}}}" not in template for template in templates)

    def check_places(self) -> None:
        """Raise ValueError if a topic has a place that only a fleet's file fills in."""
        for template in (self.topic, *(rule.topic or "" for rule in self.rules)):
            if f"{{{SHARD}}}" in template:
                raise ValueError(f"{template!r} may have {{shard}} only in the file of a fleet (fleet.shards)")

    def check_format(self, chosen: FormatSection) -> None:
        """Raise ValueError if events in this format wouldn't say whose they are on a topic of several spaces."""
        if not self.shares_topics:
            return
        if chosen.needs_registry and chosen.registry.subject == "topic":
            raise ValueError(
                'routing gives several spaces the same topic, and with format.registry.subject = "topic" the schemas of all of '
                'them would be versions of one: set it to "topic_record" or "record"'
            )
        if chosen.envelope == "flat":
            raise ValueError(
                'routing gives several spaces the same topic, and with format.envelope = "flat" nothing would tell whose rows '
                "are gone after a truncation: let the topic have {space} in it, or leave envelope out"
            )


class TopicSection(Section):
    """Settings of some of the spaces' topics, where they aren't those of `[kafka]`, for topics that the daemon creates."""

    pattern: Pattern
    """Regular expression that matches the topics' complete names behind the prefix. The first pattern that matches applies."""
    partitions: int | None = Field(default=None, ge=1, le=10_000)
    """Partitions; by default `kafka.partitions`."""
    replication_factor: int | None = Field(default=None, ge=1, le=100)
    """Replicas; by default `kafka.replication_factor`."""
    config: dict[str, str] = Field(default={})
    """Kafka's own settings of the topics, such as `"retention.ms"`."""


class TopicSettings(Section):
    """The settings with which a space's topic is created."""

    partitions: int
    replication_factor: int
    insync_replicas: int
    config: dict[str, str]
