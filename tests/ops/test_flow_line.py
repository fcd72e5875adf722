"""The line a minute about rate and lag: while changes flow, and not while nothing happens."""

from __future__ import annotations

import time

import structlog

from cdc.ops.flow_line import INTERVAL_SECONDS, FlowLine
from cdc.ops.status import Status
from cdc.positions.vclock import VClock


def test_a_line_a_minute() -> None:
    status = Status("shop", state="streaming", native_row_count=1000)
    line = FlowLine(status)
    with structlog.testing.capture_logs() as lines:
        line.look(0.0, 0.0)
        status.native_row_count, status.kafka.event_count, status.kafka.commit_count = 7000, 600, 30
        status.received, status.checkpoint, status.seq = VClock({1: 9}), VClock({1: 7}), 600
        line.look(INTERVAL_SECONDS / 2, 0.0)
        assert lines == []
        line.look(INTERVAL_SECONDS, 0.0)
        line.look(INTERVAL_SECONDS * 1.5, 0.0)
    (found,) = lines
    assert {name: found[name] for name in ("rows_per_second", "events_per_second", "commits", "lag_rows", "seq")} == {
        "rows_per_second": 100.0,
        "events_per_second": 10.0,
        "commits": 30,
        "lag_rows": 2,
        "seq": 600,
    }


def test_none_while_nothing_happens() -> None:
    status = Status("shop", state="streaming")
    line = FlowLine(status)
    with structlog.testing.capture_logs() as lines:
        for minute in range(4):
            line.look(minute * INTERVAL_SECONDS, time.time())
        assert lines == []
        status.kafka.backlog.submitted(time.monotonic() - 90, 0.0)
        line.look(4 * INTERVAL_SECONDS, time.time())
    assert [round(each["lag_seconds"]) for each in lines] == [90]


def test_another_state_begins_anew() -> None:
    status = Status("shop", state="streaming", native_row_count=5)
    line = FlowLine(status)
    with structlog.testing.capture_logs() as lines:
        line.look(0.0, 0.0)
        status.state, status.native_row_count = "snapshot", 100_000
        line.look(INTERVAL_SECONDS, 0.0)
        status.state = "streaming"
        line.look(INTERVAL_SECONDS * 2, 0.0)
        line.look(INTERVAL_SECONDS * 3, 0.0)
    assert lines == []
