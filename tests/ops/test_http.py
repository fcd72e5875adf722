"""What the listener answers: the page and its parts by role, streams, TLS, and that liveness isn't readiness."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config.http import HttpSection
from cdc.daemon.http_settings import certificate_of
from cdc.errors import ConfigurationError
from cdc.ops.asking import Access, ask
from cdc.ops.http import StatusServer
from cdc.ops.page_files import page_files
from cdc.ops.rights import Rights, Role, TokenSource, Visitor, digest
from cdc.ops.status import LIFELESS_SECONDS, State, Status
from cdc.ops.view import View
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch
from tests.live.waiting import wait_for

TOKENS: dict[Role, str] = {"view": "viewer-token-of-the-test", "rows": "reader-token-of-the-test", "operate": "operator-token"}


def rights(*, view_needs_token: bool = False) -> Rights:
    visitors = {digest(token): Visitor(role, frozenset({role, "view"})) for role, token in TOKENS.items()}
    return Rights(visitors, view_needs_token=view_needs_token)


@pytest.fixture
def view() -> View:
    return View(Status("shop", state="streaming"))


@pytest.fixture
def server(view: View) -> Iterator[StatusServer]:
    found = StatusServer(("127.0.0.1", 0), view, rights=rights())
    yield found
    found.close()


Answer = tuple[int, dict[str, str], bytes]


def get(server: StatusServer, path: str, token: str | None = None, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_the_page_and_its_files(server: StatusServer) -> None:
    """Without a token, as they show nothing yet; the browser is told to load nothing from elsewhere."""
    code, headers, body = get(server, "/")
    assert (code, body) == (200, page_files()["daemon.html"].content)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    for name in page_files():
        code, headers, body = get(server, f"/page/{name}")
        assert (code, body) == (200, page_files()[name].content)
        assert headers["X-Content-Type-Options"] == "nosniff"
        code, _, body = get(server, f"/page/{name}", **{"If-None-Match": headers["ETag"]})
        assert (code, body) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/page/", "/page/none.js", "/page/../http.py", "/page/%2e%2e/http.py", "/page//etc/passwd", "/x"]
)
def test_nothing_else_is_a_file(server: StatusServer, path: str) -> None:
    assert get(server, path)[0] == 404


NEEDED: list[tuple[str, str, Role]] = [
    ("GET", "/status", "view"),
    ("GET", "/metrics", "view"),
    ("GET", "/page/state", "view"),
    ("GET", "/page/history", "view"),
    ("GET", "/page/stream", "view"),
    ("GET", "/page/topics", "rows"),
    ("GET", "/page/detail", "rows"),
    ("GET", "/page/events?topic=shop.users", "rows"),
    ("POST", "/snapshot/stop", "operate"),
    ("POST", "/losses/acknowledge", "operate"),
]


@pytest.mark.parametrize(("method", "path", "role"), NEEDED)
@pytest.mark.parametrize("view_needs_token", [False, True])
def test_what_needs_which_role(view: View, method: str, path: str, role: Role, view_needs_token: bool) -> None:
    """401 for who shows no token or an unknown one, 403 for one without the role."""
    server = StatusServer(("127.0.0.1", 0), view, rights=rights(view_needs_token=view_needs_token))

    def code(token: str | None) -> int:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            shown = f"Authorization: Bearer {token}\r\n" if token is not None else ""
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{shown}Content-Type: application/json\r\n\r\n"
            connection.sendall(head.encode())
            return int(connection.recv(12).split()[1])

    try:
        is_open = role == "view" and not view_needs_token
        assert (code(None) < 400) == is_open
        assert is_open or code(None) == 401
        assert code("a-token-nobody-has") == 401
        for other, token in TOKENS.items():
            has_role = role in (other, "view")
            assert (code(token) == 403) == (not has_role)
    finally:
        server.close()


@pytest.mark.parametrize("path", ["/health", "/ready"])
@pytest.mark.parametrize("state", ["connecting", "failed"])
def test_errors_are_for_who_may_view(view: View, path: str, state: State) -> None:
    """They name servers. The code is for anyone."""
    view.status.state, view.status.error = state, "row 1:25 can't be read"
    server = StatusServer(("127.0.0.1", 0), view, rights=rights(view_needs_token=True))
    try:
        code, _, body = get(server, path)
        assert body.decode() == f"{state}\n"
        assert get(server, path, "another-token-than-this")[2] == body
        assert get(server, path, TOKENS["view"])[0] == code
        assert b"1:25" in get(server, path, TOKENS["view"])[2]
    finally:
        server.close()


def test_what_an_error_quotes_is_for_who_may_see_rows(server: StatusServer, view: View) -> None:
    """Wherever errors are shown: who may only view gets the sentence."""
    status = view.status
    status.state, status.error, status.error_detail = "failed", "row 1:25 can't be read", "body 91 02"
    for path in ("/health", "/ready", "/status", "/metrics", "/page/state", "/page/history"):
        assert b"91 02" not in get(server, path, TOKENS["operate"])[2]
    assert json.loads(get(server, "/page/state")[2])["troubles"][0]["has_detail"]
    assert json.loads(get(server, "/page/detail", TOKENS["rows"])[2]) == {"error": status.error, "detail": "body 91 02"}
    status.state, status.error = "streaming", None
    assert json.loads(get(server, "/page/detail", TOKENS["rows"])[2]) == {"error": None, "detail": ""}, "it is over"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_token(view: View, path: str) -> None:
    server = StatusServer(("127.0.0.1", 0), view, rights=rights(view_needs_token=True))
    try:
        assert get(server, path)[0] == 200
    finally:
        server.close()


def test_who_asks(server: StatusServer) -> None:
    def visitor(token: str | None) -> Any:
        return json.loads(get(server, "/page/visitor", token)[2])

    assert visitor(None) == {"name": "anyone", "roles": ["view"], "is_known": True}
    assert visitor(TOKENS["rows"]) == {"name": "rows", "roles": ["rows", "view"], "is_known": True}
    assert visitor("a-token-nobody-has") == {"name": "nobody", "roles": [], "is_known": False}


def test_newest_events(server: StatusServer, view: View) -> None:
    """As text; of what isn't text, its first bytes."""

    def events(after: int = 0) -> Any:
        return json.loads(get(server, f"/page/events?topic=shop.users&after={after}", TOKENS["rows"])[2])

    assert events() == {"events": [], "newest": 0, "skipped": 0}
    parts = [("shop.users", b'{"id":1}', '{"name":"ж"}'.encode()), ("shop.users", b"\xff\x00", None)]
    view.tail.note(Batch(parts, 0, 0, 0, Position(), True, {}, ["shop.users"], 0.0))  # type: ignore[arg-type]
    assert events()["events"] == [
        {"number": 1, "key": '{"id":1}', "value": '{"name":"ж"}', "bytes": 13},
        {"number": 2, "key": "2 bytes: ff 00", "value": None, "bytes": 0},
    ]
    assert [event["number"] for event in events(1)["events"]] == [2]
    assert json.loads(get(server, "/page/topics", TOKENS["rows"])[2]) == {"topics": ["shop.users"]}
    for query in ("", "topic=", "topic=a&after=x", "topic=a&after=-1"):
        assert get(server, f"/page/events?{query}", TOKENS["rows"])[0] == 400


