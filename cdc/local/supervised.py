"""A running server that can be awaited, paused, stopped and killed: the common part of processes and containers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from cdc.local.errors import LocalServerError

Probe = Callable[[], str | None]
"""Check of a server's readiness: returns None if the server is ready, else what is missing, as text for a timeout's message."""

# Interval between two probes. The wait also ends as soon as the server does.
_PROBE_INTERVAL_SECONDS = 0.02


class Supervised(ABC):
    """One run of a server, from its start to its end."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id of its main process."""

    @abstractmethod
    def exit_status(self, wait_seconds: float = 0) -> int | None:
        """Return its exit status (-N if signal N ended it), or None if it still runs after `wait_seconds`."""

    @abstractmethod
    def log_text(self) -> str:
        """Return everything that this run has printed so far."""

    @abstractmethod
    def terminate(self, timeout_seconds: float = 60) -> int:
        """Ask it to end, even if it is paused, and return its exit status.

        After `timeout_seconds` it is killed, and `LocalServerError` is raised. A run that has already ended is allowed.
        """

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as a crash would, and return when it is gone. A run that has already ended is allowed."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze it: its sockets stay open and nothing answers. Returns when it has stopped."""

    @abstractmethod
    def resume(self) -> None:
        """Let it continue after `pause`."""

    def wait_until_ready(self, probe: Probe, timeout_seconds: float) -> None:
        """Return once `probe` returns None.

        Raises `LocalServerError` if the server ends before that or needs more than `timeout_seconds`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            missing = probe()
            if missing is None:
                return
            status = self.exit_status(wait_seconds=_PROBE_INTERVAL_SECONDS)
            if status is not None:
                raise LocalServerError(f"{self.name} ended with status {status} before it was ready.\n{self.log_tail()}")
            if time.monotonic() >= deadline:
                raise LocalServerError(f"{self.name} isn't ready after {timeout_seconds:g} s: {missing}\n{self.log_tail()}")

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines that it printed."""
        return "\n".join(self.log_text().splitlines()[-lines:])
