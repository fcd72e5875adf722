"""Random spreading of retries, so that daemons that lost the same server don't all reconnect at the same instant."""

from __future__ import annotations

import random


def jittered(delay_seconds: float) -> float:
    """Return the delay, changed at random by up to 25 %."""
    return delay_seconds * random.uniform(0.75, 1.25)  # noqa: S311 - spreads reconnects, guards nothing
