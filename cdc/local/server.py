"""The life cycle of a local server over all its runs: the common part of Tarantool, Kafka and the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from cdc.local.errors import LocalServerError, PortTakenError
from cdc.local.supervised import Supervised

_START_TIMEOUT_SECONDS = 120.0  # a small machine that runs three JVMs needs half a minute at times
_START_ATTEMPTS = 5


class LocalServer(ABC):
    """A server that is started, stopped, killed and started again with the same port and data."""

    def __init__(self, name: str, *, may_move: bool) -> None:
        """`may_move`: nobody knows its ports before the first start, so it may change ports that are in use."""
        self.name = name
        self._may_move = may_move
        self._run: Supervised | None = None

    @abstractmethod
    def _spawn(self) -> Supervised:
        """Start a run, without waiting for it."""

    @abstractmethod
    def _missing(self) -> str | None:
        """Return None if the server is ready, else what is missing (a `Probe`)."""

    @abstractmethod
    def _found_port_taken(self, log_text: str) -> bool:
        """Return whether this log of a failed start reports that a port is in use."""

    @abstractmethod
    def _choose_ports(self) -> None:
        """Choose other ports."""

    def start(self) -> None:
        """Start it and return when it is ready.

        Raises `LocalServerError`, with its log's last lines, if it is already running, ends early or takes too long. Raises
        `PortTakenError` if its port is in use and mustn't change.
        """
        if self.is_running:
            raise LocalServerError(f"{self.name} runs already.")
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            run = self._run = self._spawn()
            try:
                run.wait_until_ready(self._missing, _START_TIMEOUT_SECONDS)
            except LocalServerError as error:
                run.kill()
                if not self._found_port_taken(run.log_text()):
                    raise
                if not (self._may_move and attempts_left):
                    raise PortTakenError(f"{self.name} can't have its port.\n{run.log_tail()}") from error
                self._choose_ports()
            except BaseException:
                run.kill()
                raise
            else:
                self._may_move = False  # its address may be known to others by now
                return

    def stop(self) -> None:
        """Stop it cleanly; it may be started again. Stopping a server that isn't running is allowed."""
        if self._run is not None:
            self._run.terminate()

    def kill(self) -> None:
        """End it as a crash would; it may be started again. Killing a server that isn't running is allowed."""
        if self._run is not None:
            self._run.kill()

    def restart(self) -> None:
        """Stop and start, on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: its sockets stay open and nothing answers."""
        self._running().pause()

    def resume(self) -> None:
        """Let it continue after `pause`."""
        self._running().resume()

    def close(self) -> None:
        """Stop it for good."""
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether it has been started and hasn't ended; a paused server counts as running."""
        return self._run is not None and self._run.exit_status() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines that its latest run has printed; empty before the first start."""
        return "" if self._run is None else self._run.log_tail(lines)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> Supervised:
        if self._run is None or self._run.exit_status() is not None:
            raise LocalServerError(f"{self.name} doesn't run.\n{self.log_tail()}")
        return self._run
