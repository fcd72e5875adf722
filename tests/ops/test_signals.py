"""Which signal stops, and which doesn't, with and without a terminal. tests/log/test_surroundings.py sends them to the daemon."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.ops import signals


class Stops:
    """What counts the orderly stops."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    former = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops(number: signal.Signals) -> None:
    stop = Stops()
    signals.handlers(stop)[number]()
    assert stop.count == 1


@pytest.mark.parametrize("has_terminal", [False, True])
def test_hangup(monkeypatch: pytest.MonkeyPatch, has_terminal: bool) -> None:
    monkeypatch.setattr(signals, "_ends_at_hangup", lambda: has_terminal)
    stop = Stops()
    with capture_logs() as lines:
        signals.handlers(stop)[signal.SIGHUP]()
    assert stop.count == has_terminal
    (line,) = lines
    assert line["event"].startswith("stopping at SIGHUP: " if has_terminal else "SIGHUP has no effect: ")


@pytest.mark.parametrize("has_terminal", [False, True])
def test_nohup(monkeypatch: pytest.MonkeyPatch, has_terminal: bool) -> None:
    monkeypatch.setattr(signals, "_ends_at_hangup", lambda: has_terminal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in signals.handlers(Stops())


MINIMAL = """
name = "shop"
[source]
uris = ["cdc:secret@127.0.0.1:1"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic_prefix = "shop"
"""

HANGUP_AT_START = """
import signal, sys, threading
import cdc.commands.run
from cdc import cli
from cdc.ops import signals
is_next = threading.Event()
def run(*_, **__):
    signals.heed({signal.SIGUSR2: is_next.set})
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGUSR2)
    assert is_next.wait(30)
cdc.commands.run.run = run
sys.exit(cli.main(["run", "--config", sys.argv[1]]))
"""


def test_a_rotation_while_the_program_starts(tmp_path: Path) -> None:
    """Before anything is there that could be stopped."""
    file = tmp_path / "shop.toml"
    file.write_text(MINIMAL)
    run = subprocess.run(
        [sys.executable, "-c", HANGUP_AT_START, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert run.returncode == 0
    assert "SIGHUP has no effect" in run.stderr


TWO_AT_ONCE = """
import signal, threading
from cdc import log
from cdc.ops import signals
log.configure("json", "info")
lock, stops, both = threading.Lock(), [], threading.Event()
def stop():
    with lock:
        stops.append(1)
        if len(stops) == 2:
            both.set()
signals.heed(signals.handlers(stop))
with lock:  # as a stop that has begun, or a wait for it, holds it
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
assert both.wait(30)
"""


def test_a_stop_waits_for_a_lock_that_the_main_thread_has() -> None:
    """The main thread goes on meanwhile, and releases it. A handler would wait in the main thread, for itself."""
    run = subprocess.run([sys.executable, "-c", TWO_AT_ONCE], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


ONE_AFTER_ANOTHER = """
import signal, threading
from cdc.ops import signals
seen, is_done = [], threading.Event()
signals.heed({signal.SIGUSR2: lambda: seen.append("first")})
signals.heed_also(signal.SIGUSR2, is_done.set)
signal.raise_signal(signal.SIGUSR2)
assert is_done.wait(30) and seen == ["first"]
"""


def test_a_signal_that_does_two_things() -> None:
    run = subprocess.run([sys.executable, "-c", ONE_AFTER_ANOTHER], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
