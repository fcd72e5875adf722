"""The publisher's thread: it writes batches to Kafka, decides when to commit, and deals with aborted transactions.

    take ─▶ topics exist? ─▶ produce ─▶ take ─▶ produce … ─▶ commit ─▶ settle
                                │ Kafka aborts, or the daemon abandons the batches
                                └─▶ abort ─▶ wait until the daemon has returned to the checkpoint ─▶ take …

When to commit is decided by OpenTransaction and Pace, what the two threads exchange by Handover (cdc.stream.commits).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaSection
from cdc.errors import CdcError, PublishAborted, PublishError
from cdc.events import topics
from cdc.events.json_values import encode
from cdc.kafka.batch_limit import after_refusal
from cdc.kafka.clients import Admin, answer_seconds
from cdc.kafka.delivery import Delivery, Record, now_ms
from cdc.kafka.errors import FencedError, ProducerLostError, translate_kafka_errors
from cdc.kafka.exchange import Exchange
from cdc.kafka.lost_topics import LostTopics
from cdc.kafka.names import names_of
from cdc.kafka.readability import Readability
from cdc.kafka.topic_admin import TopicAdmin
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch, Forms
from cdc.stream.commits import checkpoint
from cdc.stream.commits.checkpoint import Writer
from cdc.stream.commits.handover import State
from cdc.stream.commits.open_transaction import OpenTransaction, Pace

IDLE_SECONDS: Final = 0.5
PROOF_SECONDS: Final = 5.0
"""Time without a commit after which the position is committed again. Only a commit reveals that another daemon has claimed the
name, and Kafka forgets a transactional id that writes nothing for seven days (transactional.id.expiration.ms)."""
COMPLAINT_SECONDS: Final = 10.0
"""Minimum time between two log lines about trouble with Kafka."""
TOPICS_AGAIN_SECONDS: Final = 0.2
"""Interval between two attempts to create topics while Kafka is unavailable."""
MANY_BYTES: Final = 512 * 1024
"""Batch size above which the batch is one of several that were read at once: more follow, even if they aren't queued yet."""


