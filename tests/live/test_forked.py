"""Forked commands: what a test does with a process it can do with them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc import __version__
from cdc.local.ports import free_port
from tests.live.fork_server import Order
from tests.live.forked import CdcProcess, _Forked, _Server, can_be_forked, run_command
from tests.live.waiting import wait_for
from tests.log.test_log import CONFIGURATION

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

Start = Callable[[], CdcProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons that find no Kafka."""
    started: list[CdcProcess] = []
    file = tmp_path / "shop.toml"
    file.write_text(CONFIGURATION % (free_port(), "json"))

    def run() -> CdcProcess:
        started.append(CdcProcess("shop", ["run", "--config", str(file)], log_file=tmp_path / "log", working_directory=tmp_path))
        return started[-1]

    yield run
    for process in started:
        process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_its_output_can_be_read_before_it_has_begun(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, seen = _Server.fork, []

    def forked(server: _Server, order: Order) -> _Forked:
        seen.append((tmp_path / "log").exists())
        return fork(server, order)

    monkeypatch.setattr(_Server, "fork", forked)
    start().log_text()
    assert seen == [True]


def test_a_command_has_its_output_its_status_and_its_environment() -> None:
    done = run_command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tarantool-cdc {__version__}\n", "")
    done = run_command("check", "--config", "nowhere.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tarantool-cdc: ")
    assert can_be_forked({"TARANTOOL_CDC__SOURCE__USER": "u"})
    assert not can_be_forked({"TARANTOOL_CDC_PURE": "other"})
    # Which is read when the daemon is imported: it takes a process of its own.
    pure = run_command("check", "--config", "nowhere.toml", environment={"TARANTOOL_CDC_PURE": "other"})
    assert pure.stderr == done.stderr


def test_it_is_awaited_and_paused(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    daemon = start()
    wait_for("the daemon", lambda: log.exists() and "127.0.0.1:1" in daemon.log_text())
    assert daemon.exit_status() is None
    assert os.getpgid(daemon.pid) == daemon.pid
    for _ in range(3):
        daemon.pause()
        daemon.pause()
        assert state(daemon.pid) == "T"
        daemon.resume()
        wait_for("it to continue", lambda: state(daemon.pid) != "T")
    daemon.pause()
    daemon.kill()
    assert daemon.exit_status() == -9
    daemon.pause()
    assert daemon.terminate() == -9


def test_it_is_killed_as_soon_as_it_is_started(start: Start) -> None:
    for _ in range(5):
        daemon = start()
        daemon.kill()
        assert daemon.exit_status() == -9


def test_none_outlives_its_server(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(CONFIGURATION % (free_port(), "json"))
    server = _Server()
    log = str(tmp_path / "log")
    forked = server.fork(Order(["run", "--config", str(file)], dict(os.environ), str(tmp_path), log, log))
    pidfd = os.pidfd_open(forked.pid)
    server._process.kill()
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)
    with pytest.raises(subprocess.TimeoutExpired):
        forked.wait(0.01)
    with pytest.raises(OSError, match=r"has ended|Broken pipe"):
        server.fork(Order([], {}, "/", log, log))
