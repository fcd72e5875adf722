"""Socket of a Session. This module moves bytes, and decides only how many at a time.

A master's relay writes each transaction separately. A reader that wakes for every write makes the network stack work a hundred
bytes at a time, and gets a third of the rate (measured: 150,000 rows/s instead of 540,000). Therefore, while rows arrive at a
high rate, the kernel wakes this reader only for LOW_WATER_BYTES or after COALESCE_SECONDS, or later if the caller says when rows
are wanted. While the stream is quiet, the first byte wakes the reader.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from typing import Final

from cdc.errors import OUT_OF_FILES, CdcError, ConnectionLostError
from cdc.protocol.session import Event, Session

RECEIVE_BYTES: Final = 64 * 1024
"""Maximum bytes of one read: about a thousand small rows. Decoded, they still fit a processor's cache while they pass the
pipeline's stages. Four times as many bytes cost half as much again per row (measured: 5.7 instead of 3.8 µs)."""
LOW_WATER_BYTES: Final = 256 * 1024
COALESCE_SECONDS: Final = 0.01
CONNECT_TIMEOUT_SECONDS: Final = 10.0
SEND_TIMEOUT_SECONDS: Final = 10.0


class Connection:
    """TCP connection to a server, with its session."""

    def __init__(
        self, host: str, port: int, session: Session, *, connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS
    ) -> None:
        """Connect. Raises ConnectionLostError if that fails or times out."""
        self.session = session
        self.address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_seconds)
        except OSError as error:
            raise ConnectionLostError(
                f"can't connect to Tarantool at {self.address}: {error}",
                OUT_OF_FILES
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else "Check that the server runs, and the host and port in source.uris.",
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        # Held by the thread that sends, as the data of two threads must not be mixed.
        self._sending = threading.Lock()
        self._is_busy = False
        # Whether the last read filled its buffer, so that the next one needn't wait for the low-water mark again.
        self._has_more = False
        self._last_received = 0.0
        self._unread: list[Event] = []
        self.received_bytes = 0

    def fileno(self) -> int:
        """Return the socket's descriptor, for select."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self) -> None:
        """Send the session's pending data. Raises ConnectionLostError."""
        self.send_bytes(self.session.data_to_send())

    def send_bytes(self, data: bytes) -> None:
        """Send these bytes, after those that another thread is sending now. Raises ConnectionLostError."""
        rest = memoryview(data)
        with self._sending:
            deadline = time.monotonic() + SEND_TIMEOUT_SECONDS
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    # Requests and ACKs have a hundred bytes. The buffer is full only if the server hasn't read for a long time.
                    self._wait_for_room(deadline)
                except OSError as error:
                    raise ConnectionLostError(f"the connection to {self.address} broke while sending: {error}") from error

    def _wait_for_room(self, deadline: float) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ConnectionLostError(f"the server {self.address} has read nothing for {SEND_TIMEOUT_SECONDS:.0f} s")

    def receive(self, timeout_seconds: float, wake_fd: int = -1, *, wanted_in_seconds: float = 0.0) -> list[Event]:
        """Wait for data, at most `timeout_seconds`, or until `wake_fd` is readable. Return the events decoded from the data.

        `wanted_in_seconds`: while rows arrive at a high rate, fewer than LOW_WATER_BYTES of them aren't read before that time.
        Raises ConnectionLostError when the connection ends, and the errors of Session.receive_data.
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
            ended = self.session.receive_end()
            ended.message = f"{self.address}: {ended.message}"
            raise ended
        self._has_more = len(data) == RECEIVE_BYTES
        now = time.monotonic()
        if not self._is_busy and now - self._last_received < COALESCE_SECONDS:
            self._set_busy(True)
        self._last_received = now
        self.received_bytes += len(data)
        try:
            return self.session.receive_data(data)
        except CdcError as error:
            # There may be several servers, so the error names the one that it concerns.
            error.message = f"{self.address}: {error.message}"
            raise

    def unread(self, events: list[Event]) -> None:
        """Put back events for the next `receive`, in order: rows may arrive in the same read as an answer."""
        self._unread = events + self._unread

    def wait(self, timeout_seconds: float, wake_fd: int = -1, *, for_data: bool = True) -> bool:
        """Wait for data (if `for_data`), for `wake_fd`, or until the time has passed, whichever comes first.

        Returns whether `wake_fd` alone ended the wait.
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
