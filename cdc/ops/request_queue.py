"""Queue of orders (HTTP requests, signals) to the daemon's thread, which has the rows; and the turns of the open requests.

    HTTP's thread ──submit──▶ waiting ──▶ pipeline.take_order ──▶ the position with the request ──▶ chunks, one per turn of
    signals' thread ──offer──▶   ▲              │ submitted                                         the follower's loop
                                 └──────────────┴▶ durable: the answer to HTTP's thread
                                  another connection: again

The requests themselves are a part of the position, so they outlive the connection, the process and the machine. One request runs
at a time, and the stream has priority: while the stream has rows, requests use at most a third of the time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from cdc.errors import CdcError, RequestError
from cdc.positions.position import Position
from cdc.positions.requests import NO_REQUESTS, Request, SignalPlace
from cdc.stream.batches.batch import Batch
from cdc.stream.pipeline import Pipeline
from cdc.stream.snapshots.backfill import CHUNK_BYTES
from cdc.stream.snapshots.orders import Order, Received
from cdc.stream.snapshots.requests import Outcome

WAITING_MAX: Final = 100
"""Maximum number of orders that wait for the daemon's thread. Further signals stay in Kafka, and HTTP requests are refused."""
SUBMITTED_MAX: Final = 1_000
"""Maximum number of orders that were carried out and aren't durable yet: each has a batch in the publisher's queue."""
ANSWER_TIMEOUT_SECONDS: Final = 20.0
QUEUED_BYTES_MAX: Final = CHUNK_BYTES
"""Queued bytes above which no chunk is made, because live events would have to wait behind all of them."""
_TIME_FACTOR: Final = 2
_TOLD_SECONDS: Final = 10.0
_TOLD_MAX: Final = 20
"""Maximum number of lines of the log about skipped signals in _TOLD_SECONDS: anybody may send a million of them."""


@dataclass(slots=True, eq=False)
class _Item:
    """An order on its way. `position` is the one whose durability the order's fate depends on, once it was carried out."""

    received: Received
    error: RequestError | None = None
    is_withdrawn: bool = False
    position: Position | None = None
    outcome: Outcome = field(default_factory=Outcome)
    is_answered: threading.Event = field(init=False)

    def __post_init__(self) -> None:
        self.is_answered = threading.Event()


