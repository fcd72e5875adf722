"""A socket around a Session: bytes move here, and nothing is decided but how many of them at a time.

A relay writes each transaction by itself, so a reader that wakes for every write makes the master's loopback or network
stack do its work a hundred bytes at a time, and gets a third of the rate (measured: 150,000 rows/s instead of 540,000). So
while rows come thick, this reader asks the kernel to wake it only for LOW_WATER_BYTES or after COALESCE_SECONDS, or later where
the caller says when rows are wanted; when the stream is quiet it wakes for the first byte.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Final

from cdc.errors import CdcError, ConnectionLostError
from cdc.protocol.session import Event, Session

RECEIVE_BYTES: Final = 64 * 1024
"""A thousand small rows: decoded, they still fit a processor's cache while they go through the stages. Four times as much
costs half as much again per row (measured: 5.7 instead of 3.8 µs)."""
LOW_WATER_BYTES: Final = 256 * 1024
COALESCE_SECONDS: Final = 0.01
CONNECT_TIMEOUT_SECONDS: Final = 10.0
SEND_TIMEOUT_SECONDS: Final = 10.0


class Connection:
    """One TCP connection to one server, with the session that speaks on it."""

    def __init__(
        self, host: str, port: int, session: Session, *, connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    ) -> None:
        """Connect. Raises ConnectionLostError if nobody answers in time."""
        self.session = session
        self.address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_seconds)
        except OSError as error:
            raise ConnectionLostError(
                f"can't connect to Tarantool at {self.address}: {error}",
                "Check that the server runs, and the host and port in source.uris.",
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        # Held by the thread that sends: what two of them send must not be mixed.
        self._sending = threading.Lock()
        self._is_busy = False
        # Whether the last read was full, so that the next one need not wait for the low-water mark again.
        self._has_more = False
        self._last_received = 0.0
        self._unread: list[Event] = []
        self.received_bytes = 0

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def send(self) -> None:
        """Send what the session has to say. Raises ConnectionLostError."""
        self.send_bytes(self.session.data_to_send())

    def send_bytes(self, data: bytes) -> None:
        """Send these bytes, behind those that another thread is just sending. Raises ConnectionLostError."""
        rest = memoryview(data)
        with self._sending:
            deadline = time.monotonic() + SEND_TIMEOUT_SECONDS
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    # Requests and ACKs are a hundred bytes: there is no room only if the server has stopped reading for long.
                    self._wait_for_room(deadline)
                except OSError as error:
                    raise ConnectionLostError(f"the connection to {self.address} broke while sending: {error}") from error

    def _wait_for_room(self, deadline: float) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ConnectionLostError(f"the server {self.address} has taken nothing for {SEND_TIMEOUT_SECONDS:.0f} s")

    def receive(self, timeout_seconds: float, wake_fd: int = -1, *, wanted_in_seconds: float = 0.0) -> list[Event]:
        """Wait for data, at most `timeout_seconds`, or until `wake_fd` is readable; return what it means.

        `wanted_in_seconds`: while rows come thick, less of them than LOW_WATER_BYTES aren't wanted before. Raises
        ConnectionLostError at the connection's end, and whatever Session.receive_data raises.
        """
        if self._unread:
            events, self._unread = self._unread, []
            return events
        if not self._has_more and self._is_busy:
            is_early = wanted_in_seconds > 0
            is_woken = self.wait(min(timeout_seconds, wanted_in_seconds if is_early else COALESCE_SECONDS), wake_fd)
            if is_early and is_woken:
                return []
        elif not self._has_more:
            self.wait(timeout_seconds, wake_fd)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            self._has_more = False
            self._set_busy(False)
            return []
        except OSError as error:
            raise ConnectionLostError(f"the connection to {self.address} broke: {error}") from error
        if not data:
            raise self.session.receive_end()
        self._has_more = len(data) == RECEIVE_BYTES
        now = time.monotonic()
        if not self._is_busy and now - self._last_received < COALESCE_SECONDS:
            self._set_busy(True)
        self._last_received = now
        self.received_bytes += len(data)
        try:
            return self.session.receive_data(data)
        except CdcError as error:
            # Of several servers, the one that it is about.
            error.message = f"{self.address}: {error.message}"
            raise

    def unread(self, events: list[Event]) -> None:
        """Give back events, in order, that the next `receive` is to return: rows may come in one piece with an answer."""
        self._unread = events + self._unread

    def wait(self, timeout_seconds: float, wake_fd: int = -1, *, for_data: bool = True) -> bool:
        """Wait for data (if wanted), for `wake_fd`, or until the time has passed, whichever comes first.

        Returns whether only `wake_fd` ended it.
        """
        poller = select.poll()
        if for_data:
            poller.register(self._socket, select.POLLIN)
        if wake_fd >= 0:
            poller.register(wake_fd, select.POLLIN)
        ready = poller.poll(max(0.0, timeout_seconds) * 1000)
        return bool(ready) and all(descriptor == wake_fd for descriptor, _ in ready)

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, LOW_WATER_BYTES if is_busy else 1)
