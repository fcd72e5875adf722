"""Queues of complete transactions that can't be handled yet: taken from the front, dropped from the back.

A queue begins in memory. Once the limit is reached, it continues on disk, and nothing of a transaction stays in memory: the file
has the facts about it before its frames. Transactions are kept as the frames in which they were received, so a transaction that
had to wait must be decoded again.

    memory   41  42     spool 1   [ head│frames  head│frames  … ]     spool 2   [ head│frames  …
             ▲ take                 each is deleted when the last one in it has been taken      ▲ put

All queues together keep to the limit, which also counts the memory of a transaction besides its frames. This module doesn't know
which transactions are put into a queue, and why.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from cdc.protocol.codec import FrameDecoder
from cdc.stream.transactions.assembler import rows_of
from cdc.stream.transactions.transaction import Chunks, Row, Spool, Transaction

SMALL_BYTES: Final = 256 * 1024
"""Maximum size, in bytes, of a transaction that is read from disk at once. A larger one is read in pieces of this size."""
SPOOL_BYTES: Final = 64 * 1024 * 1024
"""Size of a queue's file on disk, in bytes, from which the queue starts another file."""
ENTRY_BYTES: Final = 512
"""Memory of a waiting transaction besides its frames, in bytes."""

_HEAD: Final = struct.Struct(">BBQQdQQQQ")
_IS_SYNCHRONOUS, _IS_APART = 1, 2


class Entry(msgspec.Struct, gc=False):
    """Facts about a waiting transaction. Its frames are in `data`, or its queue knows where they are."""

    replica_id: int
    tsn: int
    lsn: int
    timestamp: float
    flags: int
    row_count: int
    byte_count: int
    received_us: int
    is_synchronous: bool
    data: bytes = b""
    spool: Chunks | None = None


