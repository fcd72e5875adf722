"""A small database and a daemon's core behind it: what the tests of events begin with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from cdc.stream.batches.batch import Broadcast, Message
from tests.fakes.master import Master
from tests.fakes.replica import Replica

USERS: Final[list[Any]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string", "is_nullable": True},
    {"name": "balance", "type": "number", "is_nullable": True},
]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message, read by a JSON parser. `is_broadcast` is for every partition."""

    topic: str
    key: Any
    value: Any
    is_broadcast: bool = False

    @property
    def op(self) -> str | None:
        """Of an event; None for a tombstone or a control record."""
        return self.value.get("op") if isinstance(self.value, dict) else None

    @property
    def source(self) -> dict[str, Any]:
        """Of an event."""
        source: dict[str, Any] = self.value["source"]
        return source


def read(message: Message | Broadcast) -> Sent:
    """One message as a consumer sees it."""
    if isinstance(message, Broadcast):
        return Sent(message.topic, None, json.loads(message.value), is_broadcast=True)
    topic, key, value = message
    return Sent(topic, None if key is None else json.loads(key), None if value is None else json.loads(value))


class Shop:
    """A master with the space `users` of two rows, and a replica that follows it."""

    def __init__(self, version: str = "2.11", **options: Any) -> None:
        self.master = Master(version)
        self.master.create_space("users", USERS)
        self.master.insert("users", 1, "one", 10)
        self.master.insert("users", 2, "two", 20)
        self.replica = Replica(self.master, **options)
        self.replica.connect()
        self.snapshot = self.news()

    def news(self) -> list[Sent]:
        """What was published since the last call."""
        return [read(message) for message in self.replica.news()]

    def follow(self) -> list[Sent]:
        """Have the replica take, publish and commit all that the master has; what came out."""
        self.replica.relay.relay()
        self.replica.receive()
        self.replica.commit()
        return self.news()

    def events(self) -> list[Sent]:
        """The events among it."""
        return [sent for sent in self.follow() if sent.op is not None]

    def event(self) -> Sent:
        """The only one."""
        (event,) = self.events()
        return event
