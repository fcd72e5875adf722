"""HTTP server with a bounded cost in descriptors, threads and seconds, regardless of its clients.

    connections   at most `connections_max`: a new connection replaces the oldest one, so that a request is answered however
                  many idle connections there are
    time          a connection is closed `request_seconds` after it was accepted, even if the client still sends. Once the answer
                  exists, the client has as long again to read it. A handler whose answer has to wait calls `extend_deadline`
    CPU time      all requests together get `CPU_SHARE` of a processor, after a burst of `CPU_BURST_SECONDS`. While there is none
                  left, connections wait in the system's queue: a flood slows answers down, and not what the process is for
    threads       a connection gets one when the whole head of its request has arrived (cdc.ops.waiting_room); with TLS, at once
    TLS           the handshake is done by the connection's thread, within the connection's time
    Host          an IP address, `localhost` or an allowed name. A web page can make its own host name resolve to this machine
                  (DNS rebinding); the browser's requests then carry that name, and are answered with 421

A handler may hand its connection over to somebody else (`hand_over`), who then closes it; it no longer counts here.

The server doesn't know what its paths mean: subclasses of the handler answer the requests.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import ssl
import sys
import threading
import time
from collections.abc import Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import structlog

from cdc.errors import ConfigurationError
from cdc.ops.allowance import Allowance
from cdc.ops.file_state import state_of
from cdc.ops.waiting_room import TOO_LONG, Head, WaitingRoom, look

CONNECTIONS_MAX: Final = 32
REQUEST_SECONDS: Final = 10.0
CPU_SHARE: Final = 0.03
CPU_BURST_SECONDS: Final = 1.0
_CPU_SLICE_SECONDS: Final = 0.001
"""CPU time that is saved before connections are accepted again: several at once cost less than each for itself."""
_PAUSE_SECONDS_MAX: Final = 0.5
ANSWER_BUFFER_BYTES: Final = 256 * 1024
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_HOST_SHOWN: Final = 100


class BoundedServer(ThreadingHTTPServer):
    """HTTP server with one thread per request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        *,
        allowed_hosts: Collection[str] = (),
        connections_max: int = CONNECTIONS_MAX,
        request_seconds: float = REQUEST_SECONDS,
        tls: Certificate | None = None,
    ) -> None:
        """Listen at an IPv4 or IPv6 address. Raises OSError if the address isn't available."""
        self._tls = tls
        self._allowance = Allowance(CPU_SHARE, CPU_BURST_SECONDS)
        self._spent = threading.local()
        self._is_stopping = threading.Event()
        self.allowed_hosts = frozenset(host.lower() for host in (*allowed_hosts, address[0]))
        self._connections_max = connections_max
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        # Open connections, oldest first, with the time at which each will be cut. The threads include those of cut connections.
        self._open: dict[socket.socket, float] = {}
        self._thread_count = 0
        self._handed_over: set[socket.socket] = set()
        self._room = WaitingRoom(self._admit, self._charge)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    @classmethod
    def listening(
        cls,
        key: str,
        address: tuple[str, int],
        handler: type[BoundedHandler],
        allowed_hosts: Collection[str] = (),
        tls: Certificate | None = None,
    ) -> Self:
        """Return a server that listens at the address of the configuration's `key`. Raises ConfigurationError if it can't."""
        try:
            return cls(address, handler, allowed_hosts=allowed_hosts, tls=tls)
        except OSError as error:
            raise ConfigurationError(
                f"can't listen at {key} = {address[0]}:{address[1]}: {error.strerror}",
                f"Choose another port, or leave {key} empty for no server.",
            ) from error

    @property
    def port(self) -> int:
        """The port; if port 0 was requested, the one that the system chose."""
        port: int = self.server_address[1]
        return port

    def start(self) -> None:
        """Serve on a separate thread until `stop`."""
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()

    def stop(self) -> None:
        """Stop serving and listening."""
        self._is_stopping.set()
        # Wakes the serving thread, which otherwise looks twice a second whether it has to end. Some systems refuse it.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept the next connection. If the process has no free descriptors, pause before the error is raised."""
        self._keep_pace()
        try:
            request, address = super().get_request()
            return request if self._tls is None else self._tls.wrapped(request), address
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                time.sleep(0.1)  # no event says when descriptors are free again
            raise

    def _keep_pace(self) -> None:
        """Wait until there is CPU time for another connection. One that was very dear mustn't silence the server for long."""
        self._charge()
        with self._lock:
            left = self._allowance.left(time.monotonic())
        if left <= 0:
            self._is_stopping.wait(min((_CPU_SLICE_SECONDS - left) / CPU_SHARE, _PAUSE_SECONDS_MAX))

    def _charge(self) -> None:
        """Note the CPU time that the calling thread, one of the server's, has taken since the last call."""
        now = time.thread_time()
        spent = now - getattr(self._spent, "at", 0.0)
        self._spent.at = now
        with self._lock:
            self._allowance.use(spent)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take the connection in, and cut the oldest one if there are too many."""
        with self._lock:
            if len(self._open) >= self._connections_max:
                self._cut(next(iter(self._open)))
            self._open[request] = time.monotonic() + self._request_seconds
        # The bytes of a connection with TLS say nothing before its handshake, which only a thread can wait for.
        head = look(request) if self._tls is None else Head.WHOLE
        if head is Head.PART:
            self._room.add(request, client_address)
        else:
            self._admit(request, client_address, head)

    def _admit(self, request: socket.socket, client_address: Any, head: Head) -> None:
        """Give a connection whose request has arrived a thread; close others."""
        with self._lock:
            # A thread of a connection that was cut may not have ended yet.
            is_admitted = head is Head.WHOLE and self._thread_count < 2 * self._connections_max and request in self._open
            if is_admitted:
                self._thread_count += 1
            else:
                self._open.pop(request, None)
        if is_admitted:
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # the system gives no more threads
                self.handle_error(request, client_address)
                self.shutdown_request(request)
            return
        if head is Head.TOO_LONG:
            with contextlib.suppress(OSError):
                request.send(TOO_LONG, socket.MSG_DONTWAIT)
        request.close()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request; the function of its thread."""
        super().process_request_thread(request, client_address)
        self._charge()

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection, and close it unless it was handed over."""
        with self._lock:
            self._open.pop(request, None)
            self._thread_count -= 1
            is_handed_over = request in self._handed_over
            self._handed_over.discard(request)
        if not is_handed_over:
            # That nothing follows is said by closing it, too: the library says it before, which costs a call of the system.
            request.close()

    def hand_over(self, request: socket.socket) -> None:
        """Leave a connection to the caller, after its request was read: it is neither cut nor closed from now on."""
        with self._lock:
            self._open.pop(request, None)
            self._handed_over.add(request)

    def extend_deadline(self, request: socket.socket, seconds: float) -> None:
        """Extend a connection's deadline after its request was read.

        The answer may take `seconds` to be made, and then has the normal time to be sent.
        """
        with self._lock:
            if request in self._open:
                self._open[request] = time.monotonic() + seconds + self._request_seconds

    def service_actions(self) -> None:
        """Cut the connections whose time is over; called twice a second and after each new connection."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, until in self._open.items() if until <= now]:
                self._cut(request)

    def server_close(self) -> None:
        """Stop listening, and cut all connections."""
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._cut(request)
        self._room.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Log an error in a handler, unless it is an OSError: a client that disconnects isn't worth a log line."""
        if not isinstance(sys.exception(), OSError):
            structlog.get_logger().error("a request failed", exc_info=True)

    def _cut(self, request: socket.socket) -> None:
        """End a connection. One that has a thread is shut down: the thread reads an end, or fails to write, and closes it."""
        self._open.pop(request, None)
        if self._room.take(request):
            request.close()
            return
        with contextlib.suppress(OSError):
            # Of a TLS connection, too, only the socket: its own method forgets the keys, while another thread may be writing.
            socket.socket.shutdown(request, socket.SHUT_RDWR)


