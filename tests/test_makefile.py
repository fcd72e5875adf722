"""What `make` says to pytest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("goal", ["check", "test"])
def test_durations_are_kept_by_goal_path_and_commit(goal: str) -> None:
    """Nothing that runs on one commit overwrites what another commit took, or the other row path."""
    said = subprocess.run(["make", "--dry-run", goal], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    kept = re.findall(r"--junitxml=build/durations/(\S+)", said)
    assert len(kept) == len(re.findall(r"-m pytest", said)) == 2
    assert re.fullmatch(rf"{goal}-\S+\.xml", kept[0])
    assert kept[1] == kept[0].replace(".xml", "-python.xml")


def test_files_that_the_second_pass_leaves_out_are_there() -> None:
    """A file that is renamed would be in it again, unnoticed."""
    said = subprocess.run(["make", "--dry-run", "check"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    left_out = re.findall(r"--ignore=(\S+)", said)
    assert len(left_out) > 10
    assert [name for name in left_out if not (ROOT / name).exists()] == []
