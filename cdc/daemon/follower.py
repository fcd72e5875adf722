"""Follower of one connection: a loop that joins socket, session, pipeline and publisher.

    greet ─▶ authenticate ─▶ vote ─▶ start.plan ─┬─▶ snapshot ─▶ wait until it is durable ─┐
                                                 └─▶ (register) ─▶ subscribe ◀─────────────┘
                                                                     │ rows ─▶ pipeline ─▶ publisher
                                                                     └ settled ─▶ ledger ─▶ ACK

In registered mode, snapshots are read with JOIN instead of FETCH_SNAPSHOT. If the master has stopped keeping logs for this
replica (its disk was full, or the master was restarted), only JOIN makes it keep them again, and from before the contents. JOIN's
last rows continue from the snapshot, so they are the first rows of the stream. The rows that answer REGISTER are ignored: old
masters (2.6.0 among them) begin them at the master's own position, after a hole, and the stream sends them again. After both
requests, the master keeps logs from the end of the rows it sent. Therefore an anonymous daemon that lags follows anonymously
until all rows that the master had are durable. Then it reconnects and registers.

This module does I/O and takes no decisions: those are up to the plan, the session and the pipeline. The loop waits for the
master's rows, for room in the publisher's queue and for the disk. Meanwhile another thread keeps sending ACKs
(cdc.sources.acknowledger).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from cdc.daemon.beginning import Beginning, RunContext
from cdc.daemon.bucket_watch import BucketWatch, Surveyed, never
from cdc.daemon.clock import now_us
from cdc.daemon.runner import PipelineRunner, Server
from cdc.daemon.snapshot_loader import SnapshotIntake
from cdc.daemon.start import doubts_about_spaces
from cdc.errors import ConnectionLostError, ProtocolError, SilenceError
from cdc.ops.request_queue import RequestQueue
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import Key
from cdc.protocol.failure import XlogGapError
from cdc.protocol.session import (
    Event,
    Heartbeat,
    Joined,
    Registered,
    SnapshotFinished,
    SnapshotRows,
    SnapshotStarted,
    StreamRows,
    Subscribed,
)
from cdc.protocol.system_spaces import SYSTEM_SPACE_MAX
from cdc.sources import registration
from cdc.sources.acknowledger import Acknowledger
from cdc.sources.connection import Connection
from cdc.sources.contents import SNAPSHOT_TIMEOUT_SECONDS
from cdc.sources.handshake import expect, vote
from cdc.store.files import translate_lmdb_errors
from cdc.stream.pipeline import Pipeline
from cdc.stream.recognition import Recognition
from cdc.upstream import resume
from cdc.upstream.selection import Needed
from cdc.upstream.start import FollowAs, StartPlan
from cdc.upstream.watch import Phase

REQUEST_TURN_SECONDS: Final = 0.005
"""While a backfill runs: time to wait for stream rows before the publisher's queue is checked again."""

BUCKET_TURN_SECONDS: Final = 0.05
"""While rows of buckets wait for other shards: time to wait for rows before their records are looked for again."""

RECOGNITION_SECONDS: Final = 3.0
"""Maximum time, in seconds, for which a daemon that is to stop when it has caught up waits for the rows to recognize."""


