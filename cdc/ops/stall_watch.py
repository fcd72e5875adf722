"""Log lines for a stall of Kafka, or of the registry of schemas: one when it begins, and one when it ends.

A separate thread checks for the stall, because the daemon's and the publisher's threads may both be waiting for Kafka then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import structlog

from cdc.ops.status import Status

TURN_SECONDS: Final = 0.5
_KAFKA: Final = ("Kafka stands still", "Kafka is back")
_REGISTRY: Final = ("the registry of schemas holds all rows up", "the registry of schemas no longer holds rows up")


class StallWatch:
    """Thread that checks one status for a stall."""

    def __init__(self, status: Status, also: Callable[[], None] = lambda: None) -> None:
        """`also` is called at each turn, too: for what else is to be observed regularly."""
        self._also = also
        self._status = status
        self._log = structlog.get_logger().bind(name=status.name)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)
        self._stalled_seconds = 0.0
        self._lines = _KAFKA

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and check once more."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.check()  # logs a stall that ended after the last check

    def check(self) -> None:
        """Compare the status with the last check, and log the beginning or the end of a stall."""
        stall, seconds = self._status.stall, self._status.stalled_seconds
        if stall is not None:
            if not self._stalled_seconds:
                self._lines = _KAFKA if self._status.registry_wait is None else _REGISTRY
                self._log.error(self._lines[0], reason=stall)
            self._stalled_seconds = seconds
        elif self._stalled_seconds:
            self._log.info(self._lines[1], stalled_seconds=round(self._stalled_seconds, 1))
            self._stalled_seconds = 0.0

    def _run(self) -> None:
        while not self._is_stopping.wait(TURN_SECONDS):
            self.check()
            self._also()
