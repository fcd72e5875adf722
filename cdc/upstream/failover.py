"""Failover: which member is tried, which are passed over, and how long to wait. Events and times go in, decisions come out.

                   ┌───────── looks_elsewhere: one of several members failed ──────────┐
                   ▼                                                                   │
    passed_over, answers ─▶ choose ─▶ (its ballot) confirm ─▶ connected ─▶ ended ─▶ an error
                   ▲           │ NobodyError                                           │ heals by waiting
                   └── rested ◀┴─────────────── next_delay ◀───────────────────────────┘

Members that fail are passed over until a round ends with a delay; then all are tried again, but for those whose stream has told
of missing logs, which a ballot may not show. One that was followed for long and then closed the connection (a restart, say) is
asked again like all others.

It refuses to know how members are asked and followed, and what the time is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.errors import CdcError, ConnectionLostError, Remedy, SilenceError
from cdc.protocol.failure import XlogGapError
from cdc.upstream import selection
from cdc.upstream.selection import Answer, Choice, Needed, NobodyError, Rules, Standing, Wait

STEADY_SECONDS: Final = 10.0
"""A member that was followed for so long, and then closed the connection, is asked again like all others; one that fails
sooner, or falls silent, is passed over while another can be followed."""
DELAY_FIRST_SECONDS: Final = 0.1
DELAY_MAX_SECONDS: Final = 5.0


class BackOff:
    """Delays that grow until something succeeds."""

    def __init__(self) -> None:
        self._delay = DELAY_FIRST_SECONDS

    def next(self) -> float:
        """The next delay in seconds."""
        delay, self._delay = self._delay, min(DELAY_MAX_SECONDS, self._delay * 2)
        return delay

    def reset(self) -> None:
        """It works again."""
        self._delay = DELAY_FIRST_SECONDS


class Failover:
    """One daemon's. All times are seconds of one clock that only goes forward."""

    def __init__(self, member_count: int, rules: Rules) -> None:
        self.has_others = member_count > 1
        """Whether members have to be asked: one alone is followed unasked."""
        self._rules = rules
        self._back_off = BackOff()
        # Those of this round that failed.
        self._failures: dict[int, CdcError] = {}
        # Since when somebody lacks what is needed and nobody has it.
        self._short_since: float | None = None
        # Of the present connection: the member, since when it is connected, and whether it was followed for long.
        self._choice: Choice | None = None
        self._connected_at = 0.0
        self._was_steady = False

    @property
    def passed_over(self) -> Mapping[int, CdcError]:
        """Members that aren't to be asked in this round: their error is the answer."""
        return self._failures

    def choose(self, answers: Sequence[Answer], needed: Needed, now: float) -> Choice:
        """The member to follow. Raises NobodyError if there is nobody now, and as selection.choose."""
        self._choice, self._was_steady = None, False
        if not self.has_others:
            choice: Choice | Wait = Choice(0, "there is no other", is_settled=True)
        else:
            waited_ms = (now - self._short_since) * 1000 if self._short_since is not None else 0.0
            choice = selection.choose(answers, needed, self._rules, waited_ms=waited_ms)
        if isinstance(choice, Wait):
            if not choice.is_short:
                self._short_since = None
            elif self._short_since is None:
                self._short_since = now
            raise NobodyError(choice.reason)
        self._choice = choice
        return choice

    def connected(self, now: float) -> None:
        """The one that was chosen has greeted."""
        self._connected_at = now

    def confirm(self, answer: Answer, needed: Needed) -> None:
        """A moment has passed since the choice, and here is the member's ballot on the connection that is to be followed.

        Raises ConnectionLostError if another may be the right one by now.
        """
        found = selection.standing(answer, needed)
        if self._choice is not None and not self._choice.is_settled and found is not Standing.GOOD:
            raise ConnectionLostError(f"{answer.address} can't be followed any more: {found.value}")

    def ended(self, now: float, *, has_streamed: bool) -> None:
        """The connection has ended; `has_streamed`: changes came over it."""
        if has_streamed:
            self._back_off.reset()
            self._short_since = None
            self._was_steady = now - self._connected_at >= STEADY_SECONDS

    def looks_elsewhere(self, error: CdcError) -> int | None:
        """Which of several members this error was the failure of, so that the others are to be looked at, at once.

        None: it wasn't one member's failure, or there is no other.
        """
        choice, self._choice = self._choice, None
        if choice is None or not self.has_others or not selection.is_of_one_member(error):
            return None
        if self._was_steady:
            self._failures.clear()  # they are older than this connection, which was stable
        if not self._was_steady or error.remedy is not Remedy.WAIT or isinstance(error, SilenceError):
            self._failures[choice.index] = error
        return choice.index

    def next_delay(self) -> float:
        """How long to wait before the next attempt, in seconds; longer each time until something works."""
        return self._back_off.next()

    def rested(self) -> None:
        """That has been waited: everybody gets another chance, but for missing logs that no ballot may show."""
        self._failures = {index: found for index, found in self._failures.items() if isinstance(found, XlogGapError)}

    def works(self) -> None:
        """Something has succeeded: the next delay is short again."""
        self._back_off.reset()
