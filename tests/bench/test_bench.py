from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.local.servers import LocalServers
from tests.bench.__main__ import measure, parse
from tests.bench.results import Result, compare, floors
from tests.bench.store import update_stored

ROWS = 10_000


@pytest.mark.timeout(600)
def test_measures_what_it_says_and_loses_no_row(servers: LocalServers, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    sections = "tail-500,tail-1,snapshot,replay,latency,backlog"
    sizes = ["--rows", str(ROWS), "--backlog", str(ROWS), "--rate", "2000", "--latency-seconds", "1"]
    results = measure(parse(["--only", sections, *sizes, "--json", str(file)]), servers, tmp_path)

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
    assert len(content["floors"]) == 2 * 3 + 1 + 3


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
    peaks = [result(tail, "raw", 1, peak_anonymous_bytes=249e6), result("backlog", "exactly_once", 1, peak_anonymous_bytes=251e6)]
    assert [(floor.what, floor.is_reached) for floor in floors(peaks)] == [("peak anonymous memory under 250 MB", False)]
    what = "exactly_once with images at 20,000 rows/s"
    latency = result("latency", what, 1, p50_ms=39.0, p99_ms=101.0, cpu_seconds=7.9)
    assert [floor.is_reached for floor in floors([latency])] == [True, False, True]
