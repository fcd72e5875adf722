"""The HTTP interface of a fleet: the pages of its daemons as one. Each page is asked for when it is asked of the fleet.

/           the fleet's page
/status     {"name": …, "shards": {"s1": {"process": "running", …, "silence": null, "status": the daemon's, or null}}}
/metrics    the daemons' metrics, which have the label `shard`, and those of their processes
/health     200 while the fleet's process runs: it starts the daemons again
/ready      200 if all daemons are ready
/shards/s1/…    what the daemon of s1 answers, to orders too
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdc.ops.bounded_server import BoundedServer, Certificate
from cdc.ops.http import KEY, PAGE, PageHandler
from cdc.ops.http_orders import BodyError
from cdc.ops.page_files import HEADERS
from cdc.ops.request_queue import ANSWER_TIMEOUT_SECONDS
from cdc.ops.rights import Rights
from cdc.ops.silence import Silence
from cdc.ops.view import Shared

_HOST: Final = "127.0.0.1"
_ASK_SECONDS: Final = 4.0
_AGAIN_SECONDS: Final = 2
_STATUS_SECONDS: Final = 0.5
"""Time for which all who ask for the status get the same one: each costs a question to every daemon."""
SHARDS: Final = "/shards/"

METRICS: Final = {
    "tarantool_cdc_shard_up": ("gauge", "1 while the shard's daemon runs and serves its metrics"),
    "tarantool_cdc_shard_restarts_total": ("counter", "How often the shard's daemon was started again"),
}
"""Metrics of the daemons' processes, with the label `shard`."""


class ShardView(NamedTuple):
    """What is known of a shard's process: its phase, process id, the port of its daemon's pages, restarts, its last error, and
    what to tell if it doesn't answer."""

    phase: str
    process_id: int | None
    port: int | None
    restarts: int
    error: str | None
    silence: Silence | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether its daemon would answer nothing."""
        return self.silence is not None and self.silence.is_complete

    @property
    def problem(self) -> str:
        """Why its daemon doesn't answer, as far as that is known."""
        return self.silence.sentence if self.silence is not None else self.error or "it does not answer yet"


class _Answer(NamedTuple):
    code: int
    kind: str
    body: bytes


Views = Callable[[], Mapping[str, ShardView]]


@dataclass(frozen=True, slots=True)
class FleetSite:
    """What the handlers of a fleet's listener share; `status` is the fleet's as JSON."""

    name: str
    topics: str
    views: Views
    status: Shared


class FleetHandler(PageHandler):
    """Handler of a fleet's listener."""

    site: FleetSite

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        """Answer a request for something that is shown."""
        path = self.path.split("?")[0]
        if path.startswith(SHARDS):
            self._forward("GET")
        elif path == "/":
            self.answer_file("fleet.html")
        elif path == "/page/visitor":
            self.answer_visitor()
        elif path.startswith(PAGE):
            if not self.answer_file(path.removeprefix(PAGE)):
                self.answer(404, "text/plain", b"the page has no such part\n")
        elif path in ("/status", "/metrics"):
            if self.is_permitted("view"):
                self._answer_for_all(path)
        elif path == "/health":
            self.answer(200, "text/plain", self._lines("/health")[1])
        elif path == "/ready":
            are_ready, lines = self._lines("/ready")
            self.answer(200 if are_ready else 503, "text/plain", lines)
        else:
            self.answer(404, "text/plain", b"there are /metrics, /health, /ready, /status and /shards/<shard>/...\n")

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        """Pass an order on."""
        if self.path.startswith(SHARDS):
            self._forward("POST")
        else:
            self.answer(404, "text/plain", b"orders are for one daemon: POST /shards/<shard>/snapshot\n")

    def _answer_for_all(self, path: str) -> None:
        site = self.site
        if path == "/status":
            found = site.status.get(lambda: _status(site.name, site.topics, site.views(), self._token()))
            self.answer(200, "application/json", found, {"Cache-Control": "no-store"})
            return
        shown = self.site.views()
        answers = _ask_all(shown, "/metrics", self._token())
        pages = {shard: answer.body.decode() for shard, answer in answers.items() if answer.code == HTTPStatus.OK}
        self.answer(200, CONTENT_TYPE_LATEST, "\n".join(merged(pages, shown)).encode() + b"\n")

    def _lines(self, path: str) -> tuple[bool, bytes]:
        """Return whether all daemons answer 200, and a line for each."""
        views = self.site.views()
        answers = _ask_all(views, path, self._token())
        lines = []
        for shard, view in views.items():
            answer = answers.get(shard) if view.silence is None else None
            problem = f": {view.problem}" if self.tells_errors else ""
            text = answer.body.decode().strip() if answer is not None else f"{view.phase}{problem}"
            lines.append(f"{shard}: {text}\n")
        well = {shard for shard, answer in answers.items() if answer.code == HTTPStatus.OK and views[shard].silence is None}
        are_well = well == views.keys()
        return are_well, "".join(lines).encode()

    def _token(self) -> Mapping[str, str]:
        shown = self.headers.get("Authorization")
        return {} if shown is None else {"Authorization": shown}

    def _forward(self, method: str) -> None:
        shard, _, path = self.path.removeprefix(SHARDS).partition("/")
        if path.partition("?")[0].lstrip("/") == "page/stream":
            # A stream has no end that could be waited for: the page asks again and again.
            self.answer(503, "text/plain", b"the fleet passes no streams on\n", {"Retry-After": str(_AGAIN_SECONDS)})
            return
        view = self.site.views().get(shard)
        if view is None or view.port is None:
            problem = "no daemon of that shard runs now" if view is not None else f"there is no shard {shard[:100]!r}"
            self.answer_json(503 if view is not None else 404, {"error": problem})
            return
        if view.is_frozen:
            self._answer_silence(view)
            return
        try:
            body = self.body()
        except BodyError as error:
            self.answer_json(400, {"error": str(error)})
            return
        # An order is answered when it is carried out; what is only shown is there at once.
        seconds = ANSWER_TIMEOUT_SECONDS if method == "POST" else _ASK_SECONDS
        self.server.extend_deadline(self.connection, seconds)
        headers = {**self._token()}
        if method == "POST":
            headers["Content-Type"] = self.headers.get("Content-Type", "")
        found = _ask(view.port, method, f"/{path}", body, headers, seconds)
        if found is None:
            found = _Answer(503, "application/json", b'{"error": "the daemon of that shard doesn\'t answer"}')
        # A page of a daemon needs its rules for the browser here, too.
        self.answer(*found, HEADERS)

    def _answer_silence(self, view: ShardView) -> None:
        """Answer for a daemon that would not. Only who may view is told more than that."""
        silence = view.silence
        told = {"error": silence.sentence, "remedy": silence.remedy} if self.tells_errors and silence is not None else {}
        self.answer_json(503, {"error": "the daemon of that shard doesn't answer", **told})


