"""Knows whether a member has the log from a standby's state store to the checkpoint, by the ballots of all members.

    followed member ──rows after S──▶ the standby, where they may wait: K stands still while rows are published again
                  └── removes the logs after S, which it has sent

So an open subscription proves nothing: a start would ask for the log after S once more. If nobody has it, the start would end
with an error, after its claim has ended a daemon that may be well. Members are judged here as a start judges them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from cdc.config.source import SourceSection
from cdc.daemon.monitor import ask
from cdc.errors import ConfigurationError
from cdc.positions.vclock import VClock
from cdc.upstream.selection import Needed, Standing, standing

LOOK_SECONDS: Final = 3.0
"""Time for which a "no" counts, and after which a store that stands still behind the checkpoint is looked at again."""


class KeptLogs:
    """What the members were asked last. For one thread."""

    def __init__(self, source: SourceSection) -> None:
        """No member is asked yet."""
        self._source = source
        self._asked_for: Needed | None = None
        # Where the store is, and since when or, later, when that was looked at last.
        self._at: VClock | None = None
        self._looked_at = time.monotonic()
        self.are_there = True
        """Whether a member has the log, as far as is known."""

    def is_look_due(self, store: VClock, kafka: VClock) -> bool:
        """Record where the store and the checkpoint are. Return whether members have to be asked, so that `are_there` is true.

        They needn't be while the store goes on, for then the rows come.
        """
        if store == self._at and store != kafka:
            return time.monotonic() - self._looked_at >= LOOK_SECONDS
        self._at, self._looked_at, self.are_there = store, time.monotonic(), True
        return False

    def look(self, needed: Needed, first: int) -> bool:
        """Ask members now, unless the last answer was "no" and still counts. Return whether one has what is needed.

        The one at the index `first` is asked first.
        """
        has_answer = needed == self._asked_for and not self.are_there
        if not has_answer or time.monotonic() - self._looked_at >= LOOK_SECONDS:
            # A snapshot that is taken anyway is compared with the store's rows: it doesn't replace the log.
            followed = replace(needed, takes_snapshot=False)
            self.are_there = any(self._is_good(index, followed) for index in self._order(first))
            self._asked_for, self._at, self._looked_at = needed, needed.logs_from, time.monotonic()
        return self.are_there

    def _order(self, first: int) -> list[int]:
        count = len(self._source.uris)
        return [(first + number) % count for number in range(count)]

    def _is_good(self, index: int, needed: Needed) -> bool:
        try:
            member = self._source.members()[index]  # a password may have been changed
        except ConfigurationError:
            return False
        return standing(ask(member, self._source.timeouts.vote), needed) is Standing.GOOD
