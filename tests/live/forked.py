"""The daemon's commands as processes that are forked from one which has imported the daemon (fork_server.py)."""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from cdc.local.process import ChildProcess, Running
from tests.live.fork_server import Order

_ROOT: Final = Path(__file__).resolve().parents[2]
_READ_BY_IMPORTS: Final = ("TARANTOOL_CDC_PURE", "PYTHON")
"""Beginnings of environment variables that are read before a command begins: a fork would be too late for them."""


class _Forked:
    """A process of the server's; what `subprocess.Popen` is to a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._changes = threading.Condition()
        self._status: int | None = None
        self._is_stopped = False

    def poll(self) -> int | None:
        """Its exit status if it has ended."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        with self._changes:
            self._changes.wait_for(lambda: self._status is not None, timeout)
        if self._status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self._status

    def wait_until_stopped(self) -> None:
        """Return when it stands still, or has ended."""
        with self._changes:
            self._changes.wait_for(lambda: self._is_stopped or self._status is not None)

    def stopped(self, *, is_stopped: bool) -> None:
        """Tell that it stands still, or is about to continue."""
        with self._changes:
            self._is_stopped = is_stopped
            self._changes.notify_all()

    def ended(self, status: int) -> None:
        """Tell its exit status."""
        with self._changes:
            self._status = status
            self._changes.notify_all()


class _Server:
    """The server, and a thread that takes its reports."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.fork_server"], cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._started: queue.Queue[_Forked | None] = queue.Queue()
        self._ordering = threading.Lock()
        threading.Thread(target=self._take_reports, name="fork-server", daemon=True).start()
        atexit.register(self._stop)

    def fork(self, order: Order) -> _Forked:
        """Have a command run. Raises `OSError` if the server has ended."""
        assert self._process.stdin is not None
        with self._ordering:
            self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            forked = self._started.get()
        if forked is None:
            raise OSError("the server that forks daemons has ended; what it printed is on standard error")
        return forked

    def _take_reports(self) -> None:
        assert self._process.stdout is not None
        running: dict[int, _Forked] = {}
        for line in self._process.stdout:
            what, pid, *status = line.decode().split()
            if what == "started":
                running[int(pid)] = forked = _Forked(int(pid))
                self._started.put(forked)
            elif what == "stopped":
                running[int(pid)].stopped(is_stopped=True)
            else:
                running.pop(int(pid)).ended(int(*status))
        self._started.put(None)

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_servers: Final[list[_Server]] = []
_starting: Final = threading.Lock()


def _server() -> _Server:
    """The one of this process, as it costs a second to start."""
    with _starting:
        if not _servers:
            _servers.append(_Server())
        return _servers[0]


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Whether a command with these additional variables may come from the server."""
    known = _server().environment
    return sys.platform == "linux" and all(
        known.get(name) == value for name, value in environment.items() if name.startswith(_READ_BY_IMPORTS)
    )


def _order(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path | None, stdout: Path, stderr: Path | None = None
) -> Order:
    return Order(
        arguments=[*arguments],
        environment={**os.environ, **environment},
        working_directory=str(folder or Path.cwd()),
        stdout=str(stdout.absolute()),
        stderr=str((stderr or stdout).absolute()),
    )


def run_command(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout_seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command of `tarantool-cdc` to its end, without input; its exit status and what it printed.

    Raises `subprocess.TimeoutExpired`, after it was killed.
    """
    given = environment or {}
    if not can_be_forked(given):
        return subprocess.run(
            [sys.executable, "-m", "cdc", *arguments],
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        forked = _server().fork(_order(arguments, given, None, stdout, stderr))
        try:
            status = forked.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(forked.pid, signal.SIGKILL)
            forked.wait()
            raise
        return subprocess.CompletedProcess([*arguments], status, stdout.read_text(), stderr.read_text())


class CdcProcess(ChildProcess):
    """A command of `tarantool-cdc`, forked where that makes no difference, with its output in a file."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log_file: Path,
        working_directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        is_forked: bool = True,
    ) -> None:
        """As `ChildProcess`; `arguments` are those of `tarantool-cdc`. Without `is_forked` Python starts it as a program."""
        self._is_forked = is_forked
        super().__init__(
            name,
            [sys.executable, "-m", "cdc", *arguments],
            log_file=log_file,
            working_directory=working_directory,
            environment=environment,
        )

    def _start(self, command: Sequence[str], working_directory: Path | None, environment: Mapping[str, str]) -> Running:
        if not (self._is_forked and can_be_forked(environment)):
            return super()._start(command, working_directory, environment)
        self._log_file.touch()  # the fork opens it some moments later, and somebody may want to read it by then
        return _server().fork(_order(command[3:], environment, working_directory, self._log_file))

    def pause(self) -> None:
        """As `ChildProcess.pause`."""
        if not isinstance(self._process, _Forked):
            super().pause()
            return
        self._signal(signal.SIGSTOP)
        self._process.wait_until_stopped()

    def resume(self) -> None:
        """As `ChildProcess.resume`."""
        if isinstance(self._process, _Forked):
            self._process.stopped(is_stopped=False)
        super().resume()
