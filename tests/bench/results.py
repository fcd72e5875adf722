"""What a measurement comes to: figures, the table that shows them, and the floors that they must reach."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROWS_PER_SECOND_AND_CPU: Final = {
    ("tail, 500 a transaction", "exactly_once"): (200_000.0, 4.0),
    ("tail, single rows", "exactly_once"): (170_000.0, 4.5),
    ("images", "new keys"): (150_000.0, 6.0),
    ("images", "random updates"): (100_000.0, 9.0),
    ("images", "snapshot"): (150_000.0, 6.0),
    ("sync", "synchronous"): (100_000.0, None),
    ("replay", "images"): (200_000.0, 5.0),
    ("spark", "changes, warm"): (60_000.0, 30.0),
    ("spark", "changelog, warm"): (40_000.0, None),
    ("spark", "current, warm"): (40_000.0, 32.0),
    ("spark", "current-avro, warm"): (40_000.0, 25.0),
    ("spark", "current-iceberg, warm"): (40_000.0, 32.0),
    ("spark", "history, warm"): (20_000.0, None),
    ("feeds", "search_index, warm"): (5_000.0, None),
    ("feeds", "redis, warm"): (30_000.0, None),
    ("feeds", "memcached, warm"): (30_000.0, None),
}
"""By section and what was measured: rows a second, and microseconds of CPU a row, if these have a bound."""
PEAK_ANONYMOUS_BYTES: Final = 250e6
STORE_FACTOR: Final = 10
"""How many times as many rows the larger store has, of those whose updates are compared."""
STORE_RATIO: Final = 1.5
"""How many times the CPU of an update in the smaller store one in the larger may take."""
SYNC_PEER: Final = "asynchronous"
SYNC_RATIO: Final = 1.3
"""How many times the CPU of a row of an asynchronous space one of a synchronous space may take."""
LATENCY_P50_MS: Final = 40.0
LATENCY_P99_MS: Final = 100.0
LATENCY_CPU_US: Final = 8.0
SEEN_SECONDS: Final = 4.0
"""The worst time until a reader of `current` sees a few changes of full tables."""


@dataclass(kw_only=True)
class Result:
    """One line of the table. What wasn't measured is None.

    `seconds` are those that the rows took, `whole_seconds` those from the start of the process, with everything that it
    loads and asks before its first row. `cpu_seconds` are user and system time of the process during `seconds`. `counted`
    are the rows that were found at the other end afterwards, each counted once, and `repeated` what came more than once.
    """

    section: str
    what: str
    rows: int
    seconds: float
    whole_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_rss_bytes: int | None = None
    peak_anonymous_bytes: int | None = None
    of_raw: float | None = None
    of_replica: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    max_ms: float | None = None
    counted: int | None = None
    repeated: int | None = None
    note: str = ""

    @property
    def rows_per_second(self) -> float:
        """The rate."""
        return self.rows / self.seconds

    @property
    def whole_rows_per_second(self) -> float | None:
        """The rate with the start of the process."""
        return self.rows / self.whole_seconds if self.whole_seconds else None

    @property
    def cpu_us_per_row(self) -> float | None:
        """Microseconds of one core per row."""
        return self.cpu_seconds / self.rows * 1e6 if self.cpu_seconds is not None else None

    def to_json(self) -> dict[str, Any]:
        """All figures, also the ones that follow from others."""
        return {
            **asdict(self),
            "rows_per_second": self.rows_per_second,
            "whole_rows_per_second": self.whole_rows_per_second,
            "cpu_us_per_row": self.cpu_us_per_row,
        }


@dataclass(frozen=True)
class Floor:
    """A promise about the figures, and whether they keep it."""

    what: str
    figure: str
    is_reached: bool


def compare(results: Iterable[Result]) -> None:
    """Fill in `of_raw` and `of_replica`: the ratio to what was measured in the same section before."""
    raw: dict[str, Result] = {}
    replica: dict[str, Result] = {}
    for result in results:
        if result.what.startswith("raw drain"):
            raw[result.section] = result
        elif result.what.startswith("replica"):
            replica[result.section] = result
        if result.section in raw:
            result.of_raw = result.rows_per_second / raw[result.section].rows_per_second
        if result.section in replica:
            result.of_replica = result.rows_per_second / replica[result.section].rows_per_second


def floors(results: Sequence[Result]) -> list[Floor]:
    """The floors that these results say something about. A section that was measured in rounds counts by its best."""
    found = []
    for (section, what), (rate, cpu_us) in ROWS_PER_SECOND_AND_CPU.items():
        runs = [result for result in results if (result.section, result.what) == (section, what)]
        if runs:
            best_rate = max(result.rows_per_second for result in runs)
            name = f"{section}, {what}"
            found.append(Floor(f"{name}: {rate:,.0f} rows/s", f"{best_rate:,.0f} rows/s", best_rate >= rate))
            if cpu_us is not None:
                least = min(result.cpu_us_per_row or math.inf for result in runs)
                found.append(Floor(f"{name}: {cpu_us} µs of CPU a row", f"{least:.2f} µs", least <= cpu_us))
    peaks = [result.peak_anonymous_bytes for result in results if result.peak_anonymous_bytes is not None]
    if peaks:
        what, peak = f"peak anonymous memory under {PEAK_ANONYMOUS_BYTES / 1e6:.0f} MB", max(peaks)
        found.append(Floor(what, f"{peak / 1e6:.0f} MB", peak < PEAK_ANONYMOUS_BYTES))
    stores = [result.cpu_us_per_row for result in results if result.section == "store" and result.cpu_us_per_row]
    for small, large in zip(stores[::2], stores[1::2], strict=False):
        what = f"store, random updates of {STORE_FACTOR} times as many rows: {STORE_RATIO} times the CPU a row"
        found.append(Floor(what, f"{large / small:.2f} times", large <= STORE_RATIO * small))
    for more in ("", ", images"):
        costs = [
            min(
                (result.cpu_us_per_row or math.inf for result in results if result.section == "sync" and result.what == what),
                default=0,
            )
            for what in (f"synchronous{more}", f"{SYNC_PEER}{more}")
        ]
        if all(costs):
            name = f"sync, synchronous{more}: {SYNC_RATIO} times the CPU a row of {SYNC_PEER}{more}"
            found.append(Floor(name, f"{costs[0] / costs[1]:.2f} times", costs[0] <= SYNC_RATIO * costs[1]))
    peers = [result.rows_per_second for result in results if result.section == "spark-peers" and result.what.endswith(", warm")]
    for result in results:
        if peers and result.section == "spark" and result.what.startswith("current") and result.what.endswith(", warm"):
            fastest, rate = max(peers), result.rows_per_second
            name = f"{result.section}, {result.what}: {fastest:,.0f} rows/s of the fastest peer"
            found.append(Floor(name, f"{rate:,.0f} rows/s", rate >= fastest))
        if result.section == "latency" and "with images" in result.what:
            bounds = [
                ("p50", result.p50_ms, LATENCY_P50_MS, "ms"),
                ("p99", result.p99_ms, LATENCY_P99_MS, "ms"),
                ("CPU a row", result.cpu_us_per_row, LATENCY_CPU_US, "µs"),
            ]
            for what, figure, bound, unit in bounds:
                if figure is not None:
                    name = f"commit to visible, {result.what}: {what} {bound:.0f} {unit}"
                    found.append(Floor(name, f"{figure:.1f} {unit}", figure <= bound))
        if result.section == "spark" and result.max_ms is not None:
            worst = result.max_ms / 1000
            found.append(Floor(f"{result.what}: {SEEN_SECONDS:.0f} s", f"{worst:.2f} s at worst", worst <= SEEN_SECONDS))
    return found


def show(results: Sequence[Result], console: Console) -> None:
    """Print the one table, and the floors under it."""
    table = Table(title="tarantool-cdc")
    for heading in ("section", "what"):
        table.add_column(heading, overflow="fold")
    for heading in (
        "rows",
        "rows/s",
        "with start",
        "of raw",
        "of replica",
        "CPU µs/row",
        "peak RSS MB",
        "anonymous MB",
        "p50 / p99 / p99.9 / max ms",
    ):
        table.add_column(heading, justify="right")
    table.add_column("note", overflow="fold")
    section = ""
    for result in results:
        if section not in ("", result.section):
            table.add_section()
        latency = (result.p50_ms, result.p99_ms, result.p999_ms, result.max_ms)
        table.add_row(
            result.section if result.section != section else "",
            result.what,
            f"{result.rows:,}",
            f"{result.rows_per_second:,.0f}",
            _shown(result.whole_rows_per_second, ",.0f"),
            _shown(result.of_raw, ".2f"),
            _shown(result.of_replica, ".2f"),
            _shown(result.cpu_us_per_row, ".2f"),
            _shown(result.peak_rss_bytes and result.peak_rss_bytes / 1e6, ".0f"),
            _shown(result.peak_anonymous_bytes and result.peak_anonymous_bytes / 1e6, ".0f"),
            " / ".join(_shown(part, ".0f") for part in latency) if result.p99_ms is not None else "",
            result.note,
        )
        section = result.section
    console.print(table)
    for floor in floors(results):
        console.print(f"{'reached' if floor.is_reached else 'MISSED '}  {floor.what}: {floor.figure}", highlight=False)


def line(result: Result) -> str:
    """A result in a line, for printing as it comes."""
    parts = [f"{result.rows:,} rows in {result.seconds:.2f} s: {result.rows_per_second:,.0f} rows/s"]
    if result.cpu_us_per_row is not None:
        parts.append(f"{result.cpu_us_per_row:.2f} µs CPU/row")
    if result.peak_rss_bytes is not None:
        parts.append(f"peak RSS {result.peak_rss_bytes / 1e6:.0f} MB")
    if result.peak_anonymous_bytes is not None:
        parts.append(f"{result.peak_anonymous_bytes / 1e6:.0f} MB of it anonymous")
    if result.p99_ms is not None:
        parts.append(
            f"p50 {result.p50_ms:.0f} ms, p99 {result.p99_ms:.0f} ms, p99.9 {result.p999_ms:.0f} ms, max {result.max_ms:.0f} ms"
        )
    if result.note:
        parts.append(result.note)
    return f"{result.section}: {result.what}: {', '.join(parts)}"


def write_json(path: Path, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """All figures for a program."""
    content = {
        "machine": machine,
        "results": [result.to_json() for result in results],
        "floors": [asdict(floor) for floor in floors(results)],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
