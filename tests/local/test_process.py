"""Child processes: how they start, end, fail, are awaited and paused."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.local.errors import LocalServerError
from cdc.local.process import ChildProcess

_FOREVER = "import signal; print('up', flush=True); signal.pause()"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"

Start = Callable[..., ChildProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python program as a child, and ends what the test leaves."""
    children: list[ChildProcess] = []

    def start_child(program: str, **environment: str) -> ChildProcess:
        child = ChildProcess("the child", [sys.executable, "-c", program], log_file=tmp_path / "log", environment=environment)
        children.append(child)
        return child

    yield start_child
    for child in children:
        child.kill()


def printed(child: ChildProcess, word: str) -> Callable[[], str | None]:
    """A probe for what the child has printed."""
    return lambda: None if word in child.log_text() else f"it hasn't printed {word}"


def state(pid: int) -> str:
    """Of a process: R, S, T (stopped), …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ends(pidfd: int, timeout_seconds: float = 20) -> bool:
    """Whether the process of this descriptor ends in time."""
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def test_it_is_awaited_and_ends_when_asked(start: Start) -> None:
    child = start(_FOREVER)
    child.wait_until_ready(printed(child, "up"), timeout_seconds=20)
    assert child.exit_status() is None
    assert child.terminate() == -15
    assert child.exit_status() == -15
    assert child.terminate() == -15
    child.kill()


def test_an_early_end_shows_the_last_lines_of_the_log(start: Start) -> None:
    child = start("for line in range(100): print('line', line)\nraise SystemExit(3)")
    with pytest.raises(LocalServerError, match="ended with status 3 before it was ready") as error:
        child.wait_until_ready(lambda: "never", timeout_seconds=20)
    assert str(error.value).endswith("line 99")
    assert "line 69\n" not in str(error.value)


def test_a_program_that_is_not_there_shows_as_an_early_end(tmp_path: Path) -> None:
    child = ChildProcess("the child", ["no-such-program"], log_file=tmp_path / "log")
    with pytest.raises(LocalServerError, match="no-such-program can't be run: No such file"):
        child.wait_until_ready(lambda: "never", timeout_seconds=20)


def test_a_timeout_says_what_is_missing(start: Start) -> None:
    child = start(_FOREVER)
    with pytest.raises(LocalServerError, match=r"isn't ready after 0\.3 s: it hasn't printed down"):
        child.wait_until_ready(printed(child, "down"), timeout_seconds=0.3)
    assert child.exit_status() is None


def test_the_log_is_of_this_run(start: Start) -> None:
    assert start("print('first')").exit_status(wait_seconds=20) == 0
    second = start("print('second')")
    assert second.exit_status(wait_seconds=20) == 0
    assert second.log_text() == "second\n"


def test_it_has_the_environment_and_its_own_process_group(start: Start) -> None:
    child = start("import os; print(os.environ['WORD'], os.getpgrp() == os.getpid())", WORD="hello")
    assert child.exit_status(wait_seconds=20) == 0
    assert child.log_text() == "hello True\n"


def test_one_that_ignores_the_request_is_killed_and_reported(start: Start) -> None:
    child = start(_DEAF)
    child.wait_until_ready(printed(child, "up"), timeout_seconds=20)
    with pytest.raises(LocalServerError, match="didn't end within"):
        child.terminate(timeout_seconds=0.3)
    assert child.exit_status() == -9


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pause_returns_when_it_stands_still(start: Start) -> None:
    child = start("print('up', flush=True)\nwhile True: pass")
    child.wait_until_ready(printed(child, "up"), timeout_seconds=20)
    for _ in range(20):
        child.pause()
        assert state(child.pid) == "T"
        assert child.exit_status() is None
        child.resume()
    child.pause()
    assert child.terminate() == -15  # also while it is paused


@pytest.mark.skipif(sys.platform != "linux", reason="uses pidfd")
def test_what_it_started_itself_ends_with_it(start: Start) -> None:
    child = start(
        "import signal, subprocess, sys\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('pid', grandchild.pid, flush=True)\n"
        "signal.pause()"
    )
    child.wait_until_ready(printed(child, "pid"), timeout_seconds=20)
    grandchild = os.pidfd_open(int(child.log_text().split()[1]))
    child.terminate()
    assert ends(grandchild)
    os.close(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="uses pidfd")
def test_it_outlives_the_thread_that_asked_for_it(start: Start) -> None:
    children: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: children.append(start(_FOREVER)))
    thread.start()
    thread.join()
    (child,) = children
    child.wait_until_ready(printed(child, "up"), timeout_seconds=20)
    descriptor = os.pidfd_open(child.pid)
    assert not ends(descriptor, timeout_seconds=0.3)
    os.close(descriptor)
