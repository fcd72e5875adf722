"""The daemon as a real process: started from a configuration file, killed, stopped, frozen, and asked how it is."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from tests.live.forked import CdcProcess
from tests.live.waiting import PATIENCE_SECONDS, wait_for

Settings = dict[str, dict[str, Any]]


class DaemonProcess:
    """One daemon with one configuration, through any number of runs."""

    def __init__(self, directory: Path, name: str, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        """Nothing is started yet. `settings` are the sections of the file; http.listen is filled in if it isn't there."""
        self.name = name
        self.settings = settings
        self.directory = directory
        self.environment = dict(environment or {})
        self.working_directory: Path | None = None
        self.is_forked = True
        """Whether its process may come from one that has imported the daemon already (forked.py)."""
        self.master_crash: Callable[[], str] = str
        """Tells, if the master has crashed by itself, what it said: then waiting is in vain, and not the daemon's fault."""
        self._http_port = free_port()
        self._run: ChildProcess | None = None
        self._runs: list[ChildProcess] = []
        listen = settings.setdefault("http", {}).setdefault("listen", f"127.0.0.1:{self._http_port}")
        if listen:
            self._http_port = int(listen.rpartition(":")[2])

    def start(self, *arguments: str, command: str = "run") -> None:
        """Start `run`, or another command, with the settings as they are now. The earlier run must have ended."""
        assert self._run is None or self._run.exit_status() is not None, f"{self.name} runs already"
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / f"{self.name}.toml"
        file.write_text(_toml({"name": self.name}, self.settings))
        self._run = CdcProcess(
            self.name,
            [command, "--config", str(file), *arguments],
            log_file=self.directory / f"{self.name}.log",
            environment=self.environment,
            working_directory=self.working_directory,
            is_forked=self.is_forked,
        )
        self._runs.append(self._run)

    @property
    def run(self) -> ChildProcess:
        """The latest run."""
        assert self._run is not None
        return self._run

    def kill(self) -> None:
        """kill -9."""
        self.run.kill()

    def restart_killed(self) -> None:
        """kill -9 and a new start."""
        self.kill()
        self.start()

    def terminate(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        """SIGTERM; returns the exit status."""
        return self.run.terminate(timeout_seconds)

    def close(self) -> None:
        """Leave nothing running."""
        for run in self._runs:
            run.kill()

    def troubles(self) -> list[str]:
        """The lines of its log, of all its runs, that are more than information."""
        return [line for line in self._runs[0].log_text().splitlines() if "[info" not in line] if self._runs else []

    def status(self) -> dict[str, Any] | None:
        """What /status says, None if nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/status", timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except (OSError, ValueError, HTTPException):  # the last when it ends in the middle of its answer
            return None

    def is_ready(self) -> bool:
        """What /ready says."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/ready", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return False

    def wait_until(
        self, what: str, holds: Callable[[dict[str, Any]], object], timeout_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Wait until /status fulfils `holds`. Raises AssertionError, with the log's end, if the daemon ends before that."""

        def ask() -> dict[str, Any] | None:
            exit_status = self.run.exit_status()
            assert exit_status is None, f"the daemon ended with {exit_status} before {what}:\n{self.run.log_tail()}"
            crash = self.master_crash()
            assert not crash, f"the master crashed before {what}:\n{crash}"
            status = self.status()
            return status if status is not None and holds(status) else None

        try:
            status = wait_for(f"the daemon: {what}", ask, timeout_seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.status()}\n{self.run.log_tail()}") from None
        assert status is not None
        return status

    def wait_until_streaming(self, timeout_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Wait until changes flow."""
        return self.wait_until("it streams", lambda status: status["state"] == "streaming", timeout_seconds)

    def wait_until_caught_up(self, vclock: Mapping[int, int], timeout_seconds: float = 2 * PATIENCE_SECONDS) -> dict[str, Any]:
        """Wait until everything up to `vclock` is durable, local changes (origin 0) aside."""

        def is_there(status: dict[str, Any]) -> bool:
            checkpoint = status["position"]["checkpoint"]
            return status["state"] == "streaming" and all(
                checkpoint.get(str(origin), 0) >= lsn for origin, lsn in vclock.items() if origin
            )

        return self.wait_until(f"it is at {dict(vclock)}", is_there, timeout_seconds)

    def wait_for_end(self, timeout_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait until it ends by itself; returns the exit status."""
        status = self.run.exit_status(wait_seconds=timeout_seconds)
        if status is None:
            os.kill(self.run.pid, signal.SIGUSR2)  # it prints where its threads are
            wait_for("the daemon's stacks", lambda: "Current thread" in self.run.log_text(), 10)
            raise AssertionError(f"the daemon didn't end within {timeout_seconds:g} s:\n{self.run.log_tail(100)}")
        return status

    @property
    def anonymous_bytes(self) -> int:
        """RssAnon: the memory that is its own. The store's mapped pages are the system's cache of a file."""
        lines = Path(f"/proc/{self.run.pid}/status").read_text().splitlines()
        (kilobytes,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
        return int(kilobytes) * 1024


def _toml(values: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A flat TOML file: JSON's scalars and arrays are TOML's."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    for section, entries in sections.items():
        lines.append(f"[{section}]")
        for name, value in entries.items():
            if isinstance(value, Mapping):
                inline = ", ".join(f"{json.dumps(key)} = {json.dumps(item)}" for key, item in value.items())
                lines.append(f"{name} = {{{inline}}}")
            else:
                lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
