"""What flows: rows, the transactions they make up, and the messages that come of them.

Rows and messages are plain tuples on purpose: hundreds of thousands of them pass every second, and each is made once,
taken apart once and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from cdc.protocol.codec import Body

Row = tuple[int, int, Body, bytes]
"""Request type, lsn, body, and the frame in which they came."""


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
