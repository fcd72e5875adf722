"""Interface to what takes the batches and makes them durable: Kafka's publisher, or the output of `watch`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch


class EventSink(Protocol):
    """Destination of a stream's batches, for the daemon's thread."""

    row_work_lock: AbstractContextManager[object]
    """Lock to hold while rows are worked on: see cdc.daemon.row_path."""

    @property
    def wake_fd(self) -> int:
        """File descriptor that is readable when `collect` has news."""

    @property
    def queued_bytes(self) -> int:
        """Total size of the batches that wait, in bytes."""

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted."""

    @property
    def wanted_in_seconds(self) -> float:
        """How long the sink can do without more rows, in seconds."""

    def submit(self, batch: Batch) -> None:
        """Take a batch."""

    def wait_for_room(self, timeout_seconds: float) -> bool:
        """Wait until there is room, and return whether there is."""

    def collect(self) -> list[Position]:
        """Return the positions that became durable since the last call, in order. Raises PublishAborted, or the sink's error."""

    def abandon(self, reason: str) -> None:
        """Give up the transaction whose rest won't come: `collect` raises PublishAborted then."""

    def newest_numbers(self) -> Numbers:
        """Return the highest numbers of all events that consumers have. Raises ConnectionLostError."""
