"""The rows that wait: in a queue for each bucket, or behind other rows of their key.

    queue of bucket 7    u1(key 1, to bucket 8)   u2(key 2)   active   u3(key 2)
                              ▲                                             the bucket's log, in order
    followers                 └── u4(key 1, in bucket 8, which needn't wait)    until u1 has gone on
    queue of bucket 8    sent                                                   until u4 has gone on

A follower's fate is known by the state that its bucket has when it arrives. So that this is still the bucket's state when the row
goes on, the bucket's next state waits for the row: the row concerns the bucket. So does a row that gives its key to a bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from cdc.protocol.constants import Type
from cdc.stream.moves.held import Held, HeldRow
from cdc.stream.moves.records import Place, Step


@dataclass(slots=True)
class Queue:
    """What waits of one bucket, in the order of the log."""

    rows: deque[Held] = field(default_factory=deque)
    steps: deque[tuple[int, Step]] = field(default_factory=deque)
    """The states among the rows, with their numbers."""
    joined: set[bytes] = field(default_factory=set)
    """Keys that rows behind the last state have changed, arrivals aside."""
    has_passed: bool = False
    """Whether the former owner has passed on everything, which the state that waits at the head, or behind it, needs."""
    is_counted: bool = False
    """Whether that was told by count, so that the arrival is counted, too, when that state goes on."""
    free_place: Place | None = None
    """Place of rows that are known to wait for none elsewhere."""


class WaitingRows:
    """All that waits."""

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.byte_count = 0
        """Size of what waits in memory, in bytes."""
        self.row_count = 0
        """Number of rows that wait."""
        # By key of the store: the rows of it that wait.
        self._of_key: dict[bytes, deque[Held]] = {}
        # By bucket: the rows that concern it and are in no queue, or in that of another bucket, by their numbers.
        self._concerning: dict[int, dict[int, Held]] = {}
        self._last_number = 0

    @property
    def next_number(self) -> int:
        """Number of the row that waits next."""
        return self._last_number + 1

    @property
    def oldest_number(self) -> int | None:
        """Number of the first row that waits; None if none does. Rows in no queue come behind one in a queue."""
        return min((queue.rows[0].number for queue in self.queues.values()), default=None)

    def has(self, key: bytes) -> bool:
        """Return whether rows of a key wait."""
        return key in self._of_key

    def first_of(self, key: bytes) -> Held | None:
        """Return the first row of a key that waits."""
        return self._of_key[key][0] if key in self._of_key else None

    def tuple_of(self, key: bytes) -> bytes | None:
        """Return the tuple that a key has after all its rows that wait; some do."""
        row = self._of_key[key][-1].row
        return row.tuple_after if row is not None else None

    def keys_of(self, space_id: int) -> list[bytes]:
        """Return the keys of a space of which rows wait."""
        return [key for key, (first, *_) in self._of_key.items() if first.row is not None and first.row.space_id == space_id]

    def concerns(self, bucket_id: int) -> bool:
        """Return whether rows outside a bucket's queue concern it."""
        return bucket_id in self._concerning

    def blocker(self, bucket_id: int) -> int | None:
        """Return the bucket whose queue a bucket's first row has to wait for, if there is one.

        The rows that one row of the log stands for wait together, because a place in the log says which of them wait.
        """
        queue = self.queues[bucket_id]
        head = queue.rows[0]
        if head.row is None:
            first = next(iter(self._concerning.get(bucket_id, {}).values()), head)
            return self._queue_of(first) if first.number < head.number else None
        if queue.free_place != head.place:
            for held in takewhile(lambda held: held.place == head.place, queue.rows):
                first = self._of_key[held.row.key][0] if held.row is not None else held
                if first.bucket_id != bucket_id or first.is_follower:
                    return self._queue_of(first)
            queue.free_place = head.place
        return None

    def _queue_of(self, held: Held) -> int:
        """Return the bucket whose queue a row waits in, or waits for."""
        return self._of_key[held.row.key][0].bucket_id if held.row is not None else held.bucket_id

    def goes_on(self, held: Held) -> bool:
        """Return whether a row that has been taken has others that go on with it: followers, or those of the same place."""
        if held.row is None:
            return False
        queue, following = self.queues.get(held.bucket_id), self.first_of(held.row.key)
        if following is not None and following.is_follower:
            return True
        return queue is not None and queue.rows[0].place == held.place

    def append(self, held: Held) -> None:
        """Have a row wait behind all others of its bucket, or of its key."""
        bucket_id, row = held.bucket_id, held.row
        self._last_number = max(self._last_number, held.number)
        self.row_count += 1
        self.byte_count += held.byte_count
        if row is not None:
            self._of_key.setdefault(row.key, deque()).append(held)
            for concerned in _concerned(held, row):
                self._concerning.setdefault(concerned, {})[held.number] = held
            if row.is_follower:
                return
        queue = self.queues.setdefault(bucket_id, Queue())
        if held.step is not None:
            queue.steps.append((held.number, held.step))
            queue.joined.clear()
        elif row is not None:
            row.is_joined = row.is_joined or row.key in queue.joined
            if row.is_joined or row.kind != Type.INSERT:
                queue.joined.add(row.key)
        queue.rows.append(held)

    def take(self, bucket_id: int) -> Held:
        """Return a bucket's first row, which waits no longer. It has no blocker."""
        queue = self.queues[bucket_id]
        held = queue.rows.popleft()
        if held.step is not None:
            queue.steps.popleft()
        self._release(held)
        if not queue.rows:
            del self.queues[bucket_id]
        return held

    def take_follower(self, key: bytes) -> Held | None:
        """Return the first row of a key, which waits no longer, if it is a follower."""
        held = self.first_of(key)
        if held is None or not held.is_follower:
            return None
        self._release(held)
        return held

    def released_by(self, held: Held) -> Iterator[int]:
        """Yield the buckets whose queues may go on now that a row has been taken."""
        row = held.row
        if row is None:
            return
        for bucket_id in _concerned(held, row):
            if bucket_id in self.queues:
                yield bucket_id
        following = self.first_of(row.key)
        if following is not None and following.bucket_id in self.queues:
            yield following.bucket_id

    def forget_space(self, space_id: int) -> list[Held]:
        """Forget the rows of a space, and return them."""
        forgotten = [held for key in self.keys_of(space_id) for held in self._of_key[key]]
        for held in forgotten:
            self._release(held)
        for bucket_id, queue in list(self.queues.items()):
            gone = {held.row.key for held in queue.rows if held.row is not None and held.row.space_id == space_id}
            if not gone:
                continue
            queue.rows = deque(held for held in queue.rows if held.row is None or held.row.space_id != space_id)
            queue.joined -= gone  # whatever these keys get from here on joins nothing
            if not queue.rows:
                del self.queues[bucket_id]
        return forgotten

    def _release(self, held: Held) -> None:
        self.byte_count -= held.byte_count
        self.row_count -= 1
        row = held.row
        if row is None:
            return
        rows = self._of_key[row.key]
        rows.popleft()
        if not rows:
            del self._of_key[row.key]
        for bucket_id in _concerned(held, row):
            concerning = self._concerning[bucket_id]
            del concerning[held.number]
            if not concerning:
                del self._concerning[bucket_id]


def _concerned(held: Held, row: HeldRow) -> set[int]:
    """Return the buckets that a row concerns, and in whose queue it isn't."""
    concerned = {row.bucket_after} if row.bucket_after is not None else set()
    if row.is_follower:
        concerned.add(held.bucket_id)
    else:
        concerned.discard(held.bucket_id)
    return concerned
