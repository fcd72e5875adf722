"""What a catalog of lineage is told of a run, by HTTP, and that nothing becomes of the daemon if it isn't there."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from cdc.errors import ConfigurationError
from cdc.ops import lineage
from cdc.ops.lineage import Lineage
from cdc.ops.lineage_places import Place
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.stream.reports.flows import Flow
from tests.live.waiting import wait_for

COLUMNS = (("id", "unsigned"), ("email", "any"), ("phone", "string"))
USERS = Flow("users", COLUMNS, "shop.users", COLUMNS)
ORDERS = Flow("orders", COLUMNS, "shop.orders", COLUMNS)
PLACE = Place("tarantool-cdc", "shop", "a:3301", "PLAINTEXT://k1:9092,k2:9092")


class Catalog:
    """A receiver of events by HTTP."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                catalog.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def kinds(self) -> list[str]:
        return [event["eventType"] for event in self.events]


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    found = Catalog()
    monkeypatch.setenv("OPENLINEAGE_URL", found.url)
    monkeypatch.setattr(lineage, "_TURN_SECONDS", 0.02)
    yield found
    found.close()


def test_a_run(catalog: Catalog) -> None:
    status = Status("shop")
    flows = [USERS]
    found = Lineage(PLACE, 1.0, status, lambda: flows)
    found.start()
    status.checkpoint, status.seq, status.schema_version = VClock({1: 7}), 5, 1
    status.state = "streaming"
    wait_for("the run's begin", lambda: catalog.kinds == ["START"])
    flows.append(ORDERS)
    status.schema_version = 2
    wait_for("the other space", lambda: catalog.kinds == ["START", "RUNNING"])
    wait_for("what goes on", lambda: len(catalog.kinds) > 2)
    found.close(None)
    assert catalog.kinds[-1] == "COMPLETE"
    start, other, more, *_ = catalog.events
    assert (start["job"]["namespace"], start["job"]["name"]) == ("tarantool-cdc", "shop")
    assert [(each["namespace"], each["name"]) for each in start["inputs"]] == [("tarantool://a:3301", "users")]
    assert [(each["namespace"], each["name"]) for each in start["outputs"]] == [("kafka://k1:9092", "shop.users")]
    position = start["run"]["facets"]["tarantoolCdc_position"]
    assert (position["checkpoint"], position["seq"]) == ({"1": 7}, 5)
    assert [each["name"] for each in other["outputs"]] == ["shop.users", "shop.orders"]
    assert more["inputs"] == more["outputs"] == [], "they are as they were"
    assert len({event["run"]["runId"] for event in catalog.events}) == 1
    for event in catalog.events:
        run = event["run"]["facets"]
        ours = [run["tarantoolCdc_position"], event["job"]["facets"]["jobType"]]
        ours += [facet for each in (*event["inputs"], *event["outputs"]) for facet in each["facets"].values()]
        assert all(facet["_producer"].startswith("urn:tarantool-cdc:") and facet["_schemaURL"] for facet in ours)


def test_columns_are_told_as_they_are_published(catalog: Catalog) -> None:
    status = Status("shop", state="streaming", schema_version=1)
    flow = USERS._replace(published=(("id", "unsigned"), ("email", "string")))
    found = Lineage(PLACE, 1.0, status, lambda: [flow])
    found.start()
    wait_for("the run's begin", lambda: bool(catalog.events))
    found.close(None)
    facets = catalog.events[0]["outputs"][0]["facets"]
    assert [(each["name"], each["type"]) for each in facets["schema"]["fields"]] == [("id", "unsigned"), ("email", "string")]
    columns = facets["columnLineage"]["fields"]
    (masked,) = columns["email"]["inputFields"]
    assert (masked["namespace"], masked["name"], masked["field"]) == ("tarantool://a:3301", "users", "email")
    assert masked["transformations"][0]["masking"]
    assert not columns["id"]["inputFields"][0]["transformations"][0]["masking"]


def test_a_daemon_that_fails_before_it_reads(catalog: Catalog) -> None:
    status = Status("shop", state="failed", error="the disk is full")
    found = Lineage(PLACE, 1.0, status, list)
    found.start()
    found.close(RuntimeError())
    assert catalog.kinds == ["START", "FAIL"]
    assert catalog.events[1]["run"]["facets"]["errorMessage"]["message"] == "the disk is full"


def test_a_daemon_that_never_read_ends_in_silence(catalog: Catalog) -> None:
    found = Lineage(PLACE, 1.0, Status("shop", state="connecting"), list)
    found.start()
    found.close(None)
    assert catalog.kinds == []


def test_a_catalog_that_is_away(catalog: Catalog) -> None:
    """One line of the log, until something could be sent again."""
    status = Status("shop", state="streaming", schema_version=1)
    found = Lineage(PLACE, 0.1, status, lambda: [USERS])
    is_away = threading.Event()
    is_away.set()
    attempts: list[int] = []

    class Client:
        def emit(self, event: Any) -> None:
            attempts.append(1)
            if is_away.is_set():
                raise OSError("refused")
            catalog.events.append({"eventType": event.eventType.value})

        def close(self, timeout: float) -> None:
            pass

    found._new_client = Client
    with capture_logs() as logs:
        found._log = structlog.get_logger()
        found.start()
        wait_for("several attempts", lambda: len(attempts) > 3)
        is_away.clear()
        wait_for("the catalog is back", lambda: "START" in catalog.kinds)
        found.close(None)
    assert [line["reason"] for line in logs if line["log_level"] == "warning"] == ["OSError: refused"]


def test_a_catalog_that_hangs_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "END_SECONDS", 0.1)
    found = Lineage(PLACE, 1.0, Status("shop", state="failed", error="no"), list)
    released = threading.Event()

    class Client:
        def emit(self, _: object) -> None:
            released.wait(60)

        def close(self, timeout: float) -> None:
            pass

    found._new_client = Client
    found.start()
    found.close(RuntimeError())
    assert found._thread.is_alive()
    released.set()


def test_the_package_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(ConfigurationError, match=r"tarantool-cdc\[lineage\]"):
        Lineage(PLACE, 1.0, Status("shop"), list)
