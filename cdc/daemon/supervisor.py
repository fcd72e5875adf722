"""Supervisor of the daemon: it keeps a publisher and a connection, and knows which errors a retry can cure.

    may it start? (cdc.daemon.admission) ─▶ claim the name

    publisher ─▶ a stream from the source (cdc.daemon.members, or files) ─▶ the publisher ─┐
        ▲           ▲                                    an error ◀──────────────────────────┘
        │           ├───────────────────────────────────────┤ of one of several members: another member, at once
        │           └─────────────── back-off ◀─────────────┤ another error that a retry can cure
        └───────────────────────────────────────────────────┘ of Kafka: from the checkpoint

A round ends with the back-off: after it, skipped members are tried again. While the daemon follows a working member, it doesn't
switch to a preferred one: every switch costs a pause, and a preference isn't worth one.

After an error of the source, the submitted batches are settled first, and the next connection resumes after them: no event is
made twice. After an aborted Kafka transaction, the next connection resumes from the checkpoint in Kafka. Recovery thus takes the
same path as a start.
"""

from __future__ import annotations

import gc
import sys
import threading
import uuid
from collections.abc import Callable

import structlog

from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.admission import StartOptions, StateDirectoryLock
from cdc.daemon.backoff import jittered
from cdc.daemon.beginning import Beginning, Goal, Observations, RunContext
from cdc.daemon.given_numbers import GivenNumbers
from cdc.daemon.http_settings import setup_of
from cdc.daemon.lineage_flows import of_configuration
from cdc.daemon.listener import Listener
from cdc.daemon.members import Members
from cdc.daemon.row_path import new_row_work_lock, path_of, tune_garbage_collector
from cdc.daemon.source import NewSource
from cdc.daemon.standby import Standby
from cdc.daemon.start import known_before, options_of
from cdc.daemon.store_opening import open_store
from cdc.errors import (
    CdcError,
    ConnectionLostError,
    OtherHistoryError,
    PublishAborted,
    Remedy,
    ServerError,
    SnapshotNeededError,
    StateError,
    TransactionTimeoutError,
    UnknownSpaceError,
)
from cdc.kafka import checkpoint_topic, rights
from cdc.kafka.clients import KafkaClients
from cdc.kafka.errors import STANDBY_HINT, FencedError, ForbiddenError, ProducerLostError
from cdc.kafka.publisher import Publisher, check_publisher, report_unended
from cdc.kafka.sign_of_life import SignOfLife
from cdc.ops.request_queue import RequestQueue
from cdc.ops.stall_watch import StallWatch
from cdc.ops.status import Status
from cdc.ops.view import View
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError
from cdc.registry import schema_ids
from cdc.store.files import is_there
from cdc.store.writer import StateWriter
from cdc.stream.batches.spaces import no_longer_published
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.upstream import start
from cdc.upstream.failover import BackOff
from cdc.upstream.start import Known, StateForeignError


