"""The daemon's HTTP interface: /metrics (Prometheus), /health, /ready and /status; and orders, as POST.

/snapshot   {"spaces": ["users"], "where": "row.id > 7"} ──▶ 202 with its id, or 400, 409, 415, 503 with {"error": a sentence}
/snapshot/stop, /snapshot/pause, /snapshot/resume
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdc.errors import RequestError
from cdc.ops.bounded_server import BoundedHandler, BoundedServer
from cdc.ops.http_orders import PATHS, BodyError, order_in
from cdc.ops.metrics import StatusCollector
from cdc.ops.request_queue import ANSWER_TIMEOUT_SECONDS
from cdc.ops.status import Status
from cdc.stream.snapshots.orders import Execute

BODY_BYTES_MAX: Final = 1024 * 1024
_KEY: Final = "http.listen"


def try_to_listen(address: tuple[str, int]) -> None:
    """Check that the address is available to listen on now. Raises ConfigurationError if not."""
    BoundedServer.listening(_KEY, address, BoundedHandler).server_close()


class StatusServer:
    """HTTP server for one status, on a separate thread."""

    def __init__(self, address: tuple[str, int], status: Status, allowed_hosts: Collection[str] = ()) -> None:
        """Listen, and answer also requests for the host names `allowed_hosts`. Raises ConfigurationError if it can't listen."""
        registry = CollectorRegistry()
        registry.register(StatusCollector(status))

        class Handler(BoundedHandler):
            def do_GET(self) -> None:  # noqa: N802 - the library's name
                match self.path.split("?")[0]:
                    case "/metrics":
                        self.answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                    case "/health":
                        is_healthy = status.state != "failed"
                        self.answer(
                            200 if is_healthy else 503, "text/plain", f"{status.shown_error or status.shown_state}\n".encode()
                        )
                    case "/ready":
                        reason = "" if status.is_ready or not status.shown_error else f": {status.shown_error}"
                        self.answer(200 if status.is_ready else 503, "text/plain", f"{status.shown_state}{reason}\n".encode())
                    case "/status":
                        self.answer(200, "application/json", json.dumps(status.to_json(), indent=1).encode())
                    case _:
                        self.answer(404, "text/plain", b"there are /metrics, /health, /ready and /status\n")

            def do_POST(self) -> None:  # noqa: N802 - the library's name
                if self.path not in PATHS:
                    self.answer(404, "text/plain", f"there are {', '.join(PATHS)}\n".encode())
                # A web page can't send this content type to another site without that site's permission (CORS).
                elif self.headers.get_content_type() != "application/json":
                    self._answer_json(415, {"error": "the body must be application/json"})
                else:
                    self._answer_json(*self._give_order())

            def _give_order(self) -> tuple[int, dict[str, Any]]:
                try:
                    length = int(self.headers.get("Content-Length", 0))
                    if not 0 <= length <= BODY_BYTES_MAX:
                        raise BodyError(f"the body may have {BODY_BYTES_MAX} bytes")
                    body = self.rfile.read(length)
                    # No body is an order, too: to stop, for instance, everything. One that wasn't read mustn't be taken for none.
                    if len(body) < length or "Transfer-Encoding" in self.headers:
                        raise BodyError("the body must be as long as Content-Length says, and without Transfer-Encoding")
                    order = order_in(self.path, body)
                except ValueError as error:
                    return 400, {"error": str(error)}
                if status.requests is None or not status.requests.is_open:
                    return 503, {"error": f"the daemon isn't following the stream, it is {status.state}. Try again once it does."}
                self.server.extend_deadline(self.connection, ANSWER_TIMEOUT_SECONDS)
                try:
                    status.requests.submit(order)
                except RequestError as error:
                    return 409, {"error": str(error)}
                return 202, {"id": order.id, **({"spaces": order.spaces} if isinstance(order, Execute) else {})}

            def _answer_json(self, code: int, value: dict[str, Any]) -> None:
                self.answer(code, "application/json", json.dumps(value).encode())

        self._server = BoundedServer.listening(_KEY, address, Handler, allowed_hosts)
        self._server.start()

    @property
    def port(self) -> int:
        """The port; if port 0 was requested, the one that the system chose."""
        return self._server.port

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
