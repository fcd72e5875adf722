"""Rules for spaces: which topic their events go to, and which rows have events.

    template + rules ──▶ Routing of each space      the first rule whose pattern matches the complete name applies

A space's Routing is a part of its form, and of the checkpoint. So the daemon notices another rule as it notices DDL, and knows
where the space's earlier events are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from cdc.errors import ConfigurationError
from cdc.events.topics import suffix_of
from cdc.schema.forms import SHARED_NAME, SPACE, Routing, SpaceForm

GROUP: Final = re.compile(r"\{([0-9]+)\}")
"""Reference to a group of a rule's pattern, in the rule's topic."""


class RoutingRule(Protocol):
    """One rule of the configuration."""

    @property
    def spaces(self) -> str:
        """Regular expression that matches the spaces' complete names."""

    @property
    def topic(self) -> str | None:
        """Template of the topic's name behind the prefix; None: as for spaces without a rule."""

    @property
    def partition_by(self) -> Sequence[str]:
        """Fields whose values decide the partition; none: the key does."""

    @property
    def where(self) -> str:
        """Expression that chooses the rows that have events; empty: all."""


class _CompiledRule:
    def __init__(self, rule: RoutingRule, number: int) -> None:
        self.name = f"routing.rules, the rule for spaces = {rule.spaces!r} (number {number})"
        self.topic = rule.topic
        self.where = rule.where
        self.partition_by = tuple(rule.partition_by)
        self.match = re.compile(rule.spaces).fullmatch


class Routes:
    """All rules. `topic` is the template for spaces to which no rule with a topic applies."""

    def __init__(self, topic: str = SPACE, rules: Sequence[RoutingRule] = (), own_topic: str = "") -> None:
        """`own_topic` is the template for spaces whose names begin with `_`, if they aren't among others' on the same topics."""
        self._topic = topic
        self._own_topic = own_topic
        self._rules = [_CompiledRule(rule, number) for number, rule in enumerate(rules, 1)]

    def of(self, name: str) -> Routing:
        """Return what the rules say of a space."""
        for rule in self._rules:
            found = rule.match(name)
            if found is not None:
                topic = self._default(name) if rule.topic is None else _filled(rule.topic, found)
                return replace(_routing(topic, name), where=rule.where, partition_by=rule.partition_by)
        return _routing(self._default(name), name)

    def is_chosen(self, name: str) -> bool:
        """Return whether a rule says which topic a space has, so that somebody has thought of it."""
        return next((rule.topic is not None for rule in self._rules if rule.match(name)), False)

    def _default(self, name: str) -> str:
        return self._own_topic if self._own_topic and name.startswith("_") else self._topic

    def of_past(self, name: str) -> Routing:
        """Return the same for rows that only change the images, as their events are published.

        Nobody knows by which rules, and expressions may not fit the forms that spaces had.
        """
        return replace(self.of(name), where="", partition_by=())

    def without_effect(self, forms: Sequence[SpaceForm]) -> Iterator[str]:
        """Yield sentences about rules that apply to none of these spaces."""
        for number, rule in enumerate(self._rules):
            own = [form.name for form in forms if rule.match(form.name)]
            before = self._rules[:number]
            if not own:
                yield f"{rule.name} matches no published space"
            elif all(any(other.match(name) for other in before) for name in own):
                yield f"{rule.name} applies to no space: for those that it matches, a rule before it applies"


def check_routes(forms: Iterable[SpaceForm]) -> None:
    """Raise ConfigurationError for a space on a topic of several spaces with a field of the name that says whose a key is."""
    for form in forms:
        if form.routing.shared_as and SHARED_NAME in form.field_names:
            raise ConfigurationError(
                f"space {form.name!r} has a field {SHARED_NAME!r}, and its topic is one that other spaces may have, too: "
                "each key there has a field of that name, which says whose it is",
                "Give the space a topic of its own (with {space} in its name), rename the field in the format of the space "
                "(space:format), or leave the space out (spaces.exclude).",
            )


def _filled(topic: str, found: re.Match[str]) -> str:
    """Return a rule's topic with the groups of its pattern."""
    return GROUP.sub(lambda place: suffix_of(found[int(place[1])] or ""), topic)


def _routing(topic: str, name: str) -> Routing:
    return Routing(topic, "" if SPACE in topic else name)
