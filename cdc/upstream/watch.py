"""When to ask all members how they are, and when the followed one is to be left: it doesn't answer, and another would do.

    every `survey_seconds` ─────────────────────────────────┐
    when the stream begins ─────────────────────────────────┼─▶ is_due ─▶ (everybody is asked) ─▶ is_lost
    the followed one silent for `probe_after_seconds` ──────┘                                       ▲
      (a snapshot may be slow to begin, and is dear to break off: then for `silence_seconds`)       │
    still silent after the answers, itself not among those who answered, and somebody else is good ─┘

It refuses to know how members are asked, and what the time is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cdc.upstream import selection
from cdc.upstream.selection import Answer, Needed, Standing

TURN_SECONDS: Final = 1.0
"""A connection may begin or end any time: look at it so often."""


class Phase(Enum):
    """What a connection is at."""

    CONNECTING = "connecting"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Link:
    """The connection to the followed member at one moment. `last_heard_at`: when it said something last."""

    index: int
    phase: Phase
    last_heard_at: float


class Watch:
    """All times are seconds of one clock that only goes forward."""

    def __init__(
        self, member_count: int, now: float, *, survey_seconds: float, probe_after_seconds: float, silence_seconds: float
    ) -> None:
        """No regular surveys if `survey_seconds` is 0."""
        self._has_others = member_count > 1
        self._is_regular = survey_seconds > 0
        self._interval = survey_seconds or math.inf
        self._probe_after = probe_after_seconds
        self._silence = max(silence_seconds, probe_after_seconds)
        self._next_survey = now if self._is_regular else math.inf
        self._next_probe = now
        # What a member has can be judged well only once there is a position: then it is asked at once.
        self._has_seen_stream = not self._is_regular
        self._is_in_doubt = False

    def pause(self, now: float, link: Link | None) -> float:
        """How long nothing is to be done, in seconds."""
        due = min(self._next_survey, max(self._next_probe, self._doubt_at(link)), now + TURN_SECONDS)
        return max(0.0, due - now)

    def is_due(self, now: float, link: Link | None) -> bool:
        """Whether to ask everybody now; `is_lost` wants to hear of the answers then."""
        is_streaming = link is not None and link.phase is Phase.STREAMING
        self._is_in_doubt = now >= max(self._next_probe, self._doubt_at(link))
        if now < self._next_survey and not self._is_in_doubt and (self._has_seen_stream or not is_streaming):
            return False
        self._has_seen_stream = is_streaming or not self._is_regular
        return True

    def is_lost(self, now: float, link: Link | None, answers: Sequence[Answer], needed: Needed) -> bool:
        """Whether the followed member is to be left, now that everybody has answered or hasn't."""
        self._next_survey = now + self._interval
        if self._is_in_doubt:
            self._next_probe = now + self._probe_after
        # A regular survey does as well, if the member has been silent for long enough by its end.
        if link is None or now < self._doubt_at(link):
            return False
        if selection.standing(answers[link.index], needed) is not Standing.UNREACHABLE:
            return False
        return any(selection.standing(answer, needed) is Standing.GOOD for answer in answers)

    def _doubt_at(self, link: Link | None) -> float:
        """When the followed member's silence will be suspicious."""
        if link is None or not self._has_others:
            return math.inf
        match link.phase:
            case Phase.STREAMING:
                return link.last_heard_at + self._probe_after
            case Phase.SNAPSHOT:
                return link.last_heard_at + self._silence
        return math.inf
