"""What flows: rows, the transactions they make up, and the messages that come of them.

Rows and messages are plain tuples on purpose: hundreds of thousands of them pass every second, and each is made once,
taken apart once and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from cdc.position import Position
from cdc.protocol.codec import Body
from cdc.schema import StoredSpace

Row = tuple[int, int, Body, bytes]
"""Request type, lsn, body, and the frame in which they came."""

Message = tuple[str, bytes | None, bytes | None]
"""Topic, key, value. A value of None is a tombstone."""


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """A message for every partition of its topic: a truncation has no key, and concerns them all."""

    topic: str
    value: bytes


class Chunks(Protocol):
    """Bytes that wait outside of memory."""

    def chunks(self) -> Iterator[bytes]:
        """All bytes again, in pieces."""

    def close(self) -> None:
        """Forget the bytes."""


class Spool(Chunks, Protocol):
    """Where bytes go that are too many to be held in memory."""

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""

    def part(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from offset `start` up to `stop` again, in pieces."""


class Transaction(msgspec.Struct, gc=False):
    """One whole transaction of the source.

    `tsn` is the lsn of its first row and, with `replica_id`, its identity; `lsn` is that of its last row. A transaction
    that was too large for memory has its rows, `byte_count` of bytes, in `spool`, and `rows` is empty.
    """

    replica_id: int
    tsn: int
    lsn: int
    timestamp: float
    flags: int
    rows: list[Row]
    spool: Chunks | None = None
    row_count: int = 0
    byte_count: int = 0


class Batch(msgspec.Struct, gc=False):
    """What a publisher is given: messages in order, and the position that they lead to.

    `is_boundary` says that the batch ends where a source transaction ends, so that `position` may be committed with it;
    only the pieces of a spooled transaction but the last don't. `stored` are the checkpoint's schema records to write along
    (None for a space that is gone), `topics` those that messages of this batch are the first to need. `timestamp` is when
    the master wrote the batch's last row, in seconds since the epoch, 0 if it has none. `changes` are for the store of images;
    a batch that is replayed has nothing else, since Kafka has its events already. `is_pause` says that nothing has come yet, but
    work is being done: whoever takes batches may look after its connections, and asks for the next.
    """

    messages: list[Message | Broadcast]
    byte_count: int
    event_count: int
    row_count: int
    position: Position
    is_boundary: bool
    stored: dict[int, StoredSpace | None]
    topics: list[str]
    timestamp: float
    changes: list[tuple[bytes, bytes | None]] = []
    is_replayed: bool = False
    has_broadcast: bool = False
    is_pause: bool = False

    @classmethod
    def pause(cls, position: Position) -> Batch:
        """Nothing, in the middle of work that takes long."""
        return cls([], 0, 0, 0, position, False, {}, [], 0.0, is_pause=True)
