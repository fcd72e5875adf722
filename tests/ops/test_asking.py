"""Messages of the commands that ask a running daemon, if none answers."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cdc.errors import ConfigurationError, RequestError
from cdc.local.ports import free_port
from cdc.ops import asking
from cdc.ops.asking import Access, SilentError, ask, listener_conflict_error, tap_status
from cdc.ops.fleet_page import ShardView, fleet_server
from cdc.ops.http import StatusServer
from cdc.ops.rights import Rights, Visitor, digest
from cdc.ops.silence import Silence
from cdc.ops.status import Status
from cdc.ops.view import View
from cdc.stream.commits.ownership import NameTakenError


def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(ConfigurationError) as caught:
        ask("shop", ("127.0.0.1", port), "/status")
    assert str(caught.value).startswith(f"no daemon answers at 127.0.0.1:{port}: connection refused. Start it with ")


def test_a_fleets_process_answers_for_a_daemon_that_does_not_run() -> None:
    """That is no refusal by the daemon, which would say that it runs."""
    views = {"a": ShardView("waiting", None, None, 3, "there is no room on the disk")}
    server = fleet_server(("127.0.0.1", 0), "shop", "shared", lambda: views)
    server.start()
    try:
        with pytest.raises(ConfigurationError, match=r"daemon 'shop\.a' doesn't answer at .*: no daemon of that shard runs now"):
            ask("shop.a", ("127.0.0.1", server.port), "/page/state")
        with pytest.raises(RequestError, match="no daemon of that shard runs now"):
            ask("shop.a", ("127.0.0.1", server.port), "/snapshot/pause", {})
    finally:
        server.stop()


def test_a_process_that_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes connections for it. To start it is no remedy."""
    monkeypatch.setattr(asking, "STATUS_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SilentError, match=rf"127\.0\.0\.1:{port} has answered nothing for ") as caught:
            ask("shop", ("127.0.0.1", port), "/status")
    assert f"ss -ltnp 'sport = :{port}'" in caught.value.hint
    assert "Start it with" not in str(caught.value)


@pytest.mark.parametrize("view_needs_token", [False, True])
def test_a_frozen_daemon_of_a_fleet(*, view_needs_token: bool) -> None:
    """The fleet's process answers at once in its place, and tells more to who may view."""
    view = ShardView("running", 7, free_port(), 0, None, Silence("its process 7 has answered nothing for 9 s", "kill -CONT 7"))
    rights = Rights({digest("t" * 20): Visitor("t", frozenset())}, view_needs_token=view_needs_token)
    server = fleet_server(("127.0.0.1", 0), "shop", "shared", lambda: {"a": view}, rights=rights)
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/shards/a/status", timeout=30)
        with caught.value as error:
            found = json.loads(error.read())
        known = {"error": "its process 7 has answered nothing for 9 s", "remedy": "kill -CONT 7"}
        assert (error.code, found) == (503, {"error": "the daemon of that shard doesn't answer"} if view_needs_token else known)
    finally:
        server.stop()


def test_the_daemon_ends_in_the_middle_of_its_answer() -> None:
    """As one does that is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1341\r\n\r\n{")

        answering = threading.Thread(target=answer)
        answering.start()
        address: tuple[str, int] = listener.getsockname()
        with pytest.raises(ConfigurationError, match=rf"no daemon answers at 127.0.0.1:{address[1]}: .*Start it with"):
            ask("shop", address, "/status")
        assert tap_status("shop", address) is None
        answering.join()


@pytest.mark.parametrize("view_needs_token", [False, True])
def test_a_token_of_another_state_directory(*, view_needs_token: bool) -> None:
    """What anyone may see is seen with it, too: else a daemon with a new state.path couldn't tell whose place it takes."""
    rights = Rights({digest("the-daemons-own-token"): Visitor("own", frozenset({"view"}))}, view_needs_token=view_needs_token)
    server = StatusServer(("127.0.0.1", 0), View(Status("shop", state="streaming")), rights=rights)
    address, other = ("127.0.0.1", server.port), Access("a-token-of-another")
    try:
        found = listener_conflict_error("shop", address, "", other)
        if view_needs_token:
            assert found is None
            with pytest.raises(RequestError, match=r"refuses: this needs a token with the role view"):
                ask("shop", address, "/status", access=other)
        else:
            assert isinstance(found, NameTakenError)
            assert ask("shop", address, "/status", access=other)["state"] == "streaming"
            gone = Access(missing_file=Path("/gone/http-token"))
            with pytest.raises(RequestError, match=r"the role operate\. The daemon's token .* /gone/http-token is missing\."):
                ask("shop", address, "/snapshot", {"spaces": ["users"]}, gone)
            with pytest.raises(RequestError, match=r"refuses: this needs a token with the role operate"):
                ask("shop", address, "/snapshot/pause", {}, other)
    finally:
        server.close()
