"""`make demo`, as a user runs it: the whole chain on real servers, and the tables of `current` equal to the master's contents."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_demo_ends_well_and_says_that_all_rows_are_equal() -> None:
    done = subprocess.run([sys.executable, "-m", "cdc", "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for space in ("accounts", "orders"):
        assert f"{space}: all " in done.stdout
    assert "DIFFER" not in done.stdout
