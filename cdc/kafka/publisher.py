"""The publisher's thread: it takes batches from a bounded queue, writes and commits them to Kafka, and reports settled positions.

    pipeline ──submit──▶ queue (limited in bytes) ──▶ produce, produce, … commit ──▶ settled positions ──▶ Ledger
                           │ full: the daemon stops reading the socket             when the queue is empty,
                           ▼                                                       or the interval is over
                        the master's own log is the buffer that has no bound

Commits fall only at the ends of source transactions. When Kafka aborts a transaction, the publisher discards all unsettled
batches, and the daemon returns to the checkpoint. Recovery thus takes the same path as a start.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaSection
from cdc.errors import CdcError, ConfigurationError, ConnectionLostError, PublishAborted, PublishError, TransactionTimeoutError
from cdc.events import topics
from cdc.events.json_values import encode
from cdc.kafka.batch_limit import after_refusal
from cdc.kafka.broker_limits import broker_limits
from cdc.kafka.clients import KafkaClients, answer_seconds
from cdc.kafka.delivery import Delivery, Record, make_delivery, now_ms
from cdc.kafka.ends import Ends
from cdc.kafka.errors import NAME_HINT, FencedError, ProducerLostError, translate_kafka_errors
from cdc.kafka.foreign_topics import ForeignTopics
from cdc.kafka.lost_topics import LostTopics
from cdc.kafka.readability import Readability, others_transaction
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.topic_admin import TopicAdmin, list_topics, lost_checkpoint
from cdc.kafka.wake_pipe import WakePipe
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.stream.batch import Batch, Forms
from cdc.stream.commits import checkpoint, ownership
from cdc.stream.commits.backlog import Backlog
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.stream.commits.handover import Handover, State
from cdc.stream.commits.open_transaction import OpenTransaction, Pace
from cdc.stream.commits.publisher_statistics import PublisherStatistics

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


class Publisher:
    """Writer of batches to Kafka, in a thread of its own. All public methods are for the daemon's thread."""

    def __init__(
        self,
        name: str,
        config: KafkaSection,
        writer: Writer,
        clients: KafkaClients | None = None,
        statistics: PublisherStatistics | None = None,
        topics_seen: Mapping[str, str | None] | None = None,
        row_work_lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """`statistics` and `topics_seen` come from the previous publisher, as its backlog is still waiting.

        Each of the two threads that work on rows, the publisher's and the daemon's, holds `row_work_lock` meanwhile.
        """
        self._name = name
        self._config = config
        self._transactional_id = ownership.transactional_id(name, config.topic_prefix)
        self._writer = replace(writer, transactional_id=self._transactional_id)
        self._topics = topics.TopicNames(config.topic_prefix)
        self._clients = clients or KafkaClients(name, config)
        self._pace = Pace(config.commit_interval_ms / 1000, config.commit_pause_ms / 1000, config.commit_bytes_max)
        self._is_stopping = threading.Event()
        self.row_work_lock = row_work_lock or nullcontext()
        self._next_complaint = 0.0
        self._view = ReadersView(config, name, self._clients)
        self._readability = Readability(name, config.topic_prefix, self._view, Ends(self._clients), self._is_stopping)
        foreign = ForeignTopics(config.topic_prefix, self._clients)
        self._topic_admin = TopicAdmin(config, self._clients.admin, self._is_stopping, topics_seen, foreign)
        self._lost_topics = LostTopics(config, self._clients, self._topic_admin)
        self._started: Delivery | None = None
        self._open = OpenTransaction()
        # How long a transaction with events may stay open.
        self._timeout_seconds = math.inf
        # How long any transaction may stay open, even one that contains only a checkpoint.
        self._transaction_seconds = 0.0
        self.committed: Position | None = None
        """Newest checkpoint position known to this publisher."""
        self.statistics = statistics or PublisherStatistics()
        self._backlog = self.statistics.backlog = Backlog(self.statistics.backlog)
        # Number of batches produced since the last commit, and whether a commit is running. Both are also read without the lock.
        self._open_count, self._is_committing = 0, False

        # Shared with the publisher's thread, under the lock.
        self._lock = threading.Condition()
        self._shared = Handover(config.queue_bytes_max)
        # Wakes the daemon's poll when a position was settled or an error occurred.
        self._wake_pipe = WakePipe()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    @property
    def wake_fd(self) -> int:
        """File descriptor that is readable when `collect` has news."""
        return self._wake_pipe.fileno()

    @property
    def _delivery(self) -> Delivery:
        assert self._started is not None, "the publisher has been started"
        return self._started

    # Starting and stopping.

    def start(
        self,
        *,
        expected_writers: Collection[str | None] = (),
        takes_prefix: bool = False,
        known: Position | None = None,
    ) -> Checkpoint:
        """Claim the name, create the checkpoint topic, read the checkpoint, claim the prefix, and start the thread.

        `expected_writers` is passed by a process that had the name before. It contains the process itself and the writer before
        it, as Kafka may not show the process's own record yet. If another process has written the checkpoint since, FencedError
        is raised, and that process is not fenced. With `takes_prefix` the prefix is claimed even if it belongs to another
        daemon. `known` is the newest position that the caller knows to be committed; consumers may not see it yet. Raises
        ConnectionLostError while Kafka is unavailable (retry with a new Publisher), PublishError or ConfigurationError.
        """
        with translate_kafka_errors():
            return self._start(expected_writers, known, takes_prefix=takes_prefix)

    def _start(self, expected_writers: Collection[str | None], known: Position | None, *, takes_prefix: bool) -> Checkpoint:
        list_topics(self._clients.admin(), self._config.bootstrap_servers)
        self._topic_admin.ensure([self._topics.control(topics.CHECKPOINT)])
        stored = self._view.checkpoint() if expected_writers else None
        if stored is not None and stored.writer not in expected_writers:
            taken = FencedError(ownership.name_taken_message(stored, self._name), NAME_HINT)
            raise taken if stored.writer is not None else lost_checkpoint(self._topics.control(topics.CHECKPOINT))
        self._started = self._make_delivery()
        try:
            self._delivery.start()
        except PublishError as error:
            error.message = f"transactional id {self._transactional_id!r}: {error.message}"
            raise
        try:
            stored = self._begin(known, takes_prefix=takes_prefix)
        except FencedError as error:
            # Fenced by another daemon, or by Kafka because it was too slow. The next start finds out which.
            raise ConnectionLostError(f"fenced right after claiming the name {self._name!r}: {error.message}") from error
        self.committed = stored.position
        self._thread.start()
        return stored

    def _begin(self, known: Position | None, *, takes_prefix: bool) -> Checkpoint:
        stored = self._read_to_the_end(known)
        if not takes_prefix:
            ownership.check(stored, self._config.topic_prefix, self._name)
        claims = ownership.claims(stored, self._name, now_ms(), takes=takes_prefix)
        lost = self._lost_topics.begin(stored)
        if lost is not None:
            self._delivery.produce(lost)
        # This commit shows readers of the checkpoint that this process has the name.
        self._commit_position(stored.position or Position(), {}, claims)
        if claims:
            self._check_claim()
        return stored

    def stop(self, timeout_seconds: float) -> bool:
        """Commit all submitted batches, then stop. Return whether all of them were committed in time."""
        with self._lock:
            self._shared.should_drain = True
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self._is_stopping.set()
        if self._thread.is_alive():
            with self._lock:
                self._lock.notify_all()
            self._thread.join(timeout_seconds)
        if self._started is not None:
            self._started.close()
        if not self._thread.is_alive():
            self._readability.close()
        return self._shared.state is State.STOPPED

    @property
    def topics_seen(self) -> Mapping[str, str | None]:
        """Topics known to have existed, for the next publisher."""
        return self._topic_admin.seen

    @property
    def open_seconds(self) -> float | None:
        """How long after `stop` an unended transaction may hold up read_committed consumers; None if there is none."""
        has_ended_without_us = isinstance(self._shared.error, FencedError | TransactionTimeoutError)
        is_open = self._started is not None and self._started.is_open and not has_ended_without_us
        return self._transaction_seconds if is_open else None

    @property
    def unreadable(self) -> str | None:
        """After `stop`: why consumers may not be able to read all committed messages; None if they were seen to be readable."""
        return self._readability.unreadable

    # Normal operation.

    @property
    def queued_bytes(self) -> int:
        """Total size of the queued batches, in bytes."""
        return self._shared.queued_bytes

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted. A single batch may exceed the limit by its own size."""
        return self._shared.has_room

    @property
    def wanted_in_seconds(self) -> float:
        """As `Pace.wanted_in_seconds`; 0 with at_least_once delivery, whose consumers don't wait for a commit."""
        if self._config.delivery != "exactly_once":
            return 0.0
        since_commit = time.monotonic() - self.statistics.last_commit_at
        return self._pace.wanted_in_seconds(since_commit, has_open=self._open_count > 0, is_committing=self._is_committing)

    def submit(self, batch: Batch) -> None:
        """Queue a batch. The caller checks `has_room` before it makes the next one."""
        with self._lock:
            self._shared.submit(batch)
            self._backlog.submitted(time.monotonic(), batch.timestamp)
            self._lock.notify_all()

    def wait_for_room(self, timeout_seconds: float) -> bool:
        """Wait until there is room, and return whether there is. Returns early if the publisher aborted, failed or stopped."""
        with self._lock:
            self._lock.wait_for(lambda: self.has_room or self._shared.state is not State.RUNNING, timeout_seconds)
            return self.has_room

    def collect(self) -> list[Position]:
        """Return the positions settled since the last call, in order.

        Raises PublishAborted if a transaction was aborted: all unsettled batches must be submitted again after `reset`. Raises
        the error that made the publisher fail, if it failed.
        """
        self._wake_pipe.clear()
        with self._lock:
            return self._shared.collect()

    def last_settled(self) -> list[Position]:
        """Return the positions settled since `collect`, after the publisher was stopped."""
        return self._shared.take_settled()

    def abandon(self, reason: str) -> None:
        """Abort all unsettled batches, as the last transaction will never be complete. `collect` then raises PublishAborted."""
        with self._lock:
            self._shared.abandoned = reason
            self._lock.notify_all()

    def reset(self) -> None:
        """Forget the aborted batches and accept new ones. To be called when the daemon has returned to the checkpoint."""
        with self._lock:
            self._shared.reset()
            self._backlog.aborted()
            self._open_count = 0
            self._lock.notify_all()

    def reload(self) -> Checkpoint | None:
        """Read the checkpoint again. Returns None if a transaction stays open in Kafka, so that the checkpoint is unknown.

        Raises ConnectionLostError or ConfigurationError.
        """
        return None if self._view.still_open() else self._view.checkpoint()

    def newest_numbers(self) -> Numbers:
        """Return the highest numbers of the last events visible to consumers, as they can be read. Raises ConnectionLostError."""
        return self._view.newest_numbers()

    def _read_to_the_end(self, known: Position | None) -> Checkpoint:
        """Read the checkpoint for a new producer. Transactions of its own that are still open hang, and are ended first."""
        stored = self.reload()
        if stored is None:
            open_, was_committed = self._view.what_hangs(known)
            self._readability.end(self._delivery, open_, commit=was_committed)
            stored = self.reload()
        if stored is None:
            raise others_transaction(self._config.topic_prefix)
        return stored

    def _check_claim(self) -> None:
        """Withdraw this daemon's new claim to the prefix, and raise PrefixTakenError, if another daemon's claim came first."""
        stored = self.reload()
        if stored is None or self._name not in stored.owners:
            raise ConnectionLostError(f"Kafka doesn't show the owner of {self._config.topic_prefix} yet")
        try:
            ownership.check(stored, self._config.topic_prefix, self._name)
        except ConfigurationError:
            self._delivery.commit([checkpoint.owner_record(self._name, None)])
            raise

    # The publisher's thread.

    def _run(self) -> None:
        while self._shared.state in (State.RUNNING, State.ABORTED):
            try:
                with translate_kafka_errors():
                    self._publish()
            except (PublishAborted, ProducerLostError) as error:
                self._end(error)
            except CdcError as error:
                self._fail(after_refusal(error, self._clients.admin(), self._topic_admin.seen, self.statistics))
                self._abort_open_transaction()
            except Exception as error:
                # A bug in this program; its traceback follows. Without this call the daemon would wait forever.
                self._fail(PublishError(f"the publisher's thread failed: {error!r}"))
                raise

    def _abort_open_transaction(self) -> None:
        """Abort the open transaction: consumers shouldn't wait for an operator to repair the failure, which may take hours."""
        try:
            with translate_kafka_errors():
                self._delivery.abort()
        except CdcError as error:
            structlog.get_logger().info("the open transaction can't be aborted", name=self._name, reason=error.message)

    def _end(self, error: PublishAborted | ProducerLostError) -> None:
        """Abort everything published since the last commit, or fail with the error that says that a new producer is needed."""
        timeout = None
        if not self._is_ending and self._shared.abandoned is None:
            timeout = self._open.timeout(error, time.monotonic(), self._timeout_seconds)
        self.statistics.failure = (timeout or error).message
        self.statistics.abort_count += 1
        try:
            if timeout is not None:
                raise timeout from error
            if isinstance(error, ProducerLostError):
                raise error
            self._abort(error)
        except CdcError as lost:
            self._fail(lost)
        except KafkaException as lost:
            self._fail(ProducerLostError(f"{error.message}; and then Kafka's client failed: {lost}"))

    def _publish(self) -> None:
        config, pace, last, next_heartbeat = self._config, self._pace, self.committed, 0.0
        heartbeat_interval = config.heartbeat_interval_ms / 1000
        self._open = open_ = OpenTransaction()
        while True:
            if not open_.began_at:
                self._await_readers(may_end=True)
            batch = self._take(open_.wait_seconds(pace, self.statistics.last_commit_at, time.monotonic(), IDLE_SECONDS))
            if self._shared.abandoned is not None:
                raise PublishAborted(self._shared.abandoned)
            if batch is not None:
                is_ready = self._topic_admin.is_ready(batch.topics)
                if open_.end is not None and not (is_ready and batch.is_boundary):
                    # Creating topics, or publishing a large source transaction, may take long. So the open transaction is
                    # committed first, and they get the full time of a new one.
                    last = self._commit(open_)
                    self._open = open_ = OpenTransaction()
                    self._await_readers()
                self._make_topics(batch)
                self._delivery.produce(batch)
                open_.add(batch, time.monotonic())
                with self._lock:
                    self._open_count += 1
                    self._backlog.produced(time.monotonic(), open_.byte_count)
                self.statistics.event_count += batch.event_count
                self.statistics.byte_count += batch.byte_count
            now = time.monotonic()
            follows_more = self._shared.is_waiting or (batch is not None and batch.byte_count > MANY_BYTES)
            is_due = open_.is_due(pace, self.statistics.last_commit_at, now, follows_more=follows_more)
            if open_.end is not None and (is_due or self._shared.is_drained):
                if heartbeat_interval and now >= next_heartbeat:
                    next_heartbeat = now + heartbeat_interval
                    self._heartbeat(open_.end)
                last = self._commit(open_)
                self._open = open_ = OpenTransaction()
            elif not open_.began_at and last and not self._shared.is_drained:
                has_beat = bool(heartbeat_interval) and now >= next_heartbeat
                if has_beat:
                    next_heartbeat = now + heartbeat_interval
                    self._heartbeat(last)
                if has_beat or now >= self.statistics.last_commit_at + PROOF_SECONDS:
                    self._commit_position(last, {})
            if self._shared.is_drained and not open_.began_at:
                self._shared.stop()
                self._readability.await_end(self._delivery)
                return
            if self._is_stopping.is_set() or self._shared.is_drained:
                raise PublishAborted("stopped before everything was committed")
            if not open_.began_at:
                self._lost_topics.check()

    def _make_topics(self, batch: Batch) -> None:
        """Make sure that the topics of a batch exist.

        If no transaction is open, this waits while Kafka is unavailable, as delivery does: an abort would make the daemon leave
        its connection and return to the checkpoint, and there is nothing to abort.
        """
        while True:
            try:
                self._topic_admin.ensure(batch.topics, batch.begins_with_truncation)
            except PublishAborted as error:
                if self._open.began_at or self._is_stopping.is_set():
                    raise
                self._report_trouble(error.message)
            else:
                return
            with self._lock:
                self._lock.wait_for(lambda: self._shared.abandoned or self._is_stopping.is_set(), TOPICS_AGAIN_SECONDS)
            if self._shared.abandoned is not None:
                raise PublishAborted(self._shared.abandoned)

    def _await_readers(self, *, may_end: bool = False) -> None:
        """Wait until consumers can read the last commit. With `may_end`, wait no longer once nothing is left to write."""
        while not self._readability.is_seen and not (may_end and self._shared.is_drained):
            pause = self._readability.check(self._delivery)
            self.statistics.trouble = self._readability.trouble or self.statistics.trouble
            if pause is None:
                return
            with self._lock:
                self._lock.wait_for(lambda: self._shared.abandoned or self._is_stopping.is_set(), pause)
            abandoned = self._shared.abandoned
            if abandoned is not None or self._is_stopping.is_set():
                raise PublishAborted(abandoned or "stopped before readers could reach the last commit")

    def _commit(self, open_: OpenTransaction) -> Position:
        assert open_.end is not None
        self._commit_position(open_.end, open_.stored)
        self.committed = open_.end
        self.statistics.failure = None
        self._settle(open_.end)
        return open_.end

    @property
    def _is_ending(self) -> bool:
        return self._is_stopping.is_set() or self._shared.should_drain

    def _take(self, timeout_seconds: float) -> Batch | None:
        shared = self._shared
        with self._lock:
            self._lock.wait_for(
                lambda: shared.is_waiting or shared.should_drain or shared.abandoned or self._is_stopping.is_set(),
                max(0.0, timeout_seconds),
            )
            had_room = shared.has_room
            batch = shared.take()
            if batch is None:
                return None
            self._lock.notify_all()
        if not had_room and shared.has_room:
            self._wake_pipe.wake()
        return batch

    def _heartbeat(self, position: Position) -> None:
        topic = self._topics.control(topics.HEARTBEAT)
        self._topic_admin.ensure([topic])
        moment = {"ts_ms": now_ms(), "vclock": position.vclock.to_json(), "seq": position.seq}
        message = (topic, encode({"serverName": self._config.topic_prefix}), encode(moment))
        self._delivery.produce(Batch([message], 0, 0, 0, position, True, {}, [], 0.0))

    def _commit_position(self, position: Position, stored: Forms, claims: Collection[Record] = ()) -> None:
        records = [checkpoint.space_record(self._name, space_id, space) for space_id, space in stored.items()]
        started = time.monotonic()
        position_record = checkpoint.position_record(self._name, position, self._writer, now_ms())
        self._is_committing = True
        try:
            written = self._delivery.commit([*records, *claims, position_record])
            ended = time.monotonic()
            self.statistics.committed(started, ended)
        finally:
            self._is_committing = False
        self._readability.committed(written, ended - started)
        with self._lock:
            self._backlog.committed(ended, self._open_count)
            self._open_count = 0

    def _settle(self, position: Position) -> None:
        with self._lock:
            self._shared.settle(position)
        self._wake_pipe.wake()

    def _abort(self, error: PublishAborted) -> None:
        """Abort the broken transaction, then wait until the daemon has returned to the checkpoint.

        Raises ProducerLostError if the transaction can't be aborted: only a new producer can continue then.
        """
        self._topic_admin.invalidate()  # a topic may have been deleted, which only a new check would reveal
        started = time.monotonic()
        try:
            self._delivery.abort()
        except (PublishAborted, ProducerLostError) as again:
            # While the daemon is stopping, no new producer is needed.
            if not self._is_ending:
                if isinstance(again, FencedError):
                    raise
                raise ProducerLostError(f"{error.message}; and then {again.message}") from again
        if self._is_ending:
            self._fail(error)
            return
        if time.monotonic() - started >= answer_seconds(self._config):
            # The client sent the request more than once. A late copy would abort the first part of the next transaction, and
            # the rest of that transaction would be committed. Kafka refuses the copy once a new producer has the name.
            raise ProducerLostError(f"{error.message}; and then Kafka took too long to abort the transaction")
        with self._lock:
            self._shared.abort(error)
            self._wake_pipe.wake()
            self._lock.wait_for(lambda: self._shared.state is not State.ABORTED or self._is_ending)
            if self._shared.state is State.ABORTED:
                self._shared.stop()

    def _fail(self, error: CdcError) -> None:
        with self._lock:
            self._shared.fail(error)
            self._lock.notify_all()
        self._wake_pipe.wake()

    def _complain(self, error: KafkaError) -> None:
        """Handle an error of a broker connection, which librdkafka keeps retrying."""
        self._readability.complained()
        self._report_trouble(error.str())

    def _report_trouble(self, reason: str) -> None:
        self.statistics.trouble = reason
        now = time.monotonic()
        if now >= self._next_complaint:
            self._next_complaint = now + COMPLAINT_SECONDS
            structlog.get_logger().warning("trouble with Kafka", name=self._name, reason=reason)

    def _make_delivery(self) -> Delivery:
        limits = broker_limits(self._clients.admin())
        limits.check(self._config.message_bytes_max)
        self._clients.batch_bytes_max = self.statistics.batch_bytes_max
        timeout_ms = self._clients.transaction_timeout_ms(limits)
        self._transaction_seconds = timeout_ms / 1000
        if self._config.delivery == "exactly_once":
            self._timeout_seconds = self._transaction_seconds
        stopping, lock = self._is_stopping.is_set, self.row_work_lock
        return make_delivery(self._config, self._clients, self._topics, self._complain, timeout_ms, stopping, lock)
