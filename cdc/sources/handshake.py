"""Handshake of every connection: the server's identity, the login, and the server's ballot.

    connect ─▶ greeting ─▶ (ID) ─▶ AUTH ─▶ VOTE

The daemon, the check and the commands all begin their connections here, whatever the connection is for.
"""

from __future__ import annotations

import math
import time
from typing import Final, TypeVar
from uuid import UUID

from cdc.config.source import Member
from cdc.errors import ConnectionLostError
from cdc.protocol.ballot import Ballot
from cdc.protocol.failure import loading_error
from cdc.protocol.session import Authenticated, Event, Greeted, Identified, Session, Voted
from cdc.sources.connection import Connection

HANDSHAKE_TIMEOUT_SECONDS: Final = 15.0

_E = TypeVar("_E", bound=Event)


def greet(member: Member, instance_uuid: UUID, *, frame_bytes_max: int) -> Connection:
    """Connect and log in as the configured user. Raises ConnectionLostError, ServerError or ProtocolError."""
    connection = Connection(member.host, member.port, Session(instance_uuid, frame_bytes_max=frame_bytes_max))
    try:
        log_in(connection, member)
    except BaseException:
        connection.close()
        raise
    return connection


def log_in(connection: Connection, member: Member, *, deadline: float = math.inf) -> None:
    """Wait for the greeting, and log in as the configured user. `deadline`: when to give up, in monotonic seconds.

    Raises ConnectionLostError, ServerError or ProtocolError.
    """
    session = connection.session

    def left() -> float:
        return min(HANDSHAKE_TIMEOUT_SECONDS, deadline - time.monotonic())

    expect(connection, Greeted, left())
    if session.can_identify:
        session.identify()
        expect(connection, Identified, left())
    if member.password is not None:
        session.authenticate(member.user, member.password.get_secret_value())
        expect(connection, Authenticated, left())


def vote(connection: Connection) -> Ballot:
    """Ask for the ballot. Raises a ServerError that a retry can cure (Remedy.WAIT) if the server is still loading its data."""
    connection.session.vote()
    ballot = expect(connection, Voted).ballot
    if not ballot.is_ready:
        raise loading_error(connection.address)
    return ballot


def expect(connection: Connection, wanted: type[_E], timeout_seconds: float = HANDSHAKE_TIMEOUT_SECONDS) -> _E:
    """Send the session's pending data and wait for an event of type `wanted`. The next `receive` returns the events after it.

    Raises ConnectionLostError if the event doesn't arrive in time.
    """
    connection.send()
    deadline = time.monotonic() + timeout_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        events = connection.receive(remaining)
        for place, event in enumerate(events, 1):
            if isinstance(event, wanted):
                connection.unread(events[place:])
                return event
    if wanted is Greeted:
        raise ConnectionLostError(
            f"{connection.address} accepted the connection and sent no greeting in {timeout_seconds:.0f} s",
            "Either this isn't Tarantool's binary port, which source.uris must name, or the server hangs.",
        )
    raise ConnectionLostError(
        f"the server {connection.address} didn't answer in {timeout_seconds:.0f} s, after it had sent its greeting",
        "It hangs or is overloaded: look into its log.",
    )
