"""Decides when to survey all members, and when to leave the followed member: it doesn't answer, and another can be followed.

    every `survey_seconds` ─────────────────────────────────┐
    when the stream begins ─────────────────────────────────┼─▶ is_due ─▶ (all are asked) ──────▶ is_lost
    the followed one silent for `probe_after_seconds` ──────┘                                       ▲
      (a snapshot may begin slowly, and is costly to interrupt: then for `silence_seconds`)         │
    still silent after the answers, its own answer is missing, and another member is good ──────────┘

This module doesn't know how members are asked, and reads no clock.
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
"""Maximum interval between two looks at the connection, in seconds: it may begin or end at any time."""


class Phase(Enum):
    """Phase of a connection."""

    CONNECTING = "connecting"
    SNAPSHOT = "snapshot"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class Link:
    """The connection to the followed member at one moment. `last_heard_at`: when its last message arrived."""

    index: int
    phase: Phase
    last_heard_at: float


class Watch:
    """Schedule of the surveys. All times are seconds of one monotonic clock."""

    def __init__(
        self, member_count: int, now: float, *, survey_seconds: float, probe_after_seconds: float, silence_seconds: float
    ) -> None:
        """If `survey_seconds` is 0, there are no regular surveys."""
        self._has_others = member_count > 1
        self._is_regular = survey_seconds > 0
        self._interval = survey_seconds or math.inf
        self._probe_after = probe_after_seconds
        self._silence = max(silence_seconds, probe_after_seconds)
        self._next_survey = now if self._is_regular else math.inf
        self._next_probe = now
        # Members can be judged well only once there is a position: then they are asked at once.
        self._has_seen_stream = not self._is_regular
        self._is_in_doubt = False

    def pause(self, now: float, link: Link | None) -> float:
        """Return for how many seconds there is nothing to do."""
        due = min(self._next_survey, max(self._next_probe, self._doubt_at(link)), now + TURN_SECONDS)
        return max(0.0, due - now)

    def is_due(self, now: float, link: Link | None) -> bool:
        """Return whether to ask all members now. If so, pass their answers to `is_lost`."""
        is_streaming = link is not None and link.phase is Phase.STREAMING
        self._is_in_doubt = now >= max(self._next_probe, self._doubt_at(link))
        if now < self._next_survey and not self._is_in_doubt and (self._has_seen_stream or not is_streaming):
            return False
        self._has_seen_stream = is_streaming or not self._is_regular
        return True

    def is_lost(self, now: float, link: Link | None, answers: Sequence[Answer], needed: Needed) -> bool:
        """Return whether to leave the followed member, after all members have answered or failed to."""
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
        """Return when the followed member's silence becomes suspicious."""
        if link is None or not self._has_others:
            return math.inf
        match link.phase:
            case Phase.STREAMING:
                return link.last_heard_at + self._probe_after
            case Phase.SNAPSHOT:
                return link.last_heard_at + self._silence
        return math.inf
