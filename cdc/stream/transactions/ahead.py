"""Transactions past the checkpoint, which arrive while the images are still being brought up to it.

Each server sends the origins' rows in an order of its own, so such a transaction may come before published ones of another
origin. It is set aside until all of these have been seen: only then is the schema the one at its position.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdc.errors import StoreBehindError
from cdc.stream.transactions.transaction import Transaction
from cdc.stream.transactions.transaction_buffer import TransactionBuffer


class Ahead:
    """Queue of the transactions that were set aside."""

    def __init__(self, waiting: TransactionBuffer) -> None:
        self._queue = waiting.new_queue()
        self._received: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._queue)

    def check(self, origin: int, known_lsn: int, published: Mapping[int, int]) -> None:
        """Check an origin's first transaction, which follows lsn `known_lsn`.

        Raises StoreBehindError if published ones are missing before it.
        """
        if origin not in self._received and known_lsn != published.get(origin, 0):
            raise StoreBehindError(
                f"this server's log can't bring the state store to the checkpoint {published}: its next row of replica id "
                f"{origin} follows lsn {known_lsn}, but rows up to lsn {published.get(origin, 0)} are published"
            )

    def put(self, transaction: Transaction) -> None:
        """Add a transaction."""
        self._queue.put(transaction)
        self._received[transaction.replica_id] = transaction.lsn

    def take(self) -> Transaction:
        """Remove and return the first transaction."""
        return self._queue.take()

    def received(self, before: Mapping[int, int]) -> dict[int, int]:
        """Return the vclock `before`, moved over the transactions."""
        return {**before, **{origin: max(before.get(origin, 0), lsn) for origin, lsn in self._received.items()}}
