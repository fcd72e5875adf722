"""Rows, the transactions that they form, and the storage of their bytes.

Rows and messages are plain tuples on purpose: hundreds of thousands of them pass every second, and each is made once, unpacked
once and discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from cdc.protocol.codec import Body

Row = tuple[int, int, Body, bytes]
"""Request type, lsn, body, and the frame in which the row was received."""


class Chunks(Protocol):
    """Bytes kept outside of memory."""

    def chunks(self) -> Iterator[bytes]:
        """Return all bytes again, in pieces."""

    def close(self) -> None:
        """Discard the bytes."""


class Spool(Chunks, Protocol):
    """Storage for bytes that are too many for memory."""

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""

    def part(self, start: int, stop: int) -> Iterator[bytes]:
        """Return the bytes from offset `start` up to `stop` again, in pieces."""


class Transaction(msgspec.Struct, gc=False):
    """One complete transaction of the source.

    `tsn` is the lsn of its first row, and identifies it together with `replica_id`; `lsn` is the lsn of its last row. If it was
    too large for memory, `spool` has its rows, in `byte_count` bytes, and `rows` is empty.
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
