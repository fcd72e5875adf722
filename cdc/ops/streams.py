"""Server-sent events to many clients by one thread: each frame is made once, and sent to all.

    handler ─ sockets of open pages ─▶ Streams ─ every interval: frame() ─▶ all of them, without waiting for any

A client that doesn't read is dropped as soon as its socket's buffer is full, so none costs memory or time. So is one whose token
no longer gives the right to see frames: before each frame, each token is looked at once, however many clients have it.

If sending a frame takes long, because clients are many or TLS has to encrypt for each, the next one comes later: sending takes
`BUSY_SHARE` of the time at most. The page says how old its contents are.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

BUSY_SHARE: Final = 0.005
CLIENTS_MAX: Final = 1_000
_PART_OF_FILES: Final = 4
"""Streams may use one of so many descriptors that the process may have; Kafka's connections and the store need others."""


def clients_max() -> int:
    """Return how many streams there may be, given the limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CLIENTS_MAX if files == resource.RLIM_INFINITY else min(CLIENTS_MAX, files // _PART_OF_FILES)


class Streams:
    """The open streams of one listener. Any thread may call its methods."""

    def __init__(
        self,
        frame: Callable[[], bytes],
        interval_seconds: float,
        may_see: Callable[[str | None], bool],
        limit: int | None = None,
    ) -> None:
        """`frame` returns the data of the next event: one line. `may_see` says whom, by the Authorization header."""
        self._frame = frame
        self._may_see = may_see
        self._interval_seconds = interval_seconds
        self._limit = clients_max() if limit is None else limit
        self._changed = threading.Condition()
        # Each with the Authorization header of its request.
        self._clients: dict[socket.socket, str | None] = {}
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def has_room(self) -> bool:
        """Whether another client may be added."""
        return len(self._clients) < self._limit and not self._is_closed

    def add(self, client: socket.socket, authorization: str | None) -> bool:
        """Take over a socket whose response's head has been sent, with its request's Authorization header.

        Return False, and take nothing, if there is no room.
        """
        with self._changed:
            if not self.has_room:
                return False
            client.setblocking(False)
            self._clients[client] = authorization
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for client in self._clients:
            client.close()
        self._clients.clear()

    def _run(self) -> None:
        """Send frames while there are clients, and wait for one while there is none."""
        pause = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, pause)
                self._changed.wait_for(lambda: self._is_closed or bool(self._clients))
                if self._is_closed:
                    return
                clients = dict(self._clients)
            began, fault = time.thread_time(), None
            try:
                self._send(clients, b"data: " + self._frame() + b"\n\n")
            except Exception as error:  # noqa: BLE001 - the thread must outlive a fault in one frame: nobody else serves the streams
                fault = error
            pause = max(self._interval_seconds, (time.thread_time() - began) / BUSY_SHARE)
            if fault is not None:  # behind the pause: writing an error for a person may take as long as a hundred frames
                structlog.get_logger().error("a frame of the page can't be made", exc_info=fault)

    def _send(self, clients: Mapping[socket.socket, str | None], event: bytes) -> None:
        may_see = {shown: self._may_see(shown) for shown in set(clients.values())}
        gone = []
        for client, shown in clients.items():
            try:
                sent = client.send(event) if may_see[shown] else 0
            except (OSError, ssl.SSLError, ValueError):
                sent = 0
            if sent < len(event):
                gone.append(client)
        with self._changed:
            for client in gone:
                self._clients.pop(client, None)
        for client in gone:
            with contextlib.suppress(OSError):
                client.close()
