"""The daemon's log, terminal and signals: none of them stops the daemon, makes it wait, or falsifies its exit status.

Kafka doesn't answer here, so the daemon waits for it and shows that at http.listen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc.local.ports import free_port
from tests.log.test_log import CONFIGURATION

ENDS_SECONDS = 30
"""Far below what a process manager grants."""
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from cdc import cli; from cdc.kafka import topic_admin; "
    "topic_admin.ADMIN_TIMEOUT_SECONDS = topic_admin._LOGIN_SECONDS = 0.3; sys.exit(cli.main())",
]
"""`tarantool-cdc`. It sees that it is to end when its question to Kafka does, after ten seconds; here after less."""


def status(port: int) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=3) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return None


class Run:
    """A daemon with a stderr of the test's."""

    def __init__(
        self, directory: Path, *, stderr: int, wrapped: Sequence[str] = (), style: str = "json", port: int = 0, **options: Any
    ) -> None:
        self.port = port or free_port()
        file = directory / "shop.toml"
        file.write_text(CONFIGURATION % (self.port, style))
        command = [*wrapped, *COMMAND, "run", "--config", str(file)]
        options.setdefault("start_new_session", True)
        self.process = subprocess.Popen(
            command, stderr=stderr, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=directory, **options
        )

    def wait_until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = status(self.port)
            if found is not None and holds(found):
                return found
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}"
            time.sleep(0.05)
        raise AssertionError(f"still {found}")

    def wait_until_up(self) -> dict[str, Any]:
        return self.wait_until(lambda found: found["state"] == "waiting for kafka")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(ENDS_SECONDS)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def run(**options: Any) -> Run:
        made.append(Run(tmp_path, **options))
        return made[-1]

    yield run
    for each in made:
        each.process.kill()
        each.process.wait()


@contextlib.contextmanager
def descriptor(kind: str) -> Iterator[int]:
    """A stderr that can't be written, or that nobody reads."""
    if kind == "full disk":
        opened = [os.open("/dev/full", os.O_WRONLY)]
    elif kind == "journal stands still":  # its stderr is a socket
        opened = [end.detach() for end in socket.socketpair()]
        fill(opened[0])
    else:
        reader, writer = os.pipe()
        opened = [writer, reader]
        if kind == "reader gone":
            os.close(opened.pop())
        else:
            fill(writer)
    try:
        yield opened[0]
    finally:
        for each in opened:
            os.close(each)


def fill(writer: int) -> None:
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 512)
    os.set_blocking(writer, True)


KINDS = ["nobody reads", "reader gone", "full disk", "journal stands still"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_daemon_runs_and_stops(runs: Callable[..., Run], kind: str) -> None:
    with descriptor(kind) as stderr:
        run = runs(stderr=stderr)
        run.wait_until_up()
        if kind in ("reader gone", "full disk"):
            run.wait_until(lambda found: found["log_lines_lost"] > 0)
        run.process.send_signal(signal.SIGUSR2)
        run.wait_until_up()
        assert run.end() == 0


def test_stacks_go_to_a_socket(runs: Callable[..., Run]) -> None:
    ours, theirs = socket.socketpair()
    with ours, ours.makefile() as lines:
        with theirs:
            run = runs(stderr=theirs.fileno())
        run.wait_until_up()
        run.process.send_signal(signal.SIGUSR2)
        assert any("most recent call first" in line for line in lines)
        assert run.end() == 0


def test_stderr_is_closed(runs: Callable[..., Run]) -> None:
    run = runs(stderr=subprocess.DEVNULL, wrapped=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    run.wait_until_up()
    run.wait_until(lambda found: found["log_lines_lost"] > 0)
    assert run.end() == 0


@pytest.mark.parametrize(("kind", "style"), [("nobody reads", "json"), ("reader gone", "console"), ("full disk", "json")])
def test_an_error_ends_it_with_1(runs: Callable[..., Run], kind: str, style: str) -> None:
    with descriptor(kind) as stderr, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        run = runs(stderr=stderr, style=style, port=taken.getsockname()[1])
        assert run.process.wait(ENDS_SECONDS) == 1


def test_a_slow_reader_gets_the_last_error(tmp_path: Path) -> None:
    """The end waits for lines that are being read."""
    reader, writer = os.pipe()
    fill(writer)
    file = tmp_path / "shop.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        file.write_text(CONFIGURATION % (taken.getsockname()[1], "console"))
        with subprocess.Popen([sys.executable, "-m", "cdc", "run", "--config", str(file)], stderr=writer) as process:
            os.close(writer)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.5)
            with open(reader, "rb") as lines:
                text = lines.read()
            assert process.wait(ENDS_SECONDS) == 1
    assert b"tarantool-cdc: " in text.splitlines()[-1]
    assert b"http.listen" in text.splitlines()[-1]


def test_lines_come_again_when_there_is_room(runs: Callable[..., Run]) -> None:
    """Of a reader that comes late, as of a disk that was full for a while."""
    reader, writer = os.pipe()
    fill(writer)
    run = runs(stderr=writer)
    os.close(writer)
    run.wait_until_up()
    with open(reader, "rb") as lines:
        assert b'"starting"' in lines.readline()
        assert run.end() == 0
        assert b'"stopped"' in lines.read()


# SIGHUP


def test_hangup_of_a_service(runs: Callable[..., Run], tmp_path: Path) -> None:
    """A log rotation's, say: the daemon goes on, and says why nothing happens."""
    with (tmp_path / "log").open("w") as file:
        run = runs(stderr=file.fileno())
    run.wait_until_up()
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + 30
    while "SIGHUP has no effect" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.wait_until_up()
    assert "most recent call first" in (tmp_path / "log").read_text()
    assert run.end() == 0


def test_a_terminal_is_closed(runs: Callable[..., Run]) -> None:
    main, terminal = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    run = runs(stderr=terminal, start_new_session=False, preexec_fn=take_terminal)
    os.close(terminal)
    run.wait_until_up()
    os.close(main)
    assert run.process.wait(ENDS_SECONDS) == 0
