"""The batch that is being filled: messages in order, what must be known of them, and the `seq` that they carry."""

from __future__ import annotations

from cdc.change import Batch, Broadcast, Message
from cdc.position import Position
from cdc.schema import StoredSpace
from cdc.topics import TopicNames


class Outbox:
    """Collects until `take`. The hot loops add to `messages` themselves, and then bring the counters up to date."""

    __slots__ = (
        "_announced",
        "_has_broadcast",
        "_names",
        "_taken_seq",
        "_topics",
        "byte_count",
        "messages",
        "row_count",
        "seq",
        "stored",
        "timestamp",
    )

    def __init__(self, names: TopicNames, seq: int) -> None:
        self._names = names
        self._announced: set[str] = set()
        self._topics: list[str] = []
        self._has_broadcast = False
        self.messages: list[Message | Broadcast] = []
        self.byte_count = 0
        self.row_count = 0
        self.timestamp = 0.0
        self.stored: dict[int, StoredSpace | None] = {}
        # The last one given out: it goes on over batches. Every event has one of its own, so they count the events too.
        self.seq = seq
        self._taken_seq = seq

    def announce(self, topic: str) -> None:
        """A topic is about to be written to; the publisher makes sure once that it is there."""
        if topic not in self._announced:
            self._announced.add(topic)
            self._topics.append(topic)

    def control(self, name: str, key: bytes, value: bytes) -> None:
        """Add a record for one of the control topics."""
        topic = self._names.control(name)
        self.announce(topic)
        self.messages.append((topic, key, value))
        self.byte_count += len(value)

    def broadcast(self, topic: str, value: bytes) -> None:
        """Add an event for every partition of a space's topic."""
        self.announce(topic)
        self._has_broadcast = True
        self.messages.append(Broadcast(topic, value))
        self.byte_count += len(value)

    def announce_again(self, topics: list[str]) -> None:
        """Topics that were taken, but not used."""
        self._topics += topics

    def discard(self, position: Position, changes: list[tuple[bytes, bytes | None]]) -> Batch:
        """Forget what has been collected but for the topics, which will be needed: the batch of what was replayed."""
        batch = Batch([], 0, 0, self.row_count, position, True, self.stored, [], self.timestamp, changes, True)
        self.messages, self.stored = [], {}
        self.byte_count = self.row_count = 0
        self._has_broadcast = False
        return batch

    def restart(self, seq: int) -> None:
        """Go on after this `seq`, as if all before had been taken."""
        self.seq = self._taken_seq = seq

    def take(self, position: Position, *, is_boundary: bool) -> Batch:
        """What has been collected since the last call."""
        batch = Batch(
            self.messages,
            self.byte_count,
            self.seq - self._taken_seq,
            self.row_count,
            position,
            is_boundary,
            self.stored,
            self._topics,
            self.timestamp,
            has_broadcast=self._has_broadcast,
        )
        self._has_broadcast = False
        self.messages, self.stored, self._topics = [], {}, []
        self.byte_count = self.row_count = 0
        self._taken_seq = self.seq
        return batch
