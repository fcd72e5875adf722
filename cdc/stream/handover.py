"""What the daemon's thread and the publisher's hand each other: batches one way, settled positions and what went wrong the other.

    daemon ──submit──▶ queue (bytes bounded) ──take──▶ publisher
           ◀─collect── settled, or an error ◀─settle, abort, fail──┘

Which states there are, and what leads from one to another, is in TRANSITIONS. It refuses to know threads: whoever calls holds the
lock that both have. One number, or one state, may be read without it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final

from cdc.errors import CdcError
from cdc.positions.position import Position
from cdc.stream.batch import Batch


class State(Enum):
    """What a publisher is at."""

    RUNNING = auto()
    ABORTED = auto()
    """What isn't settled was thrown away, and the daemon hasn't gone back to the checkpoint yet."""
    FAILED = auto()
    STOPPED = auto()


class Input(Enum):
    """What moves it."""

    ABORT = auto()
    RESET = auto()
    FAIL = auto()
    STOP = auto()


TRANSITIONS: Final[dict[State, dict[Input, State]]] = {
    State.RUNNING: {Input.ABORT: State.ABORTED, Input.FAIL: State.FAILED, Input.STOP: State.STOPPED},
    # Where the daemon ends before it has gone back, it is the error of the abort that stays.
    State.ABORTED: {Input.RESET: State.RUNNING, Input.STOP: State.FAILED, Input.FAIL: State.FAILED},
    # All is committed, and then it can't be seen that readers reach it.
    State.STOPPED: {Input.FAIL: State.FAILED},
    State.FAILED: {},
}


class Handover:
    """One publisher's."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max`: with so much waiting no other batch should be submitted; one alone may go over it by its own size."""
        self._bytes_max = bytes_max
        self._queue: deque[Batch] = deque()
        self._settled: list[Position] = []
        self.state = State.RUNNING
        self.queued_bytes = 0
        """Of the batches that wait to be taken."""
        self.error: CdcError | None = None
        """What the daemon is to be told of."""
        self.abandoned: str | None = None
        """Why what isn't settled is to be aborted, if the daemon has asked for that."""
        self.should_drain = False
        """Whether the publisher is to end once it has taken and committed all."""

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted."""
        return self.queued_bytes < self._bytes_max

    @property
    def is_waiting(self) -> bool:
        """Whether a batch waits to be taken."""
        return bool(self._queue)

    @property
    def is_drained(self) -> bool:
        """Whether the publisher is to end, and nothing is left to take."""
        return self.should_drain and not self._queue

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""
        self._queue.append(batch)
        self.queued_bytes += batch.byte_count

    def take(self) -> Batch | None:
        """The oldest batch; None if none waits."""
        if not self._queue:
            return None
        batch = self._queue.popleft()
        self.queued_bytes -= batch.byte_count
        return batch

    def settle(self, position: Position) -> None:
        """All up to there is durable."""
        self._settled.append(position)

    def collect(self) -> list[Position]:
        """What was settled since the last call, in order. Once all of that is told, raises what went wrong."""
        settled = self.take_settled()
        if not settled and self.error is not None:
            raise self.error
        return settled

    def take_settled(self) -> list[Position]:
        """What was settled since the last call, in order, whatever went wrong since."""
        settled, self._settled = self._settled, []
        return settled

    def abort(self, error: CdcError) -> None:
        """All that isn't settled was thrown away: nothing goes on before `reset`."""
        self._move(Input.ABORT)
        self.error = error

    def reset(self) -> None:
        """The daemon has gone back to the checkpoint: what it submitted and hasn't seen settled comes again."""
        self._move(Input.RESET)
        self._queue.clear()
        self._settled.clear()
        self.queued_bytes = 0
        self.error = self.abandoned = None

    def fail(self, error: CdcError) -> None:
        """It has ended, by this."""
        self._move(Input.FAIL)
        self.error = error

    def stop(self) -> None:
        """It has ended as it was asked to. If that was before the daemon had gone back, what was aborted stays aborted."""
        self._move(Input.STOP)

    def _move(self, cause: Input) -> None:
        self.state = TRANSITIONS[self.state][cause]
