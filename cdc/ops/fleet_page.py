"""The HTTP interface of a fleet: the pages of its daemons as one. Each page is asked for when it is asked of the fleet.

/status     {"name": …, "shards": {"s1": {"process": "running", …, "status": the daemon's, or null}}}
/metrics    the daemons' metrics with the label `shard`, and those of their processes
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
from typing import Any, Final, NamedTuple

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdc.ops.bounded_server import BoundedHandler, BoundedServer
from cdc.ops.http import BODY_BYTES_MAX
from cdc.ops.request_queue import ANSWER_TIMEOUT_SECONDS

_KEY: Final = "http.listen"
_HOST: Final = "127.0.0.1"
_ASK_SECONDS: Final = 4.0
SHARDS: Final = "/shards/"

METRICS: Final = {
    "tarantool_cdc_shard_up": ("gauge", "1 while the shard's daemon runs and serves its metrics"),
    "tarantool_cdc_shard_restarts_total": ("counter", "How often the shard's daemon was started again"),
}
"""Metrics of the daemons' processes, with the label `shard`."""


class ShardView(NamedTuple):
    """What is known of a shard's process: its phase, process id, the port of its daemon's pages, restarts, and its last error."""

    phase: str
    process_id: int | None
    port: int | None
    restarts: int
    error: str | None


class _Answer(NamedTuple):
    code: int
    kind: str
    body: bytes


Views = Callable[[], Mapping[str, ShardView]]


def fleet_server(
    address: tuple[str, int], name: str, topics: str, views: Views, allowed_hosts: Collection[str] = ()
) -> BoundedServer:
    """Return a fleet's HTTP server, which serves on a separate thread, also requests for the host names `allowed_hosts`.

    Raises ConfigurationError if it can't listen.
    """

    class Handler(BoundedHandler):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            path = self.path.split("?")[0]
            if path.startswith(SHARDS):
                self._forward("GET")
            elif path == "/status":
                self.answer(200, "application/json", json.dumps(_status(name, topics, views()), indent=1).encode())
            elif path == "/metrics":
                shown = views()
                pages = {shard: answer.body.decode() for shard, answer in _ask_all(shown, "/metrics").items()}
                self.answer(200, CONTENT_TYPE_LATEST, "\n".join(merged(pages, shown)).encode() + b"\n")
            elif path == "/health":
                self.answer(200, "text/plain", _lines(views(), "/health")[1])
            elif path == "/ready":
                are_ready, lines = _lines(views(), "/ready")
                self.answer(200 if are_ready else 503, "text/plain", lines)
            else:
                self.answer(404, "text/plain", b"there are /metrics, /health, /ready, /status and /shards/<shard>/...\n")

        def do_POST(self) -> None:  # noqa: N802 - the library's name
            if self.path.startswith(SHARDS):
                self._forward("POST")
            else:
                self.answer(404, "text/plain", b"orders are for one daemon: POST /shards/<shard>/snapshot\n")

        def _forward(self, method: str) -> None:
            shard, _, path = self.path.removeprefix(SHARDS).partition("/")
            view = views().get(shard)
            if view is None or view.port is None:
                problem = "no daemon of that shard runs now" if view is not None else f"there is no shard {shard[:100]!r}"
                self.answer(503 if view is not None else 404, "application/json", json.dumps({"error": problem}).encode())
                return
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal() or int(length) > BODY_BYTES_MAX or "Transfer-Encoding" in self.headers:
                self.answer(400, "application/json", b'{"error": "the body must be as long as Content-Length says"}')
                return
            body = self.rfile.read(int(length))
            self.server.extend_deadline(self.connection, ANSWER_TIMEOUT_SECONDS)
            headers = {"Content-Type": self.headers.get("Content-Type", "")} if method == "POST" else {}
            found = _ask(view.port, method, f"/{path}", body, headers, ANSWER_TIMEOUT_SECONDS)
            if found is None:
                found = _Answer(503, "application/json", b'{"error": "the daemon of that shard doesn\'t answer"}')
            self.answer(*found)

    server = BoundedServer.listening(_KEY, address, Handler, allowed_hosts)
    server.start()
    return server


def _status(name: str, topics: str, views: Mapping[str, ShardView]) -> dict[str, Any]:
    answers = _ask_all(views, "/status")
    shards = {}
    for shard, view in views.items():
        answer = answers.get(shard)
        shards[shard] = {
            "process": view.phase,
            "process_id": view.process_id,
            "restarts": view.restarts,
            "error": view.error,
            "status": json.loads(answer.body) if answer is not None and answer.code == 200 else None,
        }
    return {"name": name, "topics": topics, "process_id": os.getpid(), "shards": shards}


def _lines(views: Mapping[str, ShardView], path: str) -> tuple[bool, bytes]:
    """Return whether all daemons answer 200, and a line for each."""
    answers = _ask_all(views, path)
    lines = []
    for shard, view in views.items():
        answer = answers.get(shard)
        text = answer.body.decode().strip() if answer is not None else f"{view.phase}: {view.error or 'it does not answer yet'}"
        lines.append(f"{shard}: {text}\n")
    are_well = all(shard in answers and answers[shard].code == 200 for shard in views)
    return are_well, "".join(lines).encode()


def merged(pages: Mapping[str, str], views: Mapping[str, ShardView]) -> Iterator[str]:
    """Yield the lines of one page of metrics, given those of the shards."""
    families: dict[str, list[str]] = {}
    for shard, page in pages.items():
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
                family.append(_labelled(line, shard))
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


def _labelled(line: str, shard: str) -> str:
    """Return a line of Prometheus' text with the label `shard` in front of the others. Names of shards need no escapes."""
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{shard="{shard}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{shard="{shard}"}} {value}'


def _ask_all(views: Mapping[str, ShardView], path: str) -> dict[str, _Answer]:
    """Return the answers of those daemons that answer, all asked at once."""
    ports = {shard: view.port for shard, view in views.items() if view.port is not None}
    if not ports:
        return {}
    with ThreadPoolExecutor(max_workers=min(32, len(ports))) as pool:
        found = pool.map(lambda port: _ask(port, "GET", path), ports.values())
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
        return _Answer(answer.status, answer.headers.get("Content-Type", "text/plain"), answer.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
