"""Order of the received transactions until they are settled, and the only source of the acknowledged position.

The ledger has four positions. Each is a vclock on a transaction boundary, and never ahead of the one before it:

    received ≥ released ≥ published ≥ settled
       │          │           │          └ durable everywhere it has to be: what an ACK may report
       │          │           └ in a batch that is handed to Kafka, or to the state store alone if Kafka has its events
       │          └ certain: nothing before it can be rolled back
       └ a complete transaction has arrived

Without a state store, `settled` is the checkpoint K: the position that Kafka has, in one transaction with the events up to it.
With a store, `settled` is the store's position S ≤ K: the master must keep the logs from S on, as the store is brought from S up
to K after a crash.

Batches are settled in the order in which they were handed over, whatever order the broker answers in: `settle` takes the last
durable position, and everything before it is settled with it, so a late answer can't push `settled` over an earlier gap. A
batch without events (filtered rows, NOPs) is settled like any other, when all batches before it are.
"""

from __future__ import annotations

from collections import deque

from cdc.positions.position import Position
from cdc.positions.vclock import VClock


class Ledger:
    """The order of settlement. All methods keep, and assert, the order of the four positions."""

    def __init__(self, begin: Position) -> None:
        self.received = begin.vclock
        self.released = begin.vclock
        self.published = begin.vclock
        self._settled = begin
        # Published but unsettled boundaries, oldest first.
        self._unsettled: deque[Position] = deque()

    @property
    def settled(self) -> Position:
        """Position up to which everything is settled: the checkpoint, or the state store's position if there is a store."""
        return self._settled

    @property
    def acknowledged(self) -> VClock:
        """Vclock to acknowledge to the master. While a snapshot is incomplete, nothing of the stream is durable."""
        return self._settled.vclock

    @property
    def unsettled_count(self) -> int:
        """Number of published boundaries that aren't durable yet."""
        return len(self._unsettled)

    def is_settled(self, position: Position) -> bool:
        """Return whether this published boundary has become durable."""
        return all(unsettled is not position for unsettled in self._unsettled)

    def receive(self, vclock: VClock) -> None:
        """Record that complete transactions up to `vclock` have arrived."""
        self.received = vclock
        self._check()

    def release(self, vclock: VClock) -> None:
        """Record that nothing up to `vclock` can be rolled back any more."""
        self.released = vclock
        self._check()

    def publish(self, position: Position) -> None:
        """Record that a batch that ends at `position` was made. The caller hands it over before it asks for another."""
        self._unsettled.append(position)
        self.published = position.vclock
        self._check()

    def withdraw(self, position: Position) -> None:
        """Record that the batch that ends at `position`, the last one that was made, won't be handed over after all.

        Nobody will ever report it as durable, so it must not be waited for.
        """
        last = self._unsettled.pop() if self._unsettled else None
        assert last is position, f"{position} isn't the last position that was published, which is {last}"
        self.published = (self._unsettled[-1] if self._unsettled else self._settled).vclock

    def settle(self, position: Position) -> None:
        """Record that everything up to and including `position` is durable, as the publisher or the state store reports.

        Positions that were published earlier are settled with it: a commit contains all batches before it. Raises RuntimeError
        for a position that was never published, because acknowledging it would be unfounded.
        """
        while self._unsettled:
            self._settled = self._unsettled.popleft()
            if self._settled is position:
                self._check()
                return
        raise RuntimeError(f"{position} was settled but never published")

    def _check(self) -> None:
        assert self.received.covers(self.released), f"released {self.released} is ahead of received {self.received}"
        assert self.released.covers(self.published), f"published {self.published} is ahead of released {self.released}"
        assert self.published.covers(self._settled.vclock), f"settled {self._settled.vclock} is ahead of {self.published}"