class Daemon:
    """A run of the daemon, from its start to its stop."""

    def __init__(self, config: Config, options: StartOptions | None = None, new_source: NewSource = Members) -> None:
        """Open http.listen. Raises ConfigurationError if that fails, NameTakenError if a daemon of this name uses the address."""
        self._config = config
        self._start_options = options or StartOptions()
        self._log = structlog.get_logger().bind(name=config.name)
        self._writer_id = str(uuid.uuid4())
        self._is_stopping = threading.Event()
        self._publisher: Publisher | None = None
        # The last position that an earlier publisher committed.
        self._committed: Position | None = None
        # Once this process has been admitted.
        self._given: GivenNumbers | None = None
        self._writer: StateWriter | None = None
        self._checkpoint = Checkpoint()
        self._directory_lock: StateDirectoryLock | None = None
        # The checkpoint of the process that had the name, if this one has waited for its end.
        self._left_behind: Checkpoint | None = None
        # Whether it has tried to get the name. If two do so at the same time, the other one may have it now.
        self._has_tried = False
        # Whether the store belongs to the checkpoint's writer, or --rebuild-state allows any store.
        self._is_store_ours = True
        self._life: SignOfLife | None = None
        # Once this process has had the name: the ids of this process and of the checkpoint's previous writer.
        self._writers: set[str | None] = set()
        self._connect_count = 0
        # Back-off after aborted Kafka transactions, and the checkpoint at the last abort.
        self._kafka_back_off = BackOff()
        self._thrown_back_to: Position | None = None
        # The last error that led to a wait. It isn't logged a second time until changes flow again.
        self._waited_for: str | None = None
        self._observations = Observations()
        # Position up to which complete source transactions were submitted to a publisher.
        self._published = VClock()
        # The checkpoint when a source transaction took too long to publish.
        self._timed_out_at: Position | None = None
        # The reason for a snapshot requested by the stream itself: for example a gap that the ballot did not show.
        self._forced_snapshot: str | None = None
        # Whether the schema has already been read from a snapshot because a row's space was unknown. A second time wouldn't help.
        self._has_read_lost_forms = False
        transactional = config.kafka.delivery == "exactly_once"
        self._aborted = "a Kafka transaction was aborted" if transactional else "not all messages were delivered"
        self._requests = RequestQueue(start_alone=config.kafka.delivery == "at_least_once")
        patience = config.kafka.stalled_after_ms / 1000
        self.status = Status(
            config.name,
            row_path=path_of(config)[0],
            requests=self._requests,
            stalled_after_seconds=patience,
            setup=setup_of(config),
        )
        self._view = View(self.status)
        self._stall_watch = StallWatch(self.status, self._view.look)
        self._lineage = of_configuration(config, self.status, lambda: self._checkpoint)
        self._schema_ids = schema_ids.of_configuration(config.format)
        context = RunContext.of(config, self.status, self._is_stopping, self._schema_ids, self._view.tail)
        self._source = new_source(context, self._requests)
        self._listener = Listener(config, self._start_options, self._view)
        self._former = admission.Former(config, self._start_options, self._writer_id)

    @property
    def http_port(self) -> int | None:
        """Port of /metrics and /status, or None if they aren't served."""
        return self._listener.port

    def stop(self) -> None:
        """Request a clean stop. For any thread, not for a signal handler: see cdc.ops.signals."""
        self._is_stopping.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        """Follow the master until stopped, or until caught up. Raises errors that need an operator."""
        tune_garbage_collector()
        goal = Goal(until_caught_up)
        try:
            if self._config.state.images == "full" and is_there(admission.store_path(self._config)):
                self._writer = open_store(self._config)
            self._stall_watch.start()
            if self._lineage is not None:
                self._lineage.start()
            self._stand_by(until_caught_up=until_caught_up)
            self._source.start()
            while not self._is_stopping.is_set():
                try:
                    if self._publisher is None:
                        self.status.state = "waiting for kafka"
                        if not self._writers and self._has_turn(until_caught_up=until_caught_up):
                            self._be_admitted()
                        if self._is_stopping.is_set():
                            break
                        self._publisher = self._start_publisher()
                        self._listener.open_late(self._is_stopping)
                        self._listener.make_token()
                    # What is published from here on comes after all that a fenced daemon publishes, and is numbered so.
                    self._former.await_end(self._is_stopping.is_set)
                    self._publisher.writer.awaits_former = self._former.is_awaited
                    check_publisher(self._publisher)
                    if self._follow(self._publisher, goal):
                        break
                except CdcError as error:
                    self._recover(error)
            self.status.state = "stopping"
        except ForbiddenError as error:
            name, kafka = self._config.name, self._config.kafka
            explained = rights.explained(error, name, kafka, KafkaClients(name, kafka))
            self._show_error(explained)
            self.status.state = "failed"
            raise explained from error
        except CdcError as error:
            is_standby_now = isinstance(error, FencedError) and self._config.standby
            error.hint = STANDBY_HINT if is_standby_now else self._start_options.added_to(error.hint)
            self._show_error(error)
            self.status.state = "failed"
            if isinstance(error, StateForeignError) and self._directory_lock is not None:
                # This process has become the checkpoint's writer. The next one must not conclude that the store is the right one.
                self._directory_lock.remove_holder(self._writer_id)
            raise
        finally:
            self._stop_publisher()
            self._close_writer()
            if self._directory_lock is not None:
                self._directory_lock.close()
            self._source.close()
            if self._schema_ids is not None:
                self._schema_ids.close()
            self._stall_watch.close()
            if self._lineage is not None:
                self._lineage.close(sys.exception())
            self._listener.close()

    def _show_error(self, error: CdcError) -> None:
        status = self.status
        status.error_remedy, status.error_detail, status.error = error.hint, error.detail, error.public

    def _close_writer(self) -> None:
        """Close the store. Raises StateError, unless another error is being raised already: then the failure is only logged."""
        is_failing = sys.exception() is not None
        try:
            if self._writer is not None:
                self._writer.close()
        except StateError as error:
            if not is_failing:
                raise
            self._log.warning("the state store can't be closed cleanly", reason=str(error))

    def _stand_by(self, *, until_caught_up: bool) -> None:
        """If this daemon is to be a standby, wait until it can take the name."""
        if until_caught_up or not self._config.standby or self._start_options.claims_at_once:
            return
        self.status.state = "standby"
        if self._config.state.images == "full" and self._writer is None:
            self._writer = open_store(self._config)
        self._directory_lock = self._directory_lock or StateDirectoryLock(self._config)
        standby = Standby(self._config, self.status, self._is_stopping, self._writer)
        self._left_behind = standby.await_turn(self._directory_lock, self._writer_id)

    def _has_turn(self, *, until_caught_up: bool) -> bool:
        """Return whether to try to get the name; False if a stop is requested. After a lost try it may be another's.

        That one may have found this one's id in the checkpoint, and takes for its own what is written under it: so it is changed.
        """
        if self._has_tried:
            self._writer_id = str(uuid.uuid4())
            self._former = admission.Former(self._config, self._start_options, self._writer_id)
            self._stand_by(until_caught_up=until_caught_up)
        self._has_tried = True
        return not self._is_stopping.is_set()

    def _be_admitted(self) -> None:
        """Check, before claiming the name, that the claim harms no other daemon and causes no unintended republishing."""
        config, options = self._config, self._start_options
        # From the second round on, the reason has been logged already.
        tell = self._log.debug if self._waited_for is not None else self._log.info
        # A standby has read it a moment ago.
        left, self._left_behind = self._left_behind, None
        stored = left or admission.read(config, lambda reason: tell("kafka doesn't answer yet", reason=reason))
        if not options.take_prefix:
            admission.check_owner(config, stored)
        if not options.rebuild_state:
            if not options.take_prefix:
                admission.check_position(config, stored, self._writer.position if self._writer is not None else None)
            admission.check_store_prefix(config)
            admission.check_store_is_here(config, stored, self._is_stopping.is_set, looks_elsewhere=not options.take_over)
        is_alone = options.take_over or left is not None
        if config.state.images == "full" and self._writer is None:
            if not is_alone and not is_there(admission.store_path(config)):
                # Checked before a store is created: the next start would fill an empty store without asking.
                admission.check_alone(config, stored, (), self._is_stopping.is_set)
                is_alone = True
            self._writer = open_store(self._config)
        self._directory_lock = self._directory_lock or StateDirectoryLock(config)
        self._is_store_ours = options.rebuild_state or admission.is_store_ours(
            config, stored, self._directory_lock.former_writers()
        )
        start.check_store(known_before(config, stored, self._writer, is_store_ours=self._is_store_ours))
        self._given = self._given or GivenNumbers(config, self._directory_lock.former_writers())
        self._observations.numbers = self._given.file
        former = admission.former_holder(config, stored)
        if not is_alone:
            admission.check_alone(config, stored, self._directory_lock.former_holders(), self._is_stopping.is_set)
        elif options.take_over and former is not None:
            self._log.info("claiming the name; the daemon that has it stops within seconds", former=former)
        if options.take_prefix:
            admission.release_prefix(config, stored, self._is_stopping.is_set)
        if not self._is_stopping.is_set():
            admission.fence_former_version(config, stored)
        if not self._is_stopping.is_set():
            self._directory_lock.record_holder(self._writer_id)

    # Following.

    def _follow(self, publisher: Publisher, goal: Goal) -> bool:
        """Open one stream from the source and run it. Return whether the goal was reached."""
        self.status.state = "connecting"
        beginning = Beginning(self._known(), self._checkpoint, publisher, self._writer, goal, self._observations)
        with self._source.opened(beginning) as stream:
            self.status.reconnect_count = self._connect_count
            self._connect_count += 1
            self._forced_snapshot = None
            # What this process does to it from here on may leave it empty, or in the middle of a snapshot.
            self._is_store_ours = self._is_store_ours or start.makes_ours(beginning.known)
            try:
                return stream.run()
            except PublishAborted:
                raise
            except CdcError as error:
                if self._config.columns.rules:
                    error.conceal()
                self._source.failed(error)
                self._settle_or_go_back(stream.collect_submitted, error)
                raise
            finally:
                self._published = stream.published
                if stream.has_streamed:
                    self._is_store_ours = True  # the store has been brought up to the checkpoint
                    self._waited_for = None

    def _known(self) -> Known:
        """Return what is known before the next connection. Raises StateError."""
        return known_before(
            self._config,
            self._checkpoint,
            self._writer,
            forced=self._forced_snapshot,
            is_first_connect=self._connect_count == 0,
            is_store_ours=self._is_store_ours,
            witnesses=self._given.witnesses if self._given is not None else None,
        )

    # Errors.

    def _recover(self, error: CdcError) -> None:
        """Prepare another round after an error, or raise the error again if a retry can't help."""
        match error:
            case _ if self._source.try_fail_over(error):
                pass
            case PublishAborted() if self._is_stopping.is_set():
                self._log.info("stopping", reason=str(error))
            case PublishAborted():
                self._log.warning(f"{self._aborted}; going back to the checkpoint", reason=str(error))
                self._slow_down()
                self._go_back()
            case TransactionTimeoutError() if self._publisher is not None:
                # Kafka may have stalled, so the daemon retries once from the same position.
                position = self._checkpoint.position or Position()
                if position == self._timed_out_at:
                    raise error
                self._timed_out_at = position
                self._log.warning("a source transaction could not be published in time; trying once more", reason=str(error))
                self._discard_publisher()
            case ProducerLostError() if self._publisher is not None:
                # A second daemon of this name may have fenced the producer, or the coordinator may have timed out a transaction
                # while Kafka was unavailable. A new producer finds out which, and continues only in the second case.
                is_fenced = isinstance(error, FencedError)
                what = "was fenced; checking which daemon has the name" if is_fenced else "is unusable; making a new one"
                self._log.warning(f"the Kafka producer {what}", reason=str(error))
                self._slow_down()
                self._discard_publisher()
            case XlogGapError() if self._config.source.on_gap == "resnapshot" or self._config.snapshot.mode == "when_needed":
                self._log.warning("the stream has a gap", reason=error.message)
                self._forced_snapshot = error.message
            case OtherHistoryError() if self._config.source.on_divergence == "resnapshot":
                self._log.warning("published changes were lost", reason=error.message)
                self._forced_snapshot = error.message
            case SnapshotNeededError():
                self._log.warning("the stream can continue only from a snapshot", reason=str(error))
                self._forced_snapshot = error.message
            case UnknownSpaceError() if not self._has_read_lost_forms:
                # Without a store, only a snapshot has the forms that the checkpoint topic has lost.
                self._has_read_lost_forms = True
                self._log.warning("the schema at the checkpoint is incomplete; reading it from a snapshot", reason=str(error))
                self._forced_snapshot = error.message
            case _ if error.remedy is Remedy.WAIT:
                delay = jittered(self._source.next_delay())
                # The wait for the end of the former daemon's connection is logged once.
                is_told = isinstance(error, ServerError) and error.code == ErrorCode.CFG and self._waited_for == str(error)
                self._waited_for = str(error)
                self._show_error(error)
                tell = self._log.debug if is_told else self._log.warning
                tell("waiting", reason=str(error), retry_seconds=round(delay, 2))
                self._is_stopping.wait(delay)
                self._source.delay_elapsed()
            case _:
                raise error

    def _settle_or_go_back(self, collect_submitted: Callable[[], object], first: CdcError) -> None:
        """Prepare to resume after an error of the source: after the submitted batches, or from the checkpoint if they can't be
        committed.

        If the `first` error needs an operator, a later error here isn't raised in its place, but only logged.
        """
        try:
            collect_submitted()
        except PublishAborted as error:
            self._log.warning(f"{self._aborted}; going back to the checkpoint", reason=str(error))
            self._go_back()
        except CdcError as error:
            if first.remedy is Remedy.WAIT:
                raise
            self._log.warning("the submitted batches can't be settled", reason=str(error))

    def _slow_down(self) -> None:
        """Delay the retry after Kafka discarded events: not at first, then with growing delays while nothing is committed."""
        position = self._checkpoint.position
        if position != self._thrown_back_to:
            self._thrown_back_to = position
            self._kafka_back_off.reset()
        else:
            self._is_stopping.wait(jittered(self._kafka_back_off.next()))

    # The publisher.

    def _start_publisher(self) -> Publisher:
        has_store = self._config.state.images == "full"
        publisher = Publisher(
            self._config.name,
            self._config.kafka,
            Writer(self._writer_id, has_store),
            statistics=self.status.kafka,
            topics_seen=self._given.seen_topics if self._given is not None else None,
            row_work_lock=new_row_work_lock(self._config),
        )
        takes_prefix = self._start_options.take_prefix and not self._writers
        try:
            self._checkpoint = publisher.start(
                expected_writers=self._writers,
                takes_prefix=takes_prefix,
                known=self._newest_committed(),
                is_to_be_awaited=lambda stored: self._former.is_to_be_awaited(stored, self._directory_lock),
            )
        except PublishAborted as error:
            _discard(publisher)
            # No stream exists yet, so there is nothing to return to. Kafka isn't ready, so the start is retried.
            raise ConnectionLostError(error.message, error.hint) from error
        except CdcError:
            _discard(publisher)
            raise
        self._writers |= {self._writer_id, self._checkpoint.writer}
        try:
            if self._given is not None:
                self._given.name_claimed(publisher, self._checkpoint, self._committed)
        except CdcError:
            _discard(publisher)
            raise
        if self._life is None:
            kafka, name = self._config.kafka, self._config.name
            topic = checkpoint_topic.name_of(kafka.control_prefix)
            self._life = SignOfLife(KafkaClients(name, kafka), topic, name, self._writer_id)
            self._life.start()
        position = self._checkpoint.position
        self._log.info("kafka is ready", checkpoint=str(position.vclock) if position else None)
        left_out = no_longer_published(self._checkpoint.spaces.values(), options_of(self._config).space_filter())
        if left_out and self._connect_count == 0:
            self._log.warning("some spaces are no longer published; consumers keep their rows", spaces=list(left_out))
        self._source.succeeded()
        return publisher

    def _newest_committed(self) -> Position | None:
        """Return the newest position known to be committed: by this process, or by the state store from an earlier one."""
        stored = self._writer.position if self._writer is not None else None
        return max((found for found in (self._committed, stored) if found is not None), key=lambda found: found.seq, default=None)

    def _discard_publisher(self) -> None:
        assert self._publisher is not None
        self._committed = self._publisher.committed or self._committed
        _discard(self._publisher)
        if self._given is not None:
            self._given.seen_topics = self._publisher.topics_seen
        self._publisher = None

    def _go_back(self) -> None:
        assert self._publisher is not None
        self.status.state = "waiting for kafka"
        while not self._is_stopping.is_set():
            try:
                checkpoint = self._publisher.reload()
            except ConnectionLostError as error:
                self._log.warning("the checkpoint can't be read yet", reason=str(error))
                self._is_stopping.wait(jittered(self._source.next_delay()))
                continue
            if checkpoint is None:
                # Only claiming the name again reveals whether Kafka ends a transaction slowly or the transaction hangs.
                self._log.warning("Kafka doesn't show the end of the last commit; claiming the name again")
                self._discard_publisher()
                return
            if checkpoint.writer not in self._writers:
                # A frozen daemon that wakes up may meet an abort before it meets the fence. A new claim finds out.
                self._log.warning("another process has written the checkpoint; checking which daemon has the name")
                self._discard_publisher()
                return
            self._checkpoint = checkpoint
            if self._given is not None:
                self._given.checkpoint_read(checkpoint, self._publisher.committed)
            self._publisher.reset()
            return

    def _stop_publisher(self) -> None:
        if self._publisher is None:
            if self._life is not None:
                self._life.close(is_clean=False)
            if sys.exception() is None:
                self._log.info("stopped")
            return
        is_whole = self._publisher.stop(self._config.kafka.stop_timeout_ms / 1000)
        if self._life is not None:
            self._life.close(is_clean=is_whole)
        if self._writer is not None:
            for position in self._publisher.last_settled():
                self._writer.mark_committed(position)
        committed = self._publisher.committed
        vclock = committed.vclock if committed is not None else VClock()
        # A clean stop isn't proof: after an abort, the aborted batches may not have been submitted again yet.
        if is_whole and vclock.covers(self._published):
            if self._given is not None:
                self._given.stopped(self._checkpoint, committed)
            self._log.info("stopped", seq=committed.seq if committed is not None else 0, checkpoint=str(vclock))
        else:
            self._log.warning("stopped before all was committed in Kafka; the next start resumes from the checkpoint, if any")
        report_unended(self._publisher, self._config.name)


def _discard(publisher: Publisher) -> None:
    """Stop an unusable publisher, and collect garbage.

    Its producers hold threads and sockets until the garbage collector closes them, and the collector rarely runs while no rows
    flow.
    """
    publisher.stop(0)
    gc.collect()
