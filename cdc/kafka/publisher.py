"""The publisher as the daemon sees it: batches go into a bounded queue, and settled positions come back.

    pipeline ──submit──▶ queue (limited in bytes) ──▶ produce, produce, … commit ──▶ settled positions ──▶ Ledger
                           │ full: the daemon stops reading the socket             when the queue is empty,
                           ▼                                                       or the interval is over
                        the master's own log is the buffer that has no bound

A thread of its own writes and commits the batches (cdc.kafka.publisher_loop). Commits fall only at the ends of source
transactions. When Kafka aborts a transaction, the publisher discards all unsettled batches, and the daemon returns to the
checkpoint. Recovery thus takes the same path as a start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Final

import structlog

from cdc.config import KafkaSection
from cdc.errors import ConfigurationError, ConnectionLostError, PublishError, TransactionTimeoutError
from cdc.events import topics
from cdc.kafka.broker_limits import broker_limits
from cdc.kafka.clients import KafkaClients
from cdc.kafka.delivery import Delivery, make_delivery, now_ms
from cdc.kafka.ends import Ends
from cdc.kafka.errors import NAME_HINT, FencedError, translate_kafka_errors
from cdc.kafka.exchange import Exchange
from cdc.kafka.fleet_claim import FleetClaim
from cdc.kafka.foreign_topics import ForeignTopics
from cdc.kafka.losses import Losses
from cdc.kafka.lost_topics import LostTopics
from cdc.kafka.names import claim_topic, names_of
from cdc.kafka.publisher_loop import PublisherLoop
from cdc.kafka.readability import Readability, others_transaction
from cdc.kafka.readers_view import ReadersView
from cdc.kafka.sender import CALL_TIMEOUT_SECONDS
from cdc.kafka.topic_admin import TopicAdmin, list_topics, lost_checkpoint
from cdc.kafka.topic_ids import SeenTopics
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch
from cdc.stream.commits import checkpoint, ownership
from cdc.stream.commits.backlog import Backlog
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.stream.commits.handover import State
from cdc.stream.commits.publisher_statistics import PublisherStatistics

END_SECONDS: Final = 2 * CALL_TIMEOUT_SECONDS
"""Time for which a stop waits, in seconds, once what is in flight is given up: a call to Kafka ends, and then the abort."""


class Publisher:
    """Writer of batches to Kafka, in a thread of its own. All public methods are for the daemon's thread."""

    def __init__(
        self,
        name: str,
        config: KafkaSection,
        writer: Writer,
        clients: KafkaClients | None = None,
        statistics: PublisherStatistics | None = None,
        topics_seen: SeenTopics | None = None,
        row_work_lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """`statistics` and `topics_seen` come from the previous publisher, as its backlog is still waiting.

        Each of the two threads that work on rows, the publisher's and the daemon's, holds `row_work_lock` meanwhile.
        """
        self._name = name
        self._config = config
        self._topics = names_of(config)
        self._clients = clients or KafkaClients(name, config)
        self._transactional_id = ownership.transactional_id(name, config.control_prefix)
        self.writer = replace(writer, transactional_id=self._transactional_id)
        """What the checkpoints say of their writer."""
        self.row_work_lock = row_work_lock or nullcontext()
        self.statistics = statistics or PublisherStatistics()
        self.statistics.backlog = Backlog(self.statistics.backlog)
        self._exchange = Exchange(config.queue_bytes_max, self.statistics)
        is_stopping = self._exchange.is_stopping
        self._view = ReadersView(config, name, self._clients)
        self._readability = Readability(
            name,
            config.topic_prefix,
            self._view,
            Ends(self._clients),
            is_stopping,
            has_co_writers=config.has_co_writers,
        )
        foreign = ForeignTopics(config, self._clients)
        seen = topics_seen or SeenTopics()
        losses = Losses(config, self._clients, self.statistics, seen.ids)
        self._topic_admin = TopicAdmin(config, self._clients.admin, is_stopping, seen.spaces, foreign, losses)
        self._readability.remedy_of = self._topic_admin.remedy
        self._lost_topics = LostTopics(config, self._clients, self._topic_admin, losses)
        self._loop = PublisherLoop(
            name,
            config,
            self.writer,
            self._clients.admin,
            self._topic_admin,
            self._lost_topics,
            self._readability,
            self._exchange,
        )
        # How long any transaction may stay open, even one that contains only a checkpoint.
        self._transaction_seconds = 0.0
        self._thread = threading.Thread(target=self._loop.run, name="publisher", daemon=True)

    @property
    def committed(self) -> Position | None:
        """Newest checkpoint position known to this publisher."""
        return self._loop.committed

    @property
    def wake_fd(self) -> int:
        """File descriptor that is readable when `collect` has news."""
        return self._exchange.wake_pipe.fileno()

    # Starting and stopping.

    def start(
        self,
        *,
        expected_writers: Collection[str | None] = (),
        takes_prefix: bool = False,
        known: Position | None = None,
        is_to_be_awaited: Callable[[Checkpoint], bool] = lambda _: False,
    ) -> Checkpoint:
        """Claim the name, create the checkpoint topic, read the checkpoint, claim the prefix, and start the thread.

        `expected_writers` is passed by a process that had the name before. It contains the process itself and the writer before
        it, as Kafka may not show the process's own record yet. If another process has written the checkpoint since, FencedError
        is raised, and that process is not fenced. With `takes_prefix` the prefix is claimed even if it belongs to another
        daemon. `known` is the newest position that the caller knows to be committed; consumers may not see it yet.
        `is_to_be_awaited` tells from the checkpoint whether the process that had the name may still publish: the claim records
        that. Raises ConnectionLostError while Kafka is unavailable (retry with a new Publisher), PublishError or
        ConfigurationError.
        """
        with translate_kafka_errors():
            stored = self._claim(expected_writers, known)
            self.writer.awaits_former = is_to_be_awaited(stored)
            with _not_fenced_again(self._name):
                self._begin(stored, takes_prefix=takes_prefix)
        self._loop.committed = stored.position
        self._thread.start()
        return stored

    def _claim(self, expected_writers: Collection[str | None], known: Position | None) -> Checkpoint:
        list_topics(self._clients.admin(), self._config.bootstrap_servers)
        claim = claim_topic(self._config)
        self._topic_admin.ensure([self._topics.control(topics.CHECKPOINT), *([claim] if claim is not None else [])])
        if expected_writers:
            self._view.await_claim_of_others(expected_writers)
            self._check_writer(self._view.checkpoint(), expected_writers)
        self._loop.started = self._make_delivery()
        try:
            self._loop.delivery.start()
        except PublishError as error:
            error.message = f"transactional id {self._transactional_id!r}: {error.message}"
            raise
        with _not_fenced_again(self._name):
            stored = self._read_to_the_end(known)
        if expected_writers:
            # Before the claim, the other process's record may have been in a transaction whose end wasn't written yet.
            self._check_writer(stored, expected_writers)
        return stored

    def _check_writer(self, stored: Checkpoint, expected: Collection[str | None]) -> None:
        """Raise FencedError if another process has written the checkpoint, PublishError if Kafka has lost it."""
        if stored.writer not in expected:
            taken = FencedError(ownership.name_taken_message(stored, self._name), NAME_HINT)
            raise taken if stored.writer is not None else lost_checkpoint(self._topics.control(topics.CHECKPOINT))

    def _begin(self, stored: Checkpoint, *, takes_prefix: bool) -> None:
        """Write the first record, which shows that this process has the name."""
        if not takes_prefix:
            ownership.check(stored, self._config.control_prefix, self._name)
        claims = ownership.claims(stored, self._name, now_ms(), takes=takes_prefix)
        lost = self._lost_topics.begin(stored)
        if lost is not None:
            self._loop.delivery.produce(lost)
        shard, delivery = self._config.shard, self._loop.delivery
        fleet = FleetClaim(self._config, shard, self._clients) if shard is not None else None
        has_claimed = fleet is not None and fleet.begin(delivery, takes=takes_prefix)
        # This commit shows readers of the checkpoint that this process has the name.
        self._loop.commit_position(stored.position or Position(), {}, claims)
        if claims:
            self._check_claim()
        if fleet is not None and has_claimed:
            fleet.confirm(delivery)

    def stop(self, timeout_seconds: float) -> bool:
        """Commit all submitted batches, then stop. Return whether all of them were committed in time."""
        self._exchange.drain()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        self._exchange.stop()
        if self._thread.is_alive():
            self._thread.join(min(timeout_seconds, END_SECONDS))
        if self._loop.started is not None:
            self._loop.started.close()
        if not self._thread.is_alive():
            self._readability.close()
        return self._exchange.handover.state is State.STOPPED

    @property
    def topics_seen(self) -> SeenTopics:
        """Topics known to have existed, for the next publisher."""
        return SeenTopics(self._topic_admin.seen, self._lost_topics.losses.ids)

    @property
    def open_seconds(self) -> float | None:
        """How long after `stop` an unended transaction may hold up read_committed consumers; None if there is none."""
        has_ended_without_us = isinstance(self._exchange.handover.error, FencedError | TransactionTimeoutError)
        started = self._loop.started
        is_open = started is not None and started.is_open and not has_ended_without_us
        return self._transaction_seconds if is_open else None

    @property
    def unreadable(self) -> str | None:
        """After `stop`: why consumers may not be able to read all committed messages; None if they were seen to be readable."""
        return self._readability.unreadable

    # Normal operation.

    @property
    def queued_bytes(self) -> int:
        """Total size of the queued batches, in bytes."""
        return self._exchange.handover.queued_bytes

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted. A single batch may exceed the limit by its own size."""
        return self._exchange.handover.has_room

    @property
    def wanted_in_seconds(self) -> float:
        """As `Pace.wanted_in_seconds`; 0 with at_least_once delivery, whose consumers don't wait for a commit."""
        if self._config.delivery != "exactly_once":
            return 0.0
        since_commit = time.monotonic() - self.statistics.last_commit_at
        loop, has_open = self._loop, self._exchange.open_count > 0
        return loop.pace.wanted_in_seconds(since_commit, has_open=has_open, is_committing=loop.is_committing)

    def submit(self, batch: Batch) -> None:
        """Queue a batch. The caller checks `has_room` before it makes the next one."""
        self._exchange.submit(batch)

    def wait_for_room(self, timeout_seconds: float) -> bool:
        """Wait until there is room, and return whether there is. Returns early if the publisher aborted, failed or stopped."""
        return self._exchange.wait_for_room(timeout_seconds)

    def collect(self) -> list[Position]:
        """Return the positions settled since the last call, in order.

        Raises PublishAborted if a transaction was aborted: all unsettled batches must be submitted again after `reset`. Raises
        the error that made the publisher fail, if it failed.
        """
        return self._exchange.collect()

    def last_settled(self) -> list[Position]:
        """Return the positions settled since `collect`, after the publisher was stopped."""
        return self._exchange.take_settled()

    def abandon(self, reason: str) -> None:
        """Abort all unsettled batches, as the last transaction will never be complete. `collect` then raises PublishAborted."""
        self._exchange.abandon(reason)

    def reset(self) -> None:
        """Forget the aborted batches and accept new ones. To be called when the daemon has returned to the checkpoint."""
        self._exchange.reset()

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
            self._readability.end(self._loop.delivery, open_, commit=was_committed)
            stored = self.reload()
        if stored is None:
            raise others_transaction(self._config.topic_prefix)
        return stored

    def _check_claim(self) -> None:
        """Withdraw this daemon's new claim to the prefix, and raise PrefixTakenError, if another daemon's claim came first."""
        stored = self.reload()
        if stored is None or self._name not in stored.owners:
            raise ConnectionLostError(f"Kafka doesn't show the owner of {self._config.control_prefix} yet")
        try:
            ownership.check(stored, self._config.control_prefix, self._name)
        except ConfigurationError:
            self._loop.delivery.commit([checkpoint.owner_record(self._name, None)])
            raise

    def _make_delivery(self) -> Delivery:
        limits = broker_limits(self._clients.admin())
        limits.check(self._config.message_bytes_max)
        self._clients.batch_bytes_max = self.statistics.batch_bytes_max
        timeout_ms = self._clients.transaction_timeout_ms(limits)
        self._transaction_seconds = timeout_ms / 1000
        if self._config.delivery == "exactly_once":
            self._loop.timeout_seconds = self._transaction_seconds
        stopping, lock = self._exchange.is_stopping.is_set, self.row_work_lock
        return make_delivery(self._config, self._clients, self._topics, self._loop.complain, timeout_ms, stopping, lock)


def check_publisher(publisher: Publisher) -> None:
    """Raise the error that made the publisher fail, if it failed: while no stream is open, nobody collects."""
    handover = publisher._exchange.handover
    if handover.state is State.FAILED and handover.error is not None:
        raise handover.error


def report_unended(publisher: Publisher, name: str) -> None:
    """Warn if a publisher that has stopped leaves a transaction open, or a commit that readers may not see yet."""
    log = structlog.get_logger().bind(name=name)
    if publisher.open_seconds is not None:
        log.warning(
            "a Kafka transaction could not be ended: read_committed consumers wait at it until the next start, "
            "or until Kafka's transaction time-out ends it",
            timeout_seconds=publisher.open_seconds,
        )
    elif publisher.unreadable is not None:
        log.warning(
            "Kafka may not show the last commit to readers of committed messages before the next start",
            reason=publisher.unreadable,
        )


@contextmanager
def _not_fenced_again(name: str) -> Iterator[None]:
    """Another daemon may fence this one right after its claim, or Kafka if it was too slow. The next start finds out which."""
    try:
        yield
    except FencedError as error:
        raise ConnectionLostError(f"fenced right after claiming the name {name!r}: {error.message}") from error
