"""Several processes run the tests: those that share what is dear, or is hurt, are run by one of them, and all have one seed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest

ROOT = Path(__file__).parents[1]
PLUGIN = """
import os

def pytest_collection_finish(session):
    from tests.conftest import _SEED
    with open(os.environ["SEEDS"], "a") as file:
        print(session.config.stash[_SEED], file=file)
"""


@pytest.mark.xdist_group("one-process")
def test_a_group_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    """The scheduler knows groups by their tests' ids, and by nothing else."""
    # With -n alone pytest-xdist passes groups over: make says --dist=loadgroup, which is told to the processes by this option.
    knows_groups = bool(request.config.getoption("loadgroup", default=False))
    assert request.node.nodeid.endswith("@one-process") == knows_groups


def test_all_processes_have_the_seed_that_the_header_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tells_seed.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SEEDS", str(tmp_path / "seeds"))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    chosen = ["-p", "tells_seed", "--numprocesses=2", "--dist=loadgroup", f"{Path(__file__)}::test_a_group_reaches_the_scheduler"]
    done = subprocess.run([sys.executable, "-m", "pytest", *chosen], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = re.search(r"^seed: (\d+) ", done.stdout, re.MULTILINE)
    assert told is not None, done.stdout
    assert (tmp_path / "seeds").read_text().split() == [told[1]] * 2


class Broker:
    is_running = True

    def start(self) -> None:
        self.is_running = True

    def kill(self) -> None:
        self.is_running = False


def _item(broker: Broker, group: str, *, knows_groups: bool = True) -> Any:
    config = SimpleNamespace(stash={conftest._BROKERS: {"frail_kafka": broker}}, getoption=lambda *_, **__: knows_groups)
    mark = pytest.mark.xdist_group(group).mark if group else None
    return SimpleNamespace(config=config, get_closest_marker={"xdist_group": mark}.get)


@pytest.mark.parametrize(
    ("next_group", "knows_groups", "runs_on"),
    [("frail_kafka", True, True), ("spark", True, False), ("", True, False), ("", False, True), (None, True, True)],
)
def test_a_broker_ends_with_its_group(next_group: str | None, knows_groups: bool, runs_on: bool) -> None:
    """Without groups another test of it may follow at any time, and behind the last test of all the fixture ends it."""
    broker = Broker()
    item = _item(broker, "frail_kafka", knows_groups=knows_groups)
    for _ in conftest.pytest_runtest_teardown(item, None if next_group is None else _item(broker, next_group)):
        assert broker.is_running, "the test's own fixtures need it"
    assert broker.is_running == runs_on
    conftest.pytest_runtest_setup(_item(broker, "spark"))
    assert broker.is_running == runs_on
    conftest.pytest_runtest_setup(item)
    assert broker.is_running
