"""The pages of all shards as one: metrics, status, and what is passed on to a shard's daemon."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from cdc.ops.fleet_page import ShardView, fleet_server, merged
from cdc.ops.http import StatusServer
from cdc.ops.page_files import page_files
from cdc.ops.rights import Rights, Visitor, digest
from cdc.ops.setup import Setup
from cdc.ops.silence import Silence
from cdc.ops.status import Status
from cdc.ops.view import View

PAGE = """# HELP rows_total Rows
# TYPE rows_total counter
rows_total{shard="s1",path="native"} 5.0
rows_total{shard="s1",path="python"} 0.0
# HELP lag_seconds Lag
# TYPE lag_seconds gauge
lag_seconds{shard="s1"} 1.5
"""


def view(phase: str, restarts: int) -> ShardView:
    return ShardView(phase, None, None, restarts, None)


def test_families_stay_together() -> None:
    """Prometheus refuses a page where the lines of a metric are apart, or where it is described twice."""
    views = {"s1": view("running", 0), "s2": view("running", 2), "s3": view("waiting", 7)}
    assert list(merged({"s1": PAGE, "s2": PAGE.replace("5.0", "6.0").replace("s1", "s2")}, views)) == [
        "# HELP rows_total Rows",
        "# TYPE rows_total counter",
        'rows_total{shard="s1",path="native"} 5.0',
        'rows_total{shard="s1",path="python"} 0.0',
        'rows_total{shard="s2",path="native"} 6.0',
        'rows_total{shard="s2",path="python"} 0.0',
        "# HELP lag_seconds Lag",
        "# TYPE lag_seconds gauge",
        'lag_seconds{shard="s1"} 1.5',
        'lag_seconds{shard="s2"} 1.5',
        "# HELP tarantool_cdc_shard_up 1 while the shard's daemon runs and serves its metrics",
        "# TYPE tarantool_cdc_shard_up gauge",
        'tarantool_cdc_shard_up{shard="s1"} 1',
        'tarantool_cdc_shard_up{shard="s2"} 1',
        'tarantool_cdc_shard_up{shard="s3"} 0',
        "# HELP tarantool_cdc_shard_restarts_total How often the shard's daemon was started again",
        "# TYPE tarantool_cdc_shard_restarts_total counter",
        'tarantool_cdc_shard_restarts_total{shard="s1"} 0',
        'tarantool_cdc_shard_restarts_total{shard="s2"} 2',
        'tarantool_cdc_shard_restarts_total{shard="s3"} 7',
    ]


TOKEN = "a-token-of-the-fleet"


@pytest.fixture
def fleet() -> Iterator[tuple[str, int]]:
    """The address of a fleet whose shard s1 runs and streams, and whose s2 has no process; the view needs a token."""
    rights = Rights({digest(TOKEN): Visitor("ann", frozenset({"view", "operate"}))}, view_needs_token=True)
    status = Status("shop.s1", state="streaming", setup=Setup(shard="s1"))
    daemon = StatusServer(("127.0.0.1", 0), View(status), rights=rights)
    views = {"s1": ShardView("running", 7, daemon.port, 0, None), "s2": ShardView("waiting", None, None, 3, "it ended")}
    server = fleet_server(("127.0.0.1", 0), "shop", "shared", lambda: views, rights=rights)
    yield "127.0.0.1", server.port
    server.stop()
    daemon.close()


def get(address: tuple[str, int], path: str, token: str | None = TOKEN, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_a_page_for_the_fleet_and_one_for_each_daemon(fleet: tuple[str, int]) -> None:
    """The files need no token; a daemon's page has the same rules for the browser as at its own address."""
    assert get(fleet, "/", None)[2] == page_files()["fleet.html"].content
    code, headers, body = get(fleet, "/shards/s1/", None)
    assert (code, body) == (200, page_files()["daemon.html"].content)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for page in ("/page/fleet.js", "/shards/s1/page/daemon.js"):
        assert get(fleet, page, None)[0] == 200
    assert get(fleet, "/page/none.js", None)[0] == 404


def test_the_token_is_passed_on(fleet: tuple[str, int]) -> None:
    for path in ("/status", "/metrics", "/shards/s1/status", "/shards/s1/page/state"):
        assert get(fleet, path, None)[0] == 401
        assert get(fleet, path, "another-token-than-this")[0] == 401
        assert get(fleet, path)[0] == 200
    shards = json.loads(get(fleet, "/status")[2])["shards"]
    assert (shards["s1"]["status"]["state"], shards["s2"]["status"], shards["s2"]["error"]) == ("streaming", None, "it ended")
    metrics = get(fleet, "/metrics")[2].decode()
    assert 'tarantool_cdc_ready{shard="s1"} 1.0' in metrics
    assert 'tarantool_cdc_info{shard="s1",name="shop.s1"} 1.0' in metrics
    assert get(fleet, "/shards/s1/page/topics")[0] == 403, "this token may see no rows"
    assert get(fleet, "/shards/s1/snapshot/pause", None, "POST")[0] == 401
    assert get(fleet, "/shards/s1/snapshot/pause", method="POST")[0] == 503, "it is asked, and follows no stream"
    assert json.loads(get(fleet, "/page/visitor")[2])["name"] == "ann"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_errors_are_for_who_may_view(fleet: tuple[str, int], path: str) -> None:
    assert get(fleet, path, None)[2].decode() == "s1: streaming\ns2: waiting\n"
    assert get(fleet, path)[2].decode() == "s1: streaming\ns2: waiting: it ended\n"


def test_a_stream_is_not_passed_on(fleet: tuple[str, int]) -> None:
    """It would never end; the page asks for the state instead."""
    code, headers, _ = get(fleet, "/shards/s1/page/stream")
    assert (code, headers["Retry-After"]) == (503, "2")


@pytest.mark.parametrize("path", ["page/stream?again", "/page/stream", "/page/stream?again"])
def test_nor_is_one_that_is_spelt_otherwise(fleet: tuple[str, int], path: str) -> None:
    """Each would keep one of the listener's threads, until none is left."""
    assert get(fleet, f"/shards/s1/{path}")[0] == 503


def test_a_path_that_no_request_can_have(fleet: tuple[str, int]) -> None:
    with socket.create_connection(fleet, 10) as client:
        client.sendall(b"GET /shards/s1/\xe9 HTTP/1.0\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 503 ")


def test_a_daemon_that_says_itself_that_it_cannot_go_on() -> None:
    """It isn't ready, but what it shows is of use."""
    daemon = StatusServer(("127.0.0.1", 0), View(Status("shop.s1", state="streaming")))
    stuck = Silence("its process 7 can't go on: its thread is stuck", "Wait.", is_complete=False)
    server = fleet_server(
        ("127.0.0.1", 0), "shop", "shared", lambda: {"s1": ShardView("running", 7, daemon.port, 0, None, stuck)}
    )
    try:
        address = ("127.0.0.1", server.port)
        code, _, lines = get(address, "/ready", None)
        assert (code, lines) == (503, b"s1: running: its process 7 can't go on: its thread is stuck\n")
        shard = json.loads(get(address, "/status", None)[2])["shards"]["s1"]
        assert (shard["silence"]["remedy"], shard["status"]["state"]) == ("Wait.", "streaming")
        assert get(address, "/shards/s1/status", None)[0] == 200
    finally:
        server.stop()
        daemon.close()
