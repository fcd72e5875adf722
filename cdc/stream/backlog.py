"""What has been handed to the publisher and isn't committed yet, by its age.

Two questions are answered from it: how far consumers are behind (how old is the oldest change that they can't see), and
whether Kafka stands still (how long has nothing been committed while something waits). Both outlive an aborted transaction
and the producer that made it: what was aborted is still waiting, until it has been published again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PRODUCER_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""What the producer keeps in memory: of a transaction that is larger, Kafka must have taken the rest."""


class Backlog:
    """The uncommitted batches in order. Times are those of one clock that never goes back, in seconds.

    Not thread-safe: whoever changes it holds the publisher's lock. `oldest_since` and the like may be read at any time.
    """

    def __init__(self, before: Backlog | None = None) -> None:
        """`before` is that of an earlier publisher: what it left uncommitted comes again."""
        # When each batch was handed over, and when the source wrote it.
        self._batches: deque[tuple[float, float]] = deque()
        self._oldest: tuple[float, float] | None = before._oldest if before is not None else None
        # The oldest of those that were aborted and have to come again.
        self._aborted = self._oldest
        self._progress_at: float = before._progress_at if before is not None else 0.0
        self._taken_bytes = 0

    @property
    def oldest_since(self) -> float | None:
        """When the oldest uncommitted batch was handed over; None if everything is committed."""
        oldest = self._oldest
        return oldest[0] if oldest is not None else None

    @property
    def oldest_timestamp(self) -> float | None:
        """When the source wrote the last row of the oldest uncommitted batch (seconds since the epoch, 0 if it has none)."""
        oldest = self._oldest
        return oldest[1] if oldest is not None else None

    def age(self, now: float, epoch_now: float) -> float:
        """How old the oldest uncommitted batch is, in seconds, 0 if there is none: since the source wrote it or, where that
        isn't known (a snapshot's rows have no time), since it was handed over. `epoch_now` are seconds since the epoch.
        """
        oldest = self._oldest
        if oldest is None:
            return 0.0
        since, timestamp = oldest
        return max(0.0, epoch_now - timestamp if timestamp else now - since)

    def stalled_since(self) -> float | None:
        """Since when something has been waiting while Kafka took nothing; None if nothing waits."""
        since = self.oldest_since
        return max(since, self._progress_at) if since is not None else None

    def submitted(self, now: float, timestamp: float) -> None:
        """A batch was handed over."""
        self._batches.append((now, timestamp))
        self._choose()

    def produced(self, now: float, open_bytes: int) -> None:
        """Kafka's producer has been given so many bytes since the last commit. What it can't hold, Kafka has."""
        taken = open_bytes - PRODUCER_QUEUE_BYTES
        if taken > self._taken_bytes:
            self._taken_bytes = taken
            self._progress_at = now

    def committed(self, now: float, count: int) -> None:
        """The oldest batches, so many of them, are durable."""
        for _ in range(count):
            self._batches.popleft()
        if count:
            self._aborted = None
        self._taken_bytes = 0
        self._progress_at = now
        self._choose()

    def aborted(self) -> None:
        """Nothing of what waits will be committed as it is: it comes again, and is as old as it was."""
        self._aborted = self._oldest
        self._batches.clear()
        self._taken_bytes = 0

    def _choose(self) -> None:
        self._oldest = self._aborted or (self._batches[0] if self._batches else None)
