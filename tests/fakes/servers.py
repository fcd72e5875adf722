"""Fake masters behind addresses: a stand-in for the socket that what talks to several servers can be given."""

from __future__ import annotations

from typing import Any

from cdc.config import Config, parse
from cdc.errors import ConnectionLostError
from cdc.protocol.session import Event, Session
from tests.fakes.master import Master, MasterConnection


class FakeConnection:
    """What `cdc.sources.connection.Connection` is to its users, as far as requests and answers go."""

    def __init__(self, address: str, session: Session, relay: MasterConnection | None) -> None:
        self.session = session
        self.address = address
        if relay is None:
            raise ConnectionLostError(f"can't connect to Tarantool at {address}")
        self._relay = relay
        self._unread: list[Event] = []
        self.is_closed = False

    def send(self) -> None:
        """Hand over what the session has to say."""
        data = self.session.data_to_send()
        if data:
            self._relay.receive_data(data)

    def receive(self, timeout_seconds: float, wake_fd: int = -1) -> list[Event]:  # noqa: ARG002 - nothing is waited for here
        """What has come."""
        if self._unread:
            events, self._unread = self._unread, []
            return events
        data = self._relay.data_to_send()
        if not data:
            raise self.session.receive_end()
        return self.session.receive_data(data)

    def unread(self, events: list[Event]) -> None:
        """Give events back."""
        self._unread = events + self._unread

    def close(self) -> None:
        """End it."""
        self.is_closed = True


class FakeServers:
    """Masters by port of 127.0.0.1; None for one that is away. Call it in the place of the class `Connection`."""

    def __init__(self, **masters: Master | None) -> None:
        """Named `port_3301` and so on, in the order of the configuration."""
        self.masters = {int(name.removeprefix("port_")): master for name, master in masters.items()}
        self.connections: list[FakeConnection] = []

    def __call__(self, host: str, port: int, session: Session) -> FakeConnection:
        """Connect."""
        master = self.masters[port]
        connection = FakeConnection(f"{host}:{port}", session, MasterConnection(master) if master else None)
        self.connections.append(connection)
        return connection

    def config(self, **source: Any) -> Config:
        """A registered daemon's, with these servers."""
        uris = [f"cdc:secret@127.0.0.1:{port}" for port in self.masters]
        return parse(
            {
                "name": "shop",
                "source": {"uris": uris, "mode": "registered", **source},
                "kafka": {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"},
            },
            "a test",
        )
