"""What a service manager is told, as systemd does it (sd_notify): that the process has started, how it is, and that it is well.

The protocol is a datagram of lines to the socket that $NOTIFY_SOCKET names; systemd promises to keep it as it is. With
WatchdogSec= in the unit, systemd ends and starts again a process that doesn't tell regularly that it is well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

_SOCKET: Final = "NOTIFY_SOCKET"
_VARIABLES: Final = frozenset({_SOCKET, "WATCHDOG_USEC", "WATCHDOG_PID"})
TELL_SECONDS: Final = 1.0
"""Interval at which it is told; a unit's WatchdogSec= has to be several times longer."""


class ServiceManager:
    """The service manager of this process, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get(_SOCKET, "")
        # In the abstract namespace, the address begins with a zero byte.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._told_at = -TELL_SECONDS

    @property
    def is_there(self) -> bool:
        """Whether anybody is told."""
        return bool(self._address)

    def tell_started(self) -> None:
        """Tell that the process has begun its work; it may have to wait for Kafka or servers."""
        self._tell("READY=1")

    def tell_well(self, state: str = "") -> None:
        """Tell that the process is well, and what it does; at most each second."""
        now = time.monotonic()
        if self.is_there and now >= self._told_at + TELL_SECONDS:
            self._told_at = now
            self._tell("WATCHDOG=1", *([f"STATUS={state}"] if state else []))

    def tell_regularly(self, lifelessness: Callable[[], str | None], state: Callable[[], str]) -> None:
        """Tell regularly what the process does, and that it is well, unless there is a reason why it can't go on."""

        def tell() -> None:
            while True:
                why = lifelessness()
                if why is None:
                    self.tell_well(" ".join(state().split()))
                else:
                    self._tell(f"STATUS={' '.join(why.split())}")
                time.sleep(TELL_SECONDS)

        if self.is_there:
            threading.Thread(target=tell, name="service manager", daemon=True).start()

    def _tell(self, *lines: str) -> None:
        if not self.is_there:
            return
        # A service manager that is started again itself is there again with the next news.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def without_service_manager(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process of this one's, for which the service manager listens to this one alone."""
    return {name: value for name, value in environment.items() if name not in _VARIABLES}
