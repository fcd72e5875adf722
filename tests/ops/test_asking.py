"""Messages of the commands that ask a running daemon, if none answers."""

from __future__ import annotations

import socket
import threading

import pytest

from cdc.errors import ConfigurationError
from cdc.local.ports import free_port
from cdc.ops.asking import ask, tap_status


def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(ConfigurationError) as caught:
        ask("shop", ("127.0.0.1", port), "/status")
    assert str(caught.value).startswith(f"no daemon answers at 127.0.0.1:{port}: connection refused. Start it with ")


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
