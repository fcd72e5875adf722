"""A small blocking client for a local Tarantool: it logs in and evaluates Lua.

It shares nothing with the daemon's protocol modules, so that neither can hide the other's mistakes.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
from typing import Any

import msgpack

from cdc.errors import ConnectionLostError, ProtocolError, ServerError

_REQUEST_TYPE, _SYNC = 0x00, 0x01
_TUPLE, _USER_NAME, _EXPRESSION, _DATA, _ERROR_TEXT, _ERROR_STACK = 0x21, 0x23, 0x27, 0x30, 0x31, 0x52
_AUTH, _EVAL = 7, 8
_ERROR_FLAG = 0x8000
_GREETING_BYTES, _SALT_BYTES = 128, 20


class Client:
    """One connection, opened at the first request, and again at the first request after it was lost.

    Threads may share it. A request is never repeated automatically: it is unknown whether the lost one was executed.
    """

    def __init__(self, port: int, user: str, password: str, *, host: str = "127.0.0.1", timeout_seconds: float = 60) -> None:
        """`timeout_seconds` applies to the connection and to each answer."""
        self._address = (host, port)
        self._user = user
        self._password = password
        self._timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None
        self._sync = 0
        self._lock = threading.Lock()

    def eval(self, expression: str, *arguments: Any) -> list[Any]:
        """Return the values that the Lua chunk returns; `...` are its arguments.

        Bytes of a string that aren't UTF-8 become surrogates (`errors="surrogateescape"`), both ways; extension types
        are `msgpack.ExtType`. Raises `ServerError` if the chunk raises an error, `ConnectionLostError` if there is no connection.
        """
        values: list[Any] = _unpack(self.eval_raw(expression, *arguments))
        return values

    def eval_raw(self, expression: str, *arguments: Any) -> bytes:
        """Do as `eval`, but return the array as the MessagePack that the server sent, for comparing bytes."""
        body = self._request(_EVAL, {_EXPRESSION: expression, _TUPLE: arguments})
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        unpacker.feed(body)
        for _ in range(unpacker.read_map_header()):
            key = unpacker.unpack()
            start = unpacker.tell()
            unpacker.skip()
            if key == _DATA:
                return body[start : unpacker.tell()]
        raise ProtocolError(f"The answer to an EVAL holds no data: {body.hex()}")

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        with self._lock:
            self._disconnect()

    def _request(self, request_type: int, body: dict[int, Any] | bytes) -> bytes:
        """Return the answer's body. `body` may be given already encoded."""
        with self._lock:
            try:
                connection = self._socket or self._connect()
                return self._exchange(connection, request_type, body)
            except (OSError, EOFError) as error:
                self._disconnect()
                host, port = self._address
                raise ConnectionLostError(f"The connection to Tarantool at {host}:{port} is lost: {error}") from error

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, self._timeout_seconds)
        self._socket = connection
        greeting = _receive(connection, _GREETING_BYTES)
        if not greeting.startswith(b"Tarantool "):
            raise ConnectionRefusedError(f"it answers as something else: {greeting[:64]!r}")
        salt = base64.b64decode(greeting[64:108])[:_SALT_BYTES]
        scramble = _scramble(self._password.encode(), salt)
        try:
            self._exchange(connection, _AUTH, {_USER_NAME: self._user, _TUPLE: ("chap-sha1", scramble)})
        except ServerError:
            self._disconnect()  # otherwise the next request would be sent over it as guest
            raise
        return connection

    def _exchange(self, connection: socket.socket, request_type: int, body: dict[int, Any] | bytes) -> bytes:
        self._sync += 1
        payload = _pack({_REQUEST_TYPE: request_type, _SYNC: self._sync}) + (body if isinstance(body, bytes) else _pack(body))
        connection.sendall(msgpack.packb(len(payload)) + payload)
        # The length is always sent as a 32-bit integer: a marker byte and four more.
        length = int.from_bytes(_receive(connection, 5)[1:], "big")
        frame = _receive(connection, length)
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        unpacker.feed(frame)
        header = unpacker.unpack()
        answer = frame[unpacker.tell() :]
        if header[_SYNC] != self._sync:
            self._disconnect()
            raise ProtocolError(f"Tarantool answered request {header[_SYNC]} instead of {self._sync}")
        if header[_REQUEST_TYPE] & _ERROR_FLAG:
            raise _server_error(header[_REQUEST_TYPE] & ~_ERROR_FLAG, _unpack(answer))
        return answer

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogateescape"))


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape", strict_map_key=False)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = connection.recv(min(count - len(received), 1 << 20))
        if not chunk:
            raise EOFError("it was closed by the server")
        received += chunk
    return bytes(received)


def _scramble(password: bytes, salt: bytes) -> bytes:
    # The server's chap-sha1 requires SHA-1.
    step1 = hashlib.sha1(password, usedforsecurity=False).digest()
    step2 = hashlib.sha1(step1, usedforsecurity=False).digest()
    step3 = hashlib.sha1(salt + step2, usedforsecurity=False).digest()
    return bytes(one ^ other for one, other in zip(step1, step3, strict=True))


def _server_error(code: int, body: dict[int, Any]) -> ServerError:
    stack = body.get(_ERROR_STACK, {}).get(0x00) or [{}]
    return ServerError(str(body.get(_ERROR_TEXT, "an error without text")), code=code, kind=str(stack[0].get(0x00, "")))
