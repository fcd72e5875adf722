"""What a daemon that a fleet's process has started tells it, and how it learns that that process has ended.

Both have one end of a pair of sockets. The daemon writes lines of JSON: {"port": 40001} once it listens, and {"error": …} before
it ends with one. Each second it says that it is well, {"lifelessness": null}, or why it can't go on, and while buckets wait for
other shards, for whom: {"waits_for": ["s1"]}, as a daemon that has caught up, and has ended, is needed again then. The fleet's
process never writes: if its end is closed, it has ended, and the daemon stops.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final

import structlog

from cdc.daemon.fleet_processes import Failure
from cdc.errors import CdcError, ConfigurationError, Remedy

TELL_SECONDS: Final = 1.0
"""Interval at which a daemon tells how it is, and for whom it waits."""


class Supervision:
    """The daemon's end."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # Several threads send, and a long message may take several writes.
        self._sending = threading.Lock()

    def stop_with_fleet(self, stop: Callable[[], None]) -> None:
        """Call `stop` once the fleet's process has ended, however it did."""

        def wait() -> None:
            with contextlib.suppress(ConnectionResetError):  # it has ended, too, and hadn't read everything
                while self._socket.recv(1):
                    pass
            structlog.get_logger().warning("the fleet's process has ended: stopping")
            stop()

        threading.Thread(target=wait, name="supervision", daemon=True).start()

    def listening(self, port: int | None) -> None:
        """Tell the port at which the daemon serves its status."""
        self._send({"port": port})

    def failed(self, error: CdcError) -> None:
        """Tell the error with which the daemon is about to end."""
        kinds = {"configuration": isinstance(error, ConfigurationError), "operator": error.remedy is Remedy.OPERATOR}
        self._send({"error": error.public, **kinds})

    def tell_regularly(self, lifelessness: Callable[[], str | None], waits_for: Callable[[], Collection[str]]) -> None:
        """Tell every second why this process can't go on (None: it can), and for which shards it waits, if for any."""

        def tell() -> None:
            while self._send({"lifelessness": lifelessness(), "waits_for": sorted(waits_for())}):
                time.sleep(TELL_SECONDS)

        threading.Thread(target=tell, name="supervision-news", daemon=True).start()

    def _send(self, message: dict[str, Any]) -> bool:
        """Send a message; return whether the fleet's process is there."""
        try:
            with self._sending:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            # The fleet's process has ended; `stop_with_fleet` deals with that.
            structlog.get_logger().debug("the fleet's process can't be told", message=message)
            return False


def failure_in(message: dict[str, Any]) -> Failure | None:
    """Return the error in a daemon's message; None if it has none."""
    if "error" not in message:
        return None
    return Failure(message["error"], is_configuration=message["configuration"], needs_operator=message["operator"])
