"""Which row path runs, and that everybody is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc import native
from cdc.config import parse
from cdc.daemon.supervisor import Daemon
from cdc.ops.metrics import GAUGES


def told(**environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "cdc.native"],
        env={**{name: value for name, value in os.environ.items() if name != "TARANTOOL_CDC_PURE"}, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


@pytest.mark.skipif("CI" not in os.environ, reason="a developer may have no toolchain, or want the Python path")
def test_where_everything_is_tested_the_compiled_path_is_there() -> None:
    # It is built where it can be; without this, all tests of it would be passed over in silence if it can't.
    is_wished_away = "TARANTOOL_CDC_PURE" in os.environ
    assert is_wished_away or native.ROW_PATH == "native", native.REASON


def test_the_python_path_can_be_wished_for() -> None:
    assert (
        told(TARANTOOL_CDC_PURE="1") == f"row path: python, as TARANTOOL_CDC_PURE is set; of {Path(native.__file__).parents[1]}\n"
    )
    assert "is set" not in told(TARANTOOL_CDC_PURE="0")


def test_without_a_compiled_module_the_python_path_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARANTOOL_CDC_PURE", raising=False)
    monkeypatch.setitem(sys.modules, "cdc._native", None)  # whose import fails then
    monkeypatch.delattr("cdc._native", raising=False)
    path, reason, _ = native._choose()
    assert path == "python"
    assert "install a Rust toolchain (cargo)" in reason


@pytest.mark.skipif(native.ROW_PATH == "python", reason=native.REASON)
def test_a_module_that_was_built_of_other_sources_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARANTOOL_CDC_PURE", raising=False)
    assert native._choose()[0] == "native"
    monkeypatch.setattr("cdc._native.SOURCES_CRC32", "5")
    path, reason, _ = native._choose()
    assert path == "python"
    assert "install this again" in reason


def test_status_and_metric_say_which_one_runs(tmp_path: Path) -> None:
    values = {
        "name": "shop",
        "source": {"uris": ["m:3301"]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"path": str(tmp_path)},
        "http": {"listen": ""},
    }
    status = Daemon(parse(values, "the test")).status
    assert status.to_json()["row_path"] == native.ROW_PATH
    _, read = GAUGES["tarantool_cdc_native"]
    assert read(status) == (native.ROW_PATH == "native")
