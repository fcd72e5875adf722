"""An HTTP server that costs its process a bounded number of descriptors, threads and seconds, whoever connects to it.

    connections   at most `connections_max`: a newcomer takes the place of the one that has been there longest, so that a
                  request is answered however many idle ones there are
    time          a connection is cut `request_seconds` after it came, however busily it sends; once its answer is there it has
                  as long again to read it. Where the answer has to wait for something, the handler says so (`prolong`)
    Host          an IP address, `localhost` or a name that was allowed. A page in somebody's browser can have its own name
                  lead to this machine (DNS rebinding), and its requests then carry that name: they are answered with 421

What it refuses to know: what is asked for.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

import structlog

from cdc.errors import ConfigurationError

CONNECTIONS_MAX: Final = 32
REQUEST_SECONDS: Final = 10.0
ANSWER_BUFFER_BYTES: Final = 256 * 1024
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_HOST_SHOWN: Final = 100


class BoundedServer(ThreadingHTTPServer):
    """Serves with a thread for each connection."""

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
    ) -> None:
        """Listens, at an IPv6 address if it is one. Raises OSError if the address can't be had."""
        self.allowed_hosts = frozenset(host.lower() for host in (*allowed_hosts, address[0]))
        self._connections_max = connections_max
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        # Connections that aren't cut, the oldest first, with the time at which they are; and threads, of those that are, too.
        self._open: dict[socket.socket, float] = {}
        self._thread_count = 0
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    @classmethod
    def listening(
        cls, key: str, address: tuple[str, int], handler: type[BoundedHandler], allowed_hosts: Collection[str] = ()
    ) -> Self:
        """One that listens where the configuration's `key` says. Raises ConfigurationError if the address can't be had."""
        try:
            return cls(address, handler, allowed_hosts=allowed_hosts)
        except OSError as error:
            raise ConfigurationError(
                f"{key} = {address[0]}:{address[1]} can't be had: {error.strerror}",
                f"Choose another port, or an empty {key} to listen nowhere.",
            ) from error

    @property
    def port(self) -> int:
        """The port, which the system chose if 0 was asked for."""
        port: int = self.server_address[1]
        return port

    def start(self) -> None:
        """Serve, on a thread of its own, until `stop`."""
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()

    def stop(self) -> None:
        """End what `start` began, and stop listening."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Where others have taken all descriptors, it isn't asked for at once again."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                time.sleep(0.1)  # nobody tells when there are some again
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, and end the oldest one if there are too many."""
        with self._lock:
            if self._thread_count >= 2 * self._connections_max:
                is_taken = False  # so many were cut that their threads haven't ended yet
            else:
                is_taken = True
                if len(self._open) >= self._connections_max:
                    self._cut(next(iter(self._open)))
                self._open[request] = time.monotonic() + self._request_seconds
                self._thread_count += 1
        if is_taken:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The connection is done with."""
        with self._lock:
            self._open.pop(request, None)
            self._thread_count -= 1
        super().shutdown_request(request)

    def prolong(self, request: socket.socket, seconds: float) -> None:
        """A request was read, and its answer comes within so many seconds: from now on it has these, and its time, to be sent."""
        with self._lock:
            if request in self._open:
                self._open[request] = time.monotonic() + seconds + self._request_seconds

    def service_actions(self) -> None:
        """Twice a second and behind each newcomer: end what has been there for too long."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, until in self._open.items() if until <= now]:
                self._cut(request)

    def server_close(self) -> None:
        """Stop listening, and end all connections."""
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        """Who goes away in the middle is no news; all else is a fault of this program."""
        if not isinstance(sys.exception(), OSError):
            structlog.get_logger().error("a request failed", exc_info=True)

    def _cut(self, request: socket.socket) -> None:
        """Its thread reads an end, or can't write any more, and closes it."""
        self._open.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class BoundedHandler(BaseHTTPRequestHandler):
    """One request. Subclasses answer it."""

    server: BoundedServer
    # Head and body go out together: where a connection is cut, an answer has come whole or not at all, unless it is larger.
    wbufsize = ANSWER_BUFFER_BYTES
    server_version = "tarantool-cdc"
    sys_version = ""

    def parse_request(self) -> bool:
        """As the library does, and whether the request was meant for this server."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or (not hosts and self.request_version >= "HTTP/1.1"):
            self.answer(400, "text/plain", b"a request has one Host\n")
            return False
        if hosts and not is_allowed(hosts[0], self.server.allowed_hosts):
            shown = ascii(hosts[0][:_HOST_SHOWN])
            self.answer(421, "text/plain", f"{shown} is no address, not localhost, and not in http.allowed_hosts\n".encode())
            return False
        return True

    def answer(self, code: int, content_type: str, body: bytes) -> None:
        """Send the whole answer. However long it took to be made, there is time to send it."""
        self.server.prolong(self.connection, 0)
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        """The connection's files are closed, also where the rest of an answer can't be sent any more."""
        try:
            super().finish()
        finally:
            self.rfile.close()

    def log_message(self, *_: object) -> None:
        """Scrapes are no news."""


def is_allowed(host: str, allowed: Collection[str]) -> bool:
    """Whether a request with this Host may be answered; `allowed` are names in small letters."""
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
