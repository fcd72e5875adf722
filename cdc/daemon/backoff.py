"""Spreads attempts, so that daemons that lost one server don't all come back in one instant."""

from __future__ import annotations

import random


def jittered(delay_seconds: float) -> float:
    """About that long."""
    return delay_seconds * random.uniform(0.75, 1.25)  # noqa: S311 - spreads reconnects, guards nothing
