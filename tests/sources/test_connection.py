"""When a connection reads: at the first byte while it is quiet, and while rows come thick when they are wanted."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast
from uuid import uuid4

import pytest

from cdc.errors import ConnectionLostError
from cdc.kafka.wake_pipe import WakePipe
from cdc.protocol.session import Session
from cdc.sources import connection as module
from cdc.sources.connection import LOW_WATER_BYTES, Connection

LONG_SECONDS = 60.0


class Echo:
    """A session that takes any bytes for an event."""

    def receive_data(self, data: bytes) -> list[Any]:
        """What has come."""
        return [data]


class Line(NamedTuple):
    """A connection, and its server's end."""

    connection: Connection
    server: socket.socket


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """Quiet so far. Two reads within a minute count as thick."""
    monkeypatch.setattr(module, "COALESCE_SECONDS", LONG_SECONDS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection("127.0.0.1", listener.getsockname()[1], cast(Session, Echo()))
        server, _ = listener.accept()
        with server:
            yield Line(connection, server)
        connection.close()


def receive(line: Line, wake_fd: int = -1, *, wanted_in_seconds: float = 0.0) -> list[bytes]:
    """What is read, at most a minute later."""
    return cast(list[bytes], line.connection.receive(LONG_SECONDS, wake_fd, wanted_in_seconds=wanted_in_seconds))


def make_busy(line: Line) -> None:
    """Have two reads follow one another closely."""
    line.connection._last_received = time.monotonic()
    line.server.sendall(b"-")
    assert receive(line) == [b"-"]
    assert line.connection._is_busy


def test_while_it_is_quiet_the_first_byte_is_read_at_once(line: Line) -> None:
    line.connection._last_received = time.monotonic() - 2 * LONG_SECONDS
    line.server.sendall(b"a")
    began = time.monotonic()
    assert receive(line, wanted_in_seconds=LONG_SECONDS) == [b"a"]
    assert time.monotonic() - began < LONG_SECONDS / 2


def test_while_rows_come_thick_they_are_read_when_they_are_wanted(line: Line) -> None:
    make_busy(line)
    line.server.sendall(b"a")
    began = time.monotonic()
    assert receive(line, wanted_in_seconds=0.1) == [b"a"]
    assert 0.1 <= time.monotonic() - began < LONG_SECONDS / 2


def test_who_is_woken_before_finds_nothing_and_loses_nothing(line: Line) -> None:
    make_busy(line)
    pipe = WakePipe()
    pipe.wake()
    line.server.sendall(b"a")
    assert receive(line, pipe.fileno(), wanted_in_seconds=LONG_SECONDS) == []
    # Nothing says any more that it can wait, so it is read with what has woken.
    assert receive(line, pipe.fileno()) == [b"a"]


def test_much_is_read_before_it_is_wanted(line: Line) -> None:
    make_busy(line)
    line.server.settimeout(LONG_SECONDS)
    began = time.monotonic()
    line.server.sendall(bytes(2 * LOW_WATER_BYTES))
    found = receive(line, wanted_in_seconds=LONG_SECONDS)
    assert sum(map(len, found)) == module.RECEIVE_BYTES
    assert time.monotonic() - began < LONG_SECONDS / 2


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ECONNREFUSED, "that the server runs"),
        (errno.EMFILE, "the limit of open files"),
        (errno.ENFILE, "the limit of open files"),
    ],
)
def test_what_helps_where_nothing_can_be_connected_to(monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    """Without descriptors nothing is wrong with the server."""

    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ConnectionLostError, match=os.strerror(number)) as raised:
        Connection("m1", 3301, cast(Session, Echo()))
    assert remedy in raised.value.hint
    assert ("source.uris" in raised.value.hint) is (number == errno.ECONNREFUSED)


def test_an_end_says_whose_connection_it_was(line: Line) -> None:
    line.connection.session = Session(uuid4())
    line.server.shutdown(socket.SHUT_WR)
    with pytest.raises(
        ConnectionLostError, match=f"{line.connection.address}: the server closed the connection before its greeting"
    ):
        receive(line)