@dataclass(slots=True)
class SignalCounts:
    """Numbers of the signals that were carried out and skipped, and why none can be read now (None: they can)."""

    taken: int = 0
    skipped: int = 0
    trouble: str | None = None

    @property
    def sentence(self) -> str | None:
        """The trouble as an operator reads it; None if there is none."""
        return f"signals can't be read: {self.trouble}" if self.trouble is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the part of /status."""
        return {"taken": self.taken, "skipped": self.skipped, "error": self.trouble}


class RequestQueue:
    """The queue. Any thread may call `submit`, `offer`, `place` and `to_json`; only the daemon's thread may use the rest."""

    def __init__(self, *, start_alone: bool = False) -> None:
        """`start_alone`: make no row of a request before the checkpoint records that the request has begun."""
        self._start_alone = start_alone
        self._awaits_checkpoint = False
        self.is_open = False
        """Whether a stream is being followed, so that requests can be accepted."""
        self.signals = SignalCounts()
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        # Carried out, and not durable yet: Kafka may throw them away.
        self._submitted: deque[_Item] = deque()
        # Ended by the batches with these positions: what the log says once they are durable.
        self._ended: deque[tuple[Position, dict[str, object], CdcError | None]] = deque()
        self._requests = NO_REQUESTS
        self.last_ended: dict[str, Any] | None = None
        """The request that ended last since the process began, for /status: id, spaces, rows, and the error that ended it."""
        self._names: list[str] = []
        self._is_known = False
        # Whether the pipeline has come to where orders can be carried out.
        self._is_ready = False
        self._took_order = False
        self._not_before = 0.0
        self._told: deque[float] = deque()
        self._log = structlog.get_logger()

    # For the threads that orders come from.

    def submit(self, order: Order, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        """Give an order, and wait until it is carried out and durable: a request for rows has then been accepted.

        Raises RequestError if it is refused, if too many orders wait, or if it isn't durable within `timeout_seconds`.
        """
        item = _Item(Received(order))
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                raise RequestError(f"{WAITING_MAX} orders are waiting already", "Try again when they are done.")
            self._waiting.append(item)
        if not item.is_answered.wait(timeout_seconds):
            with self._changed:
                if item.position is None and not item.is_answered.is_set():
                    item.is_withdrawn = True
                    raise RequestError(
                        f"the daemon was busy for {timeout_seconds:g} s: Kafka, the state store or the registry of schemas lags",
                        "`tarantool-cdc status` shows which; try again later.",
                    )
            if not item.is_answered.is_set():
                raise RequestError(
                    f"the daemon has taken the request, and Kafka hasn't committed that for {timeout_seconds:g} s",
                    "It is carried out once Kafka has, unless the daemon ends before: `tarantool-cdc status` shows it.",
                )
        if item.error is not None:
            raise item.error

    def offer(self, received: Received, timeout_seconds: float) -> bool:
        """Give an order from the signal topic, as soon as there is room. Return whether there was within `timeout_seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX, timeout_seconds):
                return False
            self._waiting.append(_Item(received))
            return True

    def report_trouble(self, reason: str | None) -> None:
        """Take note of why the signal topic can't be read now; None if it can."""
        self.signals.trouble = reason

    def place(self, timeout_seconds: float) -> tuple[SignalPlace | None] | None:
        """Wait until it is known up to which place signals were taken, and return it; None after `timeout_seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_known, timeout_seconds):
                return None
            return (self._requests.signals,)

    def to_json(self) -> dict[str, Any] | None:
        """Return the first open request and the number of the others, for /status; None if there are none."""
        with self._changed:
            requests, names = self._requests, self._names
            waiting = sum(item.received.order is not None for item in self._waiting)
        current = requests.current
        if current is None and not waiting:
            return None
        return {
            "id": current.id if current is not None else None,
            "snapshot_id": str(current.snapshot_id) if current is not None and current.snapshot_id else None,
            "spaces": names if current is not None else [],
            "rows": current.all_rows if current is not None else 0,
            "waiting": waiting + max(0, len(requests.open) - 1),
            "paused": requests.is_paused,
        }

    # For the daemon's thread.

    @property
    def is_running(self) -> bool:
        """Whether there is something to be done now."""
        requests = self._requests
        has_rows = requests.current is not None and not requests.is_paused and not self._awaits_checkpoint
        return self._is_ready and (has_rows or self._has_order)

    @property
    def _has_order(self) -> bool:
        return bool(self._waiting) and len(self._submitted) < SUBMITTED_MAX

    def open(self) -> None:
        """Accept orders, because a stream is being followed."""
        self.is_open = True

    def close(self) -> None:
        """Accept no more orders, because the stream has ended."""
        self.is_open = False

    def restart(self, committed: Position | None) -> None:
        """Carry out again what isn't durable: another connection's pipeline begins at the checkpoint `committed`.

        What the former connection's last commits had was carried out, although no turn has found that.
        """
        taken = committed.requests.order_count if committed is not None else 0
        while self._submitted and (first := self._submitted[0].position) is not None and first.requests.order_count <= taken:
            self._answer(self._submitted.popleft())
        with self._changed:
            self._waiting.extendleft(reversed(self._submitted))
        for item in self._submitted:
            item.position = None
        self._submitted.clear()
        self._ended.clear()
        self._awaits_checkpoint = self.is_open = self._is_ready = False
        self._not_before = 0.0

    def turn(self, pipeline: Pipeline, now_us: int, *, queued_bytes: int, is_busy: bool) -> Batch | None:
        """Carry out an order, or make the next chunk; None if there is nothing to do, or if the stream has priority now.

        `queued_bytes`: events that wait for the producer. `is_busy`: the stream had rows in this turn. Raises the errors of
        Pipeline.feed.
        """
        self._settle(pipeline)
        self._is_ready = not pipeline.is_catching_up
        if not self._is_ready:
            return None
        self._show(pipeline)
        began = time.monotonic()
        if is_busy and began < self._not_before:
            return None
        batch = None
        if self._has_order and not (self._took_order and self._has_chunk(pipeline, queued_bytes)):
            self._took_order, batch = True, self._take(pipeline, now_us)
        elif self._has_chunk(pipeline, queued_bytes):
            self._took_order, batch = False, self._chunk(pipeline, now_us)
        ended = time.monotonic()
        self._not_before = ended + _TIME_FACTOR * (ended - began)
        if batch is not None:
            self._show(pipeline)
        return batch

    def _has_chunk(self, pipeline: Pipeline, queued_bytes: int) -> bool:
        requests = pipeline.requests
        current = requests.current
        self._awaits_checkpoint = (
            self._start_alone and current is not None and bool(current.snapshot_id) and not _has_begun(current, pipeline)
        )
        is_due = current is not None and not requests.is_paused and not self._awaits_checkpoint
        return is_due and queued_bytes <= QUEUED_BYTES_MAX

    def _chunk(self, pipeline: Pipeline, now_us: int) -> Batch:
        before = pipeline.requests
        batch, failure = pipeline.backfill(now_us, starts_alone=self._start_alone)
        if len(batch.position.requests.open) < len(before.open):
            assert before.current is not None
            rows = before.current.all_rows + batch.event_count
            about: dict[str, object] = {"id": before.current.id, "spaces": self._names, "rows": rows}
            self._ended.append((batch.position, about, failure))
        return batch

    def _take(self, pipeline: Pipeline, now_us: int) -> Batch | None:
        with self._changed:
            item = self._waiting.popleft()
            self._changed.notify_all()
            if item.is_withdrawn:
                return None
            try:
                batch, item.outcome = pipeline.take_order(item.received, now_us)
            except CdcError:
                self._waiting.appendleft(item)  # of the stream, and not the order's fault: the next connection takes it
                raise
            item.error = item.outcome.refusal
            if batch is not None:
                item.position = batch.position
        if item.position is not None:
            self._submitted.append(item)
        else:
            self._answer(item)
        return batch

    def _settle(self, pipeline: Pipeline) -> None:
        """Answer the orders that are durable, and log the ends of requests that are: what Kafka aborts happens again."""
        is_settled = pipeline.ledger.is_settled
        while self._submitted and (position := self._submitted[0].position) is not None and is_settled(position):
            self._answer(self._submitted.popleft())
        while self._ended and is_settled(self._ended[0][0]):
            _, about, failure = self._ended.popleft()
            self.last_ended = {**about, "error": None if failure is None else failure.public}
            if failure is None:
                self._log.info("rows were published again", **about)
            else:
                self._log.warning("a request for rows was ended", **about, reason=str(failure))

    def _answer(self, item: _Item) -> None:
        outcome, is_signal = item.outcome, item.received.place is not None and item.received.order is not None
        if is_signal and outcome.sentence:
            self.signals.taken += outcome.refusal is None
            self.signals.skipped += outcome.refusal is not None
        if item.received.order is None and item.received.place is not None:
            self._log.info("signals are obeyed from here on", offset=item.received.place.offset)
        elif outcome.sentence and outcome.refusal is None:
            self._log.info(outcome.sentence, **outcome.about)
        elif is_signal and outcome.sentence:
            self._warn(outcome)
        item.is_answered.set()

    def _warn(self, outcome: Outcome) -> None:
        now = time.monotonic()
        while self._told and self._told[0] < now - _TOLD_SECONDS:
            self._told.popleft()
        if len(self._told) < _TOLD_MAX:
            self._told.append(now)
            self._log.warning(outcome.sentence, **outcome.about)
            if len(self._told) == _TOLD_MAX:
                self._log.warning("signals are skipped faster than they are logged", skipped=self.signals.skipped)

    def _show(self, pipeline: Pipeline) -> None:
        """Keep what other threads want to know of the position."""
        requests = pipeline.requests
        if requests is self._requests and self._is_known:
            return
        current, shown = requests.current, self._requests.current
        if current is not None and (shown is None or current.id != shown.id):
            wanted = {*current.space_ids, *(space_id for space_id, _ in current.counts)}
            self._names = [form.name for form in pipeline.published_forms() if form.space_id in wanted]
        with self._changed:
            self._requests, self._is_known = requests, True
            self._changed.notify_all()


def _has_begun(current: Request, pipeline: Pipeline) -> bool:
    """Return whether the request's number is settled."""
    state = pipeline.ledger.settled.snapshot
    return state is not None and state.snapshot_id >= current.snapshot_id
