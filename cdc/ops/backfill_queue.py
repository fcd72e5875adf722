"""Queue of backfill requests (`tarantool-cdc snapshot`), from the HTTP threads to the daemon's thread, which has the rows.

    HTTP's thread ──submit──▶ waiting ──▶ current ──▶ chunks, one per turn of the follower's loop
                  ◀────────── admitted, or why not

One request runs at a time, and the stream has priority: while the stream has rows, the request uses at most a third of the time.
The pipeline ends with its connection. On the next connection the request starts again, under another number. A restart of the
daemon forgets all requests; the next start says so, and ends an open one with the record ABORTED (cdc.stream.backfill).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from cdc.errors import RequestError
from cdc.positions.position import Position
from cdc.stream.backfill import CHUNK_BYTES, Backfill
from cdc.stream.batch import Batch
from cdc.stream.pipeline import Pipeline

REQUESTS_MAX: Final = 16
ANSWER_TIMEOUT_SECONDS: Final = 20.0
QUEUED_BYTES_MAX: Final = CHUNK_BYTES
"""Queued bytes above which no chunk is made, because live events would have to wait behind all of them."""
_TIME_FACTOR: Final = 2


@dataclass(slots=True)
class _Request:
    names: tuple[str, ...]
    is_answered: threading.Event = field(default_factory=threading.Event)
    error: RequestError | None = None
    is_withdrawn: bool = False


class BackfillQueue:
    """The queue. Any thread may call `submit` and `to_json`; only the daemon's thread may use the rest."""

    def __init__(self, *, start_alone: bool = False) -> None:
        """`start_alone`: make no row of a request before the checkpoint records that the request has begun."""
        self._start_alone = start_alone
        self._awaits_checkpoint = False
        self.is_open = False
        """Whether a stream is being followed, so that requests can be accepted."""
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._current: Backfill | None = None
        # Position of the end of the current request, once all its chunks have been made.
        self._end: Position | None = None
        self._not_before = 0.0
        self._log = structlog.get_logger()

    def submit(self, names: Sequence[str], timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        """Request the rows of these spaces, and wait until the request is accepted. Raises RequestError if it is refused, if too
        many requests wait, or if the daemon doesn't begin it within `timeout_seconds`."""
        request = _Request(tuple(names))
        with self._lock:
            if len(self._waiting) >= REQUESTS_MAX:
                raise RequestError(f"{REQUESTS_MAX} requests are waiting already", "Try again when they are done.")
            self._waiting.append(request)
        if not request.is_answered.wait(timeout_seconds):
            with self._lock:
                if not request.is_answered.is_set():
                    request.is_withdrawn = True
                    raise RequestError(
                        f"the daemon was busy for {timeout_seconds:g} s: another request runs, or Kafka or the state store lag",
                        "`tarantool-cdc status` shows which; try again later.",
                    )
        if request.error is not None:
            raise request.error

    def to_json(self) -> dict[str, Any] | None:
        """Return the running request and the number of waiting ones, for /status; None if there are none."""
        current, waiting = self._current, len(self._waiting)
        if current is None and not waiting:
            return None
        return {
            "snapshot_id": str(current.snapshot_id) if current and current.snapshot_id else None,
            "spaces": list(current.names) if current else [],
            "rows": current.row_count if current else 0,
            "waiting": waiting,
        }

    @property
    def has_current(self) -> bool:
        """Whether there is a request that has begun, and will be continued or started again."""
        return self._current is not None

    @property
    def is_running(self) -> bool:
        """Whether a request has chunks to be made now."""
        return self._current is not None and not self._current.is_complete and not self._awaits_checkpoint

    def open(self) -> None:
        """Accept requests, because a stream is being followed."""
        self.is_open = True

    def close(self) -> None:
        """Accept no more requests, because the stream has ended."""
        self.is_open = False

    def restart(self) -> None:
        """Start the current request again, also if it is made but not durable: there is another connection and another
        pipeline."""
        if self._current is not None:
            self._current = Backfill(self._current.names, starts_alone=self._start_alone)
        self._awaits_checkpoint = self.is_open = False
        self._end = None
        self._not_before = 0.0

    def chunk(self, pipeline: Pipeline, now_us: int, *, queued_bytes: int, is_busy: bool) -> Batch | None:
        """Return the next chunk; None if there is none to make, or if the stream has priority now.

        `queued_bytes`: events that wait for the producer. `is_busy`: the stream had rows in this turn. Raises the errors of
        Pipeline.feed.
        """
        if self._end is not None:
            if not pipeline.ledger.is_settled(self._end):
                return None
            self._finish()
        began = time.monotonic()
        if pipeline.is_catching_up or queued_bytes > QUEUED_BYTES_MAX or (is_busy and began < self._not_before):
            return None
        self._awaits_checkpoint = self._start_alone and self._current is not None and not _has_begun(self._current, pipeline)
        if self._awaits_checkpoint:
            return None
        batch = self._first(pipeline, now_us) if self._current is None else self._next(pipeline, self._current, now_us)
        ended = time.monotonic()
        self._not_before = ended + _TIME_FACTOR * (ended - began)
        if batch is not None and self._current is not None and self._current.is_complete:
            self._end = batch.position
        return batch

    def _finish(self) -> None:
        """End the current request. It ends only once it is durable: if Kafka aborts its events, they must be made again."""
        current = self._current
        assert current is not None
        self._log.info("rows were published again", spaces=list(current.names), rows=current.row_count)
        self._current = self._end = None

    def _first(self, pipeline: Pipeline, now_us: int) -> Batch | None:
        """Begin the first waiting request that isn't withdrawn and is valid; answer the threads whose requests are taken."""
        while self._waiting:
            with self._lock:
                request = self._waiting.popleft()
                if request.is_withdrawn:
                    continue
                self._current = Backfill(request.names, starts_alone=self._start_alone)
                try:
                    return pipeline.backfill(self._current, now_us)
                except RequestError as error:
                    self._current, request.error = None, error
                finally:
                    request.is_answered.set()
        return None

    def _next(self, pipeline: Pipeline, current: Backfill, now_us: int) -> Batch | None:
        try:
            return pipeline.backfill(current, now_us)
        except RequestError as error:
            # The request began on another connection, and the set of published spaces has changed since.
            self._log.warning("rows can't be published again any more", spaces=list(current.names), reason=str(error))
            self._current = None
            return None


def _has_begun(current: Backfill, pipeline: Pipeline) -> bool:
    """Return whether the request's number is settled; a request without a number counts as begun."""
    state = pipeline.ledger.settled.snapshot
    return state is not None and state.snapshot_id >= current.snapshot_id
