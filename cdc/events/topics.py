"""Names of topics: one per space, and the control topics beside them.

Kafka allows `[A-Za-z0-9._-]` and 249 characters; every other character of a space's name becomes `_`. Two spaces whose names
become the same topic, or a space that is called like a control topic, would mix their events, so that is refused.
"""

from __future__ import annotations

import re
from typing import Final

from cdc.errors import ConfigurationError
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX

TRANSACTION: Final = "transaction"
SCHEMA: Final = "schema"
SNAPSHOT: Final = "snapshot"
CHECKPOINT: Final = "checkpoint"
HEARTBEAT: Final = "heartbeat"
DLQ: Final = "dlq"
CONTROL: Final = frozenset({TRANSACTION, SCHEMA, SNAPSHOT, CHECKPOINT, HEARTBEAT, DLQ})

_NAME_MAX: Final = 249
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]")


class TopicNames:
    """Gives spaces their topics and keeps two spaces from getting the same one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._space_by_topic: dict[str, int] = {}

    def control(self, name: str) -> str:
        """The topic `<prefix>.<name>` of one of CONTROL."""
        assert name in CONTROL
        return f"{self._prefix}.{name}"

    def of_space(self, space_id: int, name: str) -> str:
        """The topic of a space. Raises ConfigurationError if it is another's, or can't be one."""
        suffix = _FOREIGN.sub("_", name)
        topic = f"{self._prefix}.{suffix}"
        owner = self._space_by_topic.setdefault(topic, space_id)
        if suffix in CONTROL or owner != space_id:
            taken = "a control topic of this daemon" if suffix in CONTROL else f"the topic of space {owner}"
            raise ConfigurationError(
                f"space {name!r} ({space_id}) would share {topic!r}, {taken}",
                "Leave one of them out with spaces.exclude. Renaming it helps what is written from then on, and a log from "
                "before it is read under the old name.",
            )
        if len(topic) > _NAME_MAX:
            raise ConfigurationError(
                f"the topic of space {name!r} would have {len(topic)} characters, Kafka allows {_NAME_MAX}",
                "Choose a shorter kafka.topic_prefix, or leave the space out with spaces.exclude.",
            )
        return topic

    def release(self, space_id: int) -> None:
        """The space is gone or has another name: its topic is free for a space that takes its name."""
        for topic in [topic for topic, owner in self._space_by_topic.items() if owner == space_id]:
            del self._space_by_topic[topic]


class SpaceFilter:
    """Which spaces are published: names that match an `include` and no `exclude` pattern as a whole.

    Tarantool's own spaces (their names begin with `_`) must be named: only a pattern that begins with `_` reaches them.
    """

    def __init__(self, include: list[str], exclude: list[str]) -> None:
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]

    def __call__(self, space_id: int, name: str) -> bool:
        is_system = space_id <= SYSTEM_SPACE_MAX
        included = any(pattern.fullmatch(name) for pattern in self._include if not is_system or pattern.pattern.startswith("_"))
        return included and not any(pattern.fullmatch(name) for pattern in self._exclude)