def test_a_stream(server: StatusServer, view: View) -> None:
    """It outlives the time of a request, and shows what changes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = b""
        while b'"state":"streaming"' not in text:
            text += connection.recv(100_000)
        assert b"text/event-stream" in text
        view.status.state = "stopping"
        while b'"state":"stopping"' not in text:
            text += connection.recv(100_000)
        frames = [line.removeprefix(b"data: ") for line in text.split(b"\r\n\r\n", 1)[1].split(b"\n\n") if line.endswith(b"}")]
        assert json.loads(frames[0])["status"]["name"] == "shop"


def test_a_stream_ends_when_its_token_is_revoked(view: View, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"ann view {TOKENS['view']}\n")
    server = StatusServer(("127.0.0.1", 0), view, rights=Rights.of(TokenSource(tmp_path / "own", file=file)))
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            shown = f"Authorization: Bearer {TOKENS['view']}\r\n"
            connection.sendall(f"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n{shown}\r\n".encode())
            assert connection.recv(1000)
            file.write_text(f"ann view {TOKENS['view'][::-1]}\n")
            wait_for("the stream's end", lambda: not len(server._streams), 10)
            while connection.recv(100_000):
                pass
    finally:
        server.close()


def test_too_many_streams(server: StatusServer) -> None:
    server._streams._limit = 0
    code, headers, _ = get(server, "/page/stream")
    assert (code, headers["Retry-After"]) == (503, "30")
    assert get(server, "/page/state")[0] == 200, "what the page asks for instead"


def test_one_frame_for_all_who_ask_at_once(server: StatusServer, view: View) -> None:
    first = get(server, "/page/state")[2]
    view.status.state = "stopping"
    assert get(server, "/page/state")[2] == first


def test_liveness_is_not_readiness(server: StatusServer, view: View) -> None:
    """A restart doesn't help a daemon that waits; one whose thread hangs it does."""
    status = view.status
    for status.state in ("waiting for kafka", "connecting", "snapshot"):
        status.turned_at = time.monotonic()
        assert (get(server, "/health")[0], get(server, "/ready")[0]) == (200, 503)
    status.state = "streaming"
    assert (get(server, "/health")[0], get(server, "/ready")[0]) == (200, 200)
    status.turned_at = time.monotonic() - LIFELESS_SECONDS - 1
    code, _, text = get(server, "/health")
    assert (code, b"busy with one step for 121 s" in text) == (503, True)
    status.state = "connecting"
    assert get(server, "/health")[0] == 200, "it has no stream to go through"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file, for another name than the address."""
    file = tmp_path_factory.mktemp("tls") / "pem"
    make_certificate(file)
    return file


def make_certificate(file: Path) -> None:
    key, certificate = file.with_suffix(".key"), file.with_suffix(".crt")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    file.write_bytes(key.read_bytes() + certificate.read_bytes())


def test_tls(view: View, certificate: Path) -> None:
    """Commands trust the configured certificate and no other; plain HTTP isn't answered; a stream works, too."""
    tls = certificate_of(HttpSection(tls_certificate=certificate))
    server = StatusServer(("127.0.0.1", 0), view, rights=rights(), tls=tls)
    address = ("127.0.0.1", server.port)
    try:
        assert ask("shop", address, "/status", access=Access(certificate=certificate))["name"] == "shop"
        with pytest.raises(ConfigurationError, match="no daemon answers"):
            ask("shop", address, "/status")
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(address, timeout=10) as plain:
            context.wrap_socket(plain, server_hostname="127.0.0.1")
        context = ssl._create_unverified_context()  # noqa: S323 - the server is the test's
        with socket.create_connection(address, timeout=10) as plain, context.wrap_socket(plain) as connection:
            connection.sendall(b"GET /page/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            text = b""
            while text.count(b"data: ") < 2:
                text += connection.recv(100_000)
    finally:
        server.close()


def test_a_certificate_that_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.tls_certificate or http\.tls_key can't be used: No such file"):
        certificate_of(HttpSection(tls_certificate=tmp_path / "none"))
    (tmp_path / "pem").write_text("nothing")
    with pytest.raises(ConfigurationError, match="can't be used"):
        certificate_of(HttpSection(tls_certificate=tmp_path / "pem"))
    assert certificate_of(HttpSection()) is None


def test_a_renewed_certificate(view: View, certificate: Path, tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.write_bytes(certificate.read_bytes())
    server = StatusServer(("127.0.0.1", 0), view, tls=certificate_of(HttpSection(tls_certificate=file)))
    address = ("127.0.0.1", server.port)
    try:
        former = ssl.get_server_certificate(address, timeout=10)
        make_certificate(file)
        assert ssl.get_server_certificate(address, timeout=10) != former
        file.write_text("half written")
        assert ssl.get_server_certificate(address, timeout=10) != former
    finally:
        server.close()
