"""Requests whose every byte the test chooses: what a client may send that no client library does.

It speaks as `guest`, so there is nothing to log in with, and sends many requests before it reads their answers.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self

import msgpack

from cdc.local.interface import TarantoolServer

INSERT, REPLACE, UPDATE, DELETE, UPSERT = 2, 3, 4, 5, 9
SPACE_ID, INDEX_ID, INDEX_BASE, KEY, TUPLE, OPERATIONS = 0x10, 0x11, 0x15, 0x20, 0x21, 0x28

_GREETING_BYTES = 128
_PIPELINED_MAX = 200


def packed(value: object) -> bytes:
    """One value as MessagePack; a string may hold bytes that aren't UTF-8, as surrogates."""
    data: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return data


def body(*pairs: tuple[int, bytes], decoys: Sequence[bytes] = ()) -> bytes:
    """A request's body of keys and packed values, in this order, whatever sense they make.

    `decoys` are pairs in whole that stand before the others: the server passes over a key that isn't one byte, and of two
    that are equal it takes the last.
    """
    return bytes((0x80 | (len(pairs) + len(decoys)),)) + b"".join(decoys) + b"".join(packed(key) + value for key, value in pairs)


class RawRequests:
    """One connection as `guest`, who gets every right."""

    def __init__(self, tarantool: TarantoolServer) -> None:
        tarantool.eval("box.schema.user.grant('guest', 'read,write,execute', 'universe', nil, {if_not_exists = true})")
        self._socket = socket.create_connection(("127.0.0.1", tarantool.port), 60)
        self._file = self._socket.makefile("rb")
        self._file.read(_GREETING_BYTES)

    def send(self, requests: Sequence[tuple[int, bytes]]) -> list[str]:
        """Send requests (type and body) and return what the server said to each: an error's text, or nothing.

        Raises ConnectionError if the server goes away.
        """
        answers: list[str] = []
        for begin in range(0, len(requests), _PIPELINED_MAX):
            some = requests[begin : begin + _PIPELINED_MAX]
            frames = [
                b"\x82\x00" + packed(kind) + b"\x01" + packed(number) + content for number, (kind, content) in enumerate(some)
            ]
            self._socket.sendall(b"".join(b"\xce" + len(frame).to_bytes(4, "big") + frame for frame in frames))
            answers += [self._answer() for _ in some]
        return answers

    def _answer(self) -> str:
        head = self._file.read(5)
        packet = self._file.read(msgpack.unpackb(head)) if len(head) == 5 else b""
        if not packet or len(packet) < msgpack.unpackb(head):
            raise ConnectionResetError("the server closed the connection")
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="replace")
        unpacker.feed(packet)
        code: int = unpacker.unpack()[0]
        return str(unpacker.unpack()[0x31]) if code & 0x8000 else ""  # what succeeded may hold a tuple that is too deep to read

    def close(self) -> None:
        """Let go of the connection."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
