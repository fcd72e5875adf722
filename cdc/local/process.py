"""A server as a child process that never outlives this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from cdc.local import launcher
from cdc.local.errors import LocalServerError
from cdc.local.supervised import Supervised

# Linux ends a child when the *thread* that started it ends. So one thread, which lives as long as the interpreter, starts all
# children, and a server may be started from a short-lived thread.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-servers")


def _new_spawner() -> None:
    global _spawner  # noqa: PLW0603 - a forked child inherits the object without its thread
    _spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-servers")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_spawner)


class Running(Protocol):
    """What is needed of a started process; the methods are those of `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""

    def poll(self) -> int | None:
        """Return its exit status, or None if it still runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status after its end. Raises `subprocess.TimeoutExpired`."""


class ChildProcess(Supervised):
    """A program in a process group of its own, with its output in a file.

    On Linux the kernel kills it when this process ends, however it ends; elsewhere only `terminate` and `kill` do.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        working_directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command`, with `environment` added to this process's own; its output is appended to `log_file`.

        Raises `OSError` if the launcher can't be started. A missing program appears as an early end.
        """
        super().__init__(name)
        self._log_file = log_file
        log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log_file.stat().st_size if log_file.exists() else 0
        self._process = self._start(command, working_directory, environment or {})

    def _start(self, command: Sequence[str], working_directory: Path | None, environment: Mapping[str, str]) -> Running:
        # -I -S: start only with the standard library's frozen modules; the launcher is gone after some milliseconds.
        launch = [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *command]
        with self._log_file.open("ab") as log:
            return _spawner.submit(
                subprocess.Popen,
                launch,
                cwd=working_directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).result()

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""
        return self._process.pid

    def exit_status(self, wait_seconds: float = 0) -> int | None:
        if wait_seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_seconds)
        return self._process.poll()

    def log_text(self) -> str:
        with self._log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def terminate(self, timeout_seconds: float = 60) -> int:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process handles the first signal only after it continues
        status = self.exit_status(wait_seconds=timeout_seconds)
        self.kill()  # also the processes that it may have started
        if status is None:
            raise LocalServerError(
                f"{self.name} didn't end within {timeout_seconds:g} s of SIGTERM and was killed.\n{self.log_tail()}"
            )
        return status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        if sys.platform != "darwin":  # where waitid is unavailable, the signal alone must do
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended, which is what callers would find out
            os.killpg(self.pid, number)
