"""A TCP proxy between daemon and master, which spoils the connection on purpose and listens to the ACKs."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgpack

_CHUNK = 64 * 1024
_PIECE_BYTES = 8 * 1024
_SUBSCRIBE = 66
_REQUEST_TYPE, _VCLOCK = 0x00, 0x26


class CutError(Exception):
    """The connection is to end here."""


class Straight:
    """What happens to the bytes that the master sends over one connection: nothing."""

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        """Pieces to send on, one by one. Raises CutError."""
        yield data

    def subscribed(self) -> None:
        """SUBSCRIBE is about to reach the master."""


class CutAfter(Straight):
    """The connection breaks after so many bytes."""

    def __init__(self, byte_count: int) -> None:
        self._left = byte_count

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        if len(data) >= self._left:
            yield data[: self._left]
            raise CutError
        self._left -= len(data)
        yield data


class StallAfter(Straight):
    """Silence after so many bytes, until it is released."""

    def __init__(self, byte_count: int, *, of_stream: bool = False) -> None:
        """The bytes count from the connection's beginning or, `of_stream`, from SUBSCRIBE."""
        self._byte_count = byte_count
        self._left = sys.maxsize if of_stream else byte_count
        self.has_stalled = threading.Event()
        self.is_released = threading.Event()

    def subscribed(self) -> None:
        if self._left > self._byte_count:
            self._left = self._byte_count

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        head, rest = data[: self._left], data[self._left :]
        self._left -= len(head)
        yield head
        if rest:
            self.has_stalled.set()
            self.is_released.wait()
            self._left = len(rest)
            yield rest


class Trickle(Straight):
    """The first bytes come in pieces of one to nine."""

    def __init__(self, chance: random.Random, byte_count: int) -> None:
        self._chance = chance
        self._left = byte_count

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        start = 0
        while self._left > 0 and start < len(data):
            size = self._chance.randint(1, 9)
            yield data[start : start + size]
            start += size
            self._left -= size
        yield data[start:]


class Slow(Straight):
    """The master's bytes come at that rate: what takes a fast one many rows lasts as long with few."""

    def __init__(self, bytes_per_second: int) -> None:
        self._pause_seconds = _PIECE_BYTES / bytes_per_second
        self._pauses = threading.Event()

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _PIECE_BYTES):
            self._pauses.wait(self._pause_seconds)
            yield data[start : start + _PIECE_BYTES]


class Gather(Straight):
    """What the master says after SUBSCRIBE is held back until there is much of it, and then goes on in one piece."""

    def __init__(self, byte_count: int) -> None:
        self._missing = 0
        self._byte_count = byte_count
        self._held = b""

    def subscribed(self) -> None:
        self._missing = self._byte_count

    def pass_on(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        self._missing -= len(data)
        if self._missing <= 0:
            held, self._held = self._held, b""
            yield held


class Acks:
    """The ACKs in what the daemon sends over one connection: the packets after SUBSCRIBE."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        self.has_subscribed = False
        self._parts: list[Any] = []
        self._end = 0

    def feed(self, data: bytes) -> list[dict[int, int]]:
        """The vclocks of the ACKs that are whole now."""
        self._unpacker.feed(data)
        found = []
        for value in self._unpacker:
            if not self._parts:
                self._end = self._unpacker.tell() + value  # a packet's length
            self._parts.append(value)
            if self._unpacker.tell() == self._end:
                _, header, *body = self._parts
                self._parts = []
                if self.has_subscribed:
                    found.append(dict(body[0][_VCLOCK]))
                self.has_subscribed |= header.get(_REQUEST_TYPE) == _SUBSCRIBE
        return found


class Proxy:
    """Listens on a port of its own and connects each client to one server."""

    def __init__(
        self, server_port: int, course: Callable[[], Straight] = Straight, on_ack: Callable[[dict[int, int]], None] | None = None
    ) -> None:
        """`course` is asked for each connection; `on_ack` sees each ACK before the master does."""
        self.course = course
        self.on_ack = on_ack
        self.connection_count = 0
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._upstreams: list[threading.Thread] = []
        self._spawn(self._accept)

    @property
    def port(self) -> int:
        """Where to connect."""
        return int(self._listener.getsockname()[1])

    def uri(self, uri: str) -> str:
        """The server's URI with this proxy's port in it."""
        return uri.replace(f":{self._server_port}", f":{self.port}")

    def cut(self) -> None:
        """End all connections now."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            end(one)

    def close(self) -> None:
        """End it all; returns when nothing is told of ACKs any more."""
        end(self._listener)
        self.cut()
        for thread in self._upstreams:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._sockets.append(one)
                self.connection_count += 1
                course = self.course()
                self._spawn(self._downstream, server, client, course)
                self._upstreams.append(self._spawn(self._upstream, client, server, course))

    def _downstream(self, server: socket.socket, client: socket.socket, course: Straight) -> None:
        with contextlib.suppress(OSError, CutError):
            while data := server.recv(_CHUNK):
                for piece in course.pass_on(data):
                    client.sendall(piece)
        end(client)
        end(server)

    def _upstream(self, client: socket.socket, server: socket.socket, course: Straight) -> None:
        acks = Acks()
        has_subscribed = False
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                for vclock in acks.feed(data):
                    if self.on_ack is not None:
                        self.on_ack(vclock)
                if acks.has_subscribed and not has_subscribed:
                    has_subscribed = True
                    course.subscribed()
                server.sendall(data)
        end(client)
        end(server)

    @staticmethod
    def _spawn(func: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=arguments, name="proxy", daemon=True)
        thread.start()
        return thread


def end(one: socket.socket) -> None:
    """Close a connection, also under a thread that waits for it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
