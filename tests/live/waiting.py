"""Waiting for what is to happen, with a reason in the message when it doesn't."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 120
"""How long what takes a second on a machine of its own may take beside everything else."""
_INTERVAL_SECONDS = 0.02


def wait_for(what: str, ask: Callable[[], T], timeout_seconds: float = PATIENCE_SECONDS) -> T:
    """Ask again and again until the answer is true, and return it. Raises AssertionError that says `what` did not come."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_seconds:g} s; the last answer was {answer!r:.1000}"
        time.sleep(_INTERVAL_SECONDS)
    return answer
