"""Ages of the batches that were handed to the publisher and aren't committed yet.

The backlog answers two questions: how far consumers lag (the age of the oldest change that they can't see), and whether Kafka
stalls (for how long nothing has been committed while batches wait). Both answers survive an aborted transaction and a change of
the producer: an aborted batch counts as waiting until it has been published again.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PRODUCER_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""Memory of the producer's queue, in bytes. If a transaction is larger, Kafka must have accepted the rest."""


class Backlog:
    """The uncommitted batches, oldest first. Times come from one monotonic clock, in seconds.

    Not thread-safe: a caller that changes it holds the publisher's lock. `oldest_since` and the like may be read at any time.
    """

    def __init__(self, before: Backlog | None = None) -> None:
        """`before` is the backlog of an earlier publisher, whose uncommitted batches will be submitted again."""
        # For each batch: when it was handed over, and when the source wrote it.
        self._batches: deque[tuple[float, float]] = deque()
        self._oldest: tuple[float, float] | None = before._oldest if before is not None else None
        # The oldest aborted batch that has to be submitted again.
        self._aborted = self._oldest
        self._progress_at: float = before._progress_at if before is not None else 0.0
        self._taken_bytes = 0

    @property
    def oldest_since(self) -> float | None:
        """When the oldest uncommitted batch was handed over; None if everything is committed."""
        oldest = self._oldest
        return oldest[0] if oldest is not None else None

    def age(self, now: float, epoch_now: float) -> float:
        """Return the age of the oldest uncommitted batch, in seconds; 0 if there is none.

        The age counts from when the source wrote the batch. If that isn't known (a snapshot's rows have no time), the age counts
        from when the batch was handed over. `epoch_now` is in seconds since the epoch.
        """
        oldest = self._oldest
        if oldest is None:
            return 0.0
        since, timestamp = oldest
        return max(0.0, epoch_now - timestamp if timestamp else now - since)

    def stalled_since(self) -> float | None:
        """Return since when batches have been waiting without progress in Kafka; None if none waits."""
        since = self.oldest_since
        return max(since, self._progress_at) if since is not None else None

    def submitted(self, now: float, timestamp: float) -> None:
        """Record that a batch was handed over.

        `timestamp` is when the source wrote it, in seconds since the epoch; 0 if unknown.
        """
        self._batches.append((now, timestamp))
        self._choose()

    def produced(self, now: float, open_bytes: int) -> None:
        """Record how many bytes Kafka's producer has received since the last commit.

        Kafka has accepted those beyond its queue.
        """
        taken = open_bytes - PRODUCER_QUEUE_BYTES
        if taken > self._taken_bytes:
            self._taken_bytes = taken
            self._progress_at = now

    def committed(self, now: float, count: int) -> None:
        """Record that the `count` oldest batches are durable."""
        for _ in range(count):
            self._batches.popleft()
        if count:
            self._aborted = None
        self._taken_bytes = 0
        self._progress_at = now
        self._choose()

    def aborted(self) -> None:
        """Record that none of the waiting batches will be committed as it is. They are submitted again, and keep their age."""
        self._aborted = self._oldest
        self._batches.clear()
        self._taken_bytes = 0

    def _choose(self) -> None:
        self._oldest = self._aborted or (self._batches[0] if self._batches else None)
