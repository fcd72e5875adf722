"""Names of topics: one topic per space, and the control topics.

Kafka allows the characters `[A-Za-z0-9._-]`, and at most 249 of them. Every other character of a space's name becomes `_`. If
two spaces would get the same topic, or a space would get a control topic's name, their events would be mixed, so such a space
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from cdc.errors import ConfigurationError
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX

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
OPTIONAL: Final = frozenset({SIGNAL, NOTIFICATION})
"""Names of control topics that only some daemons have. Of the others, spaces may have these names."""

_NAME_MAX: Final = 249
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")


def suffix_of(space: str) -> str:
    """Return the name of a space's topic without the prefix."""
    return _FOREIGN.sub("_", space)


class TopicNames:
    """Assignment of topics to spaces, which never gives two spaces the same topic."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._space_by_topic: dict[str, int] = {}
        self._taken = CONTROL

    def reserve(self, optional: Collection[str]) -> None:
        """Give these names, which are in OPTIONAL, to no space."""
        self._taken = CONTROL | frozenset(optional)

    def control(self, name: str) -> str:
        """Return the control topic `<prefix>.<name>`; `name` must be in CONTROL or OPTIONAL."""
        assert name in CONTROL or name in OPTIONAL
        return f"{self._prefix}.{name}"

    def of_space(self, space_id: int, name: str) -> str:
        """Return the topic of a space. Raises ConfigurationError if the name is taken or too long."""
        suffix = suffix_of(name)
        topic = f"{self._prefix}.{suffix}"
        owner = self._space_by_topic.setdefault(topic, space_id)
        if suffix in self._taken or owner != space_id:
            taken = "a control topic of this daemon" if suffix in self._taken else f"the topic of space {owner}"
            raise ConfigurationError(
                f"space {name!r} ({space_id}) would share {topic!r}, {taken}",
                "Leave one of them out with spaces.exclude. Renaming it helps only for rows written after the renaming: "
                "earlier rows in the log are read under the old name.",
            )
        if len(topic) > _NAME_MAX:
            raise ConfigurationError(
                f"the topic of space {name!r} would have {len(topic)} characters, Kafka allows {_NAME_MAX}",
                "Choose a shorter kafka.topic_prefix, or leave the space out with spaces.exclude.",
            )
        return topic

    def release(self, space_id: int) -> None:
        """Free the topic of a space that was dropped or renamed, so that another space can use it."""
        for topic in [topic for topic, owner in self._space_by_topic.items() if owner == space_id]:
            del self._space_by_topic[topic]


class SpaceNames(TopicNames):
    """Names for an output that has no topics: each space's own name, whatever it is, and names that no space has."""

    def control(self, name: str) -> str:
        """Return the name under which the records of a control topic come."""
        assert name in CONTROL or name in OPTIONAL
        return f"\0{name}"

    def of_space(self, space_id: int, name: str) -> str:  # noqa: ARG002 - a topic's name may be taken
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

    def __call__(self, space_id: int, name: str) -> bool:
        is_system = space_id <= SYSTEM_SPACE_MAX
        included = any(pattern.fullmatch(name) for pattern in self._include if not is_system or pattern.pattern.startswith("_"))
        return included and not any(pattern.fullmatch(name) for pattern in self._exclude)
