"""Rehearsal of a start, for `check`: which member a daemon would come to follow, and with which plan.

    choose ─▶ plan ─▶ what the plan needs of the member ─┬─ it has that ──▶ this member, with this plan
      ▲                                                  │
      └── passed over, as the failover does with it ◀────┘

The choice, the plan and the ways of the failover are the daemon's own (cdc.upstream.selection, start). Only what the daemon
would learn from a member's refusal has to be foreseen here: a snapshot that doesn't begin, and that an id in the replica set
comes from a writable member alone, and from none while another member knows one already (cdc.sources.registration).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc.errors import CdcError, ConnectionLostError
from cdc.protocol.failure import read_only_error
from cdc.upstream import selection, start
from cdc.upstream.selection import Answer, Choice, Rules, Wait
from cdc.upstream.start import Known, StartPlan


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member's answer, whether it knows an id for the daemon, and why it doesn't begin a snapshot, if it doesn't."""

    answer: Answer
    has_id: bool = False
    no_snapshot: CdcError | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The member that would be followed, and what would be done with it."""

    choice: Choice
    plan: StartPlan


def rehearse(candidates: Sequence[Candidate], known: Known, rules: Rules, *, waited_ms: float = 0) -> Start | Wait:
    """Return how the daemon would start, or what it would wait for. Raises the errors of selection.choose and start.plan."""
    needed = start.needed(known)
    answers = [candidate.answer for candidate in candidates]
    while True:
        choice = selection.choose(answers, needed, rules, waited_ms=waited_ms)
        if isinstance(choice, Wait):
            return choice
        answer = answers[choice.index]
        assert answer.ballot is not None, "it has been asked just now"
        plan = start.plan(replace(known, forced=known.forced or choice.snapshot), answer.ballot)
        error = _refusal(candidates, choice.index, plan)
        if error is None:
            return Start(choice, plan)
        answers[choice.index] = replace(answer, ballot=None, error=error)


def _refusal(candidates: Sequence[Candidate], index: int, plan: StartPlan) -> CdcError | None:
    """Return the error with which following this member by the plan would end; None if it wouldn't."""
    candidate = candidates[index]
    answer = candidate.answer
    if plan.snapshot is not None and candidate.no_snapshot is not None:
        return candidate.no_snapshot
    if not plan.wants_id or candidate.has_id:
        return None
    knowing = [other.answer.address for other in candidates if other.has_id]
    if knowing:
        return ConnectionLostError(
            f"{answer.address} doesn't know yet that the daemon has an id in the replica set, as {knowing[0]} does"
        )
    assert answer.ballot is not None
    return read_only_error(answer.address) if answer.ballot.is_read_only else None
