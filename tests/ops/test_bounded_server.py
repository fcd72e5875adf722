"""The HTTP server among clients that are idle, slow, many, or sent by a page in somebody's browser."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import structlog

from cdc.ops import bounded_server
from cdc.ops.allowance import Allowance
from cdc.ops.bounded_server import BoundedHandler, BoundedServer, is_allowed
from tests.live.waiting import wait_for

CONNECTIONS_MAX = 4
LARGE = 32 * 1024 * 1024


class Handler(BoundedHandler):
    """Says hello, or says it a million times, or fails."""

    def end_headers(self) -> None:
        """The time is over at `/cut` when the head has been written."""
        super().end_headers()
        if self.path == "/cut":
            self.server._cut(self.connection)

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        match self.path:
            case "/large":
                self.answer(200, "text/plain", bytes(LARGE))
            case "/slow":
                self.server.extend_deadline(self.connection, 2)
                time.sleep(2)  # as long as was said, which is longer than a connection may stay otherwise
                self.answer(200, "text/plain", b"at last")
            case "/late":
                time.sleep(0.6)  # of the second that a brief server gives
                self.answer(200, "text/plain", bytes(LARGE))
            case "/fault":
                raise LookupError("a fault of the program")
            case _:
                self.answer(200, "text/plain", b"hello")


@contextlib.contextmanager
def serving(request_seconds: float) -> Iterator[BoundedServer]:
    server = BoundedServer(
        ("127.0.0.1", 0), Handler, allowed_hosts=["CDC.example"], connections_max=CONNECTIONS_MAX, request_seconds=request_seconds
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def server() -> Iterator[BoundedServer]:
    """One whose connections may stay for longer than any test."""
    with serving(1000) as found:
        yield found


@pytest.fixture
def brief() -> Iterator[BoundedServer]:
    """One whose connections may stay for a second."""
    with serving(1) as found:
        yield found


def test_it_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than when it would look the next time whether it has to, which here is in an hour."""
    serve = BoundedServer.serve_forever
    monkeypatch.setattr(BoundedServer, "serve_forever", lambda server: serve(server, 3_600))
    server = BoundedServer(("127.0.0.1", 0), Handler)
    server.start()
    assert get(server, "127.0.0.1").endswith(b"hello")
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def connect(server: BoundedServer, beginning: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.server_address[1]), 20)
    client.sendall(beginning)
    return client


def asked(server: BoundedServer, request: bytes) -> bytes:
    """All of the answer."""
    with connect(server, request) as client:
        answer = b""
        while chunk := client.recv(65_536):
            answer += chunk
    return answer


