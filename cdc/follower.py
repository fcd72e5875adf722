"""One connection's work: socket, session, pipeline and publisher, joined by one loop.

    greet ─▶ authenticate ─▶ vote ─▶ resume.decide ─┬─▶ snapshot ─▶ wait until it is durable ─┐
                                                    └──────────────▶ subscribe ◀──────────────┘
                                                                        │ rows ─▶ pipeline ─▶ publisher
                                                                        └ settled ─▶ ledger ─▶ ACK

The loop never waits longer than until the next ACK is due, so the master hears from us while Kafka is away and nothing is
read. It contains the I/O and no decisions: those are resume's, the session's and the pipeline's.
"""

from __future__ import annotations

import gc
import select
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import structlog

from cdc import resume
from cdc.change import Batch
from cdc.checkpoint import Checkpoint
from cdc.config import Config, Member
from cdc.errors import ConnectionLostError, PublishAborted, Remedy, ServerError
from cdc.images import Images
from cdc.options import PipelineOptions
from cdc.pipeline import Pipeline
from cdc.position import Position
from cdc.progress import SnapshotProgress
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import ErrorCode
from cdc.protocol.session import (
    Authenticated,
    Event,
    Greeted,
    Heartbeat,
    Identified,
    Session,
    SnapshotFinished,
    SnapshotRows,
    SnapshotStarted,
    StreamRows,
    Subscribed,
    Voted,
)
from cdc.publisher import Publisher
from cdc.schema import published_forms
from cdc.snapshot_requests import SnapshotRequests
from cdc.sources.tarantool import Connection
from cdc.spool import FileSpool
from cdc.state_files import told
from cdc.state_writer import StateWriter
from cdc.status import Status
from cdc.vclock import VClock

HANDSHAKE_TIMEOUT_SECONDS: Final = 15.0
SNAPSHOT_TIMEOUT_SECONDS: Final = 300.0
"""Silence that a master may keep during FETCH_SNAPSHOT: it waits for the limbo and its disk before the first row."""
REQUEST_TURN_SECONDS: Final = 0.005
"""While rows are wanted again: how long to wait for the stream until Kafka's producer is looked at once more."""

_E = TypeVar("_E", bound=Event)


def greet(member: Member, instance_uuid: UUID, *, frame_bytes_max: int) -> Connection:
    """Connect, and become the configured user. Raises ConnectionLostError, ServerError or ProtocolError."""
    connection = Connection(member.host, member.port, Session(instance_uuid, frame_bytes_max=frame_bytes_max))
    try:
        session = connection.session
        expect(connection, Greeted)
        if session.can_identify:
            session.identify()
            expect(connection, Identified)
        if member.password is not None:
            session.authenticate(member.user, member.password.get_secret_value())
            expect(connection, Authenticated)
    except BaseException:
        connection.close()
        raise
    return connection


def vote(connection: Connection) -> Ballot:
    """Ask for the ballot. Raises a ServerError that heals by waiting if the server is still loading."""
    connection.session.vote()
    ballot = expect(connection, Voted).ballot
    if not ballot.is_ready:
        raise ServerError(
            f"the server {connection.address} is still loading its data", code=ErrorCode.LOADING, remedy=Remedy.WAIT
        )
    return ballot


def expect(connection: Connection, wanted: type[_E], timeout_seconds: float = HANDSHAKE_TIMEOUT_SECONDS) -> _E:
    """Send what is to be said and wait for one event; those that came with it and after it are received next.

    Raises ConnectionLostError if it doesn't come in time.
    """
    connection.send()
    deadline = time.monotonic() + timeout_seconds
    while (remaining := deadline - time.monotonic()) > 0:
        events = connection.receive(remaining)
        for place, event in enumerate(events, 1):
            if isinstance(event, wanted):
                connection.unread(events[place:])
                return event
    raise ConnectionLostError(
        f"the server {connection.address} didn't answer in {timeout_seconds:.0f} s",
        "Check that source.uris names Tarantool's binary port.",
    )


@dataclass(slots=True)
class Goal:
    """What the run is to reach: the master's position when it was first met, if the daemon is to stop there."""

    until_caught_up: bool
    target: VClock | None = None


