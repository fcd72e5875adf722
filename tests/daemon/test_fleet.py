"""The process of a fleet, with small programs in the daemons' place."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cdc.commands.status import readable_fleet
from cdc.config.fleet import Fleet
from cdc.daemon import fleet, fleet_processes
from cdc.daemon.fleet import FleetDaemon, FleetError
from cdc.errors import ConfigurationError, RequestError
from cdc.ops.asking import SilentError, ask
from tests import test_fleet_config

BEGIN = """
import json, os, signal, socket, sys, time
name, ours, port = sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
tell = lambda **message: ours.sendall(json.dumps(message).encode() + b"\\n")
open(f"{os.environ['TRACES']}/{name}", "a").write(" ".join(["started", *sys.argv[4:]]) + "\\n")
count = len(open(f"{os.environ['TRACES']}/{name}").readlines())
"""
WAITS = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntell(port=port)\nours.recv(1)\n"
"""Ends with status 0 at SIGTERM, and when the fleet's process has gone."""
LIVES = f"""
import threading
def live():
    while True:
        tell(lifelessness=None, waits_for=[])
        time.sleep(0.02)
signal.signal(signal.SIGUSR2, lambda *_: None)
threading.Thread(target=live, daemon=True).start()
{WAITS}"""
"""The same, and tells that it is well."""


class Pages(BaseHTTPRequestHandler):
    """What a daemon serves."""

    def do_GET(self) -> None:
        known = {"/status": '{"name": "shop.s1", "state": "streaming"}', "/ready": "streaming"}
        self._answer(known.get(self.path, "# HELP a_metric A\na_metric 1"))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.dumps({"path": self.path, "body": json.loads(body), "type": self.headers["Content-Type"]}))

    def _answer(self, text: str) -> None:
        self.send_response(202 if self.command == "POST" else 200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Where all daemons' pages are."""
    server = HTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


class Run:
    """A fleet of the shards s1 and s2, with a program for each."""

    def __init__(
        self,
        folder: Path,
        port: int,
        options: Sequence[str] = (),
        watchdog_seconds: float | None = 60.0,
        **programs: str,
    ) -> None:
        self.folder = folder
        more = f'{test_fleet_config.MORE}\n[http]\nlisten = "127.0.0.1:0"'
        self.fleet: Fleet = replace(test_fleet_config.fleet(folder, more=more), watchdog_seconds=watchdog_seconds)

        def command(name: str, descriptor: int) -> Sequence[str]:
            return [sys.executable, "-c", BEGIN + programs[name], name, str(descriptor), str(port)]

        self.daemon = FleetDaemon(self.fleet, command, options)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=("until_caught_up" in programs,))

    def _run(self, until_caught_up: bool) -> None:
        try:
            self.daemon.run(until_caught_up=until_caught_up)
        except FleetError as error:
            self.error = error

    def start(self) -> Run:
        self._thread.start()
        return self

    def traces(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, name: str, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.traces(name)) < count or self.daemon.views()[name].port is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ended(self) -> Exception | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error

    def page(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.http_port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(autouse=True)
def _traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACES", str(tmp_path))


def test_one_is_killed(tmp_path: Path, port: int) -> None:
    """It is started again, without the orders that were for the start; the other isn't touched; both are stopped at the end."""
    run = Run(tmp_path, port, ["--take-over"], s1=WAITS, s2=WAITS).start()
    for name in ("s1", "s2"):
        run.wait_for(name, 1)
    victim = run.daemon.views()["s1"].process_id
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    run.wait_for("s1", 2)
    assert run.traces("s1") == ["started --take-over", "started"]
    assert run.traces("s2") == ["started --take-over"]
    view = run.daemon.views()["s1"]
    assert (view.phase, view.restarts, view.error) == ("running", 1, "it was killed by signal 9")
    run.daemon.stop()
    assert run.ended() is None


def frozen(run: Run, name: str) -> int:
    """The process of a shard's daemon, which a signal stops once it runs."""
    run.wait_for(name, 1)
    process = run.daemon.views()[name].process_id
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    return process


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.05)
    for module in (fleet, fleet_processes):
        monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)


