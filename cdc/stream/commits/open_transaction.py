"""The uncommitted batches in Kafka's producer, and when to commit them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cdc.errors import CdcError, TransactionTimeoutError
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch, Forms
from cdc.stream.batches.covered import Covered

COMMIT_LEADS_SECONDS: Final = (0.015, 0.003)
"""Times before a commit, in seconds, at which its rows are wanted. Most rows are wanted at the first, early enough to have
reached the brokers when the commit begins: otherwise the commit takes longer. Rows that have arrived since are wanted at the
second, as late as they can still become messages."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings that decide how often Kafka transactions commit."""

    interval_seconds: float
    pause_seconds: float
    bytes_max: int

    def wanted_in_seconds(self, since_commit: float, *, has_open: bool, is_committing: bool) -> float:
        """Return in how many seconds batches are useful: 0 if at once, because no commit is running or has ended lately.

        Until the next commit may begin, handing over a batch earlier doesn't let readers of committed messages see it earlier,
        and each batch has its cost. `has_open`: something has been handed over since the last commit, which ended
        `since_commit` seconds ago. Once the next commit is due, batches are wanted for the commit after it.
        """
        *_, last_lead = COMMIT_LEADS_SECONDS
        if is_committing or (has_open and since_commit >= self.pause_seconds - last_lead):
            since_commit = 0.0
        rests = (self.pause_seconds - lead - since_commit for lead in COMMIT_LEADS_SECONDS)
        return next((rest for rest in rests if rest > 0), 0.0)


@dataclass(slots=True)
class OpenTransaction:
    """The uncommitted batches, and the position to commit: `end` is None within a source transaction, where no commit may fall.

    Times come from one monotonic clock, in seconds; `began_at` is 0 before the first batch.
    """

    end: Position | None = None
    stored: Forms = field(default_factory=dict)
    covered: list[Covered] = field(default_factory=list)
    began_at: float = 0.0
    event_count: int = 0
    byte_count: int = 0

    def add(self, batch: Batch, now: float) -> None:
        """Record that a batch was handed over."""
        self.end = batch.position if batch.is_boundary else None
        self.stored.update(batch.stored)
        self.covered += batch.covered
        self.began_at = self.began_at or now
        self.event_count += batch.event_count
        self.byte_count += batch.byte_count

    def due_at(self, pace: Pace, last_commit_at: float, *, follows_more: bool) -> float:
        """Return when to commit: at the latest at the end of the interval, which lets many batches share a commit under load.

        Unless more batches are waiting (`follows_more`), commit as soon as the pause after the last commit is over.
        """
        latest = self.began_at + pace.interval_seconds
        return latest if follows_more else min(latest, last_commit_at + pace.pause_seconds)

    def is_due(self, pace: Pace, last_commit_at: float, now: float, *, follows_more: bool) -> bool:
        """Return whether to commit now."""
        return self.byte_count >= pace.bytes_max or now >= self.due_at(pace, last_commit_at, follows_more=follows_more)

    def wait_seconds(self, pace: Pace, last_commit_at: float, now: float, idle_seconds: float) -> float:
        """Return how long to wait for another batch. Within a source transaction, where no commit may fall, no commit is due."""
        return self.due_at(pace, last_commit_at, follows_more=False) - now if self.end is not None else idle_seconds

    def timeout(self, error: CdcError, now: float, limit_seconds: float) -> TransactionTimeoutError | None:
        """Return the error to raise instead of `error` if a large source transaction has run out of time; None if it hasn't."""
        seconds = now - self.began_at
        if not self.began_at or self.end is not None or seconds < limit_seconds:
            return None
        return TransactionTimeoutError(
            f"a source transaction took longer to publish than a Kafka transaction may be open: after {seconds:.1f} s of "
            f"{limit_seconds:g} s, {self.event_count} events of it ({self.byte_count} bytes) had been handed over, and its end "
            f"hadn't arrived ({error.message})",
            'Raise kafka.properties."transaction.timeout.ms", and transaction.max.timeout.ms of the brokers if that is less; or '
            'choose kafka.delivery = "at_least_once", which has no such limit.',
        )
