"""What the daemon's thread and the publisher's thread share: the queue and state (Handover), their lock, and two ways to wake up.

    daemon's thread    submit, collect, wait_for_room, abandon, reset, drain, stop     woken by `wake_pipe`, which it polls
    publisher's        take, wait, produced, committed, settle, abort, fail, end       woken by the lock's condition

Methods take the lock themselves, except those that only read a state, and `end`: the daemon waits for the thread itself then.
"""

from __future__ import annotations

import threading
import time

from cdc.errors import CdcError, PublishAborted
from cdc.kafka.wake_pipe import WakePipe
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.handover import Handover, State
from cdc.stream.commits.publisher_statistics import PublisherStatistics


class Exchange:
    """The two threads' meeting place."""

    def __init__(self, queue_bytes_max: int, statistics: PublisherStatistics) -> None:
        self._lock = threading.Condition()
        self.handover = Handover(queue_bytes_max)
        """Its numbers and its state may be read without the lock."""
        self.statistics = statistics
        self._backlog = statistics.backlog
        self.is_stopping = threading.Event()
        self.wake_pipe = WakePipe()
        """Readable when a position was settled, an error occurred, or there is room again."""
        self.open_count = 0
        """Number of batches in Kafka's producer since the last commit."""

    # For both threads.

    @property
    def is_ending(self) -> bool:
        """Whether the publisher was asked to end, at once or when it has committed everything."""
        return self.is_stopping.is_set() or self.handover.should_drain

    # For the daemon's thread.

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""
        with self._lock:
            self.handover.submit(batch)
            self._backlog.submitted(time.monotonic(), batch.timestamp)
            self._lock.notify_all()

    def wait_for_room(self, timeout_seconds: float) -> bool:
        """Wait until there is room, and return whether there is. Returns early if the publisher aborted, failed or stopped."""
        with self._lock:
            self._lock.wait_for(lambda: self.handover.has_room or self.handover.state is not State.RUNNING, timeout_seconds)
            return self.handover.has_room

    def collect(self) -> list[Position]:
        """Return the positions settled since the last call, in order; if there are none, raise the publisher's error, if any."""
        self.wake_pipe.clear()
        with self._lock:
            return self.handover.collect()

    def take_settled(self) -> list[Position]:
        """Return the positions settled since `collect`, even after an error."""
        with self._lock:
            return self.handover.take_settled()

    def abandon(self, reason: str) -> None:
        """Ask for the unsettled batches to be aborted."""
        with self._lock:
            self.handover.abandoned = reason
            self._lock.notify_all()

    def reset(self) -> None:
        """Forget the aborted batches, and accept new ones."""
        with self._lock:
            self.handover.reset()
            self._backlog.aborted()
            self.open_count = 0
            self._lock.notify_all()

    def drain(self) -> None:
        """Ask the publisher to end once it has committed all batches."""
        with self._lock:
            self.handover.should_drain = True
            self._lock.notify_all()

    def stop(self) -> None:
        """Ask the publisher to end at once."""
        self.is_stopping.set()
        with self._lock:
            self._lock.notify_all()

    # For the publisher's thread.

    @property
    def is_abandoned(self) -> bool:
        """Whether the daemon asked to abort the unsettled batches."""
        return self.handover.abandoned is not None

    def take(self, timeout_seconds: float) -> Batch | None:
        """Wait for a batch, and return it; None if none has come, or the daemon wants something else."""
        handover = self.handover
        with self._lock:
            self._lock.wait_for(
                lambda: handover.is_waiting or handover.should_drain or self.is_abandoned or self.is_stopping.is_set(),
                max(0.0, timeout_seconds),
            )
            had_room = handover.has_room
            batch = handover.take()
            if batch is None:
                return None
            self._lock.notify_all()
        if not had_room and handover.has_room:
            self.wake_pipe.wake()
        return batch

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the daemon asks to abort or to stop, or the time has passed."""
        with self._lock:
            self._lock.wait_for(lambda: self.is_abandoned or self.is_stopping.is_set(), timeout_seconds)

    def check_abandoned(self) -> None:
        """Raise PublishAborted if the daemon asked to abort the unsettled batches."""
        if (reason := self.handover.abandoned) is not None:
            raise PublishAborted(reason)

    def produced(self, open_bytes: int) -> None:
        """Record that another batch is in Kafka's producer, which has received `open_bytes` since the last commit."""
        with self._lock:
            self.open_count += 1
            self._backlog.produced(time.monotonic(), open_bytes)

    def committed(self, ended: float) -> None:
        """Record a commit of everything that is in the producer. `ended` is a time of the monotonic clock, in seconds."""
        with self._lock:
            self._backlog.committed(ended, self.open_count)
            self.open_count = 0

    def settle(self, position: Position) -> None:
        """Report that everything up to `position` is durable."""
        with self._lock:
            self.handover.settle(position)
        self.wake_pipe.wake()

    def abort(self, error: CdcError) -> None:
        """Report that unsettled batches were discarded, and wait until the daemon has returned to the checkpoint, or ends."""
        with self._lock:
            self.handover.abort(error)
            self.wake_pipe.wake()
            self._lock.wait_for(lambda: self.handover.state is not State.ABORTED or self.is_ending)
            if self.handover.state is State.ABORTED:
                self.handover.stop()

    def fail(self, error: CdcError) -> None:
        """Report that the publisher has ended because of an error."""
        with self._lock:
            self.handover.fail(error)
            self._lock.notify_all()
        self.wake_pipe.wake()

    def end(self) -> None:
        """Record that the publisher has ended as requested."""
        self.handover.stop()
