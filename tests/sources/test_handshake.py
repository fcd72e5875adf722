"""The error if something else than a Tarantool server answers."""

from __future__ import annotations

import socket
from uuid import UUID

import pytest

from cdc.errors import ConnectionLostError
from cdc.protocol.session import Greeted, Session
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect


def test_a_port_that_takes_connections_and_says_nothing() -> None:
    """As Kafka's does, which waits to be asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connection = Connection("127.0.0.1", port, Session(UUID(int=1), frame_bytes_max=1024))
        try:
            with pytest.raises(ConnectionLostError) as caught:
                expect(connection, Greeted, timeout_seconds=0.2)
        finally:
            connection.close()
    assert str(caught.value) == (
        f"127.0.0.1:{port} accepted the connection and sent no greeting in 0 s. Either this isn't Tarantool's binary port, which "
        "source.uris must name, or the server hangs."
    )
