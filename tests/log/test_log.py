"""Everything goes through the log in its format: what the daemon says, what ends it, and what Kafka's library says."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from cdc import log

CONFIGURATION = """
name = "shop"
[source]
uris = ["cdc:secret@127.0.0.1:1"]
[kafka]
bootstrap_servers = "127.0.0.1:1"
topic_prefix = "shop"
[http]
listen = "127.0.0.1:%d"
[log]
format = "%s"
"""


@pytest.fixture
def _as_before() -> Iterator[None]:
    """What `configure` changes for the whole process."""
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    log.LIBRARY.handlers = []
    structlog.reset_defaults()


def written(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    log.flush()
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


@pytest.mark.usefixtures("_as_before")
def test_each_line_has_the_daemons_name(capfd: pytest.CaptureFixture[str]) -> None:
    """A fleet's daemons write one log. A line that names another keeps that."""
    log.configure("json", "info", name="shop.s1")
    structlog.get_logger().warning("a topic was deleted")
    log.LIBRARY.warning("a broker is away")
    structlog.get_logger().warning("it has ended", name="shop")
    assert [line["name"] for line in written(capfd)] == ["shop.s1", "shop.s1", "shop"]


@pytest.mark.parametrize("style", ["json", "console"])
def test_the_error_that_ends_the_daemon(tmp_path: Path, style: str) -> None:
    """A port that is taken, say: the last line of the log, in the log's format."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and doesn't listen: whoever looks what answers there knows at once
        file = tmp_path / "shop.toml"
        file.write_text(CONFIGURATION % (taken.getsockname()[1], style))
        run = subprocess.run(
            [sys.executable, "-m", "cdc", "run", "--config", str(file)], capture_output=True, text=True, timeout=60, check=False
        )
    assert run.returncode == 1
    *_, last = run.stderr.splitlines()
    assert last.startswith("tarantool-cdc: ") == (style == "console")
    if style == "json":
        lines = [json.loads(line) for line in run.stderr.splitlines()]
        assert (lines[-1]["level"], set(lines[-1])) == ("error", {"event", "level", "name", "timestamp"})
        last = lines[-1]["event"]
    assert "http.listen" in last


@pytest.mark.usefixtures("_as_before")
def test_what_kafkas_library_says(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure("json", "info")
    log.LIBRARY.critical("FATAL|rdkafka#producer-1| [thrd:main]: Fatal error")
    log.LIBRARY.debug("of no interest")
    (line,) = written(capfd)
    assert (line["level"], line["event"]) == ("critical", "Kafka's client says")
    assert line["line"].startswith("FATAL|")
    assert log.LIBRARY.name not in logging.root.manager.loggerDict or not log.LIBRARY.propagate


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("style", ["console", "sentence", "json"])
def test_what_somebody_has_sent_makes_no_line_and_no_colour(capfd: pytest.CaptureFixture[str], style: Any) -> None:
    """Ids of signals, names of spaces, and what servers say may have any characters."""
    log.configure(style, "info")
    structlog.get_logger().warning("refused:\na line", id="\x1b[31mred", words="two words\nb", count=1)
    try:
        raise LookupError("nobody has expected this")
    except LookupError as error:
        sys.excepthook(LookupError, error, error.__traceback__)
    log.flush()
    shown = capfd.readouterr().err
    first, *others = shown.splitlines()
    if style == "json":
        assert (json.loads(first)["event"], json.loads(first)["id"]) == ("refused:\na line", "\x1b[31mred")
    else:
        assert first.isprintable()
        assert r"refused:\na line" in first
        assert r"\u001b[31mred" in first
    if style == "console":
        assert any(line.startswith("Traceback") for line in others)


@pytest.mark.usefixtures("_as_before")
def test_faults(capfd: pytest.CaptureFixture[str]) -> None:
    """Also of threads; one line each, with the trace in it."""
    log.configure("json", "warning")

    def fail() -> None:
        raise LookupError("nobody has expected this")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    try:
        fail()
    except LookupError as error:
        sys.excepthook(LookupError, error, error.__traceback__)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    lines = written(capfd)
    assert [(line["level"], line["event"]) for line in lines] == [("critical", "a fault of this program")] * 2
    assert all("nobody has expected this" in line["exception"] for line in lines)


@pytest.mark.parametrize("level", ["info", "error"])
@pytest.mark.usefixtures("_as_before")
def test_lost_lines_are_told_at_each_level(capfd: pytest.CaptureFixture[str], level: str) -> None:
    log.configure("json", level)
    assert log._lines is not None
    log._lines.lost_count = 7
    structlog.get_logger().error("stderr can be written again")
    assert [line.get("lines") for line in written(capfd)] == [None, 7]
