"""Runner of one source's pipeline, from the rows to the settled batches.

    source ─▶ pipeline ─▶ submit ─┬─▶ publisher ─▶ Kafka ─collect_commits─▶ ledger, without a state store
                                  └─▶ writer: the images' changes ───────┴─▶ flush ─▶ ledger, with a state store

A plan says where the pipeline begins (cdc.upstream.start). This module doesn't know whether rows come from a connection or from
files. Every batch waits for room, so that the queue exceeds its limit by one batch at most. A batch holds about a MiB
(PipelineOptions.batch_bytes_max).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import structlog

from cdc.daemon.beginning import Beginning, RunContext
from cdc.daemon.clock import now_us
from cdc.daemon.start import begin, formats_of, options_of
from cdc.errors import CdcError, ConnectionLostError, PublishAborted
from cdc.formats.options import Registration
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.store.files import translate_lmdb_errors
from cdc.store.spool import FileSpool
from cdc.store.writer import UNWRITTEN_BYTES_MAX, StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.options import Surroundings
from cdc.stream.batches.spaces import newly_published, no_longer_published
from cdc.stream.pipeline import Pipeline
from cdc.stream.reports import limbo_watch
from cdc.stream.reports.schema_news import schema_reports
from cdc.upstream.selection import Needed
from cdc.upstream.start import StartPlan


@dataclass(frozen=True, slots=True)
class Server:
    """Server that the rows come from, with its version, and its address for messages."""

    server_uuid: UUID
    version: tuple[int, int, int]
    address: str


class PipelineRunner:
    """One pipeline, its publisher and its state store. For the daemon's thread."""

    def __init__(
        self,
        context: RunContext,
        beginning: Beginning,
        plan: StartPlan,
        server: Server,
        *,
        while_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the pipeline as the plan says.

        `while_waiting` is called every source.ack_interval_ms while there is no room. Raises StateError.
        """
        config, status, writer = context.config, context.status, beginning.writer
        self._config = config
        self._publisher = beginning.publisher
        self._checkpoint = beginning.checkpoint
        self._plan = plan
        self._server = server
        self._status = status
        self._is_stopping = context.is_stopping
        self._new_names = context.new_names
        self._writer = writer
        # Write the store as soon as all batches are committed.
        self._flushes_at_once = beginning.goal.until_caught_up
        self._while_waiting = while_waiting
        self._log = structlog.get_logger().bind(name=config.name, upstream=server.address)
        self._schema_ids = context.schema_ids
        self._buckets = context.buckets
        self._tail = context.tail
        # Whether the lock of the row work is held: the pipeline is at work.
        self._is_at_work = False
        self._imageless_count = 0
        self._observations = beginning.observations
        # The count of earlier connections, and the doubtful keys that have been logged.
        self._earlier_upsert_count = self._observations.merging_upsert_count
        self._doubtful: frozenset[bytes] = frozenset()
        # Whether the last batch ended within a transaction.
        self._is_inside = False
        self._is_store_removed = False
        self.last_timestamp: float | None = None
        """Timestamp of the newest submitted row."""
        self.published = VClock()
        """Position up to which complete source transactions were submitted."""
        self.pipeline = self._begin()
        """Pipeline for the rows. `prepare_snapshot` may replace it."""
        if writer is not None:
            self._update_store_status(writer)
        # The store may be behind the checkpoint. Operators and consumers see the checkpoint; `store_position` shows the store's.
        position = self.pipeline.published_position
        self.published = status.received = status.published = status.checkpoint = position.vclock
        self._show_numbers(position)
        status.upstream, status.server_uuid = server.address, str(server.server_uuid)

    def prepare_snapshot(self) -> Numbers:
        """Prepare for a snapshot, and return the numbers that its events must exceed, besides the pipeline's own.

        The state store then has exactly the consumers' rows, or none, as a snapshot is compared with the store's rows. Raises
        StateError.
        """
        position = self._checkpoint.position
        has_published = position is not None and position.snapshot is not None
        newest = self._newest_numbers() if self._may_be_passed or not has_published else Numbers()
        if self._writer is not None and newest.seq > (position.seq if position is not None else 0):
            # Consumers have events after the checkpoint, so the store's rows aren't the consumers' rows.
            self._plan = replace(self._plan, clears_store="Kafka has events that the checkpoint doesn't know of")
            self.pipeline = self._begin()
        return newest | self._plan.given

    @property
    def _may_be_passed(self) -> bool:
        """Whether consumers may have events after the checkpoint, from this or a former run with at_least_once delivery."""
        numbers = self._observations.numbers
        return self._config.kafka.delivery == "at_least_once" or (numbers is not None and numbers.may_be_passed)

    def _seq_after_published(self, position: Position | None) -> Position | None:
        """Return `position` with its `seq` raised above all events that consumers may have.

        With at_least_once delivery, consumers may have events after the checkpoint, and new events must not get lower seqs.
        The `seq` isn't raised if the stream repeats exactly the same events under the same seqs. For that, no backfill may have
        been running, as its events aren't repeated. Also the same server must send the log, as another server may order the rows
        of several origins differently, and the same spaces must be published.
        """
        if position is None or position.snapshot is None or not self._may_be_passed:
            return position
        spaces, is_included = self._checkpoint.spaces.values(), options_of(self._config).space_filter()
        is_same_log = len(self._config.source.uris) == 1 and position.server_uuid == self._server.server_uuid
        has_same_spaces = not newly_published(spaces, is_included) and not no_longer_published(spaces, is_included)
        if is_same_log and has_same_spaces and not position.snapshot.open_request:
            return position
        return replace(position, seq=max(position.seq, self._newest_numbers().seq))

    def _newest_numbers(self) -> Numbers:
        """Return the newest numbers in Kafka; zeros if a stop is requested meanwhile. Waits while Kafka is unavailable.

        With at_least_once delivery, or after the loss of a checkpoint, consumers may have events after the checkpoint.
        """
        while not self._is_stopping.is_set():
            try:
                return self._publisher.newest_numbers()
            except ConnectionLostError as error:
                self._log.warning("waiting", reason=str(error))
                self._is_stopping.wait(1.0)
        return Numbers()

    def submit_all(self, batches: Iterator[Batch]) -> None:
        """Submit batches one by one, as they are made. Raises the errors of `submit`, StateError, and those of the iterator."""
        is_first = True
        while True:
            with self._row_work(), translate_lmdb_errors(self._config.state.path / "images"):
                batch = next(batches, None)
            if batch is None:
                return
            if self._is_stopping.is_set() and not is_first and not self._is_inside:
                raise PublishAborted("stopped before all batches had been submitted")
            self.submit(batch)
            is_first = False

    @contextmanager
    def _row_work(self) -> Iterator[None]:
        with self._publisher.row_work_lock:
            self._is_at_work = True
            try:
                yield
            finally:
                self._is_at_work = False

    def _id_of_schema(self, wanted: Registration) -> int:
        """Return a schema's id, as soon as the registry has given it one; rows wait, and everything else goes on.

        Raises PublishAborted if a stop is requested meanwhile, and the errors of `collect_commits`.
        """
        registry = self._schema_ids
        assert registry is not None, "only formats that need a registry ask for ids"
        found = registry.find(wanted)
        if found is not None:
            return found
        lock, was_at_work = self._publisher.row_work_lock, self._is_at_work
        if was_at_work:
            lock.__exit__(None, None, None)  # the publisher's thread goes on with what it has
        try:
            while (found := registry.find(wanted)) is None:
                if self._is_stopping.is_set():
                    raise PublishAborted(f"stopped while rows waited for the registry's id of {wanted.subject!r}")
                registry.wait(self._config.source.ack_interval_ms / 1000)
                self.collect_commits(is_forced=True)
                self._while_waiting()
                self._status.registry_wait = registry.waiting
                self.update_status()
        finally:
            registry.forget()
            self._status.registry_wait = None
            if was_at_work:
                lock.__enter__()
        return found

    @property
    def has_room(self) -> bool:
        """Whether another batch should be submitted.

        Within a source transaction only the room in the publisher's queue counts: the store is written at the transaction's end.
        """
        writer = self._writer
        return self._publisher.has_room and (self._is_inside or writer is None or writer.unwritten_bytes < UNWRITTEN_BYTES_MAX)

    def _wait_for_room(self) -> None:
        while not self.has_room:
            if self._is_stopping.is_set():
                raise PublishAborted("stopped while Kafka had no room for more")
            if self._publisher.has_room:
                self.wait(self._config.source.ack_interval_ms / 1000)
            else:
                self._publisher.wait_for_room(self._config.source.ack_interval_ms / 1000)
            self.collect_commits(is_forced=self._publisher.has_room)
            self._while_waiting()
            self.update_status()

    def submit(self, batch: Batch) -> None:
        """Wait for room, and submit a batch.

        Raises PublishAborted, also if a stop is requested meanwhile, or the publisher's error.
        """
        if batch.is_pause:
            self.collect_commits()
            self._while_waiting()
            if self._is_stopping.is_set():
                raise PublishAborted("stopped while a space's rows were brought under another primary key")
            return
        try:
            self._wait_for_room()
        except CdcError:
            if batch.is_boundary:
                self.pipeline.ledger.withdraw(batch.position)
            raise
        if batch.is_catch_up:
            assert self._writer is not None
            self._writer.submit(batch)
            self._writer.mark_committed(batch.position)
            self._count_rows(batch)
            return
        if self._observations.numbers is not None:
            self._observations.numbers.reserve(self.pipeline.seq)
        if self._writer is not None:
            self._writer.submit(batch)
        images = self.pipeline.images
        for sentence, about in schema_reports(batch, self._checkpoint.spaces, has_images=images is not None):
            self._log.info(sentence, **about)
        for space_id, space in batch.stored.items():
            if space is None:
                self._checkpoint.spaces.pop(space_id, None)
            else:
                self._checkpoint.spaces[space_id] = space
        if self._tail is not None:
            self._tail.note(batch)
        self._publisher.submit(batch)
        self._is_inside = not batch.is_boundary
        if images is not None and len(images.spaces_without_images) > self._imageless_count:
            self._imageless_count = len(images.spaces_without_images)
            self._log.warning("events of these spaces are published without images", reasons=dict(images.spaces_without_images))
        self._report_uncertain_rows()
        status = self._status
        self._count_rows(batch)
        if batch.timestamp:
            self.last_timestamp = batch.timestamp
        if batch.is_boundary:
            self.published = status.published = batch.position.vclock
            self._show_numbers(batch.position)

    def _count_rows(self, batch: Batch) -> None:
        self._status.native_row_count += batch.native_row_count
        self._status.python_row_count += batch.row_count - batch.native_row_count

    def _show_numbers(self, position: Position) -> None:
        status = self._status
        status.seq, status.schema_version = position.seq, position.schema_version
        if position.snapshot is not None:
            status.snapshot_id = position.snapshot.snapshot_id

    def _report_uncertain_rows(self) -> None:
        """Count and log rows whose result may differ from the master's: merging UPSERTs, and rows that couldn't be computed."""
        pipeline, status, observations = self.pipeline, self._status, self._observations
        count = self._earlier_upsert_count + pipeline.merging_upsert_count
        if count and not observations.merging_upsert_count:
            version = ".".join(map(str, self._server.version))
            self._log.warning("this server merges UPSERTs of vinyl spaces: see docs/guarantees.md", version=version)
        observations.merging_upsert_count = status.merging_upsert_count = count
        images = pipeline.images
        if images is not None and images.doubtful != self._doubtful:
            if images.doubtful - self._doubtful:
                self._log.warning(
                    "rows couldn't be computed and went to the dead-letter topic, whose records name the remedy",
                    keys=len(images.doubtful),
                )
            self._doubtful, status.doubtful_key_count = images.doubtful, len(images.doubtful)

    def collect_commits(self, *, is_forced: bool = False) -> None:
        """Settle the batches that are durable now. Raises PublishAborted, StateError, or the publisher's error."""
        ledger, writer = self.pipeline.ledger, self._writer
        self._status.turned_at = time.monotonic()
        if self._schema_ids is not None:
            self._schema_ids.check()
        for position in self._publisher.collect():
            self._checkpoint.position = position
            self._status.checkpoint = position.vclock
            if writer is None:
                ledger.settle(position)
            else:
                writer.mark_committed(position)
        if self._observations.numbers is not None:
            self._observations.numbers.record(self._checkpoint.position)
        if writer is not None:
            with self._publisher.row_work_lock:
                stored = writer.flush(is_forced=is_forced, is_at_once=self._flushes_at_once or self._is_comparing)
            if stored is not None:
                ledger.settle(stored)
                self._update_store_status(writer)

    @property
    def _is_comparing(self) -> bool:
        """Whether a snapshot is being compared with the store's rows.

        If the daemon is killed while the store lacks snapshot rows that Kafka has, the next snapshot can't be compared with the
        store, and all rows are published again. Therefore the store is written as soon as possible meanwhile.
        """
        return self.pipeline.images is not None and self.pipeline.images.is_comparing

    def wait_until_settled(self) -> bool:
        """Wait until all submitted batches are durable. Return False if a stop was requested meanwhile.

        If the last batch ended within a source transaction, that transaction can never be committed. The publisher aborts it,
        and PublishAborted is raised once it has. Raises the errors of `collect_commits`.
        """
        if self._is_inside:
            self._publisher.abandon("the source ended within a transaction that was being published")
        while self._is_inside or self.pipeline.ledger.unsettled_count:
            if self._is_stopping.is_set():
                return False
            self.wait(1.0)
            self.collect_commits(is_forced=True)
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Wait until the publisher has news, or the time has passed."""
        poller = select.poll()
        poller.register(self._publisher.wake_fd, select.POLLIN)
        poller.poll(timeout_seconds * 1000)

    def needed(self) -> Needed:
        """Return what a member must have to be followed from the durable position. May be called from any thread."""
        position, writer = self._checkpoint.position, self._writer
        published = position.vclock if position is not None else VClock()
        stored = writer.position if writer is not None else None
        return Needed(
            published,
            logs_from=stored.vclock if stored is not None else published,
            ignored=self._plan.ignored,
            replicaset_uuid=position.replicaset_uuid if position is not None else None,
        )

    def update_status(self) -> None:
        """Update the status: the amounts of data that wait, and where they wait."""
        pipeline, status, observations = self.pipeline, self._status, self._observations
        status.turned_at = time.monotonic()
        status.queued_bytes = self._publisher.queued_bytes
        status.open_transaction_bytes = pipeline.open_byte_count
        status.is_reading = self.has_room
        status.unwritten_bytes = self._writer.unwritten_bytes if self._writer is not None else 0
        self._look_for_store()
        limbo = pipeline.limbo
        status.limbo = limbo
        if not pipeline.is_catching_up:  # until then, the rows up to the checkpoint were received by an earlier connection
            status.received = pipeline.ledger.received
        alert_ms = self._config.source.quorum_alert_ms
        overdue, message = limbo_watch.check_overdue(limbo, observations.overdue_quorum, now_us(), alert_ms=alert_ms)
        observations.overdue_quorum = status.overdue_quorum = overdue
        if message and overdue is not None:
            self._log.warning("waiting for a quorum", reason=message)
        elif message:
            self._log.info("the wait for a quorum is over", reason=message)

    def _look_for_store(self) -> None:
        is_removed = self._writer is not None and self._writer.store.file.is_removed
        if is_removed and not self._is_store_removed:
            self._log.warning(
                "the state store's files were removed: the daemon goes on with what it has open, and once it stops, all rows "
                "have to be published again (--rebuild-state)",
                path=str(self._config.state.path),
            )
        self._is_store_removed = self._status.is_store_removed = is_removed

    def _update_store_status(self, writer: StateWriter) -> None:
        status = self._status
        status.store_position = writer.position.vclock if writer.position is not None else VClock()
        status.state_rows, status.state_bytes = writer.store.row_count, writer.size_bytes

    # Start.

    def _begin(self) -> Pipeline:
        plan = self._plan
        if plan.clears_store is not None:
            self._log.warning("refilling the state store from a snapshot", reason=plan.clears_store)
        if plan.catch_up_to is not None:
            self._log.info("bringing the state store up to the checkpoint", store=str(plan.position.vclock))
        path, server = Path(self._config.state.path), self._server
        formats = formats_of(self._config, self._id_of_schema)
        options = replace(options_of(self._config), formats=formats)
        shards = self._buckets.begin() if self._buckets is not None else None
        surroundings = Surroundings(options, server.server_uuid, server.version, lambda: FileSpool(path), self._new_names, shards)
        checkpoint = replace(self._checkpoint, position=self._seq_after_published(self._checkpoint.position))
        if plan.catch_up_to is not None:
            plan = replace(plan, catch_up_to=checkpoint.position)
        return begin(plan, checkpoint, self._writer, surroundings)
