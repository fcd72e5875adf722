"""The daemon's HTTP interface: /metrics (Prometheus), /health, /ready and /status; the page; and orders, as POST.

/                the page, whose files are below /page/
/page/state      what it shows now      /page/stream    the same again and again, as server-sent events
/page/history    the last hour          /page/visitor   what the request's token may do
/page/topics     the topics             /page/events?topic=shop.users&after=7    the newest events of one
/page/detail     what the daemon's error quotes of rows
/snapshot        {"spaces": ["users"], "where": "row.id > 7"} ──▶ 202 with its id, or 400, 409, 415, 503 with {"error": …}
/snapshot/stop, /snapshot/pause, /snapshot/resume
/losses/acknowledge    {"topics": ["shop.users"]}

cdc.ops.rights says which of them needs a token: 401 without one, 403 if it lacks the role.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdc.errors import RequestError
from cdc.ops.bounded_server import BoundedHandler, BoundedServer, Certificate
from cdc.ops.http_orders import PATHS, BodyError, order_in
from cdc.ops.metrics import StatusCollector, page_of
from cdc.ops.page_files import HEADERS, page_files
from cdc.ops.request_queue import ANSWER_TIMEOUT_SECONDS
from cdc.ops.rights import NOBODY, Rights, Role, Visitor
from cdc.ops.status import LOSSES_SHOWN
from cdc.ops.streams import Streams
from cdc.ops.view import FRAME_SECONDS, View
from cdc.stream.snapshots.orders import Acknowledge, Execute

BODY_BYTES_MAX: Final = 1024 * 1024
KEY: Final = "http.listen"
PAGE: Final = "/page/"
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"
_FRESH: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_RETRY_SECONDS: Final = 30


def try_to_listen(address: tuple[str, int]) -> None:
    """Check that the address is available to listen on now. Raises ConfigurationError if not."""
    BoundedServer.listening(KEY, address, BoundedHandler).server_close()


@dataclass(frozen=True, slots=True)
class Site:
    """What a listener's handlers share."""

    view: View
    rights: Rights
    metrics: CollectorRegistry
    streams: Streams


class PageHandler(BoundedHandler):
    """Handler that answers for the page's files, and knows who asks. Of a fleet's pages, too."""

    rights: Rights

    def is_permitted(self, role: Role) -> bool:
        """Return whether the request's token has a role. If not, answer so."""
        visitor = self.visitor()
        if role in visitor.roles:
            return True
        shown = "Authorization" in self.headers and visitor != NOBODY
        sentence = f"this token lacks the role {role}" if shown else f"this needs a token with the role {role}"
        challenge = {} if shown else {"WWW-Authenticate": 'Bearer realm="tarantool-cdc"'}
        self.answer(403 if shown else 401, _JSON, json.dumps({"error": sentence}).encode(), _FRESH | challenge)
        return False

    def visitor(self) -> Visitor:
        """Return who asks."""
        return self.rights.visitor(self.headers.get("Authorization"))

    @property
    def tells_errors(self) -> bool:
        """Whether an answer that needs no token may have an error's text, which names servers."""
        return "view" in self.visitor().roles

    def answer_visitor(self) -> None:
        """Tell what the request's token may do."""
        visitor = self.visitor()
        self.answer_json(200, {"name": visitor.name, "roles": sorted(visitor.roles), "is_known": visitor != NOBODY})

    def body(self) -> bytes:
        """Return the request's body. Raises BodyError if it is too long, or not as long as it should be.

        No body is an order, too: to stop, for instance, everything. One that wasn't read mustn't be taken for none.
        """
        length = self.headers.get("Content-Length", "0")
        if not (re.fullmatch(r"[0-9]{1,9}", length) and int(length) <= BODY_BYTES_MAX):
            raise BodyError(f"the body may have {BODY_BYTES_MAX} bytes, and needs Content-Length")
        body = self.rfile.read(int(length))
        if len(body) < int(length) or "Transfer-Encoding" in self.headers:
            raise BodyError("the body must be as long as Content-Length says, and without Transfer-Encoding")
        return body

    def answer_json(self, code: int, value: Any) -> None:
        """Send a value as JSON."""
        self.answer(code, _JSON, value if isinstance(value, bytes) else json.dumps(value).encode(), _FRESH)

    def answer_file(self, name: str) -> bool:
        """Send one of the page's files. Return False, and send nothing, if there is no such file."""
        file = page_files().get(name)
        if file is None:
            return False
        headers = HEADERS | {"ETag": file.tag, "Cache-Control": "no-cache"}
        if self.headers.get("If-None-Match") == file.tag:
            self.answer(304, file.kind, b"", headers)
        else:
            self.answer(200, file.kind, file.content, headers)
        return True


