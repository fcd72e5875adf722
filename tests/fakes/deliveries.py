"""A Kafka that is a list, for a real publisher."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from cdc.kafka.delivery import Record
from cdc.kafka.hanging import Place
from cdc.stream.batches.batch import Batch, Broadcast, Message


class OpenDelivery:
    """Kafka, as it looks to a reader of what is committed. It takes no batch before the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.open: list[Message | Broadcast] = []
        self.committed: list[Message | Broadcast] = []

    def start(self) -> None:
        """Nothing to take."""

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        """Nothing hangs."""

    def produce(self, batch: Batch) -> None:
        """Keep the messages."""
        assert self.gate.wait(120)
        self.open += batch.messages

    def arrived(self) -> Collection[str]:
        """All are there at once."""
        return {message.topic if isinstance(message, Broadcast) else message[0] for message in self.open}

    def commit(self, records: Iterable[Record]) -> Iterable[str]:  # noqa: ARG002 - the checkpoint is the test's
        """Show them."""
        self.committed += self.open
        self.open = []
        return []

    def abort(self) -> None:
        """Forget them."""
        self.open = []

    @property
    def is_open(self) -> bool:
        """Whether something is neither committed nor forgotten."""
        return bool(self.open)

    def close(self) -> None:
        """Nothing to let go."""
