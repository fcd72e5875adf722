"""Waiting for what is to happen, with a reason in the message when it doesn't."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 120
"""How long what takes a second on a machine of its own may take beside everything else."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _PAUSE_SHARE = 0.02, 0.1, 0.05
"""Between two questions: that share of the time waited so far. To answer costs a daemon or a broker some milliseconds."""


def wait_for(what: str, ask: Callable[[], T], timeout_seconds: float = PATIENCE_SECONDS) -> T:
    """Ask again and again until the answer is true, and return it. Raises AssertionError that says `what` did not come."""
    begun = time.monotonic()
    while not (answer := ask()):
        waited = time.monotonic() - begun
        assert waited < timeout_seconds, f"{what}: not within {timeout_seconds:g} s; the last answer was {answer!r:.1000}"
        time.sleep(min(max(_PAUSE_SHARE * waited, _PAUSE_SECONDS), _PAUSE_SECONDS_MAX))
    return answer
