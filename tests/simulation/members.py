"""Members of the replica set behind the one that writes: each has the same log up to some place, and its own files.

A member that lags knows nothing of what comes later: its ballot, its contents and its stream end where it is. It catches up at
times, with everything or with a part.
"""

from __future__ import annotations

import copy
from uuid import UUID

from tests.fakes.master import _Space
from tests.fakes.synchronous import SynchronousMaster, _State

Place = tuple[int, dict[int, int], _State]
"""A moment of the writer's: the length of its log, its vclock, and its rows."""


class Writer(SynchronousMaster):
    """The member that writes. It remembers its state after each round of work, for those that lag."""

    def __init__(self, version: str) -> None:
        self.rounds: list[Place] = []
        self.firm: dict[int, tuple[int, int] | None] = {}
        """By length of the log: how many transactions there were, and whose the limbo was; None where some waited."""
        self._number = 0
        super().__init__(version)

    def remember(self) -> None:
        """A round is over: note how long the log is, and what the spaces hold."""
        state = {number: dict(space.rows) for number, space in self._spaces.items()}
        self.rounds.append((len(self.log), self.vclock, state))
        self.firm[len(self.log)] = None if self.waiting else (len(self.written), self.owner)

    def rewrite(self, count: int) -> bool:
        """Lose so many rounds of work, and write rows of a new space under the lost lsns and beyond.

        Nothing is lost whose log was removed, nor the middle of a time in which transactions wait. Return whether any was.
        """
        kept = [one for one in self.rounds[: -count or None] if self.firm[one[0]] is not None]
        kept = [one for one in kept if all(one[1].get(origin, 0) >= lsn for origin, lsn in self.gc_vclock.items())]
        if not kept or kept[-1][0] == len(self.log):
            return False
        place, end = kept[-1], self.vclock
        self.rounds = self.rounds[: self.rounds.index(place) + 1]
        written_count, self.owner = self.firm[place[0]] or (0, 0)
        del self.written[written_count:]
        self._waiting.clear()
        _be_at(self, self, place)
        self._rest()
        self.origin, self._number = 1, self._number + 1
        space = self.create_space(f"rewritten {self._number}", ["id", "name", "n"], space_id=1100 + self._number)
        while self.vclock[1] <= end[1]:
            self.replace(space, self.vclock[1], "another history", self._number)
        return True


class ForeignWriter(Writer):
    """A member of another replica set, with spaces and rows of its own under the same numbers."""

    def _bootstrap(self) -> None:
        self.uuid, self.replicaset_uuid = UUID(int=0xF0000001), UUID(int=0xF0000002)
        super()._bootstrap()


def lagging(writer: Writer, number: int) -> SynchronousMaster:
    """Return a member that is where the writer is now."""
    member = copy.copy(writer)
    member.uuid, member.id = UUID(int=0xAAAA0000 + number), number
    member.consumers, member.streaming, member.log = {}, set(), list(writer.log)
    member.gc_vclock, member.is_read_only = dict(writer.gc_vclock), True
    catch_up(member, writer, 1.0)
    return member


def go_back(member: SynchronousMaster, writer: Writer, count: int) -> None:
    """Have it lose so many rounds of work, but nothing whose log the others may have dropped."""
    kept = [one for one in writer.rounds if one[0] <= len(member.log)]
    kept = [one for one in kept if all(one[1].get(origin, 0) >= lsn for origin, lsn in member.gc_vclock.items())]
    if kept:
        _be_at(member, writer, kept[max(0, len(kept) - 1 - count)])


def catch_up(member: SynchronousMaster, writer: Writer, share: float) -> None:
    """Have it apply a part of what it lacks, by whole rounds of work."""
    behind = [one for one in writer.rounds if one[0] >= len(member.log)]
    if not behind:
        return
    _be_at(member, writer, behind[max(0, min(len(behind) - 1, round(share * len(behind)) - 1))])


def _be_at(member: SynchronousMaster, writer: Writer, place: Place) -> None:
    end, vclock, state = place
    member.log[:] = writer.log[:end]
    member._lsns = dict(vclock)
    member._spaces = {number: _Space(dict(rows)) for number, rows in state.items()}
    member.term = writer.term
