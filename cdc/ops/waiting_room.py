"""Connections whose request's head hasn't arrived yet: they wait here, without a thread each.

    accepted ─▶ is the head there? ─ yes ───────────────────────▶ a thread of its own, which reads the request
                   ├─ not all of it ─▶ the room: looked at again when it is twice as old ─▶ yes, or no
                   └─ it is none, or too long ─▶ closed

A look leaves the bytes in the socket (MSG_PEEK). Most of what troubles a listener says nothing, half of something, or something
that isn't HTTP. A thread for each would cost ten times as much, and so would a look at each byte.
"""

from __future__ import annotations

import heapq
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

HEAD_BYTES_MAX: Final = 16 * 1024
ROUND_SECONDS: Final = 0.05
"""Time between two rounds of looks, and age at which a connection is looked at for the first time in the room."""
_OTHER_END: Final = re.compile(rb"\n\r?\n")
_METHOD: Final = re.compile(rb"[A-Z]{1,16}(?: |$)")
TOO_LONG: Final = b"HTTP/1.0 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"


class Head(Enum):
    """What there is of a request's head."""

    WHOLE = auto()
    PART = auto()
    NONE = auto()
    """The client is gone, or sends something else."""
    TOO_LONG = auto()


class WaitingRoom:
    """The room of one listener. Any thread may call its methods."""

    def __init__(
        self, decided: Callable[[socket.socket, Any, Head], None], after_round: Callable[[], None] = lambda: None
    ) -> None:
        """`decided` gets each connection that needn't wait any longer, with its client's address, and `after_round` is called
        when all have been looked at; both by the room's thread."""
        self._decided, self._after_round = decided, after_round
        self._changed = threading.Condition()
        # When to look at a connection, a number that decides between equal times, and since when it is here.
        self._looks: list[tuple[float, int, float, socket.socket]] = []
        self._clients: dict[socket.socket, Any] = {}
        self._numbers = itertools.count()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, connection: socket.socket, client: Any) -> None:
        """Have a connection wait."""
        now = time.monotonic()
        with self._changed:
            self._clients[connection] = client
            heapq.heappush(self._looks, (now + ROUND_SECONDS, next(self._numbers), now, connection))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="waiting room", daemon=True)
                self._thread.start()
            elif len(self._clients) == 1:
                self._changed.notify_all()

    def take(self, connection: socket.socket) -> bool:
        """Return whether a connection waits here, and forget it."""
        with self._changed:
            return self._clients.pop(connection, self) is not self

    def close(self) -> None:
        """Forget all connections, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._clients.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self._clients))
                self._changed.wait_for(lambda: self._is_closed, ROUND_SECONDS)
                if self._is_closed:
                    return
                due = self._due(time.monotonic())
            for began, connection in due:
                head = look(connection)
                if head is Head.PART:
                    with self._changed:
                        now = time.monotonic()
                        heapq.heappush(self._looks, (2 * now - began, next(self._numbers), began, connection))
                    continue
                with self._changed:
                    client = self._clients.pop(connection, self)
                if client is not self:
                    self._decided(connection, client, head)
            self._after_round()

    def _due(self, now: float) -> list[tuple[float, socket.socket]]:
        """Take the looks that are due, of connections that still wait; those of others are forgotten."""
        found = []
        while self._looks and (self._looks[0][0] <= now or self._looks[0][3] not in self._clients):
            _, _, began, connection = heapq.heappop(self._looks)
            if connection in self._clients:
                found.append((began, connection))
        return found


def look(connection: socket.socket) -> Head:
    """Return what there is of the head of a connection's request, without waiting for it."""
    try:
        found = connection.recv(HEAD_BYTES_MAX, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return Head.PART
    except OSError:
        return Head.NONE
    return judged(found)


def judged(found: bytes) -> Head:
    """Return what the beginning of a request is; empty at its end."""
    if not _METHOD.match(found):
        return Head.NONE
    # The usual end is found fast; the other ones are for those who type.
    if b"\r\n\r\n" in found or _OTHER_END.search(found):
        return Head.WHOLE
    return Head.PART if len(found) < HEAD_BYTES_MAX else Head.TOO_LONG
