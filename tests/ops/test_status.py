"""What the daemon shows of itself: /status keeps its keys, and both it and /metrics have every member."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cdc.errors import ConfigurationError
from cdc.ops import metrics
from cdc.ops.asking import ask
from cdc.ops.http import StatusServer
from cdc.ops.metrics import StatusCollector
from cdc.ops.stall_watch import StallWatch
from cdc.ops.status import Status
from cdc.ops.view import View
from cdc.positions.vclock import VClock
from cdc.registry.schema_ids import RegistryWait
from cdc.stream.reports.limbo_watch import check_overdue
from cdc.stream.transactions.limbo import LimboState
from cdc.upstream.overview import Upstream

FOLLOWED = Upstream(
    "a:3301",
    "following",
    server_uuid="aaaaaaaa-0000-4000-8000-000000000001",
    version="2.6.0",
    is_read_only=False,
    vclock=VClock({1: 20, 2: 5}),
    gc_vclock=VClock({1: 10}),
    lag_rows=0,
    headroom_rows=12,
)
SHORT = Upstream(
    "b:3301",
    "gap",
    server_uuid="aaaaaaaa-0000-4000-8000-000000000002",
    version="2.11.5",
    is_read_only=True,
    vclock=VClock({1: 19, 2: 5}),
    gc_vclock=VClock({1: 19}),
    lag_rows=1,
    headroom_rows=-2,
    error="b:3301 has a gap",
)
AWAY = Upstream("c:3301", "unreachable", error="can't connect to Tarantool at c:3301: refused")


@pytest.fixture
def status() -> Status:
    found = Status("shop", state="streaming", upstream="a:3301", upstream_version="2.6.0", last_heard_at=time.monotonic())
    found.upstreams, found.surveyed_at = (FOLLOWED, SHORT, AWAY), time.monotonic()
    found.checkpoint = VClock({1: 17, 2: 5})
    return found


def test_status_keeps_its_keys(status: Status) -> None:
    """Others read them."""
    shown = status.to_json()
    assert set(shown) >= {
        "name", "state", "error", "uptime_seconds", "row_path", "upstream", "position", "lag_seconds", "rows", "snapshot_rows",
        "received_bytes", "store", "snapshot_request", "buffers", "kafka", "upstreams",
    }  # fmt: skip
    assert set(shown["upstream"]) >= {"address", "version", "uuid", "replicaset_uuid", "vclock", "idle_seconds", "reconnects"}
    assert json.loads(json.dumps(shown)) == shown


def test_status_of_every_member(status: Status) -> None:
    followed, short, away = status.to_json()["upstreams"]
    idle_seconds, age_seconds = followed.pop("idle_seconds"), followed.pop("age_seconds")
    assert 0 <= idle_seconds < 60
    assert 0 <= age_seconds < 60
    assert followed == {
        "address": "a:3301",
        "state": "following",
        "uuid": "aaaaaaaa-0000-4000-8000-000000000001",
        "version": "2.6.0",
        "read_only": False,
        "vclock": {"1": 20, "2": 5},
        "gc_vclock": {"1": 10},
        "lag_rows": 0,
        "headroom_rows": 12,
        "error": None,
    }
    assert (short["state"], short["read_only"], short["headroom_rows"], short["idle_seconds"]) == ("gap", True, -2, None)
    assert {key for key, value in away.items() if value is not None} == {"address", "state", "error", "age_seconds"}


def samples(status: Status) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_metrics_of_every_member(status: Status) -> None:
    found = samples(status)

    def of(name: str) -> dict[str, float]:
        return {labels[0][1]: value for (sample, labels), value in found.items() if sample == f"tarantool_cdc_upstream_{name}"}

    assert of("following") == {"a:3301": 1, "b:3301": 0, "c:3301": 0}
    assert of("read_only") == {"a:3301": 0, "b:3301": 1}
    assert of("lag_rows") == {"a:3301": 0, "b:3301": 1}
    assert of("headroom_rows") == {"a:3301": 12, "b:3301": -2}
    states = {dict(labels)["upstream"]: dict(labels) for (name, labels) in found if name == "tarantool_cdc_upstream_state"}
    assert {address: labels["state"] for address, labels in states.items()} == {
        "a:3301": "following",
        "b:3301": "gap",
        "c:3301": "unreachable",
    }
    assert (states["b:3301"]["version"], states["c:3301"]["uuid"]) == ("2.11.5", "")
    lsn = ("tarantool_cdc_upstream_lsn", (("position", "gc_vclock"), ("replica_id", "1"), ("upstream", "b:3301")))
    assert found[lsn] == 19
    assert ("tarantool_cdc_upstream_idle_seconds", ()) in found


def test_rows_are_counted_by_the_path_that_handled_them() -> None:
    status = Status("shop", native_row_count=40, python_row_count=2)
    found = samples(status)
    assert found[("tarantool_cdc_rows_total", (("path", "native"),))] == 40
    assert found[("tarantool_cdc_rows_total", (("path", "python"),))] == 2
    shown = status.to_json()
    assert (shown["rows"], shown["rows_by_path"]) == (42, {"native": 40, "python": 2})


def test_metrics_before_anything_is_known() -> None:
    found = samples(Status("shop"))
    assert not [name for name, _ in found if name.startswith("tarantool_cdc_upstream")]
    assert found[("tarantool_cdc_ready", ())] == 0


def test_every_metric_is_described(status: Status) -> None:
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    families = {
        family.name: family.documentation for family in text_string_to_metric_families(generate_latest(registry).decode())
    }
    assert set(metrics.UPSTREAM_GAUGES) <= set(families)
    assert all(families.values())


@pytest.mark.parametrize("path", ["/status", "/snapshot"])
def test_another_daemon_is_not_asked(server: StatusServer, path: str) -> None:
    """Nor taken for the own one because it has its address."""
    address = ("127.0.0.1", server.port)
    question = None if path == "/status" else {"spaces": ["users"]}
    with pytest.raises(ConfigurationError, match=rf"at 127\.0\.0\.1:{server.port} the daemon 'shop' answers, not 'm5'. Correct"):
        ask("m5", address, path, question)
    assert ask("shop", address, "/status")["name"] == "shop"


@pytest.fixture
def server(status: Status) -> Iterator[StatusServer]:
    found = StatusServer(("127.0.0.1", 0), View(status))
    yield found
    found.close()


@pytest.mark.parametrize("path", ["/status", "/metrics", "/health", "/ready"])
def test_served(server: StatusServer, path: str) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        text = answer.read().decode()
    assert ("a:3301" in text) == (path in ("/status", "/metrics"))


def test_stream_of_which_nothing_becomes_durable(server: StatusServer, status: Status) -> None:
    """Not ready, and it says since when and what for; ready again with the next commit. A quiet stream is ready."""

    def ready() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/ready", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    watch = StallWatch(status)
    backlog, now = status.kafka.backlog, time.monotonic()
    status.kafka.last_commit_at = now - 1000
    assert (ready(), status.to_json()["error"]) == ((200, "streaming\n"), None)
    with structlog.testing.capture_logs() as lines:
        backlog.submitted(now - status.stalled_after_seconds - 5, 0.0)
        status.kafka.trouble = "1/1 brokers are down"
        watch.check()
        watch.check()
        code, text = ready()
        shown = status.to_json()
        assert (code, shown["state"], round(shown["kafka"]["stalled_seconds"])) == (503, "stalled", 20)
        for sentence in (text, shown["error"]):
            assert "Kafka has committed nothing since 20" in sentence
            assert "for 20 s" in sentence
            assert "1/1 brokers are down" in sentence
        found = samples(status)
        assert (found[("tarantool_cdc_ready", ())], round(found[("tarantool_cdc_stalled_seconds", ())])) == (0, 20)
        backlog.committed(time.monotonic(), 1)
        watch.check()
        watch.check()
    assert (ready(), status.to_json()["error"]) == ((200, "streaming\n"), None)
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "Kafka stands still"),
        ("info", "Kafka is back"),
    ]
    assert lines[1]["stalled_seconds"] == pytest.approx(20, abs=5)


def test_a_stall_by_the_registry_is_not_told_as_one_of_kafka(status: Status) -> None:
    watch = StallWatch(status)
    status.state, since = "streaming", time.monotonic() - status.stalled_after_seconds - 5
    with structlog.testing.capture_logs() as lines:
        status.registry_wait = RegistryWait("shop.users-value", "away", "it can't be reached.", since)
        watch.check()
        status.registry_wait = None
        watch.check()
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("error", "the registry of schemas holds all rows up"),
        ("info", "the registry of schemas no longer holds rows up"),
    ]
    assert "it can't be reached. Nothing is lost" in lines[0]["reason"]


def test_lag_is_the_delay_and_not_the_quiet_before(status: Status) -> None:
    """Nothing for an hour, then a change: it is as old as it is, and no older than what waits for a quorum."""
    backlog, now = status.kafka.backlog, time.monotonic()
    status.received = VClock({1: 100, 2: 5})
    backlog.submitted(now - 3600, time.time() - 3600)
    backlog.committed(now - 3600, 1)
    assert status.to_json()["lag_seconds"] == 0
    backlog.submitted(now, time.time() - 0.5)
    assert status.to_json()["lag_seconds"] == pytest.approx(0.5, abs=0.4)
    assert samples(status)[("tarantool_cdc_lag_seconds", ())] == pytest.approx(0.5, abs=0.4)
    backlog.committed(now, 1)
    assert status.to_json()["lag_seconds"] == 0
    status.limbo = LimboState(1, 1, 10, 0, time.time_ns() // 1000 - 7_000_000)
    assert status.to_json()["lag_seconds"] == pytest.approx(7, abs=1)


def test_not_ready_and_not_healthy(server: StatusServer, status: Status) -> None:
    status.state, status.error = "failed", "none of the 2 members"
    for path in ("/ready", "/health"):
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10)


def test_a_transaction_that_waits_for_long_is_an_error(status: Status) -> None:
    status.limbo = LimboState(2, 2, 100, 0, time.time_ns() // 1000 - 12_000_000, 1, 45)
    assert (status.to_json()["error"], status.to_json()["limbo"]["is_overdue"]) == (None, False)
    status.overdue_quorum, _ = check_overdue(status.limbo, None, time.time_ns() // 1000, alert_ms=10_000)
    shown = status.to_json()
    assert shown["error"].startswith("transaction 1:45 has been waiting for its quorum for 12 s, and 1 more after it")
    assert (shown["limbo"]["oldest"], shown["limbo"]["is_overdue"]) == ("1:45", True)
    registry = CollectorRegistry()
    registry.register(StatusCollector(status))
    assert "tarantool_cdc_limbo_overdue 1.0" in generate_latest(registry).decode()
    status.error = "something else"
    assert status.to_json()["error"] == "something else"
