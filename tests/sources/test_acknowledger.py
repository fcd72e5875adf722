"""ACKs go on whatever their owner does, stop when it says so, and tell it when they can't be sent any more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from cdc.errors import ConnectionLostError
from cdc.protocol.session import Session
from cdc.sources.acknowledger import Acknowledger
from cdc.sources.connection import Connection
from tests.fakes.master import SERVER
from tests.live.waiting import wait_for


def test_acks_go_on_while_their_owner_waits() -> None:
    sent, enough = list[int](), threading.Event()

    def send() -> None:
        sent.append(1)
        if len(sent) == 5:
            enough.set()

    with closing(Acknowledger(send, 0.001)) as acknowledger:
        assert enough.wait(20)
        acknowledger.check()
    assert not acknowledger._thread.is_alive(), "none is sent any more when close has returned"


def test_what_keeps_an_ack_from_being_sent_is_told() -> None:
    def send() -> None:
        raise ConnectionLostError("the connection broke while sending")

    with closing(Acknowledger(send, 60)) as acknowledger:
        acknowledger._thread.join(20)
        with pytest.raises(ConnectionLostError, match="while sending"):
            acknowledger.check()


@pytest.fixture
def peer() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection("127.0.0.1", listener.getsockname()[1], Session(SERVER))
        other, _ = listener.accept()
    with other:
        yield connection, other
        connection.close()


def test_what_two_threads_send_is_not_mixed(peer: tuple[Connection, socket.socket]) -> None:
    """Far more than the socket takes at once, so that both of them have to wait in the middle."""
    connection, other = peer
    size, count = 300_000, 20

    def send(letter: bytes) -> None:
        for _ in range(count):
            connection.send_bytes(letter * size)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    found = b""
    while len(found) < 2 * size * count:
        found += other.recv(1 << 20)
    for thread in threads:
        thread.join(20)
    pieces = {found[start : start + size] for start in range(0, len(found), size)}
    assert pieces == {b"a" * size, b"b" * size}


def test_a_server_that_takes_nothing_is_given_up(peer: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    connection, _ = peer
    monkeypatch.setattr("cdc.sources.connection.SEND_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(ConnectionLostError, match="has read nothing for"):
        connection.send_bytes(b"x" * (64 << 20))


def test_a_reader_goes_on_while_another_thread_waits_to_send(peer: tuple[Connection, socket.socket]) -> None:
    connection, other = peer
    sender = threading.Thread(target=connection.send_bytes, args=(b"x" * (32 << 20),))
    sender.start()
    wait_for("the socket is full", lambda: sender.is_alive() and connection._sending.locked())
    assert connection.receive(0.0) == []
    received = 0
    while received < 32 << 20:
        received += len(other.recv(1 << 20))
    sender.join(20)
    assert not sender.is_alive()
