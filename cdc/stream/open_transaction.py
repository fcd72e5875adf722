"""What Kafka's producer has been given since the last commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cdc.errors import CdcError, TransactionTimeoutError
from cdc.positions.position import Position
from cdc.stream.batch import Batch, Forms

COMMIT_LEADS_SECONDS: Final = (0.015, 0.003)
"""So long before a commit its rows are wanted. Most of them once, early enough to have reached the brokers when it begins, which
takes longer else; and those that have come since, as late as they can still become messages."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often Kafka transactions commit."""

    interval_seconds: float
    pause_seconds: float
    bytes_max: int

    def wanted_in_seconds(self, since_commit: float, *, has_open: bool, is_committing: bool) -> float:
        """In what time batches are of use; 0 if they are at once, as nothing is being committed, nor has been lately.

        Until the next commit may begin, readers of committed messages don't see earlier what is handed over earlier, and each
        batch costs what a batch costs. `has_open`: something has been handed over since the last commit, which ended
        `since_commit` ago: once it is due, it is the commit after it that batches are wanted for.
        """
        *_, last_lead = COMMIT_LEADS_SECONDS
        if is_committing or (has_open and since_commit >= self.pause_seconds - last_lead):
            since_commit = 0.0
        rests = (self.pause_seconds - lead - since_commit for lead in COMMIT_LEADS_SECONDS)
        return next((rest for rest in rests if rest > 0), 0.0)


@dataclass(slots=True)
class OpenTransaction:
    """Batches that aren't committed, and where a commit may fall: `end` is None within a source transaction.

    Times are those of one clock that never goes back, in seconds; `began_at` is 0 before the first batch.
    """

    end: Position | None = None
    stored: Forms = field(default_factory=dict)
    began_at: float = 0.0
    event_count: int = 0
    byte_count: int = 0

    def add(self, batch: Batch, now: float) -> None:
        """A batch has been handed over."""
        self.end = batch.position if batch.is_boundary else None
        self.stored.update(batch.stored)
        self.began_at = self.began_at or now
        self.event_count += batch.event_count
        self.byte_count += batch.byte_count

    def due_at(self, pace: Pace, last_commit_at: float, *, follows_more: bool) -> float:
        """When to commit: as soon as nothing more waits, but for the pause after the last commit, and at the end of the interval
        at the latest, which lets many batches share a commit while there is much to do.
        """
        latest = self.began_at + pace.interval_seconds
        return latest if follows_more else min(latest, last_commit_at + pace.pause_seconds)

    def is_due(self, pace: Pace, last_commit_at: float, now: float, *, follows_more: bool) -> bool:
        """Whether to commit now."""
        return self.byte_count >= pace.bytes_max or now >= self.due_at(pace, last_commit_at, follows_more=follows_more)

    def wait_seconds(self, pace: Pace, last_commit_at: float, now: float, idle_seconds: float) -> float:
        """How long to wait for another batch. Nothing is due in the middle of a source transaction, where no commit may fall."""
        return self.due_at(pace, last_commit_at, follows_more=False) - now if self.end is not None else idle_seconds

    def timeout(self, error: CdcError, now: float, limit_seconds: float) -> TransactionTimeoutError | None:
        """What to say instead of `error` if a large source transaction has run out of time: None if it hasn't."""
        seconds = now - self.began_at
        if not self.began_at or self.end is not None or seconds < limit_seconds:
            return None
        return TransactionTimeoutError(
            f"a source transaction took longer to publish than a Kafka transaction may be open: after {seconds:.1f} s of "
            f"{limit_seconds:g} s, {self.event_count} events of it ({self.byte_count} bytes) had been handed over, and its end "
            f"hadn't come ({error.message})",
            'Raise kafka.properties."transaction.timeout.ms", and transaction.max.timeout.ms of the brokers if that is less; or '
            'choose kafka.delivery = "at_least_once", which has no such limit.',
        )