class _File:
    """A spool with consecutive transactions of a queue, from the first that hasn't been taken to the last."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.start = self.stop = self.count = 0
        self.last_synchronous: int | None = None
        # Set after transactions were dropped from its end, and past SPOOL_BYTES: then nothing is added any more.
        self.is_full = False
        # Spools of the transactions that have been in a spool of their own from the beginning.
        self.apart: deque[Chunks] = deque()
        # Number of taken transactions whose frames are still read from here.
        self.reader_count = 0
        self._window = b""
        self._window_start = 0

    def append(self, entry: Entry, frames: bytes) -> None:
        marks = entry.is_synchronous * _IS_SYNCHRONOUS | (entry.spool is not None) * _IS_APART
        head = _HEAD.pack(
            entry.replica_id,
            marks,
            entry.tsn,
            entry.lsn,
            entry.timestamp,
            entry.flags,
            entry.row_count,
            entry.byte_count,
            entry.received_us,
        )
        self.spool.append(head + frames)
        if entry.spool is not None:
            self.apart.append(entry.spool)
        self.stop += len(head) + len(frames)
        self.count += 1
        if entry.is_synchronous:
            self.last_synchronous = entry.lsn

    def entry(self, at: int) -> tuple[Entry, int, int]:
        """Return the entry at an offset, and where its frames begin and end."""
        values = _HEAD.unpack(self._read(at, at + _HEAD.size))
        replica_id, marks, tsn, lsn, timestamp, flags, row_count, byte_count, received_us = values
        is_apart = bool(marks & _IS_APART)
        begin = at + _HEAD.size
        entry = Entry(replica_id, tsn, lsn, timestamp, flags, row_count, byte_count, received_us, bool(marks & _IS_SYNCHRONOUS))
        return entry, begin, begin if is_apart else begin + byte_count

    def frames(self, begin: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        return self._read(begin, end)

    def release(self) -> None:
        """Close the file if neither a transaction nor a reader of it is left."""
        if not self.count and not self.reader_count:
            self.close()

    def close(self) -> None:
        """Discard everything."""
        self.spool.close()
        for spool in self.apart:
            spool.close()
        self.apart.clear()

    def _read(self, begin: int, end: int) -> bytes:
        if begin < self._window_start or end > self._window_start + len(self._window):
            # Reading ahead must not include bytes that are still to be written.
            self._window = b"".join(self.spool.part(begin, max(end, min(self.stop, begin + SMALL_BYTES))))
            self._window_start = begin
        return self._window[begin - self._window_start : end - self._window_start]


class _Frames:
    """The frames of a large transaction that has been taken out of a file."""

    def __init__(self, file: _File, begin: int, end: int) -> None:
        self._file: _File | None = file
        self._begin = begin
        self._end = end
        file.reader_count += 1

    def chunks(self) -> Iterator[bytes]:
        """Return the frames, in pieces."""
        assert self._file is not None, "they are done with"
        return self._file.spool.part(self._begin, self._end)

    def close(self) -> None:
        """Release the frames."""
        file, self._file = self._file, None
        if file is not None:
            file.reader_count -= 1
            if file.is_full:
                file.release()


class TransactionQueue:
    """Queue of transactions in the order in which they were added."""

    def __init__(self, waiting: TransactionBuffer) -> None:
        self._waiting = waiting
        # Invariant: the transactions in memory come before those on disk.
        self._memory: deque[Entry] = deque()
        self._files: deque[_File] = deque()
        self._head: Entry | None = None
        self.count = 0
        self.row_count = 0

    def __bool__(self) -> bool:
        return self.count > 0

    def put(self, transaction: Transaction, *, is_synchronous: bool = False, received_us: int = 0) -> None:
        """Add a transaction, whose rows must have their frames. Raises the spool's errors if the disk is full."""
        spool = transaction.spool
        frames = b"" if spool is not None else b"".join([frame for _, _, _, frame in transaction.rows])
        entry = Entry(
            transaction.replica_id,
            transaction.tsn,
            transaction.lsn,
            transaction.timestamp,
            transaction.flags,
            transaction.row_count,
            transaction.byte_count if spool is not None else len(frames),
            received_us,
            is_synchronous,
            spool=spool,
        )
        if self._files or not self._waiting.has_room(len(frames)):
            self._file().append(entry, frames)
            self._waiting.disk_byte_count += _HEAD.size + entry.byte_count
        else:
            entry.data = frames
            self._memory.append(entry)
            self._waiting.count_memory(entry, 1)
        self.count += 1
        self.row_count += entry.row_count

    @property
    def head(self) -> Entry | None:
        """The first transaction, or None."""
        if self._memory:
            return self._memory[0]
        if self._head is None and self._files:
            self._head, _, _ = self._files[0].entry(self._files[0].start)
        return self._head

    def take(self) -> Transaction:
        """Remove and return the first transaction. If it is large, it has a spool, which the caller must close."""
        self.count -= 1
        if self._memory:
            entry = self._memory.popleft()
            self._waiting.count_memory(entry, -1)
        else:
            entry = self._take_from_disk()
        self.row_count -= entry.row_count
        rows = rows_of(self._waiting.decoder.feed(entry.data)) if entry.spool is None else []
        return Transaction(
            entry.replica_id,
            entry.tsn,
            entry.lsn,
            entry.timestamp,
            entry.flags,
            rows,
            entry.spool,
            entry.row_count,
            entry.byte_count,
        )

    def entries(self, bytes_max: int) -> list[Entry]:
        """Return all transactions if they are in memory, in at most `bytes_max` bytes together with other queues'; otherwise
        none."""
        # The caller asks again and again, so a long queue must not be looked through: its sum is known.
        if self._files or self._waiting.memory_byte_count - ENTRY_BYTES * self.count > bytes_max:
            return []
        return list(self._memory) if all(entry.spool is None for entry in self._memory) else []

    def drop_from(self, lsn: int) -> int | None:
        """Drop the first synchronous transaction at or past `lsn` and all after it; return its lsn, or None if there is none."""
        for place, entry in enumerate(self._memory):
            if entry.is_synchronous and entry.lsn >= lsn:
                while len(self._memory) > place:
                    self._forget(self._memory.pop())
                self._drop_files(0)
                return entry.lsn
        for place, file in enumerate(self._files):
            if file.last_synchronous is not None and file.last_synchronous >= lsn:
                found = self._cut(file, lsn)
                if found is not None:
                    self._drop_files(place if not file.count else place + 1)
                    return found
        return None

    def close(self) -> None:
        """Discard all transactions."""
        while self._memory:
            self._forget(self._memory.pop())
        self._drop_files(0)

    def _file(self) -> _File:
        """Return the file for the next transaction on disk."""
        last = self._files[-1] if self._files else None
        if last is None or last.is_full or last.stop >= SPOOL_BYTES:
            if last is not None:
                last.is_full = True
            last = _File(self._waiting.new_spool())
            self._files.append(last)
        return last

    def _take_from_disk(self) -> Entry:
        file = self._files[0]
        entry, begin, end = file.entry(file.start)
        self._head = None
        self._waiting.disk_byte_count -= _HEAD.size + entry.byte_count
        file.start = end
        file.count -= 1
        if end == begin and entry.byte_count:
            entry.spool = file.apart.popleft()
        elif entry.byte_count <= SMALL_BYTES:
            entry.data = file.frames(begin, end)
        else:
            entry.spool = _Frames(file, begin, end)
        if not file.count:
            # Nothing is added after taken transactions, so that the file's space is freed.
            file.is_full = True
            self._files.popleft()
            file.release()
        return entry

    def _cut(self, file: _File, lsn: int) -> int | None:
        """Apply `drop_from` to one file; return the first dropped lsn, None if all such transactions were taken already."""
        at, cut_at, first, last_synchronous = file.start, file.stop, None, None
        kept, apart = 0, 0
        while at < file.stop:
            entry, begin, end = file.entry(at)
            if first is None and entry.is_synchronous and entry.lsn >= lsn:
                first, cut_at = entry.lsn, at
            if first is not None:
                self._discount(entry)
            else:
                kept += 1
                apart += end == begin
                last_synchronous = entry.lsn if entry.is_synchronous else last_synchronous
            at = end
        file.last_synchronous = last_synchronous
        if first is None:
            return None
        while len(file.apart) > apart:
            file.apart.pop().close()
        file.stop, file.count, file.is_full = cut_at, kept, True
        return first

    def _drop_files(self, kept: int) -> None:
        while len(self._files) > kept:
            file = self._files.pop()
            at = file.start
            while at < file.stop:
                entry, _, at = file.entry(at)
                self._discount(entry)
            file.close()
        if not self._files:
            self._head = None

    def _discount(self, entry: Entry) -> None:
        self._waiting.disk_byte_count -= _HEAD.size + entry.byte_count
        self.count -= 1
        self.row_count -= entry.row_count

    def _forget(self, entry: Entry) -> None:
        self._waiting.count_memory(entry, -1)
        self.count -= 1
        self.row_count -= entry.row_count
        if entry.spool is not None:
            entry.spool.close()


