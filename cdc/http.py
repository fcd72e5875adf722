"""The daemon's window: /metrics (Prometheus), /health, /ready and /status."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdc.errors import ConfigurationError
from cdc.metrics import StatusCollector
from cdc.status import Status


class StatusServer:
    """Serves one status on a thread of its own."""

    def __init__(self, address: tuple[str, int], status: Status) -> None:
        """Listen. Raises ConfigurationError if the address can't be had."""
        registry = CollectorRegistry()
        registry.register(StatusCollector(status))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                match self.path.split("?")[0]:
                    case "/metrics":
                        self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    case "/health":
                        is_healthy = status.state != "failed"
                        self._answer(200 if is_healthy else 503, "text/plain", f"{status.error or status.state}\n".encode())
                    case "/ready":
                        self._answer(200 if status.is_ready else 503, "text/plain", f"{status.state}\n".encode())
                    case "/status":
                        self._answer(200, "application/json", json.dumps(status.to_json(), indent=1).encode())
                    case _:
                        self._answer(404, "text/plain", b"there are /metrics, /health, /ready and /status\n")

            def _answer(self, code: int, content_type: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        try:
            self._server = ThreadingHTTPServer(address, Handler)
        except OSError as error:
            raise ConfigurationError(
                f"http.listen = {address[0]}:{address[1]} can't be had: {error.strerror}",
                "Choose another port, or an empty http.listen to listen nowhere.",
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    @property
    def port(self) -> int:
        """The port, which the system chose if 0 was asked for."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
