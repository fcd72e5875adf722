"""Sockets that TAP clients connect to.

This module accepts connections itself, one at a time. If the process has no free descriptor, asyncio's server tries as often as
its backlog is long, logs a traceback for each attempt, and schedules as many retries: that fills the disk and takes a core.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

import structlog

_BACKLOG: Final = 1024
READ_BYTES: Final = 64 * 1024
"""How much is read from a client at once, in bytes."""
_RETRY_SECONDS: Final = 0.1
_LOG_INTERVAL_SECONDS: Final = 60.0
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""This machine doesn't have the address, or no address of its family."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)


class Listener:
    """Listening sockets of one address, and the tasks that accept connections on them."""

    def __init__(
        self, sockets: list[socket.socket], connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        """`connected` gets each new connection, as asyncio.start_server's callback does."""
        self._sockets = sockets
        self._connected = connected
        self._logged_at = -_LOG_INTERVAL_SECONDS
        self._tasks = [asyncio.create_task(self._accept(listening)) for listening in sockets]

    @classmethod
    async def opened(
        cls, host: str, port: int, connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> Self:
        """Listen on all addresses of the host that this machine has. Raises OSError if there are none."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        absent: OSError | None = None
        for family, *_, address in dict.fromkeys(found):
            try:
                sockets.append(socket.create_server(address, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in _ABSENT:
                    for listening in sockets:
                        listening.close()
                    raise
                absent = error
            else:
                sockets[-1].setblocking(False)
        if absent is not None and not sockets:
            raise absent
        return cls(sockets, connected)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each socket; if port 0 was requested, the port that the system chose."""
        return [listening.getsockname()[:2] for listening in self._sockets]

    async def close(self) -> None:
        """Stop listening. Accepted connections stay."""
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue  # the client has already disconnected
            except OSError as error:
                self._log(error)
                await asyncio.sleep(_RETRY_SECONDS)  # no event says when there are descriptors again
                continue
            reader = asyncio.StreamReader(READ_BYTES)
            protocol = asyncio.StreamReaderProtocol(reader, self._connected)
            await loop.connect_accepted_socket(lambda made=protocol: made, connection)  # type: ignore[misc]

    def _log(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._logged_at < _LOG_INTERVAL_SECONDS:
            return
        self._logged_at = now
        remedy = ": raise the limit of open files, or lower tap.clients_max" if error.errno in _EXHAUSTED else ""
        structlog.get_logger().warning(f"no connection can be accepted for now{remedy}", reason=os.strerror(error.errno or 0))
