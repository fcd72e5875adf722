"""What Kafka's producer has been given since the last commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.errors import CdcError, TransactionTimeoutError
from cdc.positions.position import Position
from cdc.schema.forms import StoredSpace
from cdc.stream.batch import Batch


@dataclass(slots=True)
class OpenTransaction:
    """Batches that aren't committed, and where a commit may fall: `end` is None within a source transaction.

    Times are those of one clock that never goes back, in seconds; `began_at` is 0 before the first batch.
    """

    end: Position | None = None
    stored: dict[int, StoredSpace | None] = field(default_factory=dict)
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

    def due_at(self, interval_seconds: float, rested_at: float, *, follows_more: bool) -> float:
        """When to commit: as soon as nothing more waits and the last commit was long enough ago, which is `rested_at`, and at the
        end of the interval at the latest, which lets many batches share a commit while there is much to do.
        """
        latest = self.began_at + interval_seconds
        return latest if follows_more else min(latest, rested_at)

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
