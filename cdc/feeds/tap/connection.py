"""One client's connection up to its TAP_CONNECT: commands that are allowed before it, and authentication.

This module knows no socket. Cache commands are answered with UNKNOWN, as memcached answers unknown commands.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from cdc import __version__
from cdc.errors import ProtocolError
from cdc.feeds.tap.wire import REQUEST, Opcode, Packet, Status, TapRequest, decode_request, response

_MECHANISM: Final = b"PLAIN"


class Answer(NamedTuple):
    """Answer to one packet: the bytes to send, and the consequence for the connection."""

    data: bytes = b""
    request: TapRequest | None = None
    is_end: bool = False
    """Whether the connection ends."""
    problem: str = ""
    """Reason for the end, for the log."""


class Greeter:
    """Handler of a client's packets until the client has asked for its feed."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users` maps names to passwords; if it is empty, clients needn't log in."""
        self._users = users
        self._is_known = not users

    def answer(self, packet: Packet) -> Answer:
        """Return the answer to a packet."""
        opcode, opaque = packet.opcode, packet.opaque
        if packet.magic != REQUEST:
            return Answer(is_end=True, problem="the client sent a response packet before its TAP_CONNECT")
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
            return Answer(request=decode_request(packet))
        except ProtocolError as error:
            data = response(packet.opcode, Status.INVALID, packet.opaque, str(error).encode())
            return Answer(data, is_end=True, problem=str(error))

    def _log_in(self, packet: Packet) -> Answer:
        """Check `<whom to act as> NUL <user> NUL <password>`; a client may only act as its own user."""
        parts = packet.value.split(b"\0")
        is_right = False
        if packet.key == _MECHANISM and len(parts) == 3:
            acts_as, user, password = parts
            # Compare even if there is no such user, so that the response time doesn't reveal it.
            expected = self._users.get(user.decode("utf-8", "replace"), "")
            is_right = hmac.compare_digest(password, expected.encode("utf-8", "surrogateescape")) and bool(expected)
            is_right = is_right and acts_as in (b"", user)
        if is_right or not self._users:
            self._is_known = True
            return Answer(response(packet.opcode, Status.OK, packet.opaque, b"Authenticated"))
        self._is_known = False
        data = response(packet.opcode, Status.AUTH_ERROR, packet.opaque, b"Auth failure")
        return Answer(data, is_end=True, problem="the client's name or password is wrong")
