"""One client's connection up to its TAP_CONNECT: what it may ask before, and who it says that it is. No socket is known here.

Commands that belong to a cache are answered with UNKNOWN, as memcached answers what it doesn't know.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from cdc import __version__
from cdc.errors import ProtocolError
from cdc.feeds.tap.wire import REQUEST, Opcode, Packet, Status, Wish, response, wish_of

_MECHANISM: Final = b"PLAIN"


class Answer(NamedTuple):
    """To one packet: what to send, and what comes of it."""

    data: bytes = b""
    wish: Wish | None = None
    is_end: bool = False
    """Whether the connection ends."""
    problem: str = ""
    """Why, for the log."""


class Greeter:
    """Answers a client until it has asked for its feed."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users` are names and passwords; without any, nobody has to log in."""
        self._users = users
        self._is_known = not users

    def answer(self, packet: Packet) -> Answer:
        """What to say to a packet."""
        opcode, opaque = packet.opcode, packet.opaque
        if packet.magic != REQUEST:
            return Answer(is_end=True, problem="the client has sent an answer before it was asked anything")
        match opcode:
            case Opcode.QUIT:
                return Answer(response(opcode, Status.OK, opaque), is_end=True)
            case Opcode.NOOP:
                return Answer(response(opcode, Status.OK, opaque))
            case Opcode.VERSION:
                return Answer(response(opcode, Status.OK, opaque, f"tarantool-cdc {__version__}".encode()))
            case Opcode.SASL_LIST:
                return Answer(response(opcode, Status.OK, opaque, _MECHANISM))
            case Opcode.SASL_AUTH:
                return self._log_in(packet)
            case Opcode.STAT:
                return Answer(response(opcode, Status.OK if self._is_known else Status.AUTH_ERROR, opaque))
            case Opcode.TAP_CONNECT if self._is_known:
                return self._connect(packet)
            case Opcode.TAP_CONNECT:
                text = b"log in first, with SASL PLAIN"
                return Answer(
                    response(opcode, Status.AUTH_ERROR, opaque, text), is_end=True, problem="the client hasn't logged in"
                )
            case _:
                return Answer(response(opcode, Status.UNKNOWN, opaque, b"Unknown command"))

    def _connect(self, packet: Packet) -> Answer:
        try:
            return Answer(wish=wish_of(packet))
        except ProtocolError as error:
            data = response(packet.opcode, Status.INVALID, packet.opaque, str(error).encode())
            return Answer(data, is_end=True, problem=str(error))

    def _log_in(self, packet: Packet) -> Answer:
        """`<whom to act as> NUL <user> NUL <password>`; nobody may act as somebody else."""
        parts = packet.value.split(b"\0")
        is_right = False
        if packet.key == _MECHANISM and len(parts) == 3:
            acts_as, user, password = parts
            # Compared even if there is no such user, so that the time tells nothing.
            expected = self._users.get(user.decode("utf-8", "replace"), "")
            is_right = hmac.compare_digest(password, expected.encode("utf-8", "surrogateescape")) and bool(expected)
            is_right = is_right and acts_as in (b"", user)
        if is_right or not self._users:
            self._is_known = True
            return Answer(response(packet.opcode, Status.OK, packet.opaque, b"Authenticated"))
        self._is_known = False
        data = response(packet.opcode, Status.AUTH_ERROR, packet.opaque, b"Auth failure")
        return Answer(data, is_end=True, problem="the client's name or password is wrong")
