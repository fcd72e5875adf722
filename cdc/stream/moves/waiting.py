"""The rows that wait, in a queue for each bucket, and which key's rows are in which queue."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from cdc.protocol.constants import Type
from cdc.stream.moves.held import Held, HeldRow
from cdc.stream.moves.records import Step


@dataclass(slots=True)
class Queue:
    """What waits of one bucket, in the order of the log."""

    rows: deque[Held] = field(default_factory=deque)
    steps: deque[Step] = field(default_factory=deque)
    """The states among the rows."""
    joined: set[bytes] = field(default_factory=set)
    """Keys that rows behind the last state have changed, arrivals aside."""
    has_passed: bool = False
    """Whether the former owner has passed on everything, which the state that waits at the head, or behind it, needs."""


class WaitingRows:
    """The queues of all buckets that wait."""

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.byte_count = 0
        """Size of what waits in memory, in bytes."""
        # By key of the store: the bucket in whose queue its rows are, and how many these are.
        self._bucket_of: dict[bytes, int] = {}
        self._key_counts: Counter[bytes] = Counter()
        self._last_number = 0

    @property
    def row_count(self) -> int:
        """Number of rows that wait."""
        return sum(len(queue.rows) for queue in self.queues.values())

    @property
    def next_number(self) -> int:
        """Number of the row that waits next."""
        return self._last_number + 1

    def bucket_of(self, key: bytes) -> int | None:
        """Return the bucket in whose queue rows of a key wait; None if none do."""
        return self._bucket_of.get(key)

    def rows_of(self, space_id: int) -> Iterator[HeldRow]:
        """Yield the rows of a space, those of each key in their order."""
        for queue in self.queues.values():
            yield from (held.row for held in queue.rows if held.row is not None and held.row.space_id == space_id)

    def append(self, held: Held) -> None:
        """Have a row wait behind all others of its bucket."""
        bucket_id, row = held.bucket_id, held.row
        self._last_number = max(self._last_number, held.number)
        queue = self.queues.setdefault(bucket_id, Queue())
        if held.step is not None:
            queue.steps.append(held.step)
            queue.joined.clear()
        elif row is not None:
            row.is_joined = row.is_joined or row.key in queue.joined
            if row.is_joined or row.kind != Type.INSERT:
                queue.joined.add(row.key)
            self._bucket_of[row.key] = bucket_id
            self._key_counts[row.key] += 1
        queue.rows.append(held)
        self.byte_count += held.byte_count

    def take(self, bucket_id: int) -> Held:
        """Return a bucket's first row, which waits no longer."""
        queue = self.queues[bucket_id]
        held = queue.rows.popleft()
        if held.step is not None:
            queue.steps.popleft()
        self._release(held)
        if not queue.rows:
            del self.queues[bucket_id]
        return held

    def forget_space(self, space_id: int) -> list[Held]:
        """Forget the rows of a space, and return them."""
        forgotten: list[Held] = []
        for bucket_id, queue in list(self.queues.items()):
            gone = [held for held in queue.rows if held.row is not None and held.row.space_id == space_id]
            queue.rows = deque(held for held in queue.rows if held.row is None or held.row.space_id != space_id)
            for held in gone:
                self._release(held)
                if held.row is not None:
                    queue.joined.discard(held.row.key)  # whatever its key gets from here on joins nothing
            if not queue.rows:
                del self.queues[bucket_id]
            forgotten += gone
        return forgotten

    def _release(self, held: Held) -> None:
        self.byte_count -= held.byte_count
        if held.row is not None:
            key = held.row.key
            self._key_counts[key] -= 1
            if not self._key_counts[key]:
                del self._key_counts[key], self._bucket_of[key]