class Follower:
    """Follows one server until told to stop, the goal is reached, or something breaks."""

    def __init__(
        self,
        config: Config,
        connection: Connection,
        publisher: Publisher,
        checkpoint: Checkpoint,
        *,
        status: Status,
        is_stopping: threading.Event,
        goal: Goal,
        writer: StateWriter | None = None,
        requests: SnapshotRequests | None = None,
    ) -> None:
        self._writer = writer
        self._requests = SnapshotRequests() if requests is None else requests
        self._requests.restart()
        self._config = config
        self._connection = connection
        self._publisher = publisher
        self._checkpoint = checkpoint
        self._status = status
        self._is_stopping = is_stopping
        self._goal = goal
        self._log = structlog.get_logger().bind(name=config.name, upstream=connection.address)
        greeting = connection.session.greeting
        self._options = PipelineOptions(
            prefix=config.kafka.topic_prefix,
            include=list(config.spaces.include),
            exclude=list(config.spaces.exclude),
            tombstones=config.kafka.tombstones,
            transaction_topic=config.kafka.transaction_topic,
            on_error=config.format.on_error,
            transaction_bytes_max=config.source.transaction_bytes_max,
        )
        self._forced_snapshot: str | None = None
        self._unkept_count = 0
        self._pipeline = self._begin()
        if writer is not None:
            self._show_store(writer)
        self._ack_interval = config.source.ack_interval_ms / 1000
        self._next_ack = 0.0
        self._last_timestamp: float | None = None
        self._last_heard = time.monotonic()
        self.has_streamed = False
        position = self._pipeline.position
        status.received = status.published = status.checkpoint = position.vclock
        status.seq, status.schema_version = position.seq, position.schema_version
        status.upstream, status.upstream_version = connection.address, greeting.version_text
        status.server_uuid = str(greeting.uuid)

    def _begin(self) -> Pipeline:
        """The pipeline, at the checkpoint, or before it if the images have yet to come there.

        Raises PositionError or StateError.
        """
        checkpoint, writer = self._checkpoint, self._writer
        if writer is None:
            return self._new_pipeline(checkpoint)
        writer.flush(is_forced=True)
        stored = writer.checkpoint()
        beginning = resume.reconcile(checkpoint.position, stored.position)
        self._forced_snapshot = beginning.reason
        if not beginning.is_store_good:
            self._log.warning("emptying the state store", reason=beginning.reason or "there is no checkpoint")
            writer.restart()
            stored = Checkpoint()
        kept = published_forms(stored.spaces.values())
        version = self._connection.session.greeting.version[:2]
        if beginning.replays and self._newly_published(self._new_pipeline(checkpoint)):
            self._forced_snapshot = "newly published spaces"
            return self._afresh()
        if not beginning.replays:
            pipeline = self._new_pipeline(checkpoint, images=writer.begin(kept, version))
            writer.keep_only(form.space_id for form in pipeline.published_forms())
            new = self._newly_published(pipeline)
            if new and checkpoint.position is not None:
                self._forced_snapshot = self._forced_snapshot or f"newly published: {', '.join(new)}"
            return pipeline
        assert checkpoint.position is not None
        self._log.info("bringing the state store up to the checkpoint", store=str(stored.position and stored.position.vclock))
        return self._new_pipeline(stored, images=writer.begin(kept, version), replay_until=checkpoint.position)

    def _afresh(self) -> Pipeline:
        """A pipeline at the checkpoint with an empty store."""
        assert self._writer is not None
        self._writer.restart()
        return self._new_pipeline(self._checkpoint, images=self._writer.begin((), self._connection.session.greeting.version[:2]))

    @staticmethod
    def _newly_published(pipeline: Pipeline) -> list[str]:
        """Names of spaces that weren't published up to the pipeline's position."""
        return [form.name for form in pipeline.published_forms() if not form.schema_version]

    def _new_pipeline(
        self, checkpoint: Checkpoint, images: Images | None = None, replay_until: Position | None = None
    ) -> Pipeline:
        return Pipeline(
            self._options,
            checkpoint.position or Position(),
            list(checkpoint.spaces.values()),
            server_uuid=self._connection.session.greeting.uuid,
            new_spool=lambda: FileSpool(Path(self._config.state.path)),
            images=images,
            replay_until=replay_until,
        )

    def run(self, ballot: Ballot, *, is_first_connect: bool, forced_snapshot: str | None) -> bool:
        """Take a snapshot if one is needed, then follow the stream.

        Returns whether the goal was reached; False means that a stop was asked for. Raises what breaks.
        """
        config = self._config
        if self._goal.target is None:
            self._goal.target = ballot.vclock
        self._status.master_vclock = ballot.vclock
        decision: resume.Continue | resume.TakeSnapshot
        forced = forced_snapshot or self._forced_snapshot
        if forced is not None:
            decision = resume.TakeSnapshot(forced, publish=config.snapshot.mode != "never")
        else:
            decision = resume.decide(
                self._checkpoint.position,
                ballot,
                store=self._pipeline.position if self._pipeline.is_replaying else None,
                mode=config.snapshot.mode,
                on_gap=config.source.on_gap,
                on_divergence=config.source.on_divergence,
                is_first_connect=is_first_connect,
            )
        try:
            if isinstance(decision, resume.TakeSnapshot):
                self._log.info("taking a snapshot", reason=decision.reason)
                if self._pipeline.is_replaying:
                    # The store can't be brought to where consumers are, so there is nothing to compare with.
                    self._pipeline = self._afresh()
                if not self._take_snapshot(publish=decision.publish):
                    return False
            if config.snapshot.mode == "initial_only":
                return True
            return self._stream()
        finally:
            self._pipeline.close()

    def settle_submitted(self) -> None:
        """The connection has ended: wait until what was submitted is durable, so that the next one goes on from there.

        Raises PublishAborted if it won't be, and what else ended the publisher.
        """
        ledger = self._pipeline.ledger
        self._status.state = "connecting"
        while ledger.unsettled_count and not self._is_stopping.is_set():
            _wait_readable(self._publisher.wake_fd, 1.0)
            self._settle(is_forced=True)

    # Snapshot.

    def _take_snapshot(self, *, publish: bool) -> bool:
        """Publish the contents and wait until they are durable. Returns False if a stop was asked for meanwhile."""
        pipeline, connection, status = self._pipeline, self._connection, self._status
        previous = self._checkpoint.position.snapshot if self._checkpoint.position else None
        progress = SnapshotProgress(previous.row_count if previous else 0)
        status.state, status.snapshot_rows = "snapshot", 0
        connection.session.fetch_snapshot()
        connection.send()
        self._last_heard = time.monotonic()
        try:
            is_complete = False
            while not is_complete:
                if self._is_stopping.is_set():
                    return False
                for event in self._receive(SNAPSHOT_TIMEOUT_SECONDS):
                    match event:
                        case SnapshotStarted(vclock):
                            self._submit(pipeline.begin_snapshot(vclock, _now_us()))
                        case SnapshotRows(frames):
                            batch = pipeline.feed_snapshot(frames, _now_us(), publish=publish)
                            status.snapshot_rows += batch.event_count
                            progress.advance(batch.event_count)
                            self._submit(batch)
                        case SnapshotFinished():
                            for batch in pipeline.end_snapshot(_now_us()):
                                self._submit(batch)
                            is_complete = True
                        case _:
                            raise AssertionError(f"{event} in a snapshot")
        finally:
            progress.finish()
        # Nothing is acknowledged to the master before the snapshot is durable, so nothing is subscribed to either.
        while pipeline.ledger.unsettled_count:
            if self._is_stopping.is_set():
                return False
            _wait_readable(self._publisher.wake_fd, 1.0)
            self._settle(is_forced=True)
        position = pipeline.ledger.checkpoint
        self._log.info("the snapshot is complete", rows=status.snapshot_rows, vclock=str(position.vclock), seq=position.seq)
        # Hundreds of thousands of objects were made and dropped; what is left lives as long as the daemon.
        gc.collect()
        gc.freeze()
        return True

    # Stream.

    def _stream(self) -> bool:
        connection, pipeline, status = self._connection, self._pipeline, self._status
        position = pipeline.position
        assert position.replicaset_uuid is not None
        connection.session.subscribe(position.replicaset_uuid, position.vclock)
        subscribed = expect(connection, Subscribed)
        resume.check_replicaset(position, subscribed.replicaset_uuid)
        status.replicaset_uuid = str(position.replicaset_uuid)
        status.state, status.error = "streaming", None
        self.has_streamed = True
        self._log.info("following", vclock=str(position.vclock), master=str(subscribed.vclock))
        self._last_heard = time.monotonic()
        while not self._is_stopping.is_set():
            events = self._receive(self._config.source.silence_timeout_ms / 1000)
            for event in events:
                match event:
                    case StreamRows(frames):
                        for batch in pipeline.feed(frames, _now_us()):
                            self._submit(batch)
                    case Heartbeat():
                        pass  # that it came is what it says
                    case _:
                        raise AssertionError(f"{event} in the stream")
            self._republish(is_busy=any(isinstance(event, StreamRows) for event in events))
            if self._is_goal_reached():
                self._acknowledge()
                return True
        return False

    def _republish(self, *, is_busy: bool) -> None:
        """One chunk of the rows that somebody wants again, behind the events of all transactions so far."""
        publisher, requests = self._publisher, self._requests
        if publisher.has_room:
            with told(self._config.state.path / "images"):
                batch = requests.chunk(self._pipeline, _now_us(), queued_bytes=publisher.queued_bytes, is_busy=is_busy)
            if batch is not None:
                self._submit(batch)

    def _is_goal_reached(self) -> bool:
        target, ledger = self._goal.target, self._pipeline.ledger
        return (
            self._goal.until_caught_up
            and target is not None
            and ledger.acknowledged.covers(target)
            and not ledger.unsettled_count
        )

    # The loop's body.

    def _receive(self, silence_timeout_seconds: float) -> list[Event]:
        """One turn: settle, acknowledge when due, and read if there is room for what comes."""
        publisher, connection, status = self._publisher, self._connection, self._status
        self._settle()
        is_streaming = status.state == "streaming"
        now = time.monotonic()
        if is_streaming and now >= self._next_ack:
            self._acknowledge()
            now = time.monotonic()
        timeout = max(0.0, self._next_ack - now) if is_streaming else self._ack_interval
        if is_streaming and self._requests.is_running:
            timeout = min(timeout, REQUEST_TURN_SECONDS if publisher.queued_bytes else 0.0)
        status.is_reading = publisher.has_room
        events: list[Event] = []
        if status.is_reading:
            events = connection.receive(timeout, publisher.wake_fd)
        else:
            connection.wait(timeout, publisher.wake_fd, for_data=False)
        now = time.monotonic()
        if events or not status.is_reading:
            self._last_heard = now
        elif now - self._last_heard > silence_timeout_seconds:
            raise ConnectionLostError(f"the server {connection.address} has been silent for {silence_timeout_seconds:.0f} s")
        status.received_bytes = connection.received_bytes
        status.last_heard_at = self._last_heard
        status.queued_bytes = publisher.queued_bytes
        status.open_transaction_bytes = self._pipeline.open_byte_count
        return events

    def _submit(self, batch: Batch) -> None:
        """Hand a batch to the publisher; between the pieces of a transaction that was spooled, wait for room."""
        while not self._publisher.has_room and not batch.is_boundary:
            self._publisher.wait_for_room(self._ack_interval)
            self._settle()
            self._acknowledge()
            if self._is_stopping.is_set():
                raise PublishAborted("stopped in the middle of a large transaction")
        if batch.is_replayed:
            assert self._writer is not None
            self._writer.submit(batch)
            self._writer.settle(batch.position)
            self._status.row_count += batch.row_count
            return
        if self._writer is not None:
            self._writer.submit(batch)
        for space_id, space in batch.stored.items():
            if space is None:
                self._checkpoint.spaces.pop(space_id, None)
            else:
                self._checkpoint.spaces[space_id] = space
        self._publisher.submit(batch)
        images = self._pipeline.images
        if images is not None and len(images.unkept) > self._unkept_count:
            self._unkept_count = len(images.unkept)
            self._log.warning("events of these spaces come without images", reasons=dict(images.unkept))
        status = self._status
        status.row_count += batch.row_count
        if batch.timestamp:
            self._last_timestamp = status.last_row_timestamp = batch.timestamp
            status.first_row_timestamp = status.first_row_timestamp or batch.timestamp
        if batch.is_boundary:
            status.received = status.published = batch.position.vclock
            status.seq, status.schema_version = batch.position.seq, batch.position.schema_version
            if batch.position.snapshot is not None:
                status.snapshot_id = batch.position.snapshot.snapshot_id

    def _settle(self, *, is_forced: bool = False) -> None:
        """Learn what has become durable. Raises PublishAborted, StateError, or what ended the publisher."""
        ledger, writer = self._pipeline.ledger, self._writer
        for position in self._publisher.collect():
            self._checkpoint.position = position
            self._status.checkpoint = position.vclock
            if writer is None:
                ledger.settle(position)
            else:
                writer.settle(position)
        if writer is not None:
            stored = writer.flush(is_forced=is_forced or self._goal.until_caught_up)
            if stored is not None:
                ledger.settle(stored)
                self._show_store(writer)

    def _show_store(self, writer: StateWriter) -> None:
        status = self._status
        status.stored = writer.position.vclock if writer.position is not None else VClock()
        status.state_rows, status.state_bytes = writer.store.row_count, writer.size_bytes

    def _acknowledge(self) -> None:
        """Tell the master what is durable, whether or not that is news: a silent replica is dropped."""
        self._connection.session.acknowledge(self._pipeline.ledger.acknowledged, self._last_timestamp)
        self._connection.send()
        self._next_ack = time.monotonic() + self._ack_interval


def _now_us() -> int:
    return time.time_ns() // 1000


def _wait_readable(fd: int, timeout_seconds: float) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll(timeout_seconds * 1000)
