"""Report on each member: its state, its position, and how many rows of its logs are left before a gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc.errors import CdcError, Remedy
from cdc.positions.vclock import VClock
from cdc.upstream.selection import FOLLOWING, Answer, Needed, Standing, error_of, explained, standing


@dataclass(frozen=True, slots=True)
class Upstream:
    """One member as /status shows it.

    `lag_rows`: how many rows it lacks compared to the most advanced members. `headroom_rows`: for how many rows before the
    position to resume from it still has logs; negative if logs are missing, None if unknown.
    """

    address: str
    state: str
    server_uuid: str | None = None
    version: str | None = None
    is_read_only: bool | None = None
    vclock: VClock | None = None
    gc_vclock: VClock | None = None
    lag_rows: int | None = None
    headroom_rows: int | None = None
    error: str | None = None
    is_refused: bool = False
    """Whether a new connection to it would be refused until somebody helps; one that is open may go on."""

    @property
    def is_following(self) -> bool:
        """Whether this is the member whose stream is read."""
        return self.state == FOLLOWING


def headroom_rows(logs_from: VClock, gc_vclock: VClock, ignored: frozenset[int] = frozenset()) -> int:
    """Return how many rows before `logs_from` still have logs.

    If later logs are gone, return minus the number of missing rows.
    """
    origins = (logs_from.keys() | gc_vclock.keys()) - ignored
    margins = [logs_from[origin] - gc_vclock[origin] for origin in origins]
    return sum(min(0, margin) for margin in margins) or sum(margins)


def overview(
    answers: Sequence[Answer], needed: Needed, followed: int | None = None, failures: dict[int, CdcError] | None = None
) -> tuple[Upstream, ...]:
    """Return all members as an operator sees them. `failures`: errors of connections that failed after the member's ballot."""
    newest: dict[int, int] = {}
    for answer in answers:
        for origin, lsn in answer.ballot.vclock.items() if answer.ballot is not None else ():
            newest[origin] = max(lsn, newest.get(origin, 0))
    found = []
    for index, answer in enumerate(answers):
        judged, error = standing(answer, needed), error_of(answer, needed)
        if judged is Standing.GOOD:
            error = (failures or {}).get(index)
            if error is not None and error.remedy is Remedy.OPERATOR:
                judged = Standing.REFUSED
        explanation = error.public if error is not None else None
        if judged is not Standing.GOOD and error is None:
            explanation = explained(answer, judged, needed)
        upstream = Upstream(
            address=answer.address,
            state=FOLLOWING if index == followed else judged.value,
            server_uuid=str(answer.uuid) if answer.uuid is not None else None,
            version=answer.version,
            error=explanation,
            is_refused=judged is Standing.REFUSED,
        )
        ballot = answer.ballot
        if ballot is not None:
            margin = None if needed.takes_snapshot else headroom_rows(needed.logs_from, ballot.gc_vclock, needed.ignored)
            upstream = replace(
                upstream,
                is_read_only=ballot.is_read_only,
                vclock=ballot.vclock,
                gc_vclock=ballot.gc_vclock,
                lag_rows=sum(lsn - ballot.vclock[origin] for origin, lsn in newest.items()),
                headroom_rows=margin,
            )
        found.append(upstream)
    return tuple(found)
