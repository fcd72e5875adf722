"""The rows of a snapshot for whoever only looks: all of them, and an end to waiting for a server that has fallen silent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cdc.errors import ConnectionLostError
from cdc.positions.vclock import VClock
from cdc.protocol.session import Event, SnapshotFinished, SnapshotRows, SnapshotStarted
from cdc.sources import contents
from cdc.sources.connection import Connection
from tests.fakes import wire
from tests.fakes.pipelines import frames_of

SILENCE_SECONDS = 0.01


class Server:
    """Answers as told, then says nothing any more; each turn takes as long as it may."""

    address = "m:3301"

    def __init__(self, turns: list[list[Event]], clock: list[float]) -> None:
        self._turns = turns
        self._clock = clock
        self.received_bytes = 0
        self.silent_turns = 0

    def receive(self, timeout_seconds: float) -> list[Event]:
        self._clock[0] += timeout_seconds
        if self._turns:
            self.received_bytes += 1
            return self._turns.pop(0)
        self.silent_turns += 1
        assert self.silent_turns < 10, "it waits for ever"
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("cdc.sources.contents.time.monotonic", lambda: now[0])
    return now


def frames(number: int) -> Any:
    return frames_of(wire.frame({0: 2}, {0x10: 512, 0x21: [number]}))


def test_all_rows_come(clock: list[float]) -> None:
    # A turn without an event, as while one frame comes in pieces, is no silence.
    turns: list[list[Event]] = [
        [SnapshotStarted(VClock())],
        [SnapshotRows(frames(1)), SnapshotRows(frames(2))],
        [],
        [],
        [SnapshotRows(frames(3)), SnapshotFinished(VClock())],
    ]
    found = contents.rows(cast(Connection, Server(turns, clock)))
    assert [body[0x21] for each in found for body in each.bodies] == [[1], [2], [3]]


def test_a_server_that_falls_silent_is_left(clock: list[float]) -> None:
    server = Server([[SnapshotStarted(VClock()), SnapshotRows(frames(1))]], clock)
    found = contents.rows(cast(Connection, server))
    next(found)
    with pytest.raises(ConnectionLostError, match=r"m:3301 has been silent for 300 s within a snapshot"):
        next(found)


def test_a_server_that_sends_byte_by_byte_is_left(clock: list[float]) -> None:
    """Data keeps arriving, and no row is ever whole."""
    server = Server([[SnapshotStarted(VClock()), SnapshotRows(frames(1))], *[[]] * 100], clock)
    found = contents.rows(cast(Connection, server), 15, 60)
    next(found)
    with pytest.raises(ConnectionLostError, match=r"m:3301 sends its snapshot so slowly .* within 60 s"):
        next(found)
    assert clock[0] == 1060
