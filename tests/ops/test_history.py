"""The last hour of a few values: rates by what was gained since, in bounded memory."""

from __future__ import annotations

import time

import pytest

from cdc.ops.history import INTERVAL_SECONDS, LENGTH, SERIES, History
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.stream.transactions.limbo import LimboState


def test_rates_and_levels() -> None:
    history, status = History(), Status("shop")
    history.sample(status, 100.0)
    assert history.newest() == {}, "one reading has no rate"
    status.native_row_count, status.queued_bytes = 1000, 7
    status.kafka.committed(0.0, 0.5)
    status.received, status.checkpoint = VClock({1: 30, 2: 5}), VClock({1: 20, 2: 5})
    history.sample(status, 100.0 + INTERVAL_SECONDS / 2)
    assert history.newest() == {}, "too early"
    history.sample(status, 110.0)
    newest = history.newest()
    assert newest["at"] > 0
    assert (newest["rows_per_second"], newest["commits_per_second"], newest["commit_ms"]) == (100.0, 0.1, 500.0)
    assert (newest["lag_rows"], newest["queued_bytes"]) == (10, 7)
    history.sample(status, 120.0)
    assert (history.newest()["rows_per_second"], history.newest()["commit_ms"]) == (0.0, 0.0)
    assert {name: len(values) for name, values in history.to_json().items()} == dict.fromkeys(("at", *SERIES), 2)


def test_a_lag_between_two_samples_is_seen() -> None:
    """A daemon that commits at once what it gets late has none most of the time."""
    history, status = History(), Status("shop")
    history.sample(status, 100.0)
    status.limbo = LimboState(1, 1, oldest_us=round((time.time() - 90) * 1e6))
    history.sample(status, 103.0)
    status.limbo = LimboState()
    history.sample(status, 106.0)
    assert history.newest()["lag_seconds"] == pytest.approx(90, abs=5)
    assert history.recent_lag_seconds == pytest.approx(90, abs=5)
    history.sample(status, 112.0)
    assert history.newest()["lag_seconds"] == 0


def test_a_bounded_number_of_samples() -> None:
    history, status = History(), Status("shop")
    for turn in range(LENGTH + 50):
        status.native_row_count += turn
        history.sample(status, turn * INTERVAL_SECONDS)
    values = history.to_json()["rows_per_second"]
    assert len(values) == LENGTH
    assert values[-1] == pytest.approx((LENGTH + 49) / INTERVAL_SECONDS)


def test_origins_that_are_left_out_are_no_lag() -> None:
    from cdc.ops.setup import Setup

    status = Status("shop", setup=Setup(ignored_origins=frozenset({2})))
    status.master_vclock, status.checkpoint = VClock({1: 7, 2: 99}), VClock({1: 5})
    assert status.lag_rows == 2
