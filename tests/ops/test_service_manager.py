"""What systemd is told, by a socket in its place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.ops import service_manager
from cdc.ops.service_manager import ServiceManager, without_service_manager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """Where systemd listens, with its name in the file system."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        yield listener


def test_a_start_and_that_all_is_well(systemd: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.getsockname()})
    manager.tell_started()
    manager.tell_well("streaming")
    manager.tell_well("again, within the same second")
    manager.tell_started()
    assert [systemd.recv(1000) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1\nSTATUS=streaming", b"READY=1"]


def test_the_abstract_namespace() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # the system gives it a free name
        listener.settimeout(30)
        ServiceManager({"NOTIFY_SOCKET": f"@{listener.getsockname()[1:].decode()}"}).tell_started()
        assert listener.recv(1000) == b"READY=1"


def test_one_that_cannot_go_on_is_not_well(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that systemd ends it; and a sentence with two lines is no other message."""
    monkeypatch.setattr(service_manager, "TELL_SECONDS", 0.001)
    why: list[str | None] = [None]
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.getsockname()})
    manager.tell_regularly(lambda: why[0], lambda: "streaming\nWATCHDOG=1")
    assert systemd.recv(1000) == b"WATCHDOG=1\nSTATUS=streaming WATCHDOG=1"
    why[0] = "its thread\nis stuck"
    while (told := systemd.recv(1000)).startswith(b"WATCHDOG=1"):
        pass
    assert told == b"STATUS=its thread is stuck"


def test_nobody_listens(tmp_path: Path) -> None:
    """Neither without systemd, nor while it is started again itself."""
    nobody = ServiceManager({})
    nobody.tell_started()
    nobody.tell_well()
    before = threading.active_count()
    nobody.tell_regularly(lambda: None, str)
    assert (nobody.is_there, threading.active_count()) == (False, before)
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell_started()


def test_a_process_of_this_one_is_not_heard() -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7", "PATH": "/bin"}
    assert without_service_manager(environment) == {"PATH": "/bin"}
