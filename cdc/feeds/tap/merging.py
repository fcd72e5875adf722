"""Merging of all partitions' changes into one order, and the newest changes in memory.

A daemon numbers its events without a gap over all topics (`seq`), so the next seq is always known. A change with a lower seq is
a repetition; a change with a higher seq waits. The next seq never arrives only if a topic was deleted, or a partition has lost
its first messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple

from cdc.feeds.tap import wire
from cdc.feeds.tap.changes import OPAQUE_MASK, Change, EventChanges, Kind

CHANGE_BYTES: Final = 400
"""Approximate memory of a change in addition to its frame, in bytes."""
BATCH_BYTES: Final = 1_000
"""Approximate memory of a batch without its changes, in bytes."""
_TAKEN_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a batch, in bytes, unless a single change is larger.

Following clients are sent a whole batch before it may leave the ring.
"""
_JOINED_CHANGES_MAX: Final = 2_000
_SELECTIONS_MAX: Final = 4
"""Number of selections kept per batch for clients that get the same changes.

It is small because the ring may have ten thousand small batches.
"""


class Selection(NamedTuple):
    """Filter of the changes that a client gets."""

    spaces: Container[str] | None
    """Wanted spaces; None: all."""
    vbuckets: frozenset[int] | None
    lost: frozenset[int]
    """Vbuckets that another client has taken over."""
    is_keys_only: bool


class Selected(NamedTuple):
    """A client's part of a batch: frames, and each frame's seq."""

    frames: list[bytes]
    seqs: list[int]


@dataclass(slots=True)
class Batch:
    """All changes with the seqs `first` to `last`. A TRUNCATE is alone in its batch."""

    first: int
    last: int
    changes: list[Change]
    byte_count: int
    appended_at: float = 0.0
    """Time when the batch was appended to the ring."""
    _selected: dict[Selection, Selected] = field(default_factory=dict)

    @property
    def is_truncate(self) -> bool:
        """Whether the batch is a TRUNCATE."""
        return bool(self.changes) and self.changes[0].kind is Kind.TRUNCATE

    def joined(self, other: Batch) -> Batch | None:
        """Return both batches as one, or None if they can't be joined."""
        if self.is_truncate or other.is_truncate or other.first != self.last + 1 or len(self.changes) > _JOINED_CHANGES_MAX:
            return None
        byte_count = self.byte_count + other.byte_count
        return Batch(self.first, other.last, self.changes + other.changes, byte_count) if byte_count <= _TAKEN_BYTES_MAX else None

    def select(self, selection: Selection, after: int, until: int) -> Selected:
        """Return a client's part of the changes after `after`, up to `until`."""
        selected = self._selected.get(selection)
        if selected is None:
            if len(self._selected) >= _SELECTIONS_MAX:
                self._selected.clear()
            selected = self._selected[selection] = self._select(selection)
        if after < self.first and until >= self.last:
            return selected
        start, end = bisect_right(selected.seqs, after), bisect_right(selected.seqs, until)
        return Selected(selected.frames[start:end], selected.seqs[start:end])

    def _select(self, selection: Selection) -> Selected:
        spaces, vbuckets, lost, is_keys_only = selection
        changes = self.changes
        if spaces is not None:
            changes = [change for change in changes if change.space in spaces]
        if vbuckets is not None:
            changes = [change for change in changes if change.vbucket in vbuckets]
        if lost:
            changes = [change for change in changes if change.vbucket not in lost]
        if is_keys_only:
            return Selected([_key_frame(change) for change in changes], [change.seq for change in changes])
        return Selected([change.frame for change in changes], [change.seq for change in changes])


def _key_frame(change: Change) -> bytes:
    if change.kind is Kind.DELETE:
        return change.frame
    return wire.changed_key(change.key, change.vbucket, change.seq & OPAQUE_MASK, change.seq)


