"""The bench (`python -m tests.bench`) measures what it says, loses no row, and judges its figures rightly."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.local.servers import LocalServers
from spark_jobs.contract.avro_text import converter, schema_id
from tests.bench import sections, spark_load
from tests.bench.__main__ import measure, parse
from tests.bench.results import Result, compare, floors
from tests.bench.spark_events import AvroEncoder, JsonEncoder
from tests.bench.store import update_stored
from tests.formats.oracles import Ids

ROWS = 10_000


@pytest.mark.timeout(600)
def test_measures_a_stream_and_writes_down_what_it_found(servers: LocalServers, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    results = measure(parse(["--only", "tail-500", "--rows", str(ROWS), "--json", str(file)]), servers, tmp_path)
    found = {result.what: result for result in results}
    assert [found[delivery].counted for delivery in ("exactly_once", "at_least_once")] == [ROWS, ROWS]
    assert (found["raw drain"].of_raw, found["replica"].of_replica) == (1, 1)
    content = json.loads(file.read_text())
    assert [entry["rows_per_second"] for entry in content["results"]] == [result.rows_per_second for result in results]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_measures_what_it_says_and_loses_no_row(servers: LocalServers, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    chosen = "tail-500,tail-1,sync,fleet,snapshot,replay,latency,backlog"
    sizes = ["--rows", str(ROWS), "--backlog", str(ROWS), "--rate", "2000", "--latency-seconds", "1"]
    results = measure(parse(["--only", chosen, *sizes, "--json", str(file)]), servers, tmp_path)

    # The measurements themselves compare Kafka with the master, and end with an error where they differ.
    found = {(result.section, result.what): result for result in results}
    for section in ("tail, 500 a transaction", "tail, single rows"):
        assert found[section, "raw drain"].of_raw == 1
        assert found[section, "replica"].of_replica == 1
        for delivery in ("exactly_once", "at_least_once"):
            daemon = found[section, delivery]
            assert daemon.counted == daemon.rows == ROWS
            assert daemon.whole_seconds is not None
            assert daemon.whole_seconds > daemon.seconds > 0
            assert daemon.of_raw == pytest.approx(daemon.rows_per_second / found[section, "raw drain"].rows_per_second)
            # A process can't use more than all processors, and its CPU time is counted in hundredths of a second.
            assert daemon.cpu_us_per_row is not None
            assert daemon.cpu_us_per_row > 0.5
    for what in ("asynchronous", "synchronous"):
        assert found["sync", what].counted == found["sync", f"{what}, images"].counted == ROWS
    assert found["fleet", "both together"].counted == 2 * ROWS
    assert found["snapshot", "exactly_once"].counted == ROWS
    assert found["replay", "no images"].counted == found["replay", "images"].counted == ROWS
    assert (found["backlog", "exactly_once"].counted or 0) > ROWS
    latency = found["latency", "exactly_once at 2,000 rows/s"]
    assert latency.p50_ms is not None
    assert latency.p99_ms is not None
    assert latency.p999_ms is not None
    assert latency.max_ms is not None
    assert 0 < latency.p50_ms <= latency.p99_ms <= latency.p999_ms <= latency.max_ms
    assert (found["latency", "exactly_once with images at 2,000 rows/s"].counted or 0) > 2_000
    assert latency.rows == pytest.approx(2_000, rel=0.5)
    assert all((result.peak_rss_bytes or 50_000_000) > 20_000_000 for result in results)
    measured = [result for result in results if result.peak_anonymous_bytes is not None]
    assert all(0 < (result.peak_anonymous_bytes or 0) <= (result.peak_rss_bytes or 0) for result in measured)

    content = json.loads(file.read_text())
    assert [entry["rows_per_second"] for entry in content["results"]] == [result.rows_per_second for result in results]
    assert len(content["floors"]) == 2 * 3 + 1 + 3 + 1 + 2


def test_updates_of_a_store_are_measured_without_servers(tmp_path: Path) -> None:
    updated = update_stored(tmp_path / "store", 20_000, 40_000)
    assert updated.seconds > 0
    assert updated.cpu_seconds > 0
    assert updated.file_bytes > 20_000 * 30
    assert not list((tmp_path / "store").glob("**/*.mdb"))


def result(section: str, what: str, seconds: float, **fields: float) -> Result:
    return Result(section=section, what=what, rows=1_000_000, seconds=seconds, **fields)  # type: ignore[arg-type]


def test_ratios_are_to_the_latest_peer_of_the_same_section() -> None:
    results = [
        result("tail a", "raw drain", 2),
        result("tail a", "exactly_once", 4),
        result("tail a", "raw drain", 1),
        result("tail a", "exactly_once", 4),
        result("tail b", "replica", 3),
        result("tail b", "exactly_once", 6),
    ]
    compare(results)
    assert [each.of_raw for each in results] == [1, 0.5, 1, 0.25, None, None]
    assert [each.of_replica for each in results] == [None, None, None, None, 1, 0.5]


def test_floors_are_of_rates_of_processor_time_of_memory_and_of_latency() -> None:
    tail = "tail, single rows"
    slow, fast = result(tail, "exactly_once", 6, cpu_seconds=4.6), result(tail, "exactly_once", 5.8, cpu_seconds=4.4)
    assert [floor.is_reached for floor in floors([slow])] == [False, False]
    assert [floor.is_reached for floor in floors([slow, fast])] == [True, True], "the best of its rounds counts"
    stores = [result("store", f"random updates of {count} stored", 1, cpu_seconds=cpu) for count, cpu in ((1, 2.0), (10, 3.1))]
    (floor,) = floors(stores)
    assert (floor.figure, floor.is_reached) == ("1.55 times", False)
    assert floors([stores[0], result("store", "random updates of 10 stored", 1, cpu_seconds=3.0)])[0].is_reached
    sync = [
        result("sync", what, 1, cpu_seconds=cpu)
        for what, cpu in (("asynchronous", 2.0), ("synchronous", 2.7), ("synchronous", 2.5))
    ]
    assert [(floor.figure, floor.is_reached) for floor in floors(sync)] == [("1,000,000 rows/s", True), ("1.25 times", True)]
    assert not floors(sync[:2])[1].is_reached
    peaks = [result(tail, "raw", 1, peak_anonymous_bytes=249e6), result("backlog", "exactly_once", 1, peak_anonymous_bytes=251e6)]
    assert [(floor.what, floor.is_reached) for floor in floors(peaks)] == [("peak anonymous memory under 250 MB", False)]
    what = "exactly_once with images at 20,000 rows/s"
    latency = result("latency", what, 1, p50_ms=39.0, p99_ms=101.0, cpu_seconds=7.9)
    assert [floor.is_reached for floor in floors([latency])] == [True, False, True]
    seen = [result("spark", "current, 256 records until they are seen", 2, max_ms=worst) for worst in (3_900.0, 4_100.0)]
    assert [(floor.figure, floor.is_reached) for floor in floors(seen)] == [("3.90 s at worst", True), ("4.10 s at worst", False)]
    scanned = floors([result("spark", "changelog, warm", 26, cpu_seconds=99.0)])
    assert [(floor.figure, floor.is_reached) for floor in scanned] == [("38,462 rows/s", False)], "its CPU has no bound"
    peers = [result("spark-peers", f"merge-{name}, warm", seconds) for name, seconds in (("delta", 30), ("iceberg", 20))]
    ours = [result("spark", "current, warm", 19.9), result("spark", "current-avro, warm", 20.1)]
    merged = floors([*peers, *ours])
    assert [floor.is_reached for floor in merged if "fastest peer" in floor.what] == [True, False]


class Seen:
    """A load, a clock and all tables of `current`. In round N each answer takes N seconds, and the first one is an old one."""

    def __init__(self) -> None:
        self.prefix = "shop"
        self.seq = self.rounds = self.stops = 0
        self.now = 0.0
        self.isActive = True
        self._shown = 0

    def change(self, count: int) -> None:
        self.rounds += 1
        self._shown, self.seq = self.seq, self.seq + count

    def where(self, _: str) -> Seen:
        return self

    def agg(self, _: dict[str, str]) -> Seen:
        return self

    def collect(self) -> list[tuple[int | None]]:
        self.now += self.rounds
        shown, self._shown = self._shown, self.seq
        return [(shown or None,)]

    def count(self) -> int:
        return 7

    def stop(self) -> None:
        self.stops += 1


def test_the_load_in_avro_is_the_load_in_json() -> None:
    ids = Ids()
    spaces = ("users", "orders")
    plain, avro = JsonEncoder(spaces), AvroEncoder(spaces, "p", ids)
    for op, space in (("c", "users"), ("u", "orders")):
        for wanted, data in (
            (plain.event(op, 7, space, 41, 40), avro.event(op, 7, space, 41, 40)),
            (plain.key(space, 7), avro.key(space, 7)),
        ):
            assert converter(ids.schemas[schema_id(data) - 1].text)(data[5:]) == wanted.decode()


def test_how_soon_changes_are_seen_is_told_by_the_median_and_the_worst_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: Any = Seen()
    monkeypatch.setattr(spark_load, "SPACES", ("users",))
    monkeypatch.setattr(spark_load, "time", SimpleNamespace(monotonic=lambda: seen.now))
    monkeypatch.setattr(spark_load, "cpu_seconds", lambda: seen.now / 2)
    monkeypatch.setattr(spark_load, "read_current", lambda *_: seen)
    monkeypatch.setattr("spark_jobs.run.start", lambda *_: seen)
    options = argparse.Namespace(job="current", path="lake")
    phases = list(spark_load._until_seen(seen, seen, seen, options))
    # The first four of fourteen rounds are for warming up. In each the second answer has the changes.
    assert phases[0]["rounds"] == [2.0 * number for number in range(5, 15)]
    assert (phases[0]["seconds"], phases[0]["max_seconds"], phases[0]["cpu_seconds"]) == (19.0, 28.0, 9.5)
    assert (phases[1]["records"], seen.stops) == (7, 1)

    monkeypatch.setattr(sections, "_SPARK_JOBS", {"current": ()})
    monkeypatch.setattr(sections, "_run_spark", lambda *_: phases)
    bench: Any = SimpleNamespace(directory=tmp_path, rows=7)
    told, whole = sections.spark(bench)
    assert (told.seconds, told.max_ms, told.note) == (19.0, 28_000.0, "the median of 10 rounds; the worst took 28.00 s")
    assert (whole.max_ms, whole.note) == (None, "")

    seen.isActive, seen.exception = False, lambda: "gone"
    with pytest.raises(RuntimeError, match="the job has ended: gone"):
        list(spark_load._until_seen(seen, seen, seen, options))
