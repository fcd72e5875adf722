"""The batch that is being filled: its messages in order, the facts that go with them, and the `seq` of each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Union

import msgspec

from cdc.events.topics import TopicNames
from cdc.images.pending import Changes, no_changes
from cdc.positions.position import Position
from cdc.schema.forms import StoredSpace
from cdc.stream.batches.covered import Covered

if TYPE_CHECKING:
    from cdc.native import CompiledMessages

Forms = dict[int, StoredSpace | None]
"""What the checkpoint records of spaces from now on, by space id; None for a space that is gone."""


class Mark(NamedTuple):
    """A place in a batch that is being filled."""

    part_count: int
    byte_count: int
    row_count: int
    seq: int
    timestamp: float


class BatchBuilder:
    """Collector of messages until `take`. The hot loops append to `parts` themselves, and then update the counters."""

    __slots__ = (
        "_announced",
        "_has_broadcast",
        "_taken_seq",
        "_topics",
        "byte_count",
        "bytes_max",
        "covered",
        "names",
        "native_row_count",
        "parts",
        "row_count",
        "seq",
        "stored",
        "timestamp",
    )

    def __init__(self, names: TopicNames, seq: int, bytes_max: int) -> None:
        """Once its values exceed `bytes_max`, the batch is full and should be taken soon."""
        self.names = names
        self.bytes_max = bytes_max
        self._announced: set[str] = set()
        self._topics: list[str] = []
        self._has_broadcast = False
        self.parts: list[Part] = []
        self.byte_count = 0
        self.row_count = 0
        self.native_row_count = 0
        self.timestamp = 0.0
        self.stored: Forms = {}
        self.covered: list[Covered] = []
        # The last seq that was assigned; it continues over batches. Every event has its own seq, so seqs also count the events.
        self.seq = seq
        self._taken_seq = seq

    @property
    def is_full(self) -> bool:
        """Whether the batch has exceeded `bytes_max`."""
        return self.byte_count > self.bytes_max

    def announce(self, topic: str) -> None:
        """Add a topic that is about to be written to. The publisher ensures once that the topic exists."""
        if topic not in self._announced:
            self._announced.add(topic)
            self._topics.append(topic)

    def control(self, name: str, key: bytes, value: bytes) -> None:
        """Add a record for one of the control topics."""
        topic = self.names.control(name)
        self.announce(topic)
        self.parts.append((topic, key, value))
        self.byte_count += len(value)

    def broadcast(self, topic: str, value: bytes, headers: Headers | None = None) -> None:
        """Add an event for every partition of a space's topic."""
        self.announce(topic)
        self._has_broadcast = True
        self.parts.append(Broadcast(topic, value, headers))
        self.byte_count += len(value)

    def forget_messages(self) -> None:
        """Discard the messages, which are already published, and keep everything else."""
        self.parts = []
        self.byte_count = 0

    def forget_topics(self) -> None:
        """Discard the topics of messages that are already published: spaces may have others now."""
        self._announced.clear()
        self._topics = []

    def take_catch_up(self, position: Position, changes: Changes) -> Batch:
        """Return the batch of a catch-up, without messages."""
        batch = Batch(
            [],
            0,
            0,
            self.row_count,
            position,
            True,
            self.stored,
            [],
            self.timestamp,
            changes,
            True,
            native_row_count=self.native_row_count,
        )
        self.parts, self.stored = [], {}
        self.byte_count = self.row_count = self.native_row_count = 0
        self._has_broadcast = False
        return batch

    def restart(self, seq: int) -> None:
        """Continue after this `seq`, as if everything before had been taken."""
        self.seq = self._taken_seq = seq

    def take(self, position: Position, *, is_boundary: bool) -> Batch:
        """Return everything that was collected since the last call, as a batch."""
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
            native_row_count=self.native_row_count,
            covered=self.covered,
        )
        self._has_broadcast = False
        self.parts, self.stored, self._topics, self.covered = [], {}, [], []
        self.byte_count = self.row_count = self.native_row_count = 0
        self._taken_seq = self.seq
        return batch

    @property
    def mark(self) -> Mark:
        """The current place in the batch."""
        return Mark(len(self.parts), self.byte_count, self.row_count, self.seq, self.timestamp)

    def back_to(self, mark: Mark) -> None:
        """Discard the messages after a mark."""
        del self.parts[mark.part_count :]
        self.byte_count, self.row_count, self.seq, self.timestamp = mark[1:]

    def take_before(self, mark: Mark, position: Position) -> Batch:
        """Return the batch that had been collected when `mark` was set, and that ends at `position`.

        `stored` must have been empty at that time. The batch also has the topics of the later messages: they are created a little
        too early.
        """
        event_count = mark.seq - self._taken_seq
        parts, self.parts = self.parts[: mark.part_count], self.parts[mark.part_count :]
        self.byte_count -= mark.byte_count
        self.row_count -= mark.row_count
        self._taken_seq = mark.seq
        topics, self._topics = self._topics, []
        # The rows after the mark are one transaction's, which is in the Python path.
        native_row_count, self.native_row_count = self.native_row_count, 0
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
            native_row_count=native_row_count,
        )


