"""The daemon's clock, for those who have to give the time to what has none."""

from __future__ import annotations

import time


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000
