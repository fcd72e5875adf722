"""How a snapshot's progress is shown: how much is read, how fast, how long it will take, and that it lives."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.commands.status import readable
from cdc.ops.metrics import GAUGES
from cdc.ops.progress import SnapshotProgress
from cdc.ops.status import Status
from cdc.stream.snapshots.reading import SnapshotReading


class Clock:
    """The monotonic clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("cdc.ops.progress.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def line(found: SnapshotProgress) -> str:
    """As `tarantool-cdc status` shows it."""
    status = Status("shop")
    status.snapshot = found
    (shown,) = [text for text in readable(status.to_json()).splitlines() if text.startswith("snapshot ")]
    return shown.removeprefix("snapshot").strip()


def gauges(found: SnapshotProgress | None) -> list[str]:
    status = Status("shop")
    status.snapshot = found
    names = ("rows", "rows_read", "share", "seconds_left")
    return [f"{GAUGES[f'tarantool_cdc_snapshot_{name}'][1](status):g}" for name in names]


def test_a_first_snapshot_shows_its_spaces(clock: Clock) -> None:
    found = SnapshotProgress(0)
    clock.now += 2
    found.advance(SnapshotReading(1000, "users", 1, 4), 900)
    assert line(found) == "1000 rows, 900 of them published, now in users, 1 of 4 spaces done, 500 rows/s, for 2.0 s"
    assert gauges(found) == ["900", "1000", "nan", "nan"]


def test_another_one_shows_the_time_left(clock: Clock) -> None:
    found = SnapshotProgress(10_000)
    clock.now += 2
    found.advance(SnapshotReading(2000, "users", 0, 1), 0)
    assert line(found) == (
        "2000 rows of about 10000, 0 of them published, now in users, 0 of 1 spaces done, 1000 rows/s, for 2.0 s, "
        "about 8.0 s left"
    )
    assert gauges(found) == ["0", "2000", "0.2", "8"]
    found.advance(SnapshotReading(12_000, "users", 0, 1), 0)
    assert (found.share, found.seconds_left) == (0.999, None), "there are more rows than before"


def test_the_rate_is_the_present_one(clock: Clock) -> None:
    """What was skipped fast, because consumers have it, says nothing about the rest."""
    found, rows = SnapshotProgress(1_000_000), 0
    for each in [50_000] * 10 + [1000] * 60:
        clock.now += 1
        rows += each
        found.advance(SnapshotReading(rows, "users", 0, 1), each)
    assert found.rows_per_second == pytest.approx(1000, rel=0.01)
    assert found.seconds_left == pytest.approx(440, rel=0.01)


def test_a_snapshot_that_stands_still_is_seen(clock: Clock) -> None:
    found = SnapshotProgress(0)
    found.advance(SnapshotReading(5, "users", 0, 1), 5)
    clock.now += 7
    found.advance(SnapshotReading(5, "users", 0, 1), 0)
    assert line(found).endswith("no row for 7.0 s")


def test_its_end(clock: Clock) -> None:
    found = SnapshotProgress(10)
    found.advance(SnapshotReading(8, "users", 0, 1), 8)
    clock.now += 4
    found.finish(is_complete=True)
    clock.now += 100
    assert line(found) == "complete: 8 rows, 8 of them published, in 4.0 s"
    assert gauges(found) == ["8", "8", "1", "0"]
    assert found.rows_per_second == 2


def test_one_that_failed_is_not_complete(clock: Clock) -> None:
    found = SnapshotProgress(10)
    clock.now += 1
    found.finish(is_complete=False)
    assert found.to_json()["is_complete"] is False


def test_before_the_first_there_is_nothing_to_show() -> None:
    status: dict[str, Any] = Status("shop").to_json()
    assert (status["snapshot"], status["snapshot_rows"]) == (None, 0)
    assert not [text for text in readable(status).splitlines() if text.startswith("snapshot ")]
    assert gauges(None) == ["0", "0", "nan", "nan"]


def test_the_log_shows_it_now_and_then(clock: Clock) -> None:
    found = SnapshotProgress(1000)
    with capture_logs() as said:
        for rows in range(1, 13):
            clock.now += 1
            found.advance(SnapshotReading(rows * 10, "users", 0, 2), 10)
    assert [(each["rows"], each["published"], each["space"], each["share"]) for each in said] == [
        (50, 50, "users", 0.05),
        (100, 100, "users", 0.1),
    ]
    assert said[0]["seconds_left"] == 95
