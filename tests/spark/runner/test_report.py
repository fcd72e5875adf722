"""The metrics and the progress bar of a Spark job."""

from __future__ import annotations

import io
import socket
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from spark_jobs.errors import JobError
from spark_jobs.runner.job import FailAtOnce
from spark_jobs.runner.progress import Batch
from spark_jobs.runner.report import Log, Metrics, metrics

BATCH = Batch(number=3, records=40, seconds=1.5, seq=99, behind_seconds=0.25, behind_records=60)


def test_metrics_add_up() -> None:
    registry, letters = CollectorRegistry(), FailAtOnce()
    counted = {"findings": 0}
    found = Metrics("current", letters, registry, lambda: counted)
    counted["findings"] = 7
    found.batch(BATCH)
    found.batch(Batch(number=4, records=2, seconds=0.5, seq=None, behind_seconds=None, behind_records=0))
    letters.count = 5
    shown = generate_latest(registry).decode().splitlines()
    for name, value in (
        ("records_total", 42.0),
        ("batch_seconds_count", 2.0),
        ("batch_seconds_sum", 2.0),
        ("seq", 99.0),
        ("lag_seconds", 0.25),
        ("lag_records", 0.0),
        ("batch_number", 4.0),
        ("dead_letters", 5.0),
        ("findings", 7.0),
    ):
        assert f'tarantool_cdc_spark_{name}{{job="current"}} {value}' in shown


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"--metrics-listen 127.0.0.1:{port}: .* another port"):
            metrics("current", FailAtOnce(), "127.0.0.1", port).__enter__()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_if_the_job_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Log("current", shows_progress=True) as log:
        log.batch(BATCH)
    assert "40/100" in terminal.getvalue()
    assert "current: batch=3 records=40" in terminal.getvalue()


def test_elsewhere_there_are_lines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Log("current", shows_progress=True) as log:
        log.batch(BATCH)
    assert capsys.readouterr().err == f"{BATCH.line('current')}\n"
