"""Orders over HTTP: which bodies are ones, and what they ask for."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
import structlog

from cdc.errors import RequestError
from cdc.ops.http import StatusServer
from cdc.ops.http_orders import PATHS, BodyError, order_in
from cdc.ops.request_queue import RequestQueue
from cdc.ops.rights import ROLES, Rights, Visitor, digest
from cdc.ops.status import Status
from cdc.ops.view import View
from cdc.stream.snapshots.orders import Condition, Execute, Pause, Resume, Stop

TOKEN = "a-token-of-the-test"


def of(path: str, body: Any) -> Any:
    return order_in(path, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_orders() -> None:
    order = of("/snapshot", {"spaces": ["users", "orders"], "where": "row.id > 7"})
    assert isinstance(order, Execute)
    assert (order.spaces, order.exact) == (("users", "orders"), True)
    assert order.conditions == (Condition(None, "row.id > 7"),)
    assert of("/snapshot", {"spaces": ["users"]}).conditions == ()
    assert order.id != of("/snapshot", {"spaces": ["users"]}).id
    stop = of("/snapshot/stop", {"spaces": ["users"]})
    assert (type(stop), stop.spaces, stop.exact) == (Stop, ("users",), True)
    assert of("/snapshot/stop", b"").spaces is None
    assert of("/snapshot/stop", {}).spaces is None
    assert of("/losses/acknowledge", {"topics": ["shop.users"]}).topics == ("shop.users",)
    assert isinstance(of("/snapshot/pause", {}), Pause)
    assert isinstance(of("/snapshot/resume", b""), Resume)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"7", b"\xff", b"[" * 100_000, {"spaces": "users"}, {"spaces": [7]}, {"other": 1}, {"topics": []}]
)
def test_what_is_no_order(path: str, body: Any) -> None:
    with pytest.raises(BodyError, match="the body must be"):
        of(path, body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"spaces": []},
        {"spaces": ["users"], "where": 7},
        {"spaces": ["users"], "where": ""},
        {"spaces": ["users"], "where": "row.name == '\ud800'"},
    ],
)
def test_a_request_for_rows_names_spaces(body: Any) -> None:
    with pytest.raises(BodyError, match='"where"'):
        of("/snapshot", body)


def test_a_standby_names_the_one_that_takes_orders() -> None:
    """It may be a standby for months: to try again is no remedy."""
    status = Status("shop", "standby", standby_of="process 7 on there")
    status.requests = RequestQueue()
    server = StatusServer(("127.0.0.1", 0), View(status), rights=Rights({digest(TOKEN): Visitor("ann", frozenset(ROLES))}))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/snapshot/stop", b"{}", headers)
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - the scheme is given here
        assert (caught.value.code, b"that publishes, process 7 on there." in caught.value.read()) == (503, True)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Transfer-Encoding: chunked", b'14\r\n{"spaces": ["users"]}\r\n0\r\n\r\n'),
        ("Content-Length: 20", b""),
        ("Content-Length: 00000000000000000000000000000000000000000000000001", b"x"),
        ("Content-Length: -1", b""),
        ("Content-Length: 1048577", b""),
    ],
)
def test_a_body_that_is_not_read_is_not_taken_for_none(header: str, body: bytes) -> None:
    """To stop without a body means to stop everything."""
    status = Status("shop")
    status.requests = RequestQueue()
    status.requests.open()
    server = StatusServer(("127.0.0.1", 0), View(status), rights=Rights({digest(TOKEN): Visitor("ann", frozenset(ROLES))}))
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            head = f"POST /snapshot/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{header}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode() + body)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100).startswith(b"HTTP/1.0 400")
    finally:
        server.close()
    assert status.requests.to_json() is None, "nothing waits to be carried out"


def test_a_refused_order_is_not_logged_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status("shop")
    status.requests = RequestQueue()
    status.requests.open()

    def refuse(*_: Any) -> None:
        raise RequestError("there is no space 'nope'")

    monkeypatch.setattr(status.requests, "submit", refuse)
    server = StatusServer(("127.0.0.1", 0), View(status), rights=Rights({digest(TOKEN): Visitor("ann", frozenset(ROLES))}))
    try:
        with (
            structlog.testing.capture_logs() as logs,
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
        ):
            body = b'{"spaces": ["nope"]}'
            head = "POST /snapshot HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n"
            connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode() + body)
            assert connection.recv(100).startswith(b"HTTP/1.0 409")
    finally:
        server.close()
    assert [(line["event"], line["by"], line["reason"]) for line in logs] == [
        ("an order over HTTP failed", "ann", "there is no space 'nope'")
    ]
