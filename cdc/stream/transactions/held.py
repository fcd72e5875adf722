"""Waiting transactions in the frames in which they came, which the compiled path runs once they are confirmed.

The limbo's queues (cdc.stream.transactions.limbo) hold transactions that Python has read. Here they stay unread, in order, as
parts of what was received, and a CONFIRM releases many of them by one look into the list of their lsns:

    parts      45 sync  46 async  47 sync ║ 48 CONFIRM 45  49 sync ║ …
               └──── certain ───┘ │ still held
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate, groupby
from typing import Final

from cdc import native
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.stream.transactions.transaction_buffer import Entry

BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of all that is held, in bytes. More waits in the limbo's queues, which may be on disk."""
_PART_BYTES: Final = 1024
_ROW_BYTES: Final = 128
"""Approximate memory of a part, and of one of its rows, besides the frames."""

_new_arrivals: Final[type[native.Arrivals] | None] = native.choose("Arrivals", None)


class Part:
    """Some of what waits; the rows before `at` are done."""

    __slots__ = ("arrivals", "at", "frames", "received_us", "row_count", "transaction_count")

    def __init__(self, frames: CompiledFrames, arrivals: native.Arrivals, received_us: int) -> None:
        self.frames = frames
        self.arrivals = arrivals
        self.received_us = received_us
        self.at = 0
        self.transaction_count, self.row_count = frames.rows.waiting_counts(0)

    @property
    def byte_count(self) -> int:
        """Approximate memory in bytes."""
        return len(self.frames.data) + len(self.frames) * _ROW_BYTES + _PART_BYTES


class Held:
    """What one origin has waiting, while nothing waits in the limbo's queues. The first transaction is a synchronous one."""

    def __init__(self) -> None:
        self.origin = 0
        self.received_lsn = 0
        """Lsn of the last row that was received."""
        self.waiting_lsn = 0
        """Lsn of the last synchronous transaction, 0 if nothing is held."""
        self.byte_count = 0
        self.transaction_count = 0
        self.row_count = 0
        self._parts: deque[Part] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def head(self) -> Part:
        """The first part."""
        return self._parts[0]

    def put(self, frames: CompiledFrames, arrivals: native.Arrivals, received_us: int) -> None:
        """Hold these arrivals, which are `frames`."""
        last = len(frames) - 1
        self.origin, self.received_lsn = frames.rows.origin(last), frames.rows.lsn(last)
        self.waiting_lsn = arrivals.last_lsn or self.waiting_lsn
        part = Part(frames, arrivals, received_us)
        self._parts.append(part)
        self._count(part, 1)

    def put_entries(self, entries: list[Entry], received_lsn: int) -> bool:
        """Hold what has waited in a queue, up to the received row `received_lsn`; return whether all of it can be held."""
        assert _new_arrivals is not None, "nothing is held without the compiled path"
        parts = []
        for received_us, group in groupby(entries, key=lambda entry: entry.received_us):
            arrived = list(group)
            frames = CompiledFrames.of(b"".join([entry.data for entry in arrived]))
            ends = list(accumulate(entry.row_count for entry in arrived))
            # A heartbeat may have ended a transaction whose last row isn't relayed; the compiled path can't know that.
            if frames is None or frames.rows.waiting_counts(0) != (len(arrived), ends[-1]):
                return False
            waits = [(entry.lsn, end - entry.row_count) for entry, end in zip(arrived, ends, strict=True) if entry.is_synchronous]
            arrivals = _new_arrivals([lsn for lsn, _ in waits], [start for _, start in waits], ends[-1])
            parts.append((frames, arrivals, received_us))
        for part in parts:
            self.put(*part)
        self.received_lsn = received_lsn
        return bool(parts)

    def move(self, at: int) -> None:
        """Record that the rows of the first part before `at` are done."""
        part = self._parts[0]
        self._count(part, -1)
        part.at = at
        part.transaction_count, part.row_count = part.frames.rows.waiting_counts(at)
        if at < len(part.frames):
            self._count(part, 1)
        else:
            self._drop()

    def take_all(self) -> list[Part]:
        """Remove and return all parts."""
        parts = list(self._parts)
        while self._parts:
            self._count(self._parts[0], -1)
            self._drop()
        return parts

    def _drop(self) -> None:
        self._parts.popleft()
        if not self._parts:
            self.waiting_lsn = 0

    def _count(self, part: Part, sign: int) -> None:
        self.byte_count += sign * part.byte_count
        self.transaction_count += sign * part.transaction_count
        self.row_count += sign * part.row_count
