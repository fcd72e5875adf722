"""Tests that share what is dear, or is hurt, are run by one process: pytest-xdist's groups, in the version that is installed."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("one-process")
def test_a_group_reaches_the_scheduler(request: pytest.FixtureRequest) -> None:
    """The scheduler knows groups by their tests' ids, and by nothing else."""
    is_spread = "PYTEST_XDIST_WORKER" in os.environ
    assert request.node.nodeid.endswith("@one-process") == is_spread
