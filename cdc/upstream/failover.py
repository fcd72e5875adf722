"""Failover: decides which member to try, which members to pass over, and how long to wait. Its inputs are events and times.

                   ┌────────── try_fail_over: one of several members failed ───────────┐
                   ▼                                                                   │
    passed_over, answers ─▶ choose ─▶ (its ballot) confirm ─▶ connected ─▶ ended ─▶ an error
     delay_elapsed ▲           │ NobodyError                                           │ heals by waiting
                   └───────────┴─────────────── next_delay ◀───────────────────────────┘

Members that fail are passed over until a round ends with a delay. Then all are tried again, except those whose stream has
reported missing logs, which a ballot may not show. A member that was followed for long and then closed the connection (because
it restarted, for instance) is asked again like all others; one that says that it is shutting down is passed over.

This module doesn't know how members are asked and followed, and reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.errors import CdcError, ConnectionLostError, Remedy, SilenceError
from cdc.protocol.failure import XlogGapError, is_leaving
from cdc.upstream import selection
from cdc.upstream.selection import Answer, Choice, Needed, NobodyError, Rules, Standing, Wait

STEADY_SECONDS: Final = 10.0
"""Time, in seconds, after which a followed member that closes the connection is asked again like all others. A member that fails
sooner, or falls silent, is passed over while another can be followed."""
DELAY_FIRST_SECONDS: Final = 0.1
DELAY_MAX_SECONDS: Final = 5.0


class BackOff:
    """Delays that grow until an attempt succeeds."""

    def __init__(self, first: float = DELAY_FIRST_SECONDS, longest: float = DELAY_MAX_SECONDS) -> None:
        """`first` and `longest` are the shortest and the longest delay, in seconds."""
        self._first = self._delay = first
        self._longest = longest

    def next(self) -> float:
        """Return the next delay, in seconds."""
        delay, self._delay = self._delay, min(self._longest, self._delay * 2)
        return delay

    def reset(self) -> None:
        """Begin again with the shortest delay, after a success."""
        self._delay = self._first


class Failover:
    """The failover of one daemon. All times are seconds of one monotonic clock."""

    def __init__(self, member_count: int, rules: Rules) -> None:
        self.has_others = member_count > 1
        """Whether members have to be asked: a single member is followed without being asked."""
        self._rules = rules
        self._back_off = BackOff()
        # The members of this round that failed, with their errors.
        self._failures: dict[int, CdcError] = {}
        # Since when a member has lacked changes or logs while no member has had them.
        self._short_since: float | None = None
        # Of the present connection: the chosen member, when it connected, and whether it was followed for long.
        self._choice: Choice | None = None
        self._connected_at = 0.0
        self._was_steady = False

    @property
    def passed_over(self) -> Mapping[int, CdcError]:
        """Members that aren't asked in this round, with the error that counts as their answer."""
        return self._failures

    def choose(self, answers: Sequence[Answer], needed: Needed, now: float) -> Choice:
        """Return the member to follow. Raises NobodyError if none can be followed now, and the errors of selection.choose."""
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
        """Record that the chosen member has sent its greeting."""
        self._connected_at = now

    def confirm(self, answer: Answer, needed: Needed) -> None:
        """Check the chosen member's ballot once more, on the connection to be followed: time has passed since the choice.

        Raises ConnectionLostError if another member may be the right one by now.
        """
        found = selection.standing(answer, needed)
        if self._choice is not None and not self._choice.is_settled and found is not Standing.GOOD:
            raise ConnectionLostError(f"{answer.address} can't be followed any more: {found.value}")

    def ended(self, now: float, *, has_streamed: bool) -> None:
        """Record that the connection has ended. `has_streamed`: changes were received over it."""
        if has_streamed:
            self._back_off.reset()
            self._short_since = None
            self._was_steady = now - self._connected_at >= STEADY_SECONDS

    def try_fail_over(self, error: CdcError) -> int | None:
        """Return which of several members this error concerns, if the other members should be tried at once.

        Returns None if the error doesn't concern one member alone, or there is no other.
        """
        choice, self._choice = self._choice, None
        if choice is None or not self.has_others or not selection.is_of_one_member(error):
            return None
        if self._was_steady:
            self._failures.clear()  # these failures are older than this connection, which was stable
        if not self._was_steady or error.remedy is not Remedy.WAIT or isinstance(error, SilenceError) or is_leaving(error):
            self._failures[choice.index] = error
        return choice.index

    def next_delay(self) -> float:
        """Return how long to wait before the next attempt, in seconds; longer each time until an attempt succeeds."""
        return self._back_off.next()

    def delay_elapsed(self) -> None:
        """Record that the delay is over: all members are tried again, except those with missing logs that no ballot may show."""
        self._failures = {index: found for index, found in self._failures.items() if isinstance(found, XlogGapError)}

    def succeeded(self) -> None:
        """Record a success: the next delay is short again."""
        self._back_off.reset()
