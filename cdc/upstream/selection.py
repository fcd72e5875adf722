"""Decides which member of the replica set to follow, from all members' ballots, and reports the decision to the operator.

A member can be followed from the daemon's position P if it has everything that was published, and still has the logs after P
(cdc.upstream.resume gives the reasons). The other members are classified by whether they may become usable:

    ballot ─▶ not ready                    loading       will have a position soon
              P ≰ vclock                   behind        a lagging replica will catch up; a restored backup never does
              gc_vclock ≰ P                gap           can never be followed from P again
              else                         good          ◀── one of these is chosen: source.prefer, then the order of source.uris
    error ──▶ heals by waiting             unreachable
              needs a person               refused       (a wrong password, missing rights, another program on the port,
                                                          another replica set: its ballot isn't looked at)

If no member is good, the policy (`on_divergence`, `on_gap`) applies to a single member at once: waiting would show nothing that
its own ballot doesn't show. With several members, a restarting leader or a lagging replica isn't lost history. So as long as
one of them is not ready, behind or unreachable, the daemon waits, and the policy applies only afterwards:

    a member is short, and none is good                             source.divergence_wait_ms later
    ├──────────── wait: log who lacks what, ask all members again ───────────┤ a gap: on_gap; all behind: on_divergence
    └ a good one appears: follow it, and stop waiting

A gap takes precedence over a divergence: a member with a gap has everything that was published, so a snapshot of it takes nothing
back.

A server of another replica set is passed over like any other that a person has to mend, so a foreign server behind one address
doesn't end a daemon whose right member restarts. Before the first snapshot nothing says which replica set is the right one: then
source.uris that lead to two of them are refused.

This module doesn't know when it is called and how the answers were obtained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal
from uuid import UUID

from cdc.errors import (
    CdcError,
    ConnectionLostError,
    ForeignServerError,
    PositionError,
    ProtocolError,
    Remedy,
    ServerError,
    UnsupportedRowError,
)
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError
from cdc.upstream import resume
from cdc.upstream.resume import Policy, SnapshotMode

Preference = Literal["replica", "leader", "order"]


class Standing(Enum):
    """Usability of a member at the moment."""

    GOOD = "standby"
    LOADING = "loading"
    BEHIND = "behind"
    GAP = "gap"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


FOLLOWING: Final = "following"
"""State of the followed member; the state of the others is their standing."""
_MAY_BECOME_GOOD: Final = frozenset({Standing.LOADING, Standing.BEHIND, Standing.UNREACHABLE, Standing.REFUSED})


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of greeting one member and asking for its ballot: the ballot, or the error."""

    address: str
    ballot: Ballot | None = None
    version: str | None = None
    uuid: UUID | None = None
    error: CdcError | None = None
    replicaset_uuid: UUID | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """Requirements on a member: everything up to `published`, and the logs from `logs_from` on unless a snapshot is taken anyway.

    Origins in `ignored` are excluded from the stream, so nothing of theirs is needed. The member has to belong to the replica
    set `replicaset_uuid`; None before the first snapshot.
    """

    published: VClock = VClock()  # noqa: RUF009 - immutable
    logs_from: VClock = VClock()  # noqa: RUF009
    takes_snapshot: bool = False
    ignored: frozenset[int] = frozenset()
    replicaset_uuid: UUID | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings for the choice. `wait_ms` is source.divergence_wait_ms."""

    prefer: Preference = "order"
    mode: SnapshotMode = "initial"
    on_gap: Policy = "resnapshot"
    on_divergence: Policy = "fail"
    wait_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Follow the member at `index`, for this reason.

    `is_settled`: no member meets the requirements, and only the policy remains. Otherwise, the member's ballot has to be good
    once more on the connection to be followed. `snapshot`: why the member must begin with a snapshot, though its ballot may not
    show it.
    """

    index: int
    reason: str
    is_settled: bool = False
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """No member can be followed now. `is_short`: a member answers, but lacks changes or logs, so that a policy will apply."""

    reason: str
    is_short: bool