class Follower:
    """Follower of one server, until a stop is requested, the goal is reached, or an error occurs."""

    def __init__(
        self,
        context: RunContext,
        beginning: Beginning,
        connection: Connection,
        plan: StartPlan,
        ballot: Ballot,
        *,
        requests: RequestQueue | None = None,
        is_lost: Callable[[], bool] = lambda: False,
        surveyed: Surveyed = never,
    ) -> None:
        """Prepare to follow the server with this `ballot` according to `plan`.

        While the server is silent, `is_lost` is called: it says whether the server doesn't answer the survey either. The
        surveys also tell what the members have (`surveyed`). Raises StateError.
        """
        self._is_lost = is_lost
        self._plan = plan
        self._master_vclock = ballot.vclock
        self._requests = RequestQueue() if requests is None else requests
        self._requests.restart(beginning.checkpoint.position)
        config, status = context.config, context.status
        self._config = config
        self._connection = connection
        self._publisher = beginning.publisher
        self._checkpoint = beginning.checkpoint
        self._status = status
        self._is_stopping = context.is_stopping
        self._has_bar = context.has_progress_bar
        self._goal = beginning.goal
        self._observations = beginning.observations
        self._recognition = Recognition.of_nothing(VClock())
        # Until when the goal isn't reached without the expected rows (monotonic seconds).
        self._recognized_until = 0.0
        self._log = structlog.get_logger().bind(name=config.name, upstream=connection.address)
        greeting = connection.session.greeting
        server = Server(greeting.uuid, greeting.version, connection.address)
        self._runner = PipelineRunner(context, beginning, plan, server, while_waiting=self._check_connection)
        self._buckets = BucketWatch(context, self._runner, beginning.observations, ignored=plan.ignored, surveyed=surveyed)
        self._ack_interval = config.source.ack_interval_ms / 1000
        self._acknowledger: Acknowledger | None = None
        self.last_heard_at = time.monotonic()
        """When the server last sent anything, or its silence last started to count (monotonic seconds)."""
        self.phase = Phase.CONNECTING
        """Phase of the connection."""
        self.has_streamed = False
        status.upstream_version, status.master_vclock = greeting.version_text, ballot.vclock

    @property
    def published(self) -> VClock:
        """See `Stream.published`."""
        return self._runner.published

    @property
    def _pipeline(self) -> Pipeline:
        return self._runner.pipeline

    def run(self) -> bool:
        """Take a snapshot if one is planned, then follow the stream.

        Returns whether the goal was reached. False means that a stop was requested, or that a new connection has to continue.
        Raises any error.
        """
        snapshot = self._plan.snapshot
        if self._goal.target is None:
            self._goal.target = resume.target(self._master_vclock, self._plan.ignored)
        try:
            if snapshot is not None:
                self._report_cut_off_request()
                self._log.info("taking a snapshot", reason=snapshot.reason)
                if not self._take_snapshot(publish=snapshot.publish):
                    return False
            if self._config.snapshot.mode in resume.WITHOUT_STREAM:
                return True
            return self._stream()
        finally:
            self._pipeline.close()

    def collect_submitted(self) -> None:
        """After the connection's end, wait until all submitted batches are durable, so that the next connection resumes there.

        Raises PublishAborted if they won't be, or the publisher's error.
        """
        self.phase, self._status.state = Phase.CONNECTING, "connecting"
        self._runner.wait_until_settled()

    def needed(self) -> Needed:
        """Return what another member must have for the daemon to continue there now. May be called from any thread."""
        return self._runner.needed()

    # Snapshot.

    def _take_snapshot(self, *, publish: bool) -> bool:
        """Publish the contents and wait until they are durable. Return False if a stop was requested meanwhile.

        If only the schema is needed, the rest isn't read. Then this also returns False: another connection has to continue.
        """
        connection = self._connection
        is_schema_enough = not publish and self._pipeline.images is None and not self._plan.wants_id
        intake = SnapshotIntake(self._runner, self._checkpoint, self._status, self._log, publish=publish, has_bar=self._has_bar)
        self.phase = Phase.SNAPSHOT
        if self._plan.wants_id:
            if registration.find_id(connection) is None:
                registration.check_others(connection, self._config)
            connection.session.join(self._config.source.instance_name)
        else:
            connection.session.fetch_snapshot()
        connection.send()
        self.last_heard_at = time.monotonic()
        with intake:
            is_complete = False
            while not is_complete:
                if self._is_stopping.is_set():
                    return False
                for event in self._receive(SNAPSHOT_TIMEOUT_SECONDS):
                    match event:
                        case SnapshotStarted(vclock):
                            intake.begin(vclock)
                        case SnapshotRows(frames):
                            intake.rows(frames)
                            if is_schema_enough and frames.bodies[-1].get(Key.SPACE_ID, 0) > SYSTEM_SPACE_MAX:
                                # The system spaces come first. The rest isn't read, so this connection can't be used any more.
                                intake.end()
                                intake.wait_until_durable()
                                return False
                        case SnapshotFinished():
                            intake.end()
                            is_complete = not self._plan.wants_id
                        case StreamRows(frames):
                            self._runner.submit_all(self._pipeline.feed(frames, now_us()))
                        case Joined():
                            self._pipeline.discard_open()
                            is_complete = True
                        case _:
                            raise AssertionError(f"{event} in a snapshot")
        # The daemon sends no ACKs before the snapshot is durable, so it doesn't subscribe before that either.
        return intake.wait_until_durable()

    # Stream.

    def _register(self, vclock: VClock) -> bool:
        """Get an id in the replica set. Return False if a stop was requested meanwhile."""
        connection = self._connection
        registration.check_others(connection, self._config)
        self._log.info("registering", vclock=str(vclock))
        connection.session.register(vclock, self._config.source.instance_name)
        connection.send()
        self.last_heard_at = time.monotonic()
        while not self._is_stopping.is_set():
            if any(isinstance(event, Registered) for event in self._receive(SNAPSHOT_TIMEOUT_SECONDS)):
                return True
        return False

    def _stream(self) -> bool:
        connection, pipeline, status = self._connection, self._pipeline, self._status
        position = pipeline.position
        assert position.replicaset_uuid is not None
        follow_as = self._plan.follow_as(
            has_id=self._plan.wants_id and registration.find_id(connection) is not None,
            vclock=position.vclock,
            master=self._master_vclock,
            seconds_since_caught_up=time.monotonic() - self._goal.caught_up_at,
        )
        if follow_as is FollowAs.NEW_MEMBER and not self._register(self._vclock_for_upstream(position.vclock)):
            return False
        ignored, catches_up = self._plan.ignored, follow_as is FollowAs.BEHIND
        self._recognition = self._expected_rows(position)
        self._recognition.checksum = self._pipeline.checksum
        connection.session.subscribe(
            position.replicaset_uuid,
            self._vclock_for_upstream(self._recognition.subscribe_from),
            ignored,
            is_anonymous=follow_as in (FollowAs.ANONYMOUS, FollowAs.BEHIND),
            instance_name=self._config.source.instance_name,
        )
        with self._without_last_rows_if_gone():
            subscribed = expect(connection, Subscribed)
        resume.check_replicaset(position, subscribed.replicaset_uuid)
        if subscribed.replica_id in ignored:
            raise ProtocolError(
                f"the server {connection.address} is instance {subscribed.replica_id}, which source.exclude_origins leaves out",
                "ACKs would confirm rows of this instance that the daemon doesn't read, and a quorum would count them: name "
                "another member in source.uris.",
            )
        status.replicaset_uuid = str(position.replicaset_uuid)
        self.phase, status.state, status.error = Phase.STREAMING, "streaming", None
        self._requests.open()
        self.has_streamed = not catches_up
        self._log.info("following", vclock=str(position.vclock), master=str(subscribed.vclock))
        for doubt in doubts_about_spaces(self._config, self._checkpoint):
            self._log.warning(doubt)
        if catches_up:
            self._log.info("catching up as an anonymous replica before an id is requested")
        self.last_heard_at = time.monotonic()
        self._recognized_until = self.last_heard_at + RECOGNITION_SECONDS
        self._acknowledger = Acknowledger(self._acknowledge, self._ack_interval)
        try:
            with self._without_last_rows_if_gone():
                return self._follow_stream(resume.target(subscribed.vclock, ignored) if catches_up else None)
        finally:
            self._requests.close()
            self._acknowledger.close()

    def _follow_stream(self, catches_up_with: VClock | None) -> bool:
        """Process rows until the goal is reached, and return True.

        Returns False if a stop was requested, or everything up to `catches_up_with` is durable.
        """
        pipeline, status = self._pipeline, self._status
        self._report_cut_off_request()
        self._runner.submit_all(pipeline.resume_unfinished_work(now_us()))
        while not self._is_stopping.is_set():
            events = self._receive(self._config.source.timeouts.silence)
            for event in events:
                match event:
                    case StreamRows(frames):
                        for part in self._recognition.look(frames):
                            self._runner.submit_all(pipeline.feed(part, now_us()))
                    case Heartbeat(timestamp):
                        if timestamp:
                            status.clock_ahead_seconds = timestamp - time.time()
                        self._recognition.heartbeat()
                        self._runner.submit_all(pipeline.heartbeat(now_us()))
                    case _:
                        raise AssertionError(f"{event} in the stream")
            self._note_recognized()
            self._buckets.look()
            self._serve_requests(is_busy=any(isinstance(event, StreamRows) for event in events))
            if catches_up_with is not None or self._goal.until_caught_up:
                # A commit may have ended the wait. If the next turn collected it, that would wait once more, for nothing.
                self._runner.collect_commits()
            if catches_up_with is not None:
                if pipeline.ledger.acknowledged.covers(catches_up_with):
                    # The next connection registers.
                    self._runner.wait_until_settled()
                    self._goal.caught_up_at = time.monotonic()
                    return False
            elif self._is_goal_reached():
                self._acknowledge()
                return True
        return False

    def _report_cut_off_request(self) -> None:
        position = self._pipeline.published_position
        request = position.requests.current
        if request is not None and request.snapshot_id:
            goes_on = "begins again after the snapshot" if self._plan.snapshot is not None else "goes on where it stopped"
            self._log.info(f"a request for rows was interrupted, and {goes_on}", id=request.id, rows=request.all_rows)
        elif position.snapshot is not None and position.snapshot.open_request:
            self._log.warning(
                "a request for rows of a former version of this program was cut off when it ended: what it had published stays "
                "valid, the rest isn't published; if you still need it, make the request again",
                snapshot_id=str(position.snapshot.open_request),
            )

    def _serve_requests(self, *, is_busy: bool) -> None:
        """Carry out an order, or submit one chunk of requested rows, after the events of all transactions so far."""
        publisher, requests = self._publisher, self._requests
        if publisher.has_room:
            with translate_lmdb_errors(self._config.state.path / "images"):
                batch = requests.turn(self._pipeline, now_us(), queued_bytes=publisher.queued_bytes, is_busy=is_busy)
            if batch is not None:
                self._runner.submit(batch)

    def _is_goal_reached(self) -> bool:
        target, ledger = self._goal.target, self._pipeline.ledger
        return (
            self._goal.until_caught_up
            and target is not None
            and ledger.acknowledged.covers(target)
            and not ledger.unsettled_count
            and not (self._buckets.waits or self._buckets.is_asked or self._buckets.is_settling)
            and not (self._recognition.is_waiting and time.monotonic() < self._recognized_until)
        )

    # Recognition of the last rows.

    def _expected_rows(self, position: Position) -> Recognition:
        """Return the rows that the server has to send once more, to show that its log is still the one that was published."""
        checkpoint, server_uuid = self._checkpoint.position, self._connection.session.greeting.uuid
        if self._plan.catch_up_to is not None and checkpoint is not None:
            return Recognition.on_the_way(position.vclock, checkpoint, server_uuid)
        recognizes_rows, self._observations.recognizes_rows = self._observations.recognizes_rows, True
        if not recognizes_rows or checkpoint is None or checkpoint.vclock != position.vclock:
            return Recognition.of_nothing(position.vclock)
        # Asked again, as a snapshot may have taken long, and the server may have removed logs meanwhile.
        gc_vclock = vote(self._connection).gc_vclock
        return Recognition.of_resumed(checkpoint, server_uuid, gc_vclock, self._plan.ignored)

    @contextmanager
    def _without_last_rows_if_gone(self) -> Iterator[None]:
        """If the server lacks the log of the rows to recognize, or can't read it, let the next connection do without them.

        A gap after them shows there, and is judged there. Raises ConnectionLostError in the place of XlogGapError.
        """
        try:
            yield
        except XlogGapError as error:
            if not self._recognition.is_repeating:
                raise
            self._observations.recognizes_rows = False
            raise ConnectionLostError(f"the server doesn't send the checkpoint's last rows again: {error.message}") from error

    def _note_recognized(self) -> None:
        """Have the checkpoint record the rows that were seen again, if it doesn't yet."""
        found, self._recognition.found = self._recognition.found, {}
        if found and (batch := self._pipeline.recognize(found.values())) is not None:
            self._runner.submit(batch)

    # The loop's body.

    def _receive(self, silence_timeout_seconds: float) -> list[Event]:
        """Run the loop's body once: collect commits, and read from the socket if the queue has room."""
        publisher, connection, status = self._publisher, self._connection, self._status
        self._runner.collect_commits()
        self._check_connection()
        timeout = self._ack_interval
        if self.phase is Phase.STREAMING and self._requests.is_running:
            timeout = min(timeout, REQUEST_TURN_SECONDS if publisher.queued_bytes else 0.0)
        if self._buckets.waits:
            timeout = min(timeout, BUCKET_TURN_SECONDS)
        is_reading = self._runner.has_room and self._buckets.has_room
        events: list[Event] = []
        if is_reading:
            events = connection.receive(timeout, publisher.wake_fd, wanted_in_seconds=publisher.wanted_in_seconds)
        else:
            connection.wait(timeout, publisher.wake_fd, for_data=False)
        now = time.monotonic()
        is_overdue = is_reading and not events and (now - self.last_heard_at > silence_timeout_seconds or self._is_lost())
        if is_overdue:
            # Rows that weren't wanted yet may be waiting in the socket, after an equally long wait for room.
            events = connection.receive(0.0)
        if events or not is_reading:
            self.last_heard_at = now
        elif is_overdue:
            raise SilenceError(f"the server {connection.address} has been silent for {now - self.last_heard_at:.1f} s")
        status.received_bytes = connection.received_bytes
        status.last_heard_at = self.last_heard_at
        self._runner.update_status()
        return events

    def _acknowledge(self) -> None:
        """Send the durable position to the master, even if it hasn't changed, as the master drops a silent replica.

        May be called from any thread.
        """
        connection = self._connection
        vclock = self._vclock_for_upstream(self._recognition.acknowledgeable(self._pipeline.ledger.acknowledged))
        connection.send_bytes(connection.session.acknowledgement(vclock, self._runner.last_timestamp))

    def _check_connection(self) -> None:
        """Raise the error of a failed ACK. During a snapshot, and the last rows of a JOIN, no ACKs are sent."""
        if self._acknowledger is not None:
            self._acknowledger.check()

    def _vclock_for_upstream(self, vclock: VClock) -> VClock:
        return resume.vclock_for_upstream(vclock, self._master_vclock, self._plan.ignored)
