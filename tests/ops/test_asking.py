"""Messages of the commands that ask a running daemon, if none answers."""

from __future__ import annotations

import socket
import threading

import pytest

from cdc.errors import ConfigurationError, RequestError
from cdc.local.ports import free_port
from cdc.ops.asking import Access, ask, listener_conflict_error, tap_status
from cdc.ops.fleet_page import ShardView, fleet_server
from cdc.ops.http import StatusServer
from cdc.ops.rights import Rights, Visitor, digest
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
            with pytest.raises(RequestError, match=r"refuses: this needs a token with the role operate"):
                ask("shop", address, "/snapshot/pause", {}, other)
    finally:
        server.close()