class TransactionBuffer:
    """The limit that queues share, and the number of bytes that they hold."""

    def __init__(self, memory_bytes_max: int, new_spool: Callable[[], Spool]) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._queues: list[TransactionQueue] = []
        self.new_spool = new_spool
        self.decoder = FrameDecoder()
        # Invariant: the sums over all queues of the bytes in memory and on disk.
        self.memory_byte_count = 0
        self.disk_byte_count = 0

    def new_queue(self) -> TransactionQueue:
        """Return a new queue."""
        queue = TransactionQueue(self)
        self._queues.append(queue)
        return queue

    def drop(self, queue: TransactionQueue) -> None:
        """Close a queue that isn't needed any more."""
        queue.close()
        self._queues.remove(queue)

    def has_room(self, byte_count: int) -> bool:
        """Return whether a transaction of this size may wait in memory."""
        return self.memory_byte_count + ENTRY_BYTES + byte_count <= self._memory_bytes_max

    def count_memory(self, entry: Entry, sign: int) -> None:
        """Count an entry that was added to memory (`sign` is 1) or removed from it (-1), and its spool's bytes on disk."""
        self.memory_byte_count += sign * (ENTRY_BYTES + len(entry.data))
        if entry.spool is not None:
            self.disk_byte_count += sign * entry.byte_count

    def rows_in_pieces(self, chunks: Chunks) -> Iterator[list[Row]]:
        """Yield the rows of a transaction on disk, to be examined."""
        for chunk in chunks.chunks():
            yield rows_of(self.decoder.feed(chunk))

    def close(self) -> None:
        """Discard all transactions."""
        for queue in self._queues:
            queue.close()
        self._queues.clear()
