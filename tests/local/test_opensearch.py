"""The OpenSearch that tests start: it keeps what it has until it is closed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from cdc.local.opensearch import OpenSearch
from cdc.local.servers import LocalServers


def ask(server: OpenSearch, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(  # noqa: S310 - http
        f"{server.url}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
        return json.load(answer)


@pytest.mark.soak
def test_it_serves_and_keeps_what_it_has_over_a_kill_until_it_is_closed(servers: LocalServers) -> None:
    server = servers.start_opensearch()
    ask(server, "PUT", "things/_doc/1?refresh=true", {"name": "a"})
    ask(server, "PUT", "things/_doc/2?refresh=true", {"name": "b"})
    query = {"query": {"ids": {"values": ["2"]}}}
    assert ask(server, "POST", "things/_delete_by_query?refresh=true", query)["deleted"] == 1
    server.kill()
    server.start()
    ask(server, "GET", "_cluster/health/things?wait_for_status=yellow&timeout=60s")
    assert ask(server, "GET", "things/_count")["count"] == 1
    server.close()
    assert not server.is_running
