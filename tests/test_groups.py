"""Tests that share what is dear, or is hurt, are run by one process: pytest-xdist's groups, in the version that is installed."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("one-process")
def test_a_group_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    """The scheduler knows groups by their tests' ids, and by nothing else."""
    # With -n alone pytest-xdist passes groups over: make says --dist=loadgroup, which is told to the processes by this option.
    knows_groups = bool(request.config.getoption("loadgroup", default=False))
    assert request.node.nodeid.endswith("@one-process") == knows_groups