Message = tuple[str, bytes | None, bytes | None]
"""Topic, key, value. A value of None is a tombstone."""


Headers = list[tuple[str, bytes]]
"""Headers of a message: names and values."""


class Broadcast(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message for every partition of its topic: a truncation has no key, and concerns all partitions."""

    topic: str
    value: bytes
    headers: Headers | None = None


class Addressed(msgspec.Struct, frozen=True, gc=False):
    """A message with headers, or one whose partition another text than the key decides (`place`).

    As a part of a batch it can be read as the compiled path's output can, here with one message.
    """

    topic: str
    key: bytes
    value: bytes | None
    place: bytes | None = None
    headers: Headers | None = None

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> Message:
        return self.topic, self.key, self.value

    def __iter__(self) -> Iterator[Message]:
        yield self.topic, self.key, self.value

    def topics(self) -> list[str]:
        """Return the topics of the messages."""
        return [self.topic]


Part = Union[Message, Broadcast, Addressed, "CompiledMessages"]
"""Part of a batch: one message, or the compiled path's output for many rows, which needs no Python object per message."""


class Batch(msgspec.Struct, gc=False):
    """Input of a publisher: messages in order, in parts, and the position that they lead to.

    - `is_boundary`: the batch ends at the end of a source transaction, so `position` may be committed with it. False only for
      a large transaction's pieces before the last one, and for a pause.
    - `stored`: schema records to write to the checkpoint with it, None for a space that is gone.
    - `topics`: topics that messages of this batch are the first to need.
    - `timestamp`: when the master wrote the batch's last row, in seconds since the epoch; 0 if the batch has none.
    - `changes`: changes for the state store. The catch-up's batches (`is_catch_up`) have nothing else: Kafka has the events.
    - `has_broadcast`: a `Broadcast` may be among its parts.
    - `is_pause`: the batch is empty, because longer work is under way. The caller may attend to its connections, and then asks
      for the next batch.
    - `native_row_count`: how many of the rows the compiled path handled.
    - `covered`: what makes up for topics that were deleted, once the batch is committed.
    - `numbers`: the numbers that prefix the state store's keys at `position` (Images.numbers); None without images.
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
    native_row_count: int = 0
    covered: Sequence[Covered] = ()
    numbers: Mapping[int, int] | None = None

    @classmethod
    def pause(cls, position: Position) -> Batch:
        """Return an empty batch, which lets the caller do other things during long work."""
        return cls([], 0, 0, 0, position, False, {}, [], 0.0, is_pause=True)

    def each(self) -> Iterator[Message | Broadcast]:
        """Yield the messages one by one."""
        for part in self.parts:
            if isinstance(part, tuple | Broadcast):
                yield part
            else:
                yield from part

    @property
    def messages(self) -> list[Message | Broadcast]:
        """All messages of the batch."""
        return list(self.each())

    def begins_with_truncation(self, topic: str) -> bool:
        """Return whether the batch's first message for a topic is a truncation: then consumers don't need earlier messages."""
        first = next((each for each in self.each() if (each.topic if isinstance(each, Broadcast) else each[0]) == topic), None)
        return isinstance(first, Broadcast)
