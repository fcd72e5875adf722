"""Says in the log when Kafka stands still, once, and when it is back, once.

It looks from a thread of its own: the daemon's and the publisher's may both be waiting for Kafka at that time.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog

from cdc.ops.status import Status

TURN_SECONDS: Final = 0.5


class StallWatch:
    """Watches one status."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._log = structlog.get_logger().bind(name=status.name)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
        self._stalled_seconds = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.look()  # what was over just now is told, too

    def look(self) -> None:
        """Compare with the last look, and say what has changed."""
        stall, seconds = self._status.stall, self._status.stalled_seconds
        if stall is not None:
            if not self._stalled_seconds:
                self._log.error("Kafka stands still", reason=stall)
            self._stalled_seconds = seconds
        elif self._stalled_seconds:
            self._log.info("Kafka is back", stalled_seconds=round(self._stalled_seconds, 1))
            self._stalled_seconds = 0.0

    def _run(self) -> None:
        while not self._is_stopping.wait(TURN_SECONDS):
            self.look()
