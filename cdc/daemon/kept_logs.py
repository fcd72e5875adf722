"""Knows whether a member still has the log after a standby's state store, by the ballots of all members.

    followed member ──rows after S──▶ the standby, where they may wait: K stands still while rows are published again
                  └── removes the logs after S, which it has sent

So an open subscription proves nothing: a start would ask for the log after S once more. If nobody has it, the start would end
with an error, after its claim has ended a daemon that may be well.
"""

from __future__ import annotations

import time
from typing import Final

from cdc.config.source import Member, SourceSection
from cdc.daemon.monitor import ask
from cdc.errors import ConfigurationError
from cdc.positions.position import Position
from cdc.stream.commits import standby_course
from cdc.upstream import resume

LOOK_SECONDS: Final = 3.0
"""Time for which a "no" counts, and after which a store that stands still behind the checkpoint is looked at again."""


class KeptLogs:
    """What the members were asked last. For one thread."""

    def __init__(self, source: SourceSection) -> None:
        """No member is asked yet."""
        self._source = source
        self._at: Position | None = None
        self._looked_at = time.monotonic()
        self.are_there = True
        """Whether a member has the log after the store, as far as is known."""

    def watch(self, store: Position, kafka: Position, first: int) -> None:
        """Keep `are_there` up to date for a store that follows a member, the one at the index `first`.

        Members are asked only while the store stands still behind the checkpoint: else the rows come.
        """
        is_still = self._at is not None and store.vclock == self._at.vclock != kafka.vclock
        if not is_still:
            self._at, self._looked_at, self.are_there = store, time.monotonic(), True
        elif time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look(store, first)

    def look(self, store: Position, first: int) -> bool:
        """Ask now, unless the last answer was "no" and still counts. The member at the index `first` is the first one asked."""
        counts = self._at is not None and self._at.vclock == store.vclock and not self.are_there
        if not counts or time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look(store, first)
        return self.are_there

    def _look(self, store: Position, first: int) -> None:
        try:
            members = self._source.members()  # a password may have been changed
        except ConfigurationError:
            members = []
        self.are_there = any(self._has_log(store, member) for member in (*members[first:], *members[:first]))
        self._at, self._looked_at = store, time.monotonic()

    def _has_log(self, store: Position, member: Member) -> bool:
        answer = ask(member, self._source.timeouts.vote)
        if answer.ballot is None or not answer.ballot.is_ready:
            return False
        if resume.foreign(store.replicaset_uuid, answer.replicaset_uuid) is not None:
            return False
        return standby_course.has_log(answer.ballot.gc_vclock, store)
