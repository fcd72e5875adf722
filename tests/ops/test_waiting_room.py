"""Connections without a whole request: no thread for them, and none is lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.ops import waiting_room
from cdc.ops.bounded_server import BoundedHandler, BoundedServer
from cdc.ops.waiting_room import HEAD_BYTES_MAX, Head, judged, look
from tests.live.waiting import wait_for


@pytest.mark.parametrize(
    ("found", "head"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", Head.WHOLE),
        (b"GET / HTTP/1.0\n\n", Head.WHOLE),
        (b"POST /snapshot HTTP/1.1\r\nHost: a\r\n\r\n{", Head.WHOLE),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", Head.PART),
        (b"G", Head.PART),
        (b"GET", Head.PART),
        (b"", Head.NONE),
        (b"get / HTTP/1.0\r\n\r\n", Head.NONE),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", Head.NONE),
        (b"A" * 17, Head.NONE),
        (b"GET /" + b"a" * (HEAD_BYTES_MAX - 5), Head.TOO_LONG),
        (b"GET /" + b"a" * (HEAD_BYTES_MAX - 9) + b"\r\n\r\n", Head.WHOLE),
    ],
)
def test_what_a_beginning_is(found: bytes, head: Head) -> None:
    assert judged(found) is head


def test_a_look_takes_nothing() -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        assert look(ours) is Head.PART
        theirs.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert look(ours) is look(ours) is Head.WHOLE
        assert ours.recv(100) == b"GET / HTTP/1.0\r\n\r\n"
        theirs.close()
        assert look(ours) is Head.NONE
    assert look(ours) is Head.NONE, "it was closed meanwhile"


class Handler(BoundedHandler):
    """Says hello."""

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        self.answer(200, "text/plain", b"hello")


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    found = BoundedServer(("127.0.0.1", 0), Handler, connections_max=4, request_seconds=30)
    found.start()
    yield found
    found.stop()


def connect(server: BoundedServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def waiting(server: BoundedServer) -> int:
    return len(server._room._clients)


def test_a_request_may_come_in_pieces(server: BoundedServer) -> None:
    with connect(server) as client:
        for number, piece in enumerate((b"GET / HT", b"TP/1.0\r\nHost: local", b"host\r\n")):
            client.sendall(piece)
            wait_for("it to wait", lambda: waiting(server) == 1)
            assert server._thread_count == 0, number
        client.sendall(b"\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.0 200")
    wait_for("nothing to be left", lambda: not waiting(server) and not server._open)


def test_those_who_say_nothing_cost_no_thread(server: BoundedServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(12)]
        wait_for("the last ones to wait", lambda: waiting(server) == len(server._open) == 4)
        assert threading.active_count() <= before + 1
        for client in clients[:8]:
            assert client.recv(1) == b"", "the oldest make room"
        clients[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert clients[-1].recv(1000).startswith(b"HTTP/1.0 200")
    wait_for("nothing to be left", lambda: not waiting(server) and not server._open)


@pytest.mark.parametrize(("sent", "answer"), [(b"\x16\x03\x01", b""), (b"GET /" + b"a" * HEAD_BYTES_MAX, b"HTTP/1.0 431 ")])
def test_what_is_no_request_ends_at_once(server: BoundedServer, sent: bytes, answer: bytes) -> None:
    with connect(server) as client:
        client.sendall(sent)
        # What wasn't read may end the connection with an error, and the answer with it.
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1000).startswith(answer)
    wait_for("nothing to be left", lambda: not waiting(server) and not server._open)


def test_a_system_without_threads_loses_no_connection(server: BoundedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room goes on."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with connect(server) as first, connect(server) as second:
        first.sendall(b"GET / HT")
        wait_for("it to wait", lambda: waiting(server) >= 1)
        with monkeypatch.context() as patched:
            patched.setattr("socketserver.ThreadingMixIn.process_request", refuse)
            first.sendall(b"TP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert first.recv(10) == b""
        second.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert second.recv(1000).startswith(b"HTTP/1.0 200")
    wait_for("no thread to be left", lambda: not server._thread_count)


def test_looks_become_rare(server: BoundedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends a byte now and then has no more of them taken for it."""
    looks = []

    def counting(connection: socket.socket) -> Head:
        looks.append(connection)
        return look(connection)

    monkeypatch.setattr(waiting_room, "look", counting)
    with connect(server) as client:
        client.sendall(b"GET /")
        wait_for("it to be looked at", lambda: bool(looks))
        for _ in range(100):
            client.sendall(b"a")
            threading.Event().wait(0.01)
    assert 2 <= len(looks) <= 8
