"""Which member of the replica set to follow: the decision over everybody's ballots, and how it looks to an operator.

A member can be followed from our position P if it has everything that was published and still has the logs from there
(cdc.upstream.resume says why). The others are sorted by what may yet become of them:

    ballot ─▶ not ready                    loading       will have a position soon
              P ≰ vclock                   behind        a replica that lags will come there; a restored backup never does
              gc_vclock ≰ P                gap           never again, from here
              else                         good          ◀── one of these is chosen: source.prefer, then the order of source.uris
    error ──▶ heals by waiting             unreachable
              needs a person               refused       (a wrong password, missing rights, another program on the port)

With nobody good, one member alone gets the policy (`on_divergence`, `on_gap`) at once: there is nothing to wait for that
its own ballot wouldn't show. With several, a leader that restarts or a replica that lags isn't lost history, so as long as one
of them is not ready, behind or out of reach, that is waited for, and only then the policy applies:

    somebody short, nobody good                                     source.divergence_wait_ms later
    ├──────────── wait: say who lacks what, ask all of them again ───────────┤ a gap: on_gap; all behind: on_divergence
    └ a good one appears: follow it, and forget the waiting

A gap goes before a divergence: who has a gap has everything that was published, so a snapshot of it takes nothing back.

It refuses to know when it is asked and how the answers came. What a ballot can't tell is the replica set: a server of
another one is found out at SUBSCRIBE, and ends the daemon with its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal
from uuid import UUID

from cdc.errors import CdcError, ConnectionLostError, PositionError, ProtocolError, Remedy, ServerError, UnsupportedRowError
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError
from cdc.upstream import resume
from cdc.upstream.resume import Policy, SnapshotMode

Preference = Literal["replica", "leader", "order"]


class Standing(Enum):
    """What a member is good for at the moment."""

    GOOD = "standby"
    LOADING = "loading"
    BEHIND = "behind"
    GAP = "gap"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


FOLLOWING: Final = "following"
"""The state of the member that is followed; the others' is their standing."""
_MAY_BECOME_GOOD: Final = frozenset({Standing.LOADING, Standing.BEHIND, Standing.UNREACHABLE, Standing.REFUSED})


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member said when it was greeted and asked for its ballot: the ballot, or what went wrong."""

    address: str
    ballot: Ballot | None = None
    version: str | None = None
    uuid: UUID | None = None
    error: CdcError | None = None


@dataclass(frozen=True, slots=True)
class Needed:
    """What a member must have: everything up to `published`, and the logs from `logs_from` on unless a snapshot comes anyway.

    Origins in `ignored` are left out of the stream, so nothing of theirs is needed.
    """

    published: VClock = VClock()  # noqa: RUF009 - immutable
    logs_from: VClock = VClock()  # noqa: RUF009
    takes_snapshot: bool = False
    ignored: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says about choosing. `wait_ms` is source.divergence_wait_ms."""

    prefer: Preference = "order"
    mode: SnapshotMode = "initial"
    on_gap: Policy = "resnapshot"
    on_divergence: Policy = "fail"
    wait_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Follow the member at `index`, for this reason.

    `is_settled`: no member has what is needed, and the policy is what remains; else its ballot has to show the same once
    more on the connection that is to be followed. `snapshot`: it has to begin with one, though its ballot may not say so.
    """

    index: int
    reason: str
    is_settled: bool = False
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody can be followed now. `is_short`: somebody answers, but lacks changes or logs, so that a policy will apply."""

    reason: str
    is_short: bool


class NobodyError(CdcError):
    """No member can be followed. It heals by waiting if that may make one of them good."""

    def __init__(self, message: str, hint: str = "", *, remedy: Remedy = Remedy.WAIT) -> None:
        super().__init__(message, hint)
        self.remedy = remedy


def is_of_one_member(error: CdcError) -> bool:
    """Whether an error of a connection says nothing about the other members, so that they are worth trying.

    Not so a row that nobody could follow, or a position that the policies have judged already.
    """
    if isinstance(error, UnsupportedRowError):
        return False
    if isinstance(error, ServerError) and error.code == ErrorCode.REPLICASET_UUID_MISMATCH:
        return False  # source.uris mixes replica sets: whichever was followed until now, one of them is a mistake
    return isinstance(error, ConnectionLostError | ServerError | ProtocolError | XlogGapError)


def standing(answer: Answer, needed: Needed) -> Standing:
    """What a member is good for, judged by itself."""
    error, ballot = answer.error, answer.ballot
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
    """Whom to follow, or what to wait for. `waited_ms`: for how long somebody has been short and nobody good.

    Raises PositionError where the policy is to fail, and the error of the only member, or NobodyError, if no member can be
    used without a person's help.
    """
    standings = [standing(answer, needed) for answer in answers]
    report = "; ".join(explained(*item, needed) for item in zip(answers, standings, strict=True) if item[1] is not Standing.GOOD)
    good = _ranked(answers, standings, Standing.GOOD, rules.prefer)
    if good:
        return Choice(good[0], _why(answers[good[0]], rules.prefer) + (f"; passed over: {report}" if report else ""))
    if all(found is Standing.REFUSED for found in standings):
        raise _refused(answers, report)
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
    # The one that takes least back.
    nearest = min(behind, key=lambda index: _deficit(answers[index], needed))
    return Choice(nearest, sentence, is_settled=True)


def _ranked(answers: Sequence[Answer], standings: Sequence[Standing], wanted: Standing, prefer: Preference) -> list[int]:
    """Places of the members of a standing, the preferred first."""
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
    """A sentence about one member that isn't good: what it lacks, with both vclocks by component."""
    ballot, error = answer.ballot, answer.error
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


def _refused(answers: Sequence[Answer], report: str) -> CdcError:
    """The error of the one member, or of all together."""
    errors = [answer.error for answer in answers if answer.error is not None]
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
