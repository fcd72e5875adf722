"""Names of topics: one topic per space unless rules say otherwise (cdc.events.routes), and the control topics.

Kafka allows the characters `[A-Za-z0-9._-]`, and at most 249 of them. Every other character of a space's name becomes `_`. If
two spaces would get the same topic and no rule says so, or a space would get a control topic's name, their events would be mixed,
so such a space is refused. So are two topics whose names differ only in dots and underscores, as Kafka refuses the second one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from cdc.errors import ConfigurationError
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX
from cdc.schema.forms import PLAIN_ROUTING, SPACE, Routing, SpaceForm

TRANSACTION: Final = "transaction"
SCHEMA: Final = "schema"
SNAPSHOT: Final = "snapshot"
CHECKPOINT: Final = "checkpoint"
HEARTBEAT: Final = "heartbeat"
DLQ: Final = "dlq"
SIGNAL: Final = "signal"
NOTIFICATION: Final = "notification"
CONTROL: Final = frozenset({TRANSACTION, SCHEMA, SNAPSHOT, CHECKPOINT, HEARTBEAT, DLQ})
"""Names that no space may have."""
BUCKETS: Final = "buckets"
OPTIONAL: Final = frozenset({SIGNAL, NOTIFICATION, BUCKETS})
"""Names of control topics that only some daemons have. Of the others, spaces may have these names."""

_NAME_MAX: Final = 249
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")
_OTHER_TOPIC: Final = (
    "Give one of them another topic (topic in a rule of [[routing.rules]]; a rule whose topic lacks {space} gives both the same "
    "one, with keys that name the space), or leave one out with spaces.exclude. Renaming it helps only for rows written after "
    "the renaming: earlier rows in the log are read under the old name."
)


def suffix_of(space: str) -> str:
    """Return the name of a space's topic without the prefix."""
    return _FOREIGN.sub("_", space)


def routed_suffix(space: str, routing: Routing) -> str:
    """Return the name of the topic of a space's events without the prefix."""
    return routing.topic.replace(SPACE, suffix_of(space))


class _Taken(NamedTuple):
    """A topic, with the names of its spaces by their ids, and whether rules let further spaces have it."""

    topic: str
    spaces: dict[int, str]
    is_shared: bool


