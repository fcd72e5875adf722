"""A standby's state store: it follows the log of a member as an anonymous replica, as far as the checkpoint in Kafka goes.

    member ──rows──▶ HeldBack ──rows up to K──▶ Pipeline that only catches up ──changes──▶ StateWriter, at S ≤ K
                        ▲
    checkpoint topic ───┴ K

What is read is what a restart would read again for the store alone, by the same pipeline, but all the time. Nothing is published
or claimed here. How the store begins is decided by cdc.stream.commits.standby_course.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from cdc.config import Config
from cdc.daemon import admission
from cdc.daemon.clock import now_us
from cdc.daemon.kept_logs import KeptLogs
from cdc.daemon.start import options_of, supposed_before
from cdc.errors import ConnectionLostError, SilenceError
from cdc.formats.options import JSON_FORMATS
from cdc.kafka.checkpoint_tail import CheckpointTail
from cdc.ops.status import Status
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.session import Event, Heartbeat, SnapshotStarted, StreamRows, Subscribed
from cdc.sources import contents
from cdc.sources.acknowledger import Acknowledger
from cdc.sources.connection import Connection
from cdc.sources.handshake import expect, greet, vote
from cdc.sources.replica_set import replicaset_uuid
from cdc.store.files import translate_lmdb_errors
from cdc.store.spool import FileSpool
from cdc.store.writer import UNWRITTEN_BYTES_MAX, StateWriter
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.options import Surroundings
from cdc.stream.catch_up import ENDLESS
from cdc.stream.commits import standby_course
from cdc.stream.commits.standby_course import Course
from cdc.stream.held_back import HeldBack
from cdc.stream.pipeline import Pipeline
from cdc.upstream import resume, start
from cdc.upstream.identity import instance_uuid

TURN_SECONDS: Final = 0.1
"""Interval at which the checkpoint is looked at, at least."""


class StandbyStore:
    """The state store of one standby. For the daemon's thread."""

    def __init__(
        self,
        config: Config,
        status: Status,
        writer: StateWriter,
        tail: CheckpointTail,
        pause: Callable[[float], object],
        is_over: Callable[[], bool],
    ) -> None:
        """`pause` waits for so many seconds, or until a stop is requested.

        `is_over` says whether the standby has anything better to do: to take over, or to end.
        """
        self._pause = pause
        self._config = config
        self._status = status
        self._writer = writer
        self._tail = tail
        self._is_over = is_over
        self._is_following = False
        self._heard_at = 0.0
        # Kafka's schema version when the store's forms were compared with Kafka's last.
        self._aligned_with = -1
        self._waits_for_doubts = False
        self._log = structlog.get_logger().bind(name=config.name)
        # The same at each start of this standby, and of no other one: a master from 3.3 on keeps logs for each UUID it sees.
        self._uuid = instance_uuid(f"{config.name} standby {socket.gethostname()} {config.state.path.absolute()}")
        self._turn = 0
        # The index of the member that is followed, or was last.
        self._followed = 0
        self._logs = KeptLogs(config.source)

    @property
    def is_ready(self) -> bool:
        """Whether the name can be claimed: the log leads from the store to the checkpoint, and a member has that log.

        That is as it was seen a few seconds ago.
        """
        kafka, store = self._tail.checkpoint.position, self._writer.position
        if kafka is None or kafka.snapshot is None:
            return self._tail.is_read and store is None  # nothing was published, so there is nothing to have
        if store is None or not standby_course.is_behind(kafka, store):
            return False
        return (self._is_following and self._logs.are_there) or kafka.vclock == store.vclock

    @property
    def lacks_log(self) -> bool:
        """Whether the store can't be brought up to the checkpoint by a start, as no member has the log after it."""
        kafka, store = self._tail.checkpoint.position, self._writer.position
        is_behind = standby_course.is_behind(kafka, store) and not self.is_ready
        return is_behind and self._is_following and not self._logs.are_there

    @property
    def is_startable(self) -> bool:
        """Whether a start finds all it needs, now that the other daemon is gone. May ask members and Kafka.

        The log from the store to the checkpoint is asked for anew at a start. None is needed if the checkpoint that was read is
        the newest one, and the store is there.

        A snapshot that the configuration asks for (a space is newly published, say) is compared with the store's rows, so these
        have to be those at the checkpoint: a start refuses another daemon's store that is behind it. For the same reason an empty
        store is enough only if nothing has been published since the checkpoint was read.
        """
        if not self.is_ready:
            return False
        kafka, stored = self._tail.checkpoint, self._writer.checkpoint()
        if kafka.position is None or kafka.position.snapshot is None:
            return self._has_newest()
        if stored.position is None:
            return False
        needed = start.needed(supposed_before(self._config, kafka, stored))
        if not needed.takes_snapshot and self._is_following and self._logs.look(needed, self._followed):
            return True
        return stored.position.vclock == kafka.position.vclock and self._has_newest()

    def _has_newest(self) -> bool:
        """Whether the checkpoint that was read is the newest one: the other daemon's last sign of life may come before that."""
        here = self._tail.checkpoint.position
        try:
            newest = admission.read(self._config).position
        except ConnectionLostError:
            return False
        return _place(newest) == _place(here)

    def follow(self) -> None:
        """Follow one member until the standby is over. Returns before that if the store has to begin anew.

        Raises the errors of the connection, of the pipeline and of the store; then another member may be better.
        """
        while not self._tail.is_read:
            if self._is_over():
                return
            self._pause(TURN_SECONDS)
            self._tail.look()
        members = self._config.source.members()
        self._followed = self._turn % len(members)
        member = members[self._followed]
        self._turn += 1
        with closing(greet(member, self._uuid, frame_bytes_max=self._config.source.frame_bytes_max)) as connection:
            ballot = vote(connection)
            found = replicaset_uuid(connection)
            self._show_member(connection, found)
            resume.check_replicaset(self._tail.checkpoint.position, found)
            # After a failure to write, the rest comes first: the log is asked for from the store's position on.
            self._writer.flush(is_forced=True)
            course = standby_course.course(self._tail.checkpoint.position, self._writer.position, ballot.gc_vclock)
            with translate_lmdb_errors(self._config.state.path / "images"):
                if course is Course.FOLLOW:
                    self._follow(connection)
                elif course is Course.FILL:
                    self._fill_and_follow(connection)
                else:
                    self._wait()
        self._turn -= 1  # it ended in order, so the same member is as good as before

    def _wait(self) -> None:
        """Wait until the checkpoint is no longer in the middle of a snapshot, or the standby is over."""
        while not self._is_over() and not standby_course.is_whole(self._tail.checkpoint.position):
            self._pause(TURN_SECONDS)
            self._tail.look()

    # Filling.

    def _fill_and_follow(self, connection: Connection) -> None:
        self._log.info("filling the standby's state store", upstream=connection.address)
        writer = self._writer
        writer.restart()
        self._aligned_with = -1
        version = connection.session.greeting.version
        pipeline = Pipeline(self._surroundings(connection), Position(), [], images=writer.begin((), version))
        try:
            connection.session.fetch_snapshot()
            vclock = expect(connection, SnapshotStarted, contents.SNAPSHOT_TIMEOUT_SECONDS).vclock
            self._write_filling([pipeline.begin_snapshot(vclock, now_us())])
            for frames in contents.rows(connection):
                self._write_filling(pipeline.feed_snapshot(frames, now_us()))
                self._tail.look()
                if self._is_over():
                    return
            self._write_filling(pipeline.end_snapshot(now_us()))
        finally:
            pipeline.close()
        writer.flush(is_forced=True)
        self._log.info("the standby's state store has the member's rows", rows=writer.store.row_count, vclock=str(vclock))
        self._follow(connection)

    def _write_filling(self, batches: Iterable[Batch]) -> None:
        """Write rows that don't count yet: a position without a snapshot, which is that of no store that is in use."""
        for batch in batches:
            batch.position = replace(batch.position, snapshot=None)
            self._write(batch)

    # Following.

    def _follow(self, connection: Connection) -> None:
        """Follow the log from the store's position, as far as the checkpoint goes."""
        begin = self._writer.position
        assert begin is not None
        assert begin.replicaset_uuid is not None
        connection.session.subscribe(begin.replicaset_uuid, begin.vclock)
        resume.check_replicaset(begin, expect(connection, Subscribed).replicaset_uuid)
        self._log.info("following as a standby", upstream=connection.address, vclock=str(begin.vclock))
        pipeline, held = self._pipeline(connection), HeldBack()
        acknowledger = Acknowledger(lambda: self._acknowledge(connection), self._config.source.ack_interval_ms / 1000)
        self._is_following = True
        self._heard_at = time.monotonic()
        try:
            while not self._is_over() and self._is_on_course():
                acknowledger.check()
                events = self._receive(connection, has_room=held.byte_count < self._config.kafka.queue_bytes_max)
                for event in events:
                    if isinstance(event, StreamRows):
                        held.put(event.frames)
                self._tail.look()
                self._feed(pipeline, held)
                if any(isinstance(event, Heartbeat) for event in events) and not held.byte_count:
                    self._write_all(pipeline.heartbeat(now_us()))
                if self._has_aligned(pipeline):
                    pipeline.close()
                    pipeline = self._pipeline(connection)
                self._writer.flush()
                self._watch_logs()
                self._show()
        finally:
            self._is_following = False
            acknowledger.close()
            pipeline.close()
            self._writer.flush(is_forced=True)
            self._show()

    def _watch_logs(self) -> None:
        """If the store stands still behind the checkpoint, look whether a member has the log between them."""
        kafka, store = self._tail.checkpoint, self._writer.position
        if kafka.position is None or store is None or not standby_course.is_behind(kafka.position, store):
            return
        if self._logs.is_look_due(store.vclock, kafka.position.vclock):
            self._logs.look(start.needed(supposed_before(self._config, kafka, self._writer.checkpoint())), self._followed)

    def _receive(self, connection: Connection, *, has_room: bool) -> list[Event]:
        """Wait for rows, a turn at most. Raises SilenceError."""
        events: list[Event] = []
        if has_room:
            events = connection.receive(TURN_SECONDS)
        else:
            connection.wait(TURN_SECONDS, for_data=False)
        now = time.monotonic()
        if events or not has_room:
            self._heard_at = self._status.last_heard_at = now
        elif now - self._heard_at > self._config.source.timeouts.silence:
            raise SilenceError(f"the server {connection.address} has been silent for {now - self._heard_at:.1f} s")
        return events

    def _acknowledge(self, connection: Connection) -> None:
        """Report the store's position to the member: from there on the standby needs its logs."""
        stored = self._writer.position
        assert stored is not None
        connection.send_bytes(connection.session.acknowledgement(stored.vclock))

    def _is_on_course(self) -> bool:
        """Whether the checkpoint still rests on the snapshot that the store rests on."""
        kafka, store = self._tail.checkpoint.position, self._writer.position
        if store is not None and store.snapshot is None:
            return standby_course.is_whole(kafka)
        return standby_course.is_behind(kafka, store)

    def _has_aligned(self, pipeline: Pipeline) -> bool:
        """If the store's rows are those at the checkpoint, let it have the checkpoint's forms; return whether that was news."""
        writer, kafka = self._writer, self._tail.checkpoint
        if kafka.position is None or self._aligned_with == kafka.position.schema_version:
            return False
        if pipeline.position.vclock != kafka.position.vclock:
            return False
        writer.flush(is_forced=True)
        self._tell_doubts(kafka.position)
        at = standby_course.aligned(writer.checkpoint(), kafka)
        if at is not None:
            writer.adopt(at)
            self._log.info("the standby's state store is at a checkpoint", vclock=str(kafka.position.vclock))
        if writer.position is not None and writer.position.snapshot is not None:
            self._aligned_with = kafka.position.schema_version
        return at is not None

    def _tell_doubts(self, kafka: Position) -> None:
        """Log, once for each checkpoint that brings it about, that the store can't be used while keys are doubtful."""
        store = self._writer.position
        is_waiting = store is not None and standby_course.has_other_rows(store, kafka)
        if is_waiting and not self._waits_for_doubts:
            self._log.warning(
                "the standby can't be ready while keys are doubtful: consumers have other rows of them than the server. Write "
                "the row of each once more, with the command in the dead letter's `error`",
                keys=len(kafka.doubtful),
            )
        self._waits_for_doubts = is_waiting

    def _pipeline(self, connection: Connection) -> Pipeline:
        stored, kafka = self._writer.checkpoint(), self._tail.checkpoint
        assert stored.position is not None
        images = self._writer.begin(stored.published_forms(), connection.session.greeting.version)
        return Pipeline(
            self._surroundings(connection),
            stored.position,
            list(stored.spaces.values()),
            images=images,
            catch_up_to=replace(stored.position, vclock=ENDLESS),
            published=list(kafka.spaces.values()),
        )

    def _surroundings(self, connection: Connection) -> Surroundings:
        # What can't be published has changed the images all the same. The format is one that needs no registry.
        options = replace(options_of(self._config), on_error="dlq", on_image_error="dlq", formats=JSON_FORMATS)
        greeting, path = connection.session.greeting, self._config.state.path
        return Surroundings(options, greeting.uuid, greeting.version, lambda: FileSpool(path))

    def _feed(self, pipeline: Pipeline, held: HeldBack) -> None:
        """Write the rows that the checkpoint covers."""
        kafka = self._tail.checkpoint.position
        if kafka is None or kafka.rekeyed:
            return  # rows are being published again from the first daemon's store, and the keys change with the end of that
        for frames in held.take(kafka.vclock):
            self._write_all(pipeline.feed(frames, now_us()))
            if self._writer.unwritten_bytes > UNWRITTEN_BYTES_MAX:
                self._writer.flush(is_forced=True)

    def _write_all(self, batches: Iterable[Batch]) -> None:
        kafka = self._tail.checkpoint.position
        for batch in batches:
            if kafka is not None and batch.position.seq > kafka.seq:
                # A number above Kafka's would say that Kafka has lost its newest checkpoints.
                batch.position = replace(batch.position, seq=kafka.seq)
            self._write(batch)

    def _write(self, batch: Batch) -> None:
        if batch.is_pause:
            return
        self._writer.submit(batch)
        if batch.is_boundary:
            self._writer.mark_committed(batch.position)
            self._writer.flush()
        self._status.native_row_count += batch.native_row_count
        self._status.python_row_count += batch.row_count - batch.native_row_count

    def _show_member(self, connection: Connection, replicaset: UUID) -> None:
        status, greeting = self._status, connection.session.greeting
        status.upstream, status.upstream_version = connection.address, greeting.version_text
        status.server_uuid, status.replicaset_uuid = str(greeting.uuid), str(replicaset)
        status.last_heard_at = time.monotonic()

    def _show(self) -> None:
        status, position, kafka = self._status, self._writer.position, self._tail.checkpoint.position
        status.store_position = position.vclock if position is not None and position.snapshot is not None else None
        status.state_rows, status.state_bytes = self._writer.store.row_count, self._writer.size_bytes
        status.turned_at = time.monotonic()
        if kafka is not None:
            status.checkpoint, status.seq = kafka.vclock, kafka.seq


def _place(position: Position | None) -> tuple[int, VClock] | None:
    """Return where a checkpoint is; None if nothing was published yet."""
    return (position.seq, position.vclock) if position is not None and position.snapshot is not None else None
