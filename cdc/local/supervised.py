"""A running server that can be awaited, paused, stopped and killed: the part that processes and containers share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from cdc.local.errors import LocalServerError

Probe = Callable[[], str | None]
"""Asks a server whether it serves: None once it does, else what is still missing, in words for a timeout's message."""

# How long between two probes. The wait also ends as soon as the server does.
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
        """Its exit status (-N of a process that signal N ended), or None if it still runs after `wait_seconds`."""

    @abstractmethod
    def log_text(self) -> str:
        """All that this run has printed so far."""

    @abstractmethod
    def terminate(self, timeout_seconds: float = 60) -> int:
        """Ask it to end, also if it is paused, and return its exit status.

        It is killed after `timeout_seconds`, and that raises `LocalServerError`. Ending what has ended is allowed.
        """

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as a crash would, and return when it is gone. Killing what has ended is allowed."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze it: its sockets stay open and nothing answers. Returns when it stands still."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after `pause`."""

    def wait_until_ready(self, probe: Probe, timeout_seconds: float) -> None:
        """Return when `probe` does with None.

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
        """The last lines of what it printed."""
        return "\n".join(self.log_text().splitlines()[-lines:])
