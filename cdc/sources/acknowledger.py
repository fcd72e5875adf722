"""ACKs on a timer of their own: whatever else waits, the master hears from its replica.

A master drops a replica that is silent for four times its replication_timeout. What an ACK says is decided elsewhere and changes
with each commit; that it is said may depend on nothing that can wait: a store that is being flushed to a busy disk, a queue that
Kafka doesn't empty, a transaction of a million rows that is read back from disk, a log that nobody reads. So it is sent from a
thread that does nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Acknowledger:
    """Calls `send` at once and then every interval, until it is closed or `send` fails. For one connection."""

    def __init__(self, send: Callable[[], None], interval_seconds: float) -> None:
        """`send` sends what is to be acknowledged then. It is called from the thread; it may wait for the socket alone."""
        self._send = send
        self._interval = interval_seconds
        self._is_closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="acknowledger", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error with which sending has ended, if it has."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """No more ACKs: when this returns, none is being sent."""
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - `check` raises it where somebody hears of it
                self._error = error
                return
            if self._is_closing.wait(self._interval):
                return
