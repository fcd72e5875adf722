"""A TCP proxy between clients and a broker, which can keep the answers to commits, and say that there are no brokers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.live.proxy import Proxy, Straight, end

_METADATA, _END_TXN = 3, 26
_LENGTH_BYTES = 4


class KafkaProxy(Proxy):
    """Where brokers tell their address, this proxy's stands in its place, so that no client goes past it."""

    def __init__(self, server_port: int) -> None:
        self._lock = threading.Lock()
        # What a proxy's place in the answers is told by: the host is the same, and so is the length.
        self._address = b"127.0.0.1" + struct.pack(">i", server_port)
        # By connection, the numbers of the requests whose answers are kept.
        self._kept: dict[Straight, set[bytes]] = {}
        # By connection, the numbers of the questions for metadata that are answered here, with the version of the answer.
        self._asked: dict[Straight, dict[bytes, int]] = {}
        self.left = 0
        """How many answers to commits are still to be lost."""
        self.hides_brokers = False
        """Whether answers to questions for metadata have a topic, and no broker, as those of a broker that has just started."""
        super().__init__(server_port)

    def lose(self, count: int) -> None:
        """The next commits, so many of them, come through, and their connections break before the answers."""
        with self._lock:
            self.left += count

    def _upstream(self, client: socket.socket, server: socket.socket, course: Straight) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(client):
                # Length, key and version of the request, its number.
                key, version = struct.unpack_from(">hh", frame, _LENGTH_BYTES)
                if key == _METADATA and self.hides_brokers:
                    with self._lock:
                        self._asked.setdefault(course, {})[frame[8:12]] = version
                if key == _END_TXN:
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
                    version = self._asked.get(course, {}).pop(frame[4:8], None)
                answer = frame.replace(self._address, ours) if version is None else _without_brokers(frame[4:8], version)
                client.sendall(answer)
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


def _without_brokers(number: bytes, version: int) -> bytes:
    """An answer to a question for metadata: a topic without partitions, and nothing else."""
    assert version in (12, 13), version
    topic = b"".join(
        [
            b"\0\0",  # no error
            b"\2x",  # its name, behind its length and one
            bytes(16),  # its id
            b"\0",  # it isn't internal
            b"\1",  # no partitions, and one
            struct.pack(">i", -(2**31)),  # what may be done with it isn't told
            b"\0",  # nothing more
        ]
    )
    body = b"".join(
        [
            b"\0",  # nothing more in the header
            bytes(4),  # no waiting
            b"\1",  # no brokers, and one
            b"\0",  # no cluster
            struct.pack(">i", -1),  # no controller
            b"\2" + topic,  # one topic, and one
            b"\0\0" if version >= 13 else b"",  # no error
            b"\0",  # nothing more
        ]
    )
    return struct.pack(">i", len(number) + len(body)) + number + body
