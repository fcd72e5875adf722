"""Joins what the daemons of other shards have committed of their buckets with the pipeline: rows that waited go on, questions are
answered, and operators are told.

    BucketReader ─▶ news ─▶ pipeline.moves.heard ─▶ batches
    questions of other shards ─▶ a survey of the members that began later ─▶ once its positions are handled: an answer
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from cdc.daemon.beginning import Observations, RunContext
from cdc.daemon.clock import now_us
from cdc.daemon.runner import PipelineRunner
from cdc.positions.vclock import VClock
from cdc.stream.moved_buckets import MovedBuckets
from cdc.stream.moves.queues import Question
from cdc.stream.reports.bucket_waits import NAMED_MAX, STRANGERS_REMEDY, BucketsState
from cdc.upstream import resume

DOUBLED_SECONDS: Final = 10.0
"""Time after which a bucket with two owners is reported: the shards' records are read in any order."""

SETTLING_SECONDS: Final = 30.0
"""Time for which a daemon that is to stop when it has caught up waits for others to see it begin. Until they have, in this run or
a later one, rows that buckets bring or take may be shown again."""

Surveyed = Callable[[], tuple[float, Sequence[VClock]]]
"""Returns when the last survey of the members ended (monotonic seconds), and the positions of those that answered."""


def never() -> tuple[float, Sequence[VClock]]:
    """Return that there was no survey."""
    return 0.0, ()


class BucketWatch:
    """The watch of one connection. Without hidden moves it has nothing to do. For the daemon's thread."""

    def __init__(
        self,
        context: RunContext,
        runner: PipelineRunner,
        observations: Observations,
        *,
        ignored: frozenset[int] = frozenset(),
        surveyed: Surveyed = never,
    ) -> None:
        """`ignored` are the origins that the daemon leaves out."""
        self._config = context.config
        self._reader = context.buckets
        self._show = context.status
        self._runner = runner
        self._observations = observations
        self._lost_before = observations.lost_change_count
        self._changed_before = observations.changed_bucket_count
        self._ignored = ignored
        self._surveyed = surveyed
        # When questions of other shards were read first (monotonic seconds).
        self._asked: dict[Question, float] = {}
        self._settles_until: float | None = None
        self._doubled_since: dict[int, float] = {}
        self._log = structlog.get_logger().bind(name=context.config.name)
        self.state = BucketsState()
        """What operators are told."""

    @property
    def _moves(self) -> MovedBuckets | None:
        return self._runner.pipeline.moves

    @property
    def waits(self) -> bool:
        """Whether rows of buckets wait, so that news of other shards are wanted soon."""
        return self._moves is not None and bool(self._moves.queues.waits)

    @property
    def is_asked(self) -> bool:
        """Whether other shards wait for an answer of this one."""
        return self._moves is not None and bool(self._moves.queues.questions())

    @property
    def is_settling(self) -> bool:
        """Whether other daemons may soon have seen this one begin. After SETTLING_SECONDS they aren't expected to any more."""
        moves, now = self._moves, time.monotonic()
        if moves is None or not (moves.queues.beginnings.must_settle or moves.queues.beginnings.awaits):
            return False
        if self._settles_until is None:
            self._settles_until = now + SETTLING_SECONDS
        return now < self._settles_until

    @property
    def has_room(self) -> bool:
        """Whether rows that have to wait for other shards fit into memory. If not, nothing is read until some go on."""
        return self._moves is None or self._moves.queues.waiting.byte_count < self._config.source.transaction_bytes_max

    def look(self) -> None:
        """Let rows go on that waited for other shards, answer their questions, and update the status.

        Raises the errors of `PipelineRunner.submit_all`, and of BucketReader.
        """
        reader, moves = self._reader, self._moves
        if reader is None or moves is None:
            return
        news = reader.news()
        if news or moves.is_ready:
            self._runner.submit_all(moves.heard(news, now_us()))
        self._answer_questions(moves)
        self._update_state(moves)

    def _answer_questions(self, moves: MovedBuckets) -> None:
        """Answer whether this shard ever had a bucket, once everything is handled that its members had after the question."""
        now = time.monotonic()
        self._asked = {question: self._asked.get(question, now) for question in moves.queues.questions()}
        surveyed_at, positions = self._surveyed()
        # A survey that ended so much later began after the question had been read.
        due = [each for each, at in self._asked.items() if surveyed_at > at + self._config.source.timeouts.vote]
        handled = self._runner.pipeline.position.vclock
        if due and positions and all(handled.covers(resume.target(vclock, self._ignored)) for vclock in positions):
            batch = moves.answer(due)
            if batch is not None:
                self._runner.submit(batch)

    def _update_state(self, moves: MovedBuckets) -> None:
        before, now = self.state, time.monotonic()
        doubled = self._reader.shards.doubled if self._reader is not None else {}
        self._doubled_since = {bucket_id: self._doubled_since.get(bucket_id, now) for bucket_id in doubled}
        state = self.state = self._show.buckets = BucketsState.of(
            moves.queues,
            {each: sorted(doubled[each]) for each, since in self._doubled_since.items() if now - since > DOUBLED_SECONDS},
            is_full=not self.has_room,
            overdue_us=now_us() - self._config.source.bucket_alert_ms * 1000,
            lost_before=self._lost_before,
            changed_before=self._changed_before,
        )
        self._observations.lost_change_count = state.lost_count
        self._observations.changed_bucket_count = state.changed_count
        arrived = moves.queues.beginnings.arrived_unseen
        if state.arrived_unseen and not before.arrived_unseen and arrived:
            self._log.warning(
                "buckets have arrived while the daemon didn't follow: consumers may keep rows that were deleted there meanwhile",
                count=len(arrived),
                buckets=arrived[:NAMED_MAX],
            )
        if state.is_overdue and not before.is_overdue:
            self._log.warning("rows of a bucket wait", reason=state.sentence(now_us()))
        elif before.is_overdue and not state.is_overdue:
            self._log.info("the wait of rows of a bucket is over")
        if state.lost_count > max(before.lost_count, self._lost_before):
            self._log.warning(
                "changes that clients wrote past the router, to copies of buckets that others own, aren't published",
                count=state.lost_count,
                keys=[f"bucket {one.bucket_id}, space {one.space_id}, key {one.key.hex()}" for one in state.lost][-3:],
            )
        if set(state.strangers) - set(before.strangers):
            self._log.warning(state.strangers_sentence, remedy=STRANGERS_REMEDY)
        if state.doubled.keys() - before.doubled.keys():
            self._log.warning("buckets have two owners: their rows' order isn't defined", buckets=dict(state.doubled))