class Merger:
    """Queue that puts changes into order."""

    def __init__(self, after: int) -> None:
        self.next_seq = after + 1
        self.waiting_bytes = 0
        """Size of the changes whose turn it isn't yet, in bytes."""
        self._waiting: dict[int, EventChanges] = {}
        self._odd: set[int] = set()
        """Seqs of waiting events that aren't exactly one change of one key."""

    def add(self, changes: Iterable[tuple[int, EventChanges]]) -> None:
        """Add changes by their seqs, in any order."""
        next_seq, waiting, size, truncate = self.next_seq, self._waiting, 0, Kind.TRUNCATE
        for seq, change in changes:
            if seq >= next_seq and seq not in waiting:
                waiting[seq] = change
                if type(change) is Change:
                    size += len(change[5]) + CHANGE_BYTES
                    if change[1] is not truncate:
                        continue
                else:
                    size += _size(change)
                self._odd.add(seq)
        self.waiting_bytes += size

    def take(self, count_max: int = 2000) -> Batch | None:
        """Return the next changes in order, or None if the next one hasn't arrived."""
        waiting, first = self._waiting, self.next_seq
        if first not in waiting:
            return None
        if self._odd:
            return self._take_one_by_one(count_max)
        changes: list[Any] = list(map(waiting.get, range(first, first + min(count_max, len(waiting)))))
        if None in changes:
            del changes[changes.index(None) :]
        sizes = [len(change[5]) for change in changes]
        size = sum(sizes) + CHANGE_BYTES * len(changes)
        if size > _TAKEN_BYTES_MAX:
            ends = accumulate(sizes, lambda total, one: total + one + CHANGE_BYTES)
            del changes[max(1, sum(1 for _ in takewhile(_TAKEN_BYTES_MAX.__gt__, ends))) :]
            size = sum(sizes[: len(changes)]) + CHANGE_BYTES * len(changes)
        end = first + len(changes)
        deque(map(waiting.__delitem__, range(first, end)), maxlen=0)
        return self._taken(changes, end, size, size)

    def _take_one_by_one(self, count_max: int) -> Batch:
        """Do the same as `take` for changes of which some are TRUNCATEs, or several (or none) belong to one event."""
        first = seq = self.next_seq
        changes: list[Change] = []
        byte_count = 0
        waited_bytes = 0
        while len(changes) < count_max and byte_count < _TAKEN_BYTES_MAX and (found := self._waiting.get(seq)) is not None:
            if isinstance(found, list):
                changes += found
            elif found.kind is not Kind.TRUNCATE:
                changes.append(found)
            elif seq > first:
                break
            else:
                changes = [found]
                count_max = 0
            del self._waiting[seq]
            self._odd.discard(seq)
            byte_count += sum(len(one.frame) + CHANGE_BYTES for one in found) if isinstance(found, list) else _size(found)
            waited_bytes += _size(found)
            seq += 1
        return self._taken(changes, seq, byte_count, waited_bytes)

    def _taken(self, changes: list[Change], end: int, byte_count: int, waited_bytes: int) -> Batch:
        first, self.next_seq = self.next_seq, end
        self.waiting_bytes = self.waiting_bytes - waited_bytes if self._waiting else 0
        return Batch(first, end - 1, changes, byte_count)

    @property
    def hole(self) -> int | None:
        """Number of seqs that are missing before the first waiting change; None if no change waits."""
        return min(self._waiting) - self.next_seq if self._waiting else None

    def skip(self) -> tuple[int, int]:
        """Continue with the first waiting change. Return the first and the last of the missing seqs."""
        first, self.next_seq = self.next_seq, min(self._waiting)
        return first, self.next_seq - 1


def _size(change: EventChanges) -> int:
    """Return the memory of a change while it waits, in bytes; unwanted changes need memory too."""
    if isinstance(change, Change):
        return len(change.frame) + CHANGE_BYTES
    return CHANGE_BYTES + sum(len(one.frame) + CHANGE_BYTES for one in change)


class Ring:
    """The newest batches, up to a total size."""

    def __init__(self, after: int, bytes_max: int) -> None:
        self.first = after + 1
        """Seq of the oldest change in the ring."""
        self.last = after
        self.byte_count = 0
        self._bytes_max = bytes_max
        self._batches: deque[Batch] = deque()

    def leaving(self, batch: Batch) -> Batch | None:
        """Return the newest of the batches that must leave when `batch` is appended, or None if there is room."""
        left = self.byte_count + batch.byte_count + BATCH_BYTES
        found = None
        for one in self._batches:
            if left <= self._bytes_max:
                break
            left -= one.byte_count + BATCH_BYTES
            found = one
        return found

    def append(self, batch: Batch, now: float = 0.0) -> None:
        """Append the next batch; the oldest ones leave. Seqs that are on no topic may be missing before it."""
        batch.appended_at = now
        newest = self._batches[-1] if self._batches else None
        self.last = batch.last
        # For unwanted changes only the seqs are kept, in one batch, however long no other change arrives.
        if newest is not None and not newest.changes and not batch.changes and (joined := newest.joined(batch)) is not None:
            joined.appended_at = now
            self._batches[-1] = joined
            return
        self._batches.append(batch)
        self.byte_count += batch.byte_count + BATCH_BYTES
        while self.byte_count > self._bytes_max and len(self._batches) > 1:
            gone = self._batches.popleft()
            self.byte_count -= gone.byte_count + BATCH_BYTES
            self.first = self._batches[0].first

    def has(self, after: int) -> bool:
        """Whether the change after `after` is in the ring, or is the next to arrive."""
        return self.first - 1 <= after <= self.last

    def next(self, after: int) -> Batch | None:
        """Return the batch with the change after `after`, or None if it hasn't arrived. Only valid if `has(after)` is true."""
        batches = self._batches
        if after >= self.last:
            return None
        low, high = 0, len(batches)
        if after >= batches[-1].first - 1:
            return batches[-1]
        while low < high:
            middle = (low + high) // 2
            if batches[middle].last <= after:
                low = middle + 1
            else:
                high = middle
        return batches[low]
