"""The batch that is being filled: messages in order, what must be known of them, and the `seq` that they carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Union

import msgspec

from cdc.events.topics import TopicNames
from cdc.images.pending import Changes, no_changes
from cdc.positions.position import Position
from cdc.schema.forms import StoredSpace

if TYPE_CHECKING:
    from cdc.native import CompiledMessages

Forms = dict[int, StoredSpace | None]
"""Of spaces by id, what the checkpoint says of them from now on; None for one that is gone."""


class Mark(NamedTuple):
    """A place in what is being collected."""

    part_count: int
    byte_count: int
    row_count: int
    seq: int
    timestamp: float


class BatchBuilder:
    """Collects until `take`. The hot loops add to `parts` themselves, and then bring the counters up to date."""

    __slots__ = (
        "_announced",
        "_has_broadcast",
        "_names",
        "_taken_seq",
        "_topics",
        "byte_count",
        "bytes_max",
        "parts",
        "row_count",
        "seq",
        "stored",
        "timestamp",
    )

    def __init__(self, names: TopicNames, seq: int, bytes_max: int) -> None:
        """Past `bytes_max` of values it is full, and to be taken soon."""
        self._names = names
        self.bytes_max = bytes_max
        self._announced: set[str] = set()
        self._topics: list[str] = []
        self._has_broadcast = False
        self.parts: list[Part] = []
        self.byte_count = 0
        self.row_count = 0
        self.timestamp = 0.0
        self.stored: Forms = {}
        # The last one given out: it goes on over batches. Every event has one of its own, so they count the events too.
        self.seq = seq
        self._taken_seq = seq

    @property
    def is_full(self) -> bool:
        """Whether it holds as much as a batch should."""
        return self.byte_count > self.bytes_max

    def announce(self, topic: str) -> None:
        """A topic is about to be written to; the publisher makes sure once that it is there."""
        if topic not in self._announced:
            self._announced.add(topic)
            self._topics.append(topic)

    def control(self, name: str, key: bytes, value: bytes) -> None:
        """Add a record for one of the control topics."""
        topic = self._names.control(name)
        self.announce(topic)
        self.parts.append((topic, key, value))
        self.byte_count += len(value)

    def broadcast(self, topic: str, value: bytes) -> None:
        """Add an event for every partition of a space's topic."""
        self.announce(topic)
        self._has_broadcast = True
        self.parts.append(Broadcast(topic, value))
        self.byte_count += len(value)

    def forget_messages(self) -> None:
        """Forget the messages, which are out already, and nothing else."""
        self.parts = []
        self.byte_count = 0

    def discard(self, position: Position, changes: Changes) -> Batch:
        """Forget what has been collected but for the topics, which will be needed: the batch of what was replayed."""
        batch = Batch([], 0, 0, self.row_count, position, True, self.stored, [], self.timestamp, changes, True)
        self.parts, self.stored = [], {}
        self.byte_count = self.row_count = 0
        self._has_broadcast = False
        return batch

    def restart(self, seq: int) -> None:
        """Go on after this `seq`, as if all before had been taken."""
        self.seq = self._taken_seq = seq

    def take(self, position: Position, *, is_boundary: bool) -> Batch:
        """What has been collected since the last call."""
        batch = Batch(
            self.parts,
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
        self.parts, self.stored, self._topics = [], {}, []
        self.byte_count = self.row_count = 0
        self._taken_seq = self.seq
        return batch

    @property
    def mark(self) -> Mark:
        """How far it is filled."""
        return Mark(len(self.parts), self.byte_count, self.row_count, self.seq, self.timestamp)

    def back_to(self, mark: Mark) -> None:
        """Forget the messages behind a mark."""
        del self.parts[mark.part_count :]
        self.byte_count, self.row_count, self.seq, self.timestamp = mark[1:]

    def take_before(self, mark: Mark, position: Position) -> Batch:
        """What had been collected when the mark was set, and led to `position`; nothing may be `stored` yet by then.

        The topics of what came later go with it: they are made a little too early.
        """
        event_count = mark.seq - self._taken_seq
        parts, self.parts = self.parts[: mark.part_count], self.parts[mark.part_count :]
        self.byte_count -= mark.byte_count
        self.row_count -= mark.row_count
        self._taken_seq = mark.seq
        topics, self._topics = self._topics, []
        return Batch(
            parts,
            mark.byte_count,
            event_count,
            mark.row_count,
            position,
            True,
            {},
            topics,
            mark.timestamp,
            has_broadcast=self._has_broadcast,
        )


Message = tuple[str, bytes | None, bytes | None]
"""Topic, key, value. A value of None is a tombstone."""


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """A message for every partition of its topic: a truncation has no key, and concerns them all."""

    topic: str
    value: bytes


Part = Union[Message, Broadcast, "CompiledMessages"]
"""What a batch is made of: a message, or what the compiled path has made of many rows, which needs no message of Python's."""


class Batch(msgspec.Struct, gc=False):
    """What a publisher is given: messages in order, in parts, and the position that they lead to.

    `is_boundary` says that the batch ends where a source transaction ends, so that `position` may be committed with it;
    only the pieces of a spooled transaction but the last don't. `stored` are the checkpoint's schema records to write along
    (None for a space that is gone), `topics` those that messages of this batch are the first to need. `timestamp` is when
    the master wrote the batch's last row, in seconds since the epoch, 0 if it has none. `changes` are for the store of images;
    a batch that is replayed has nothing else, since Kafka has its events already. `is_pause` says that nothing has come yet, but
    work is being done: whoever takes batches may look after its connections, and asks for the next. `numbers` are what keys in
    the store begin with at `position` (Images.numbers), None without images.
    """

    parts: list[Part]
    byte_count: int
    event_count: int
    row_count: int
    position: Position
    is_boundary: bool
    stored: Forms
    topics: list[str]
    timestamp: float
    changes: Changes = msgspec.field(default_factory=no_changes)
    is_catch_up: bool = False
    has_broadcast: bool = False
    is_pause: bool = False
    numbers: Mapping[int, int] | None = None

    @classmethod
    def pause(cls, position: Position) -> Batch:
        """Nothing, in the middle of work that takes long."""
        return cls([], 0, 0, 0, position, False, {}, [], 0.0, is_pause=True)

    def each(self) -> Iterator[Message | Broadcast]:
        """The messages, one by one."""
        for part in self.parts:
            if isinstance(part, tuple | Broadcast):
                yield part
            else:
                yield from part

    @property
    def messages(self) -> list[Message | Broadcast]:
        """All messages."""
        return list(self.each())

    def begins_anew(self, topic: str) -> bool:
        """Whether a truncation is the first of what it has for a topic: what was there before is no matter to consumers then."""
        first = next((each for each in self.each() if (each.topic if isinstance(each, Broadcast) else each[0]) == topic), None)
        return isinstance(first, Broadcast)
