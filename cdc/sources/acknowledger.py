"""Periodic ACKs: the master keeps hearing from its replica, whatever the daemon's other threads wait for.

A master drops a replica that is silent for four times its replication_timeout. The contents of an ACK are decided elsewhere, and
change with each commit. Sending it must not depend on anything that can wait: a store being flushed to a busy disk, a queue that
Kafka doesn't empty, a transaction of a million rows read back from disk, or log output that nobody reads. So a thread that does
nothing else sends the ACKs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Acknowledger:
    """Thread that calls `send` at once and then every interval, until it is closed or `send` fails. For one connection."""

    def __init__(self, send: Callable[[], None], interval_seconds: float) -> None:
        """Start the thread. `send` sends the current position, from this thread, and may wait only for the socket."""
        self._send = send
        self._interval = interval_seconds
        self._is_closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="acknowledger", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that stopped the thread, if one did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop sending ACKs. When this returns, no ACK is being sent any more."""
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                self._send()
            except Exception as error:  # noqa: BLE001 - `check` raises it in the daemon's thread
                self._error = error
                return
            if self._is_closing.wait(self._interval):
                return
