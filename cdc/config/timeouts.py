"""The time limits for members, which follow from one key: a limit that doesn't fit the others would only do harm."""

from __future__ import annotations

from dataclasses import dataclass

_PROBE_SHARE = 1.25
_SILENCE_COUNT = 10
_SURVEY_COUNT = 10
_WAIT_COUNT = 30


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times in seconds. `survey` is 0 if there are no regular surveys."""

    vote: float
    """Time limit for connect, login, ballot and replica set together."""
    probe_after: float
    """With several members: silence after which the followed one is asked over another connection."""
    silence: float
    """Silence after which the connection is closed, even if the server answers on other connections."""
    survey: float
    """Interval of the regular surveys."""
    wait: float
    """With several members: time before the policies apply if none can be followed."""

    @classmethod
    def of(cls, replication_timeout_ms: int, survey_interval_ms: int | None, wait_ms: int | None) -> Timeouts:
        """Return the times for a master with this interval of heartbeats. The other two are given, or follow from it as well."""
        seconds = replication_timeout_ms / 1000
        return cls(
            vote=seconds,
            probe_after=seconds * _PROBE_SHARE,
            silence=seconds * _SILENCE_COUNT,
            survey=seconds * _SURVEY_COUNT if survey_interval_ms is None else survey_interval_ms / 1000,
            wait=seconds * _WAIT_COUNT if wait_ms is None else wait_ms / 1000,
        )