class StatusHandler(PageHandler):
    """Handler of one daemon's listener."""

    site: Site

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        """Answer a request for something that is shown."""
        path, _, query = self.path.partition("?")
        status = self.site.view.status
        match path:
            case "/health":
                problem = status.lifelessness
                text = (problem or status.shown_error) if self.tells_errors else None
                self.answer(503 if problem else 200, _TEXT, f"{text or status.shown_state}\n".encode())
            case "/ready":
                error = status.shown_error if self.tells_errors else None
                reason = "" if status.is_in_service or not error else f": {error}"
                self.answer(200 if status.is_in_service else 503, _TEXT, f"{status.shown_state}{reason}\n".encode())
            case "/metrics":
                if self.is_permitted("view"):
                    self.answer(200, CONTENT_TYPE_LATEST, page_of(status, self.site.metrics))
            case "/status":
                if self.is_permitted("view"):
                    self.answer(200, _JSON, json.dumps(status.to_json(), indent=1).encode(), _FRESH)
            case "/":
                self.answer_file("daemon.html")
            case _ if path.startswith(PAGE):
                self._answer_page(path.removeprefix(PAGE), query)
            case _:
                self.answer(404, _TEXT, b"there are /, /metrics, /health, /ready and /status\n")

    def _answer_page(self, name: str, query: str) -> None:
        view = self.site.view
        match name:
            case "visitor":
                self.answer_visitor()
            case "state":
                if self.is_permitted("view"):
                    self.answer_json(200, view.frame())
            case "history":
                if self.is_permitted("view"):
                    self.answer_json(200, view.history())
            case "stream":
                if self.is_permitted("view"):
                    self._stream()
            case "detail":
                if self.is_permitted("rows"):
                    status = view.status
                    self.answer_json(200, {"error": status.error, "detail": status.error_detail if status.error else ""})
            case "topics":
                if self.is_permitted("rows"):
                    self.answer_json(200, {"topics": view.tail.topics()})
            case "events":
                if self.is_permitted("rows"):
                    self._answer_events(query)
            case _:
                if not self.answer_file(name):
                    self.answer(404, _TEXT, b"the page has no such part\n")

    def _answer_events(self, query: str) -> None:
        asked = parse_qs(query)
        topic, after = asked.get("topic", [""])[0], asked.get("after", ["0"])[0]
        if not topic or not after.isdecimal():
            self.answer_json(400, {"error": "a request for events is /page/events?topic=NAME&after=NUMBER"})
            return
        tail = self.site.view.tail.take(topic[:300], int(after[:18]))
        events = [
            {
                "number": event.number,
                "key": _shown(event.key),
                "value": _shown(event.value),
                "bytes": event.byte_count,
            }
            for event in tail.events
        ]
        self.answer_json(200, {"events": events, "newest": tail.newest, "skipped": tail.skipped})

    def _stream(self) -> None:
        """Send the page's contents now, and leave the connection to those that get them again and again."""
        streams = self.site.streams
        if not streams.has_room:
            self.answer(503, _TEXT, b"too many pages are open\n", _FRESH | {"Retry-After": str(_RETRY_SECONDS)})
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Accel-Buffering", "no")
        self.end_headers()
        self.wfile.write(b"data: " + self.site.view.frame() + b"\n\n")
        self.wfile.flush()
        self.server.hand_over(self.connection)
        if not streams.add(self.connection, self.headers.get("Authorization")):
            self.connection.close()

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        """Take an order."""
        if self.path not in PATHS:
            self.answer(404, _TEXT, f"there are {', '.join(PATHS)}\n".encode())
        # A web page can't send this content type to another site without that site's permission (CORS).
        elif self.headers.get_content_type() != _JSON:
            self.answer_json(415, {"error": "the body must be application/json"})
        elif self.is_permitted("operate"):
            self.answer_json(*self._give_order())

    def _give_order(self) -> tuple[int, dict[str, Any]]:
        status = self.site.view.status
        try:
            order = order_in(self.path, self.body())
        except ValueError as error:
            return 400, {"error": str(error)}
        if status.state == "standby":
            other = f", {status.standby_of}" if status.standby_of else ""
            return 503, {
                "error": f"this daemon is a standby, and takes no orders. Give this one to the daemon that publishes{other}."
            }
        if status.requests is None or not status.requests.is_open:
            return 503, {"error": f"the daemon isn't following the stream, it is {status.state}. Try again once it does."}
        known = {loss.topic for loss in status.kafka.losses}
        if isinstance(order, Acknowledge) and (unknown := set(order.topics) - known):
            shown = ", ".join(sorted(known)[:LOSSES_SHOWN]) or "none"
            return 409, {"error": f"that {', '.join(sorted(unknown))[:300]} was deleted isn't known; known are: {shown}"}
        self.server.extend_deadline(self.connection, ANSWER_TIMEOUT_SECONDS)
        log = structlog.get_logger().bind(name=status.name, path=self.path, by=self.visitor().name, id=order.id)
        try:
            status.requests.submit(order)
        except RequestError as error:
            log.info("an order over HTTP failed", reason=error.public)
            return 409, {"error": error.public}
        log.info("an order was given over HTTP")
        return 202, {"id": order.id, **({"spaces": order.spaces} if isinstance(order, Execute) else {})}


class StatusServer:
    """HTTP server for one daemon, on a separate thread."""

    def __init__(
        self,
        address: tuple[str, int],
        view: View,
        allowed_hosts: Collection[str] = (),
        rights: Rights | None = None,
        tls: Certificate | None = None,
    ) -> None:
        """Listen, and answer also requests for the host names `allowed_hosts`. Raises ConfigurationError if it can't listen.

        Without `rights`, everybody may see the status, and nobody anything else.
        """
        registry = CollectorRegistry()
        registry.register(StatusCollector(view.status))
        rights = rights or Rights()
        self._streams = Streams(view.frame, FRAME_SECONDS, lambda shown: "view" in rights.visitor(shown).roles)
        site = Site(view, rights, registry, self._streams)
        handler = type("Handler", (StatusHandler,), {"site": site, "rights": rights})
        self._server = BoundedServer.listening(KEY, address, handler, allowed_hosts, tls)
        self._server.start()

    @property
    def port(self) -> int:
        """The port; if port 0 was requested, the one that the system chose."""
        return self._server.port

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
        self._streams.close()


def _shown(content: bytes | None) -> str | None:
    """Return what a page shows of a key or a value: its text, or how many bytes it has, if it isn't text."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        # A value that was cut may end within a character.
        if error.end == len(content) and error.reason == "unexpected end of data":
            return content[: error.start].decode()
        return f"{len(content)} bytes: {content[:64].hex(' ')}"