def fleet_server(
    address: tuple[str, int],
    name: str,
    topics: str,
    views: Views,
    allowed_hosts: Collection[str] = (),
    rights: Rights | None = None,
    tls: Certificate | None = None,
) -> BoundedServer:
    """Return a fleet's HTTP server, which serves on a separate thread, also requests for the host names `allowed_hosts`.

    The daemons have the same tokens, and are shown that of each request. Raises ConfigurationError if it can't listen.
    """
    site = FleetSite(name, topics, views, Shared(_STATUS_SECONDS))
    handler = type("Handler", (FleetHandler,), {"site": site, "rights": rights or Rights()})
    server = BoundedServer.listening(KEY, address, handler, allowed_hosts, tls)
    server.start()
    return server


def _status(name: str, topics: str, views: Mapping[str, ShardView], token: Mapping[str, str]) -> dict[str, Any]:
    answers = _ask_all(views, "/status", token)
    shards = {}
    for shard, view in views.items():
        answer = answers.get(shard)
        shards[shard] = {
            "process": view.phase,
            "process_id": view.process_id,
            "restarts": view.restarts,
            "error": view.error,
            "silence": view.silence.to_json() if view.silence is not None else None,
            "status": json.loads(answer.body) if answer is not None and answer.code == 200 else None,
        }
    return {"name": name, "topics": topics, "process_id": os.getpid(), "shards": shards}


def merged(pages: Mapping[str, str], views: Mapping[str, ShardView]) -> Iterator[str]:
    """Yield the lines of one page of metrics, given those of the shards, which have the label `shard` already."""
    families: dict[str, list[str]] = {}
    for page in pages.values():
        family: list[str] = []
        is_new = False
        for line in page.splitlines():
            if line.startswith("# HELP "):
                key = line.split(" ")[2]
                is_new = key not in families
                family = families.setdefault(key, [])
            if line.startswith("#"):
                if is_new:
                    family.append(line)
            elif line:
                family.append(line)
    for lines in families.values():
        yield from lines
    values = {
        "tarantool_cdc_shard_up": {shard: int(shard in pages) for shard in views},
        "tarantool_cdc_shard_restarts_total": {shard: view.restarts for shard, view in views.items()},
    }
    for name, (kind, description) in METRICS.items():
        yield f"# HELP {name} {description}"
        yield f"# TYPE {name} {kind}"
        yield from (f'{name}{{shard="{shard}"}} {value}' for shard, value in values[name].items())


def _ask_all(views: Mapping[str, ShardView], path: str, token: Mapping[str, str] | None = None) -> dict[str, _Answer]:
    """Return the answers of those daemons that answer, all asked at once."""
    ports = {shard: view.port for shard, view in views.items() if view.port is not None and not view.is_frozen}
    if not ports:
        return {}
    with ThreadPoolExecutor(max_workers=min(32, len(ports))) as pool:
        found = pool.map(lambda port: _ask(port, "GET", path, headers=token), ports.values())
        return {shard: answer for shard, answer in zip(ports, found, strict=True) if answer is not None}


def _ask(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = _ASK_SECONDS,
) -> _Answer | None:
    connection = http.client.HTTPConnection(_HOST, port, timeout=timeout_seconds)
    try:
        connection.request(method, path, body or None, {**(headers or {})})
        answer = connection.getresponse()
        if answer.length is None:
            return None  # it has no end that is known: a stream, whichever path it was asked for by
        return _Answer(answer.status, answer.headers.get("Content-Type", "text/plain"), answer.read())
    except (OSError, http.client.HTTPException, ValueError):  # ValueError: a path, or a token, that no request can have
        return None
    finally:
        connection.close()