class TopicNames:
    """Assignment of topics to spaces, which gives two spaces the same topic only if rules say so."""

    def __init__(self, prefix: str, control_prefix: str = "", shards: Collection[str] = ()) -> None:
        """`control_prefix` is given if the control topics have another prefix than the spaces' topics, which several daemons
        write then: those of the `shards`."""
        self.prefix = prefix
        self.control_prefix = control_prefix or prefix
        # Names behind the prefix that are control topics of the shards', or of all of them.
        self._of_shards = frozenset(f"{shard}.{name}" for shard in shards for name in CONTROL | OPTIONAL)
        self._reserved = CONTROL | self._of_shards
        self.are_past = False
        """Whether events are of the past. They aren't published, and no topic is taken: others may have it now."""
        # By name, without the difference that Kafka doesn't make.
        self._taken: dict[str, _Taken] = {}

    def reserve(self, optional: Collection[str]) -> None:
        """Give these names, which are in OPTIONAL, to no space."""
        self._reserved = CONTROL | self._of_shards | frozenset(optional)

    def control(self, name: str) -> str:
        """Return the control topic `<prefix>.<name>`; `name` must be in CONTROL or OPTIONAL."""
        assert name in CONTROL or name in OPTIONAL
        return f"{self.control_prefix}.{name}"

    def unchecked(self, name: str, routing: Routing) -> str:
        """Return the topic of a space without taking it, as for events of the past."""
        return f"{self.prefix}.{routed_suffix(name, routing)}"

    def are_apart(self, one: SpaceForm, other: SpaceForm) -> bool:
        """Return whether the events of two forms of a space go to different topics, or name it differently there."""
        return (self.unchecked(one.name, one.routing), one.name) != (self.unchecked(other.name, other.routing), other.name)

    def of_space(self, space_id: int, name: str, routing: Routing = PLAIN_ROUTING) -> str:
        """Return the topic of a space, and take it. Raises ConfigurationError if the name is taken, too long or empty."""
        topic = self.unchecked(name, routing)
        if self.are_past:
            return topic
        is_shared = bool(routing.shared_as)
        suffix = topic.removeprefix(f"{self.prefix}.")
        if suffix in self._reserved:
            raise ConfigurationError(
                f"space {name!r} ({space_id}) would share {topic!r}, a control topic of this daemon", _OTHER_TOPIC
            )
        taken = self._taken.setdefault(topic.replace(".", "_"), _Taken(topic, {}, is_shared))
        others = taken.spaces.keys() - {space_id}
        if others and not (taken.topic == topic and taken.is_shared and is_shared):
            raise _collision(space_id, name, topic, taken, min(others))
        if len(topic) > _NAME_MAX:
            raise ConfigurationError(
                f"the topic of space {name!r} would have {len(topic)} characters, Kafka allows {_NAME_MAX}",
                "Choose a shorter kafka.topic_prefix, give the space another topic (topic in a rule of [[routing.rules]]), or "
                "leave it out with spaces.exclude.",
            )
        if not others:
            self._taken[topic.replace(".", "_")] = taken = _Taken(topic, {}, is_shared)
        taken.spaces[space_id] = name
        return topic

    def release(self, space_id: int) -> None:
        """Free the topic of a space that was dropped or renamed, so that another space can use it."""
        for key, taken in list(self._taken.items()):
            taken.spaces.pop(space_id, None)
            if not taken.spaces:
                del self._taken[key]


def _collision(space_id: int, name: str, topic: str, taken: _Taken, other: int) -> ConfigurationError:
    whose = f"the topic of space {other} ({taken.spaces[other]!r})"
    if taken.topic != topic:
        return ConfigurationError(
            f"space {name!r} ({space_id}) would have the topic {topic!r} beside {taken.topic!r}, {whose}: Kafka doesn't "
            "distinguish dots and underscores in names of topics, and refuses the second one",
            _OTHER_TOPIC,
        )
    return ConfigurationError(f"space {name!r} ({space_id}) would share {topic!r}, {whose}", _OTHER_TOPIC)


class SpaceNames(TopicNames):
    """Names for an output that has no topics: each space's own name, whatever it is, and names that no space has."""

    def control(self, name: str) -> str:
        """Return the name under which the records of a control topic come."""
        assert name in CONTROL or name in OPTIONAL
        return f"\0{name}"

    def unchecked(self, name: str, routing: Routing) -> str:  # noqa: ARG002
        """Return the space's name."""
        return name

    def of_space(self, space_id: int, name: str, routing: Routing = PLAIN_ROUTING) -> str:  # noqa: ARG002 - a topic may be taken
        """Return the space's name."""
        return name

    def release(self, space_id: int) -> None:
        """Do nothing: no name is taken."""


class SpaceFilter:
    """Filter of the published spaces: the entire name must match an `include` pattern and no `exclude` pattern.

    Only an `include` pattern that begins with `_` can match one of Tarantool's system spaces, whose names begin with `_`.
    """

    def __init__(self, include: list[str], exclude: list[str]) -> None:
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        self.kept: frozenset[int] = frozenset()
        """Spaces that count as published whatever they are called."""

    def __call__(self, space_id: int, name: str) -> bool:
        if space_id in self.kept:
            return True
        is_system = space_id <= SYSTEM_SPACE_MAX
        included = any(pattern.fullmatch(name) for pattern in self._include if not is_system or pattern.pattern.startswith("_"))
        return included and not any(pattern.fullmatch(name) for pattern in self._exclude)
