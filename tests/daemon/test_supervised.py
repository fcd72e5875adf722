"""What a daemon tells the fleet's process that has started it, and how it learns that that process is gone."""

from __future__ import annotations

import json
import socket
import threading
from typing import IO

import pytest

from cdc.daemon import supervised
from cdc.daemon.fleet_processes import Failure
from cdc.daemon.supervised import Supervision, failure_in
from cdc.errors import ConfigurationError


def pair() -> tuple[Supervision, socket.socket, IO[str]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    return Supervision(theirs.detach()), ours, ours.makefile("r", encoding="utf-8")


def test_it_tells_regularly_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "TELL_SECONDS", 0.001)
    supervision, ours, lines = pair()
    why: list[str | None] = [None]
    supervision.tell_regularly(lambda: why[0], lambda: {"s2", "s1"})
    assert [json.loads(next(lines)) for _ in range(2)] == [{"lifelessness": None, "waits_for": ["s1", "s2"]}] * 2
    why[0] = "its thread is stuck"
    while (told := json.loads(next(lines)))["lifelessness"] is None:
        pass
    assert told["lifelessness"] == "its thread is stuck"
    lines.close()
    ours.close()


def test_an_error_and_the_port() -> None:
    supervision, ours, lines = pair()
    supervision.listening(4001)
    supervision.failed(ConfigurationError("the name is wrong", "Correct it."))
    assert json.loads(next(lines)) == {"port": 4001}
    found = failure_in(json.loads(next(lines)))
    assert found == Failure("the name is wrong. Correct it.", is_configuration=True, needs_operator=True)
    lines.close()
    ours.close()


def test_the_end_of_the_fleets_process() -> None:
    supervision, ours, lines = pair()
    is_stopped = threading.Event()
    supervision.stop_with_fleet(is_stopped.set)
    lines.close()
    ours.close()
    assert is_stopped.wait(30)


def test_the_end_of_a_fleets_process_that_had_not_read_everything() -> None:
    """As of one that was frozen, and is killed then: the system calls the connection reset."""
    supervision, ours, lines = pair()
    is_stopped = threading.Event()
    supervision.listening(4001)
    supervision.stop_with_fleet(is_stopped.set)
    lines.close()
    ours.close()
    assert is_stopped.wait(30)
