"""Delays between attempts: they grow, with jitter, until something succeeds."""

from __future__ import annotations

import random
from typing import Final

BACK_OFF_FIRST_SECONDS: Final = 0.1
BACK_OFF_MAX_SECONDS: Final = 5.0


class BackOff:
    """Delays that grow, with jitter, until something succeeds."""

    def __init__(self) -> None:
        self._delay = BACK_OFF_FIRST_SECONDS

    def next(self) -> float:
        """The next delay in seconds."""
        delay, self._delay = self._delay, min(BACK_OFF_MAX_SECONDS, self._delay * 2)
        return delay * random.uniform(0.75, 1.25)  # noqa: S311 - spreads reconnects, guards nothing

    def reset(self) -> None:
        """It works again."""
        self._delay = BACK_OFF_FIRST_SECONDS
