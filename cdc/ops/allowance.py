"""How much of something may happen: so much per second, after a burst."""

from __future__ import annotations


class Allowance:
    """An allowance of `per_second`, after a burst of as much, or of `burst`. The caller passes the time, in seconds."""

    def __init__(self, per_second: float, burst: float | None = None) -> None:
        self._per_second = per_second
        self._burst = self._left = per_second if burst is None else burst
        self._at: float | None = None

    def left(self, now: float) -> float:
        """Return how much may happen now. It is negative while more has been used than there was."""
        elapsed, self._at = 0.0 if self._at is None else now - self._at, now
        self._left = min(self._burst, self._left + elapsed * self._per_second)
        return self._left

    def use(self, count: float) -> None:
        """Note that so much happens."""
        self._left -= count