class Certificate:
    """A server's certificate for TLS. Its files are read again when they have changed, for the connections after that."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises OSError or ssl.SSLError if the files can't be used."""
        self._certificate, self._key = certificate, key
        self._state = self._state_now()
        self._context = self._loaded()

    def wrapped(self, request: socket.socket) -> socket.socket:
        """Return the connection with TLS. The handshake is done when it is first read."""
        state = self._state_now()
        if state != self._state:
            self._state = state
            # Both files are replaced one after the other: meanwhile the former certificate goes on.
            with contextlib.suppress(OSError, ssl.SSLError):
                self._context = self._loaded()
        return self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _state_now(self) -> object:
        return state_of(self._certificate), state_of(self._key) if self._key is not None else None


class BoundedHandler(BaseHTTPRequestHandler):
    """Handler of one request; subclasses answer it."""

    server: BoundedServer
    # Head and body are sent together: if a connection is cut, the client has all or nothing of an answer that fits the buffer.
    wbufsize = ANSWER_BUFFER_BYTES
    server_version = "tarantool-cdc"
    sys_version = ""

    def parse_request(self) -> bool:
        """Parse the request, and check its Host. Returns whether the request is to be answered by a subclass."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or (not hosts and self.request_version >= "HTTP/1.1"):
            self.answer(400, "text/plain", b"a request has one Host\n")
            return False
        if hosts and not is_allowed(hosts[0], self.server.allowed_hosts):
            shown = ascii(hosts[0][:_HOST_SHOWN])
            self.answer(
                421,
                "text/plain",
                f"the Host {shown} is not an IP address, not localhost, and not in http.allowed_hosts\n".encode(),
            )
            return False
        return True

    def answer(self, code: int, content_type: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send the complete answer. It has the normal time to be sent, however long it took to be made."""
        self.server.extend_deadline(self.connection, 0)
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        """Close the connection's files, also if the rest of an answer can't be sent."""
        try:
            super().finish()
        finally:
            self.rfile.close()

    def log_message(self, *_: object) -> None:
        """Log nothing: regular scrapes would fill the log."""


def is_allowed(host: str, allowed: Collection[str]) -> bool:
    """Return whether a request with this Host header may be answered; `allowed` are names in lowercase."""
    name = host.strip().lower()
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        port = port.removeprefix(":")
    elif name.count(":") == 1:
        name, _, port = name.partition(":")
    else:
        port = ""
    if port and not port.isdecimal():
        return False
    name = name.removesuffix(".")
    if name == "localhost" or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
