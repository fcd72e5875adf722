"""The daemon's clock, for callers of code that has no clock of its own."""

from __future__ import annotations

import time


def now_us() -> int:
    """Return the current time in microseconds since the epoch."""
    return time.time_ns() // 1000