class NobodyError(CdcError):
    """No member can be followed. Waiting may heal this if it can make one of them good."""

    def __init__(self, message: str, hint: str = "", *, remedy: Remedy = Remedy.WAIT) -> None:
        super().__init__(message, hint)
        self.remedy = remedy


def is_of_one_member(error: CdcError) -> bool:
    """Return whether a connection's error concerns one member alone, so that the others are worth trying.

    It doesn't if no member could be followed past a row, or if the policies have judged the position already.
    """
    if isinstance(error, UnsupportedRowError):
        return False
    return isinstance(error, ConnectionLostError | ServerError | ProtocolError | XlogGapError | ForeignServerError)


def error_of(answer: Answer, needed: Needed) -> CdcError | None:
    """Return why nothing of a member can be used: its error, or that it belongs to another replica set; None if it can."""
    return answer.error or resume.foreign(needed.replicaset_uuid, answer.replicaset_uuid)


def standing(answer: Answer, needed: Needed) -> Standing:
    """Return a member's standing, judged by its own answer."""
    error, ballot = error_of(answer, needed), answer.ballot
    if error is not None:
        if isinstance(error, XlogGapError):
            return Standing.GAP
        if isinstance(error, ServerError) and error.code == ErrorCode.LOADING:
            return Standing.LOADING
        return Standing.UNREACHABLE if error.remedy is Remedy.WAIT else Standing.REFUSED
    assert ballot is not None
    if not ballot.is_ready:
        return Standing.LOADING
    if resume.lost_history(needed.published, ballot, needed.ignored):
        return Standing.BEHIND
    if not needed.takes_snapshot and resume.missing_logs(needed.logs_from, ballot, needed.ignored):
        return Standing.GAP
    return Standing.GOOD


def choose(answers: Sequence[Answer], needed: Needed, rules: Rules, *, waited_ms: float = 0) -> Choice | Wait:
    """Return the member to follow, or what to wait for. `waited_ms`: for how long a member has been short and none good.

    Raises PositionError if the policy is to fail, and ForeignServerError if nothing says which of several replica sets is the
    right one. If no member can be used without a person's help, raises the only member's error, or NobodyError.
    """
    if needed.replicaset_uuid is None:
        _check_one_replicaset(answers)
    standings = [standing(answer, needed) for answer in answers]
    report = "; ".join(explained(*item, needed) for item in zip(answers, standings, strict=True) if item[1] is not Standing.GOOD)
    good = _ranked(answers, standings, Standing.GOOD, rules.prefer)
    if good:
        return Choice(good[0], _why(answers[good[0]], rules.prefer) + (f"; passed over: {report}" if report else ""))
    if all(found is Standing.REFUSED for found in standings):
        raise _refused(answers, needed, report)
    gaps = _ranked(answers, standings, Standing.GAP, rules.prefer)
    behind = _ranked(answers, standings, Standing.BEHIND, rules.prefer)
    if not gaps and not behind:
        return Wait(report, is_short=False)
    may_become_good = len(answers) > 1 and not _MAY_BECOME_GOOD.isdisjoint(standings)
    if may_become_good and waited_ms < rules.wait_ms:
        left = max(0.0, rules.wait_ms - waited_ms) / 1000
        policy = "source.on_gap" if gaps else "source.on_divergence"
        return Wait(f"{report}; {policy} applies in {left:.0f} s", is_short=True)
    if gaps:
        sentence = f"no member has the logs after the checkpoint: {report}"
        if resume.fails_on_gap(rules.on_gap, rules.mode):
            raise PositionError(sentence, resume.GAP_HINT)
        told_by_stream = answers[gaps[0]].error is not None
        return Choice(gaps[0], sentence, is_settled=True, snapshot=sentence if told_by_stream else None)
    sentence = f"no member has all changes that were published: {report}"
    if rules.on_divergence == "fail" and not needed.takes_snapshot:
        raise PositionError(sentence, resume.DIVERGENCE_HINT)
    # The member whose snapshot takes back the least.
    nearest = min(behind, key=lambda index: _deficit(answers[index], needed))
    return Choice(nearest, sentence, is_settled=True)


