"""The newest changes, in memory: one reader's thread brings them, and any number of clients follow.

reader's thread ──bring──▶ coming ──gathered──▶ ring ──next──▶ followers
                at most AHEAD batches         held while a follower hasn't had what would leave, for a few seconds
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cdc.feeds.tap.catching_up import AHEAD, call_soon
from cdc.feeds.tap.merging import Batch, Ring

_GATHER_SECONDS: Final = 0.0001
"""Time to gather changes per following client, in seconds: a thousand clients get the changes ten times a second."""
_HOLD_SECONDS: Final = 5.0
"""Maximum time that reading waits so that a change stays in the ring for following clients that haven't had it, in seconds."""
_HOLD_RETRY_SECONDS: Final = 0.02


class NewestChanges:
    """The ring, and the clients that follow it. Except for `bring`, all must be called on the event loop's thread."""

    def __init__(self, bytes_max: int) -> None:
        """The ring has room for as many bytes."""
        self._bytes_max = bytes_max
        self.ring = Ring(0, bytes_max)
        self.grown = asyncio.Event()
        """Set when there is more to read, or to know; then replaced."""
        self._coming: list[Batch] = []
        """Batches that wait to be appended to the ring."""
        self._appended_at = 0.0
        self._follower_count = 0
        self._followed: dict[object, int] = {}
        """Last change that each client in the ring has had."""
        self._ahead = threading.Semaphore(AHEAD)

    def begin(self, after: int) -> None:
        """Let the ring begin after a seq."""
        self.ring = Ring(after, self._bytes_max)

    def bring(self, loop: asyncio.AbstractEventLoop, batch: Batch, is_stopping: Callable[[], bool]) -> None:
        """On the reader's thread: deliver a batch to the loop, at most a few batches ahead of it."""
        while not self._ahead.acquire(timeout=0.2):
            if is_stopping():
                return
        call_soon(loop, self._append, batch)

    @contextmanager
    def follower(self) -> Iterator[object]:
        """Count a client among those that follow, and return a name for it."""
        follower = object()
        self._follower_count += 1
        try:
            yield follower
        finally:
            self._follower_count -= 1
            self._followed.pop(follower, None)

    def follows(self, follower: object, after: int) -> None:
        """Record that a client has had all changes up to `after`, and needs the ring's next ones."""
        self._followed[follower] = after

    def wake(self) -> None:
        """Let all clients look again."""
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()

    def _append(self, batch: Batch) -> None:
        self._coming.append(batch)
        if len(self._coming) == 1:
            # Each batch wakes all clients: the more clients follow, the longer batches are gathered.
            loop = asyncio.get_running_loop()
            loop.call_at(self._appended_at + self._follower_count * _GATHER_SECONDS, self._append_all)

    def _append_all(self) -> None:
        """Append the gathered batches to the ring; the reader continues once they are there.

        After an outage of Kafka more batches arrive than the ring holds, and clients need a chance to read each of them.
        """
        loop, ring, coming = asyncio.get_running_loop(), self.ring, self._coming
        now = self._appended_at = loop.time()
        while coming:
            batch = coming[0]
            if self._is_held(ring.leaving(batch), now):
                loop.call_at(now + _HOLD_RETRY_SECONDS, self._append_all)
                break
            self._ahead.release()
            if len(coming) > 1 and (joined := batch.joined(coming[1])) is not None:
                coming[:2] = [joined]
                continue
            ring.append(coming.pop(0), now)
        self.wake()

    def _is_held(self, leaving: Batch | None, now: float) -> bool:
        """Whether a batch, and older ones, must stay in the ring for now because some clients haven't had it."""
        if leaving is None or now - leaving.appended_at > _HOLD_SECONDS:
            return False
        first = self.ring.first - 1
        return any(first <= after < leaving.last for after in self._followed.values())
