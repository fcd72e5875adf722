"""Whole transactions that can't be handled yet: their bytes, in memory up to a bound and on disk past it.

Kept as the frames they came in, a waiting transaction costs what it cost on the wire, and decoding it again is the price of
having had to wait. Past the bound, transactions share spools of a bounded size (`segments`), so that ten thousand small ones
don't cost ten thousand files; a segment is given back when the last transaction in it is done with.

    segment 1   [ 41 │ 42 │ 45 ]   segment 2   [ 46 │ 47 …
                  ✓    ✓   waits                 waits

In which order they are taken out again is nobody's business here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cdc.assembler import rows_of
from cdc.change import Chunks, Row, Spool, Transaction
from cdc.protocol.codec import FrameDecoder

SMALL_BYTES: Final = 256 * 1024
"""A transaction up to this size is read from disk whole, a larger one in pieces."""


class Held(msgspec.Struct, gc=False):
    """One transaction that waits. Either `data` has its frames, or `chunks` gives them."""

    replica_id: int
    tsn: int
    lsn: int
    timestamp: float
    flags: int
    row_count: int
    byte_count: int
    data: bytes
    chunks: Chunks | None


class _Segment:
    """A spool that several transactions share."""

    __slots__ = ("byte_count", "is_full", "part_count", "spool")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.byte_count = 0
        self.part_count = 0
        self.is_full = False

    def release(self) -> None:
        """One part is done with."""
        self.part_count -= 1
        if self.is_full and not self.part_count:
            self.spool.close()


class _Part:
    """One transaction's bytes in a segment."""

    __slots__ = ("_segment", "_start", "_stop")

    def __init__(self, segment: _Segment, data: bytes) -> None:
        self._segment = segment
        self._start = segment.byte_count
        segment.spool.append(data)
        segment.byte_count = self._stop = self._start + len(data)
        segment.part_count += 1

    def chunks(self) -> Iterator[bytes]:
        """The bytes again."""
        return self._segment.spool.part(self._start, self._stop)

    def close(self) -> None:
        """Forget the bytes."""
        self._segment.release()


class Waiting:
    """Keeps transactions; says how many bytes it holds."""

    def __init__(self, memory_bytes_max: int, new_spool: Callable[[], Spool]) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._new_spool = new_spool
        self._segment: _Segment | None = None
        # Every part or spool that is held, so that `close` leaves none.
        self._on_disk: dict[int, Chunks] = {}
        self._decoder = FrameDecoder()
        # Invariant: the sums of what is held in memory and on disk.
        self.memory_byte_count = 0
        self.disk_byte_count = 0

    def put(self, transaction: Transaction) -> Held:
        """Keep a transaction, whose rows must have their frames. Raises what a spool raises if the disk is full."""
        chunks, data = transaction.spool, b""
        byte_count = transaction.byte_count
        if chunks is None:
            data = b"".join([frame for _, _, _, frame in transaction.rows])
            byte_count = len(data)
            if self.memory_byte_count + byte_count > self._memory_bytes_max:
                chunks, data = self._to_disk(data), b""
        held = Held(
            transaction.replica_id,
            transaction.tsn,
            transaction.lsn,
            transaction.timestamp,
            transaction.flags,
            transaction.row_count,
            byte_count,
            data,
            chunks,
        )
        if chunks is None:
            self.memory_byte_count += byte_count
        else:
            self.disk_byte_count += byte_count
            self._on_disk[id(held)] = chunks
        return held

    def take(self, held: Held) -> Transaction:
        """The transaction again; it isn't kept any longer. A large one has a spool, which its taker closes."""
        data, chunks = held.data, held.chunks
        if chunks is None:
            self.memory_byte_count -= held.byte_count
        else:
            self._forget(held)
            if held.byte_count <= SMALL_BYTES:
                data = b"".join(chunks.chunks())
                chunks.close()
                chunks = None
        rows = rows_of(self._decoder.feed(data)) if chunks is None else []
        return Transaction(
            held.replica_id, held.tsn, held.lsn, held.timestamp, held.flags, rows, chunks, held.row_count, held.byte_count
        )

    def rows_in_pieces(self, chunks: Chunks) -> Iterator[list[Row]]:
        """The rows of a transaction that is on disk, to be looked at."""
        for chunk in chunks.chunks():
            yield rows_of(self._decoder.feed(chunk))

    def drop(self, held: Held) -> None:
        """The transaction is not wanted again."""
        if held.chunks is None:
            self.memory_byte_count -= held.byte_count
        else:
            self._forget(held)
            held.chunks.close()

    def close(self) -> None:
        """Forget everything."""
        for chunks in self._on_disk.values():
            chunks.close()
        self._on_disk.clear()
        if self._segment is not None:
            self._segment.spool.close()
            self._segment = None
        self.memory_byte_count = self.disk_byte_count = 0

    def _forget(self, held: Held) -> None:
        self.disk_byte_count -= held.byte_count
        del self._on_disk[id(held)]

    def _to_disk(self, data: bytes) -> Chunks:
        segment = self._segment
        if segment is not None and (segment.byte_count >= self._memory_bytes_max or not segment.part_count):
            # Full, or all that was in it is done with: either way its space comes back when nothing is left in it.
            segment.is_full = True
            if not segment.part_count:
                segment.spool.close()
            segment = None
        if segment is None:
            segment = self._segment = _Segment(self._new_spool())
        return _Part(segment, data)