class PublisherLoop:
    """Writer of batches, in the publisher's thread. The daemon's thread calls only `commit_position`, before the other runs."""

    def __init__(
        self,
        name: str,
        config: KafkaSection,
        writer: Writer,
        new_admin: Callable[[], Admin],
        topic_admin: TopicAdmin,
        lost_topics: LostTopics,
        readability: Readability,
        exchange: Exchange,
    ) -> None:
        self._name = name
        self._config = config
        self._writer = writer
        self._new_admin = new_admin
        self._topics = names_of(config)
        self._topic_admin = topic_admin
        self._lost_topics = lost_topics
        self._readability = readability
        self._exchange = exchange
        self._statistics = exchange.statistics
        self.pace = Pace(config.commit_interval_ms / 1000, config.commit_pause_ms / 1000, config.commit_bytes_max)
        self._open = OpenTransaction()
        self._next_heartbeat = 0.0
        self._next_complaint = 0.0
        self.started: Delivery | None = None
        """The producers, once they have claimed the name."""
        self.timeout_seconds = math.inf
        """How long a transaction with events may stay open."""
        self.is_committing = False
        """Whether a commit is running."""
        self.committed: Position | None = None
        """Newest checkpoint position known to this publisher."""

    @property
    def delivery(self) -> Delivery:
        """The producers, which have claimed the name."""
        assert self.started is not None, "the publisher has been started"
        return self.started

    def run(self) -> None:
        """Publish until the daemon asks to end, or an error ends it. The thread's function."""
        exchange = self._exchange
        while exchange.handover.state in (State.RUNNING, State.ABORTED):
            try:
                with translate_kafka_errors():
                    self._publish()
            except (PublishAborted, ProducerLostError) as error:
                self._end(error)
            except CdcError as error:
                self._exchange.fail(after_refusal(error, self._new_admin(), self._topic_admin.seen, self._statistics))
                self._abort_open_transaction()
            except Exception as error:
                # A bug in this program; its traceback follows. Without this call the daemon would wait forever.
                self._exchange.fail(PublishError(f"the publisher's thread failed: {error!r}"))
                raise

    def _abort_open_transaction(self) -> None:
        """Abort the open transaction: consumers shouldn't wait for an operator to repair the failure, which may take hours."""
        try:
            with translate_kafka_errors():
                self.delivery.abort()
        except CdcError as error:
            structlog.get_logger().info("the open transaction can't be aborted", name=self._name, reason=error.message)

    def _end(self, error: PublishAborted | ProducerLostError) -> None:
        """Abort everything published since the last commit, or fail with the error that says that a new producer is needed."""
        timeout = None
        if not self._exchange.is_ending and not self._exchange.is_abandoned:
            timeout = self._open.timeout(error, time.monotonic(), self.timeout_seconds)
        self._statistics.failure = (timeout or error).message
        self._statistics.abort_count += 1
        try:
            if timeout is not None:
                raise timeout from error
            if isinstance(error, ProducerLostError):
                raise error
            self._abort(error)
        except CdcError as lost:
            self._exchange.fail(lost)
        except KafkaException as lost:
            self._exchange.fail(ProducerLostError(f"{error.message}; and then Kafka's client failed: {lost}"))

    def _publish(self) -> None:
        exchange, pace = self._exchange, self.pace
        self._open, self._next_heartbeat = OpenTransaction(), 0.0
        while True:
            if not self._open.began_at:
                self._await_readers(may_end=True)
            wait_seconds = self._open.wait_seconds(pace, self._statistics.last_commit_at, time.monotonic(), IDLE_SECONDS)
            batch = exchange.take(wait_seconds)
            exchange.check_abandoned()
            if batch is not None:
                self._write(batch)
            self._commit_if_due(
                follows_more=exchange.handover.is_waiting or (batch is not None and batch.byte_count > MANY_BYTES)
            )
            if exchange.handover.is_drained and not self._open.began_at:
                exchange.end()
                self._readability.await_end(self.delivery)
                return
            if exchange.is_stopping.is_set() or exchange.handover.is_drained:
                raise PublishAborted("stopped before everything was committed")
            if not self._open.began_at:
                self._lost_topics.check()

    def _write(self, batch: Batch) -> None:
        """Give a batch to the producer."""
        is_ready = self._topic_admin.is_ready(batch.topics)
        if self._open.end is not None and not (is_ready and batch.is_boundary):
            # Creating topics, or publishing a large source transaction, may take long. The open transaction is committed before,
            # so that they get the full time of a new one.
            self._commit(self._open.end)
            self._await_readers()
        self._make_topics(batch)
        self.delivery.produce(batch)
        self._open.add(batch, time.monotonic())
        self._exchange.produced(self._open.byte_count)
        self._statistics.event_count += batch.event_count
        self._statistics.byte_count += batch.byte_count

    def _commit_if_due(self, *, follows_more: bool) -> None:
        """Commit what is in the producer if it is time; if nothing is there, show now and then that this daemon has the name."""
        now, open_, is_drained = time.monotonic(), self._open, self._exchange.handover.is_drained
        if open_.end is not None:
            if is_drained or open_.is_due(self.pace, self._statistics.last_commit_at, now, follows_more=follows_more):
                self._beat_if_due(now, open_.end)
                self._commit(open_.end)
        elif not open_.began_at and self.committed and not is_drained:
            has_beat = self._beat_if_due(now, self.committed)
            if has_beat or now >= self._statistics.last_commit_at + PROOF_SECONDS:
                self.commit_position(self.committed, {})

    def _make_topics(self, batch: Batch) -> None:
        """Make sure that the topics of a batch exist.

        If no transaction is open, this waits while Kafka is unavailable, as delivery does: an abort would make the daemon leave
        its connection and return to the checkpoint, and there is nothing to abort.
        """
        exchange = self._exchange
        while True:
            try:
                self._topic_admin.ensure(batch.topics, batch.begins_with_truncation)
            except PublishAborted as error:
                if self._open.began_at or exchange.is_stopping.is_set():
                    raise
                self._report_trouble(error.message)
            else:
                return
            exchange.wait(TOPICS_AGAIN_SECONDS)
            exchange.check_abandoned()

    def _await_readers(self, *, may_end: bool = False) -> None:
        """Wait until consumers can read the last commit. With `may_end`, wait no longer once nothing is left to write."""
        exchange = self._exchange
        while not self._readability.is_seen and not (may_end and exchange.handover.is_drained):
            pause = self._readability.check(self.delivery)
            self._statistics.trouble = self._readability.trouble or self._statistics.trouble
            if pause is None:
                return
            exchange.wait(pause)
            exchange.check_abandoned()
            if exchange.is_stopping.is_set():
                raise PublishAborted("stopped before readers could reach the last commit")

    def _commit(self, end: Position) -> None:
        self.commit_position(end, self._open.stored, self._lost_topics.losses.records(self._open.covered))
        self._lost_topics.losses.committed(end, self._open.stored, self._open.covered)
        self.committed = end
        self._open = OpenTransaction()
        self._statistics.failure = None
        self._exchange.settle(end)

    def _beat_if_due(self, now: float, position: Position) -> bool:
        """Write a heartbeat if it is time, and return whether it was."""
        interval_seconds = self._config.heartbeat_interval_ms / 1000
        if not interval_seconds or now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + interval_seconds
        topic = self._topics.control(topics.HEARTBEAT)
        self._topic_admin.ensure([topic])
        moment = {"ts_ms": now_ms(), "vclock": position.vclock.to_json(), "seq": position.seq}
        message = (topic, encode({"serverName": self._config.topic_prefix}), encode(moment))
        self.delivery.produce(Batch([message], 0, 0, 0, position, True, {}, [], 0.0))
        return True

    def commit_position(self, position: Position, stored: Forms, claims: Collection[Record] = ()) -> None:
        """Commit what was produced, together with the position, changed spaces, and `claims`, which are other checkpoint records.

        Raises PublishAborted or PublishError.
        """
        records = [checkpoint.space_record(self._name, space_id, space) for space_id, space in stored.items()]
        started = time.monotonic()
        position_record = checkpoint.position_record(self._name, position, self._writer, now_ms())
        self.is_committing = True
        try:
            self._readability.before_commit(self.delivery)
            written = self.delivery.commit([*records, *claims, position_record])
            ended = time.monotonic()
            self._statistics.committed(started, ended)
        finally:
            self.is_committing = False
        self._readability.committed(written, ended - started)
        self._exchange.committed(ended)

    def _abort(self, error: PublishAborted) -> None:
        """Abort the broken transaction, then wait until the daemon has returned to the checkpoint.

        Raises ProducerLostError if the transaction can't be aborted: only a new producer can continue then.
        """
        self._topic_admin.invalidate()  # a topic may have been deleted, which only a new check would reveal
        started = time.monotonic()
        try:
            self.delivery.abort()
        except (PublishAborted, ProducerLostError) as again:
            # While the daemon is stopping, no new producer is needed.
            if not self._exchange.is_ending:
                if isinstance(again, FencedError):
                    raise
                raise ProducerLostError(f"{error.message}; and then {again.message}") from again
        if self._exchange.is_ending:
            self._exchange.fail(error)
            return
        if time.monotonic() - started >= answer_seconds(self._config):
            # The client sent the request more than once. A late copy would abort the first part of the next transaction, and
            # the rest of that transaction would be committed. Kafka refuses the copy once a new producer has the name.
            raise ProducerLostError(f"{error.message}; and then Kafka took too long to abort the transaction")
        self._exchange.abort(error)

    def complain(self, error: KafkaError) -> None:
        """Handle an error of a broker connection, which librdkafka keeps retrying."""
        self._readability.complained()
        self._report_trouble(error.str())

    def _report_trouble(self, reason: str) -> None:
        self._statistics.trouble = reason
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + COMPLAINT_SECONDS
            structlog.get_logger().warning("trouble with Kafka", name=self._name, reason=reason)