def _ranked(answers: Sequence[Answer], standings: Sequence[Standing], wanted: Standing, prefer: Preference) -> list[int]:
    """Return the indexes of the members with this standing, the preferred ones first."""
    indexes = [index for index, found in enumerate(standings) if found is wanted]
    if prefer == "order":
        return indexes
    ballots = [answer.ballot for answer in answers]
    # A member without a ballot goes last.
    ranks = [2 if ballot is None else int(ballot.is_read_only != (prefer == "replica")) for ballot in ballots]
    return sorted(indexes, key=lambda index: ranks[index])


def _why(answer: Answer, prefer: Preference) -> str:
    assert answer.ballot is not None
    kind = "read-only" if answer.ballot.is_read_only else "writable"
    match prefer:
        case "order":
            return "the first of source.uris that can be followed"
        case "replica" if answer.ballot.is_read_only:
            return 'read-only, as source.prefer = "replica" wants it'
        case "leader" if not answer.ballot.is_read_only:
            return 'writable, as source.prefer = "leader" wants it'
    return f'{kind}: source.prefer = "{prefer}" finds none that can be followed'


def explained(answer: Answer, found: Standing, needed: Needed) -> str:
    """Return a sentence about a member that isn't good: what it lacks, with both vclocks by component."""
    ballot, error = answer.ballot, error_of(answer, needed)
    if error is not None:
        # Errors of a connection name its address already.
        text = error.message if answer.address in error.message else f"{answer.address}: {error.message}"
        return f"{text} ({found.value})"
    assert ballot is not None
    match found:
        case Standing.LOADING:
            return f"{answer.address} is still loading its data"
        case Standing.BEHIND:
            lost = resume.lost_history(needed.published, ballot, needed.ignored)
            return f"{answer.address} is behind: it is at {ballot.vclock}, published is {needed.published} ({lost})"
        case Standing.GAP:
            missing = resume.missing_logs(needed.logs_from, ballot, needed.ignored)
            return (
                f"{answer.address} has a gap: it keeps logs from {ballot.gc_vclock}, needed from {needed.logs_from} ({missing})"
            )
    return f"{answer.address} can be followed"


def _check_one_replicaset(answers: Sequence[Answer]) -> None:
    addresses: dict[UUID, list[str]] = {}
    for answer in answers:
        if answer.replicaset_uuid is not None:
            addresses.setdefault(answer.replicaset_uuid, []).append(answer.address)
    if len(addresses) > 1:
        found = "; ".join(f"{uuid} at {', '.join(places)}" for uuid, places in addresses.items())
        raise ForeignServerError(
            f"source.uris leads to {len(addresses)} replica sets: {found}",
            "Name members of one replica set only. Each other one needs a daemon of its own, with its own name and "
            "kafka.topic_prefix.",
        )


def _refused(answers: Sequence[Answer], needed: Needed, report: str) -> CdcError:
    """Return the error of the only member, or one error for all members."""
    errors = [error for answer in answers if (error := error_of(answer, needed)) is not None]
    if len(errors) == 1:
        return errors[0]
    hints = list(dict.fromkeys(error.hint for error in errors if error.hint))
    return NobodyError(
        f"none of the {len(errors)} members of source.uris can be followed: {report}", " ".join(hints), remedy=Remedy.OPERATOR
    )


def _deficit(answer: Answer, needed: Needed) -> int:
    assert answer.ballot is not None
    lacking = answer.ballot.vclock.lacking(needed.published)
    return sum(ours - theirs for origin, (theirs, ours) in lacking.items() if origin not in needed.ignored)