def get(server: BoundedServer, *hosts: str, path: str = "/", version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", *(f"Host: {host}" for host in hosts), "", ""]
    return asked(server, "\r\n".join(lines).encode())


def descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_closed(client: socket.socket) -> bool:
    """Whether the server has ended the connection; waits for it."""
    try:
        while client.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


def closed_count(clients: list[socket.socket]) -> int:
    """Return how many connections the server has closed by now."""
    count = 0
    for client in clients:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            count += is_closed(client)
    return count


def test_idle_connections_make_room_for_others(server: BoundedServer) -> None:
    with contextlib.ExitStack() as stack:
        before = descriptor_count()
        idle = [stack.enter_context(connect(server, b"GET / HTTP/1.1\r\nHost: 127")) for _ in range(40)]
        wait_for("few of them to be left", lambda: descriptor_count() - before <= len(idle) + CONNECTIONS_MAX, 20)
        wait_for("the threads of those that were cut to end", lambda: server._thread_count <= CONNECTIONS_MAX, 20)
        # The thread of the connection that makes room for this one may take its time to end.
        wait_for("an answer", lambda: get(server, "127.0.0.1").endswith(b"hello"), 20)
        # Which ones depends on how soon the threads of cut connections end: while too many run, new connections are refused.
        wait_for("the others to be closed", lambda: closed_count(idle) >= len(idle) - CONNECTIONS_MAX, 20)
        assert get(server, "127.0.0.1").endswith(b"hello")
    wait_for("no thread to be left", lambda: not server._thread_count, 20)


def test_a_connection_ends_however_busy_it_is(brief: BoundedServer) -> None:
    """One that sends a byte now and then, one that doesn't read its answer, one that sends less than it promised."""
    with connect(brief, b"GET / HTTP/1.1\r\n") as slow, connect(brief, b"GET /large HTTP/1.0\r\n\r\n") as deaf:
        began = time.monotonic()
        try:
            while True:
                slow.sendall(b"x")
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert time.monotonic() - began < 15
        wait_for("both threads to end", lambda: not brief._thread_count, 15)
        deaf.settimeout(20)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while chunk := deaf.recv(1 << 20):
                received += len(chunk)
        assert received < LARGE


def test_an_answer_that_has_to_wait_may_take_longer(brief: BoundedServer) -> None:
    assert get(brief, "localhost", path="/slow", version="1.0").endswith(b"at last")


def test_who_reads_slowly_has_time_from_when_the_answer_is_there(brief: BoundedServer) -> None:
    with connect(brief, b"GET /late HTTP/1.0\r\n\r\n") as client:
        received = len(client.recv(4))
        time.sleep(0.6)  # this, and the time that the answer took to be made, is more than a second
        while chunk := client.recv(1 << 20):
            received += len(chunk)
    assert received > LARGE


def test_an_answer_that_is_cut_has_not_begun(server: BoundedServer) -> None:
    """A client can ask again for what it has nothing of; half of an answer it may take for a fault."""
    assert asked(server, b"GET /cut HTTP/1.0\r\n\r\n") == b""
    wait_for("no thread to be left", lambda: not server._thread_count, 20)


def test_more_connections_than_threads_end(server: BoundedServer) -> None:
    """Threads of connections that were cut count until they have ended."""
    with server._lock:
        server._thread_count += 2 * CONNECTIONS_MAX
    with connect(server, b"GET / HTTP/1.0\r\n\r\n") as client:
        assert is_closed(client)
    with server._lock:
        server._thread_count -= 2 * CONNECTIONS_MAX
    assert get(server, "127.0.0.1").endswith(b"hello")


def test_a_fault_is_one_line_of_the_log(server: BoundedServer) -> None:
    with structlog.testing.capture_logs() as lines:
        assert asked(server, b"GET /fault HTTP/1.0\r\n\r\n") == b""
        with connect(server, b"GET /large HTTP/1.0\r\n\r\n"):
            pass
        wait_for("both threads to end", lambda: not server._thread_count, 20)
    assert [line["event"] for line in lines] == ["a request failed"]


ALLOWED = ["127.0.0.1", "127.0.0.1:8085", "[::1]", "[::1]:8085", "10.0.0.7:80", "localhost", "LOCALHOST:8085", "cdc.example"]
REFUSED = [
    "evil.example",
    "evil.example:8085",
    "cdc.example.evil",
    "127.0.0.1.evil",
    "localhost.evil",
    "",
    "2130706433",
    "a@[::1]",
]


@pytest.mark.parametrize("host", [*ALLOWED, "cdc.example:8085", "CDC.EXAMPLE.", "fe80::1"])
def test_hosts_that_are_answered(server: BoundedServer, host: str) -> None:
    assert get(server, host).startswith(b"HTTP/1.0 200 ")
    assert is_allowed(host, ["cdc.example"])


@pytest.mark.parametrize("host", [*REFUSED, "a@[::1]", "[::1]:x", "127.0.0.1:80:80", "localhost:8085.evil"])
def test_hosts_that_are_refused(server: BoundedServer, host: str) -> None:
    answer = get(server, host)
    assert answer.startswith(b"HTTP/1.0 421 ")
    assert b"http.allowed_hosts" in answer
    assert not is_allowed(host, ["cdc.example"])


def test_a_request_has_one_host(server: BoundedServer) -> None:
    assert get(server, "127.0.0.1", "evil.example").startswith(b"HTTP/1.0 400 ")
    assert get(server).startswith(b"HTTP/1.0 400 ")
    assert get(server, version="1.0").startswith(b"HTTP/1.0 200 ")


def test_the_name_that_it_listens_at_is_allowed() -> None:
    server = BoundedServer(("localhost", 0), Handler)
    server.server_close()
    assert server.allowed_hosts == {"localhost"}


def test_it_listens_at_an_ipv6_address() -> None:
    try:
        server = BoundedServer(("::1", 0), Handler)
    except OSError:
        pytest.skip("this machine has no IPv6")
    server.server_close()
    assert server.address_family == socket.AF_INET6


def test_a_flood_gets_a_bounded_share_of_a_processor(server: BoundedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And answers go on, later ones."""
    spent = [0.0]
    monkeypatch.setattr(bounded_server, "CPU_SHARE", 0.005)
    monkeypatch.setattr(server, "_allowance", Allowance(0.005, burst=0.001))
    monkeypatch.setattr(bounded_server, "_PAUSE_SECONDS_MAX", 0.2)
    use = server._allowance.use

    def noting(seconds: float) -> None:
        spent[0] += seconds
        use(seconds)

    monkeypatch.setattr(server._allowance, "use", noting)
    began, answers = time.monotonic(), 0
    while time.monotonic() - began < 3:
        answers += get(server, "127.0.0.1").endswith(b"hello")
    seconds = time.monotonic() - began
    assert answers > 5
    assert 0.001 < spent[0] < 0.01 * seconds
