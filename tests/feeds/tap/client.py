"""A TAP client for the tests: keeps what it is told, acknowledges as it is asked, and can be as slow or rude as a test wants."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from typing import NamedTuple, Self

from cdc.feeds.tap import wire
from cdc.feeds.tap.wire import ConnectFlag, EngineMessage, Opcode
from tests.live.waiting import wait_for

_HEADER = wire.HEADER
FUTURE = 2**64 - 1


class Told(NamedTuple):
    """One message as it came."""

    opcode: int
    key: str
    value: bytes
    cas: int
    vbucket: int
    flags: int
    opaque: int


class TapClient:
    """One connection."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, room_bytes: int | None = None) -> None:
        """`room_bytes` is what the kernel takes for a client that doesn't read."""
        plain = socket.socket()
        if room_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
        plain.settimeout(60)
        plain.connect(("127.0.0.1", port))
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self.told: list[Told] = []
        self.contents: dict[str, bytes] = {}
        self.cas: dict[str, int] = {}
        self.keys_told: set[str] = set()
        self.ack_count = 0
        self.flush_count = 0
        self.is_acknowledging = True
        self.is_closed = False
        self.backfills_ended = 0
        self.older_over_newer: list[Told] = []
        self._newest: dict[str, int] = {}
        """By key, over this connection: behind the one before, what wasn't acknowledged comes again from its beginning."""
        self._thread: threading.Thread | None = None
        self._buffer = bytearray()

    def log_in(self, user: str, password: str) -> int:
        """SASL PLAIN; returns the status."""
        self.socket.sendall(wire.request(Opcode.SASL_AUTH, b"PLAIN", value=f"\0{user}\0{password}".encode()))
        return self.answer()[0]

    def answer(self) -> tuple[int, bytes]:
        """The status and body of the next answer."""
        head = self._exactly(24)
        _, _, _, _, _, status, length, _, _ = _HEADER.unpack(head)
        return status, self._exactly(length)

    def connect(
        self,
        name: str = "",
        *,
        since: int | None = None,
        vbuckets: list[int] | None = None,
        is_dump: bool = False,
        is_takeover: bool = False,
        has_acks: bool = True,
        is_keys_only: bool = False,
    ) -> Self:
        """TAP_CONNECT."""
        flags, value = 0, b""
        if since is not None:
            flags |= ConnectFlag.BACKFILL
            value += since.to_bytes(8, "big")
        if vbuckets is not None:
            flags |= ConnectFlag.LIST_VBUCKETS
            value += struct.pack(f">H{len(vbuckets)}H", len(vbuckets), *vbuckets)
        for wanted, flag in (
            (is_dump, ConnectFlag.DUMP),
            (is_takeover, ConnectFlag.TAKEOVER),
            (has_acks, ConnectFlag.SUPPORT_ACK),
            (is_keys_only, ConnectFlag.KEYS_ONLY),
        ):
            flags |= flag if wanted else 0
        self.socket.sendall(wire.request(Opcode.TAP_CONNECT, name.encode(), flags.to_bytes(4, "big"), value))
        return self

    def start(self, contents: TapClient | None = None) -> Self:
        """Read on a thread; go on with what a former connection was told."""
        if contents is not None:
            self.contents, self.cas, self.keys_told = contents.contents, contents.cas, contents.keys_told
        self._thread = threading.Thread(target=self._read_all, daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Go away without a word."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        if self._thread is not None:
            self._thread.join(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_filled(self, timeout_seconds: float = 60) -> None:
        """Until the end of the backfill."""
        wait_for("the end of the backfill", lambda: self.backfills_ended, timeout_seconds)

    def wait_closed(self, timeout_seconds: float = 60) -> None:
        """Until the server has closed the connection."""
        wait_for("the server to close the connection", lambda: self.is_closed, timeout_seconds)

    def receive(self) -> Told | None:
        """The next message, acknowledged if it asks; None at the end."""
        while True:
            if len(self._buffer) >= 24:
                magic, opcode, key_length, extras_length, _, vbucket, length, opaque, cas = _HEADER.unpack_from(self._buffer)
                if len(self._buffer) >= 24 + length:
                    body = bytes(self._buffer[24 : 24 + length])
                    del self._buffer[: 24 + length]
                    assert magic == wire.REQUEST, f"a message with the magic 0x{magic:02x}: {body!r}"
                    flags = int.from_bytes(body[2:4], "big") if extras_length else 0
                    key = body[extras_length : extras_length + key_length].decode("utf-8", "replace")
                    told = Told(opcode, key, body[extras_length + key_length :], cas, vbucket, flags, opaque)
                    self._apply(told)
                    if flags & 1 and self.is_acknowledging:
                        self.acknowledge(told)
                    return told
            data = self.socket.recv(1024 * 1024)
            if not data:
                return None
            self._buffer += data

    def acknowledge(self, told: Told) -> None:
        """As gomemcached does."""
        self.ack_count += 1
        self.socket.sendall(_HEADER.pack(wire.RESPONSE, told.opcode, 0, 0, 0, 0, 0, told.opaque, 0))

    def _apply(self, told: Told) -> None:
        self.told.append(told)
        match told.opcode:
            case Opcode.TAP_MUTATION | Opcode.TAP_DELETE:
                self.keys_told.add(told.key)
                if told.cas < self._newest.get(told.key, 0):
                    self.older_over_newer.append(told)
                self._newest[told.key] = self.cas[told.key] = told.cas
                if told.opcode == Opcode.TAP_MUTATION:
                    self.contents[told.key] = told.value
                else:
                    self.contents.pop(told.key, None)
            case Opcode.TAP_FLUSH:
                self.flush_count += 1
                self.keys_told |= self.contents.keys()
                self.contents.clear()
            case Opcode.TAP_OPAQUE if int.from_bytes(told.value, "big") == EngineMessage.END_BACKFILL:
                self.backfills_ended += 1

    def _read_all(self) -> None:
        with contextlib.suppress(OSError):
            while self.receive() is not None:
                pass
        self.is_closed = True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            found = self.socket.recv(count - len(data))
            assert found, "the server has closed the connection"
            data += found
        return data
