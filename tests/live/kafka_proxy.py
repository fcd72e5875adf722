"""A TCP proxy between a client and a broker, which hands commits on and keeps the answers to them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.live.proxy import Proxy, Straight, end

_END_TXN = 26
_LENGTH_BYTES = 4


class KafkaProxy(Proxy):
    """Where brokers tell their address, this proxy's stands in its place, so that no client goes past it."""

    def __init__(self, server_port: int) -> None:
        self._lock = threading.Lock()
        # What a proxy's place in the answers is told by: the host is the same, and so is the length.
        self._address = b"127.0.0.1" + struct.pack(">i", server_port)
        # By connection, the numbers of the requests whose answers are kept.
        self._kept: dict[Straight, set[bytes]] = {}
        self.left = 0
        """How many answers to commits are still to be lost."""
        super().__init__(server_port)

    def lose(self, count: int) -> None:
        """The next commits, so many of them, come through, and their connections break before the answers."""
        with self._lock:
            self.left += count

    def _upstream(self, client: socket.socket, server: socket.socket, course: Straight) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(client):
                # Length, key and version of the request, its number.
                if struct.unpack_from(">h", frame, _LENGTH_BYTES)[0] == _END_TXN:
                    with self._lock:
                        if self.left > sum(map(len, self._kept.values())):
                            self._kept.setdefault(course, set()).add(frame[8:12])
                server.sendall(frame)
        end(client)
        end(server)

    def _downstream(self, server: socket.socket, client: socket.socket, course: Straight) -> None:
        ours = b"127.0.0.1" + struct.pack(">i", self.port)
        with contextlib.suppress(OSError):
            for frame in _frames(server):
                with self._lock:
                    kept = self._kept.get(course, set())
                    if frame[4:8] in kept:
                        self.left -= len(kept)
                        del self._kept[course]
                        break
                client.sendall(frame.replace(self._address, ours))
        end(client)
        end(server)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """What arrives, whole requests or answers with their lengths before them, until the connection ends."""
    reader = source.makefile("rb")
    while len(head := reader.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        (length,) = struct.unpack(">i", head)
        if len(body := reader.read(length)) < length:
            return
        yield head + body