@pytest.mark.usefixtures("_impatient")
def test_one_that_is_frozen_is_killed_and_started_again(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other isn't touched; and the service manager, if there is one, hears the fleet's process alone."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    same = f"assert 'NOTIFY_SOCKET' not in os.environ\n{LIVES}"
    run = Run(tmp_path, port, watchdog_seconds=1.5, s1=same, s2=same).start()
    run.wait_for("s2", 1)
    frozen(run, "s1")
    run.wait_for("s1", 2)
    view = run.daemon.views()["s1"]
    assert (view.phase, view.restarts) == ("running", 1)
    assert str(view.error).startswith("it was killed by the fleet's watchdog, as it had answered nothing for ")
    assert run.daemon.views()["s2"].restarts == 0
    run.daemon.stop()
    assert run.ended() is None


@pytest.mark.usefixtures("_impatient")
def test_all_that_shows_one_that_is_frozen(tmp_path: Path, port: int) -> None:
    run = Run(tmp_path, port, watchdog_seconds=None, s1=LIVES, s2=LIVES).start()
    run.wait_for("s2", 1)
    process = frozen(run, "s1")
    deadline = time.monotonic() + 60
    while run.daemon.views()["s1"].silence is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    code, lines = run.page("/ready")
    assert (code, lines.splitlines()[1]) == (503, "s2: streaming")
    assert lines.startswith(f"s1: running: its process {process} has answered nothing for ")
    assert 'tarantool_cdc_shard_up{shard="s1"} 0' in run.page("/metrics")[1]
    found = json.loads(run.page("/status")[1])
    text = readable_fleet({**found, "shards": {"s1": found["shards"]["s1"]}})
    assert f"silent       its process {process} has answered nothing for " in text
    assert "a signal, or a debugger, has stopped it" in text
    assert f"change       `kill -CONT {process}` lets it go on" in text
    assert f"`kill -9 {process}` ends it, and the fleet starts it again" in text
    with pytest.raises(SilentError, match=f"the daemon 'shop.s1' doesn't answer at .* its process {process} ") as caught:
        ask("shop.s1", ("127.0.0.1", run.daemon.http_port or 0), "/status")
    assert f"kill -CONT {process}" in caught.value.hint
    os.kill(process, signal.SIGCONT)
    while run.daemon.views()["s1"].silence is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.daemon.stop()
    assert run.ended() is None


def test_a_mistake_in_the_configuration_of_one_ends_all(tmp_path: Path, port: int) -> None:
    wrong = 'tell(error="the prefix belongs to another", configuration=True, operator=True)\nsys.exit(1)\n'
    run = Run(tmp_path, port, s1=WAITS, s2=wrong).start()
    assert str(run.ended()) == "the fleet 'shop' ends because of its shard 's2': the prefix belongs to another"


def test_until_all_have_caught_up(tmp_path: Path, port: int) -> None:
    crash_once = "sys.exit(0 if count > 1 else 3)\n"
    run = Run(tmp_path, port, s1="sys.exit(0)\n", s2=crash_once, until_caught_up="").start()
    assert run.ended() is None
    assert len(run.traces("s2")) == 2


def test_a_signal_is_passed_on(tmp_path: Path, port: int) -> None:
    note = "lambda *_: open(f\"{os.environ['TRACES']}/{name}\", 'a').write('usr2\\n')"
    told = f"signal.signal(signal.SIGUSR2, {note})\n{WAITS}"
    run = Run(tmp_path, port, s1=told, s2=told).start()
    for name in ("s1", "s2"):
        run.wait_for(name, 1)
    run.daemon.pass_on(signal.SIGUSR2)
    for name in ("s1", "s2"):
        run.wait_for(name, 2)
    run.daemon.stop()
    assert run.ended() is None


def test_a_program_that_cannot_be_started(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, port, s1=WAITS, s2=WAITS)
    monkeypatch.setattr(run.daemon, "_command", lambda *_: ["/nowhere/python"])
    run.start()
    deadline = time.monotonic() + 60
    while run.daemon.views()["s1"].restarts == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "can't be started: No such file" in str(run.daemon.views()["s1"].error)
    run.daemon.stop()
    run.ended()


def test_no_descriptor_is_left_for_a_process(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the status may have them all for a moment. The other daemons go on, and this one is tried again."""
    run, pair = Run(tmp_path, port, s1=WAITS, s2=WAITS), socket.socketpair
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def socketpair() -> tuple[socket.socket, socket.socket]:
        if failures:
            raise failures.pop()
        return pair()

    monkeypatch.setattr(socket, "socketpair", socketpair)
    run.start()
    deadline = time.monotonic() + 60
    while run.daemon.views()["s1"].port is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (run.daemon.views()["s1"].restarts, run.daemon.views()["s2"].restarts) == (1, 0)
    run.daemon.stop()
    run.ended()


def test_pages(tmp_path: Path, port: int) -> None:
    run = Run(tmp_path, port, s1=WAITS, s2=WAITS).start()
    for name in ("s1", "s2"):
        run.wait_for(name, 1)
    status = json.loads(run.page("/status")[1])
    assert (status["name"], status["topics"], list(status["shards"])) == ("shop", "shared", ["s1", "s2"])
    assert status["shards"]["s2"]["status"]["state"] == "streaming"
    assert run.page("/ready") == (200, "s1: streaming\ns2: streaming\n")
    assert run.page("/health")[0] == 200
    metrics = run.page("/metrics")[1].splitlines()
    assert metrics[1:3] == ["a_metric 1", "a_metric 1"], "a daemon's own have the label already"
    assert 'tarantool_cdc_shard_up{shard="s2"} 1' in metrics
    assert run.page("/shards/s3/status")[0] == 404
    address = ("127.0.0.1", run.daemon.http_port or 0)
    order: dict[str, Any] = ask("shop.s1", address, "/snapshot", {"spaces": ["orders"]})
    assert order == {"path": "/snapshot", "body": {"spaces": ["orders"]}, "type": "application/json"}
    with pytest.raises(ConfigurationError, match=r"the daemon 'shop' answers, not 'shop\.s3'"):
        ask("shop.s3", address, "/status")
    with pytest.raises(RequestError, match="answers 404"):
        ask("shop", address, "/snapshot", {"spaces": []})
    run.daemon.stop()
    assert run.ended() is None


def test_the_fleet_runs_already(tmp_path: Path, port: int) -> None:
    run = Run(tmp_path, port, s1=WAITS, s2=WAITS).start()
    more = f'{test_fleet_config.MORE}\n[http]\nlisten = "127.0.0.1:{run.daemon.http_port}"'
    second = test_fleet_config.fleet(tmp_path, more=more)
    with pytest.raises(Exception, match="a daemon 'shop' is running and listens at"):
        FleetDaemon(second, lambda *_: [])
    run.daemon.stop()
    assert run.ended() is None
