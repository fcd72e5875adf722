"""Queue and state shared by the daemon's thread and the publisher's thread: batches go one way, settled positions and errors
back.

    daemon ──submit──▶ queue (bytes bounded) ──take──▶ publisher
           ◀─collect── settled, or an error ◀─settle, abort, fail──┘

TRANSITIONS lists the states and the inputs that move the publisher from one to another. The module does no locking: its callers
hold the lock that both threads share. A single number or state may be read without the lock.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final

from cdc.errors import CdcError
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch


class State(Enum):
    """State of a publisher."""

    RUNNING = auto()
    ABORTED = auto()
    """Unsettled batches were discarded, and the daemon hasn't returned to the checkpoint yet."""
    FAILED = auto()
    STOPPED = auto()


class Input(Enum):
    """Inputs that move the publisher from one state to another."""

    ABORT = auto()
    RESET = auto()
    FAIL = auto()
    STOP = auto()


TRANSITIONS: Final[dict[State, dict[Input, State]]] = {
    State.RUNNING: {Input.ABORT: State.ABORTED, Input.FAIL: State.FAILED, Input.STOP: State.STOPPED},
    # If the daemon stops before it has returned to the checkpoint, the error of the abort remains.
    State.ABORTED: {Input.RESET: State.RUNNING, Input.STOP: State.FAILED, Input.FAIL: State.FAILED},
    # Everything was committed, but afterwards the publisher couldn't see that readers reach it.
    State.STOPPED: {Input.FAIL: State.FAILED},
    State.FAILED: {},
}


class Handover:
    """Queue and state of one publisher, shared by the daemon's thread and the publisher's thread."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: size of the queue from which no further batch should be submitted.

        One batch may exceed it by its own size.
        """
        self._bytes_max = bytes_max
        self._queue: deque[Batch] = deque()
        self._settled: list[Position] = []
        self.state = State.RUNNING
        self.queued_bytes = 0
        """Total size of the queued batches, in bytes."""
        self.error: CdcError | None = None
        """The error to raise in the daemon's thread, or None."""
        self.abandoned: str | None = None
        """Why the daemon asked to abort the unsettled batches; None if it didn't ask."""
        self.should_drain = False
        """Whether the publisher should stop once it has taken and committed all batches."""

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted."""
        return self.queued_bytes < self._bytes_max

    @property
    def is_waiting(self) -> bool:
        """Whether a batch is queued."""
        return bool(self._queue)

    @property
    def is_drained(self) -> bool:
        """Whether the publisher should stop, and no batch is left in the queue."""
        return self.should_drain and not self._queue

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""
        self._queue.append(batch)
        self.queued_bytes += batch.byte_count

    def take(self) -> Batch | None:
        """Remove and return the oldest queued batch; return None if the queue is empty."""
        if not self._queue:
            return None
        batch = self._queue.popleft()
        self.queued_bytes -= batch.byte_count
        return batch

    def settle(self, position: Position) -> None:
        """Record that everything up to `position` is durable."""
        self._settled.append(position)

    def collect(self) -> list[Position]:
        """Return the positions settled since the last call, in order. If there are none, raise the publisher's error, if any."""
        settled = self.take_settled()
        if not settled and self.error is not None:
            raise self.error
        return settled

    def take_settled(self) -> list[Position]:
        """Return the positions settled since the last call, in order, even after an error."""
        settled, self._settled = self._settled, []
        return settled

    def abort(self, error: CdcError) -> None:
        """Record that unsettled batches were discarded because of `error`. Nothing continues before `reset`."""
        self._move(Input.ABORT)
        self.error = error

    def reset(self) -> None:
        """Record that the daemon has returned to the checkpoint. It submits again all batches that it hasn't seen settled."""
        self._move(Input.RESET)
        self._queue.clear()
        self._settled.clear()
        self.queued_bytes = 0
        self.error = self.abandoned = None

    def fail(self, error: CdcError) -> None:
        """Record that the publisher stopped because of `error`."""
        self._move(Input.FAIL)
        self.error = error

    def stop(self) -> None:
        """Record that the publisher stopped as requested.

        If the daemon hadn't returned from an abort yet, the abort's error remains.
        """
        self._move(Input.STOP)

    def _move(self, cause: Input) -> None:
        self.state = TRANSITIONS[self.state][cause]
