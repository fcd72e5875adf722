"""`tarantool-cdc replay`: reads a server's files instead of a connection, with the same pipeline and the same checkpoint.

    ballot of the files ─▶ start.plan ─┬─▶ .snap ─▶ wait until it is durable ─┐
                                       └──────────────▶ .xlog files ◀─────────┘
                                                          │ the last file is read: done, or wait for more

The files are given the ballot of a server with these logs: gc_vclock is the start of the unbroken chain of newest logs, and the
vclock is their end. So `run` can resume where a replay ended, and the other way round. A replay can't make a snapshot, it can
only find one. A snapshot older than the checkpoint is used only after a divergence, and only if the policy for that allows it:
otherwise the changes published since the snapshot would be published again.

If the writer's version changes from one file to the next, a new pipeline begins there: servers of different versions mark
synchronous transactions differently, and compute some rows differently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from cdc.daemon.beginning import Beginning, RunContext
from cdc.daemon.bucket_watch import BucketWatch
from cdc.daemon.clock import now_us
from cdc.daemon.runner import PipelineRunner, Server
from cdc.daemon.snapshot_loader import SnapshotIntake
from cdc.daemon.start import options_of
from cdc.errors import CdcError, ConfigurationError, PositionError, SnapshotNeededError
from cdc.ops.request_queue import RequestQueue
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.sources.log_directory import LogDirectory, LogFile, join
from cdc.sources.log_stream import LogStream, ballot
from cdc.upstream import resume, start
from cdc.upstream.failover import BackOff
from cdc.upstream.resume import WITHOUT_STREAM
from cdc.upstream.start import Known, StartPlan, TakeSnapshot

POLL_SECONDS: Final = 0.1
"""Interval between two reads of the newest file."""

_NEWER_SNAPSHOT: Final = "Call box.snapshot() on the server and add the new file, or let `tarantool-cdc run` continue."

_OLDEST_VERSION: Final = (1, 7, 0)
"""Version that is assumed if a file doesn't name its writer's version."""


class Files:
    """`Source` that reads a directory of files. There is no other place to fail over to: an error is retried or final."""

    def __init__(
        self,
        context: RunContext,
        requests: RequestQueue,  # noqa: ARG002 - there is no server to take one from
        *,
        directories: Sequence[Path],
        follows: bool = False,
    ) -> None:
        """See NewSource. `follows`: after the last file, wait for what a server appends."""
        self._context = context
        self._directory = LogDirectory(*directories, block_bytes_max=context.config.source.frame_bytes_max)
        self._follows = follows
        self._back_off = BackOff()
        # Origin and lsn of a transaction that only a snapshot can replace.
        self._needs_in_snapshot: tuple[int, int] | None = None

    def start(self) -> None:
        """See `Source.start`."""

    def close(self) -> None:
        """See `Source.close`."""
        if self._context.buckets is not None:
            self._context.buckets.close()

    @contextmanager
    def opened(self, beginning: Beginning) -> Iterator[Replayer]:
        """See `Source.opened`. The goal is the end of the files."""
        needs_in_snapshot = self._needs_in_snapshot if beginning.known.forced is not None else None
        replayer = Replayer(self._context, beginning, self._directory, follows=self._follows, needs_in_snapshot=needs_in_snapshot)
        try:
            yield replayer
        finally:
            if replayer.has_streamed:
                self.succeeded()

    def failed(self, error: CdcError) -> None:
        """See `Source.failed`."""
        if isinstance(error, SnapshotNeededError):
            self._needs_in_snapshot = error.place

    def try_fail_over(self, error: CdcError) -> bool:  # noqa: ARG002 - there is no other place
        """See `Source.try_fail_over`."""
        return False

    def next_delay(self) -> float:
        """See `Source.next_delay`."""
        return self._back_off.next()

    def delay_elapsed(self) -> None:
        """See `Source.delay_elapsed`."""

    def succeeded(self) -> None:
        """See `Source.succeeded`."""
        self._back_off.reset()


class Replayer:
    """Reader of the files of one server version, until they end, a stop is requested, or an error occurs."""

    def __init__(
        self,
        context: RunContext,
        beginning: Beginning,
        directory: LogDirectory,
        *,
        follows: bool,
        needs_in_snapshot: tuple[int, int] | None = None,
    ) -> None:
        """Decide where to begin, by `known` and the files, and make a pipeline there.

        `needs_in_snapshot`: origin and lsn of a transaction that a snapshot must contain. Raises PositionError, StateError,
        ConfigurationError or LogFileError.
        """
        config, status, known, checkpoint = context.config, context.status, beginning.known, beginning.checkpoint
        self._config = config
        self._directory = directory
        self._publisher = beginning.publisher
        self._checkpoint = checkpoint
        self._status = status
        self._is_stopping = context.is_stopping
        self._follows = follows
        self._needs_in_snapshot = needs_in_snapshot
        self._excluded = known.ignored
        self._log = structlog.get_logger().bind(name=config.name, directory=directory.path)
        position = checkpoint.position
        self._check_replicaset(position)
        self._published = position.vclock if position is not None else None
        self._ballot = ballot(directory, self._published)
        self._server = self._server_at(known.store.vclock if known.store is not None else self._published)
        self._plan = self._decide(known)
        self._runner = PipelineRunner(context, beginning, self._plan, self._server)
        self._buckets = BucketWatch(context, self._runner, beginning.observations)
        status.upstream_version = ".".join(map(str, self._server.version))
        status.master_vclock = self._ballot.vclock
        self.has_streamed = False

    @property
    def published(self) -> VClock:
        """See `Stream.published`."""
        return self._runner.published

    def run(self) -> bool:
        """Take a snapshot if one is planned, then read the logs. Return whether everything was read. Raises any error."""
        snapshot = self._plan.snapshot
        try:
            self._check_logs()
            if snapshot is not None:
                file = self._snapshot_for(snapshot)
                self._log.info("taking a snapshot", reason=snapshot.reason, file=file.path.name)
                if not self._take_snapshot(file, publish=snapshot.publish):
                    return False
            return self._config.snapshot.mode in WITHOUT_STREAM or self._stream()
        finally:
            self._runner.pipeline.close()

    def collect_submitted(self) -> None:
        """Wait until all submitted batches are durable. Raises PublishAborted if they won't be, or the publisher's error."""
        self._runner.wait_until_settled()

    # Start position.

    def _decide(self, known: Known) -> StartPlan:
        try:
            return start.plan(known, self._ballot)
        except PositionError as error:
            error.message = f"{self._directory.path}: {error.message}"
            raise

    def _server_at(self, start: VClock | None) -> Server:
        """Return the server that wrote the files, with the version of the file to be read first."""
        logs, snapshots = self._directory.logs(), self._directory.snapshots()
        before = [log for log in logs if start is not None and self._vclock_for_upstream(start, log.vclock).covers(log.vclock)]
        file = (before[-1:] or snapshots[:1] or logs[-1:])[0]
        if file.meta.instance_uuid is None:
            raise ConfigurationError(
                f"{file.path} doesn't say which instance wrote it", "Name a directory of Tarantool's own files."
            )
        return Server(file.meta.instance_uuid, file.meta.writer_version or _OLDEST_VERSION, self._directory.path)

    def _vclock_for_upstream(self, vclock: VClock, there: VClock) -> VClock:
        """Return `vclock`, with the lsns of excluded origins taken from `there`."""
        return resume.vclock_for_upstream(vclock, there, self._excluded)

    def _check_logs(self) -> None:
        """Raise ConfigurationError if there is no .xlog: the changes after the snapshot would be left out."""
        if not (self._follows or self._config.snapshot.mode in WITHOUT_STREAM or self._directory.logs()):
            raise ConfigurationError(
                f"{self._directory.path} has .snap files and no .xlog files, so all changes after the snapshot would be left out",
                "Name the server's wal_dir as well: `replay DIR DIR`. If it writes no logs, or its snapshot alone is to be "
                'published, set snapshot.mode = "initial_only".',
            )

    def _check_replicaset(self, position: Position | None) -> None:
        """Raise ForeignServerError if the files and the checkpoint belong to different replica sets."""
        snapshots = self._directory.snapshots()
        if snapshots:
            resume.check_replicaset(position, self._directory.head(snapshots[0]).replicaset_uuid)

    def _snapshot_for(self, snapshot: TakeSnapshot) -> LogFile:
        """Return the newest snapshot that has all rows and is continued by the logs. Raises PositionError if there is none."""
        origin, lsn = self._needs_in_snapshot or (0, 0)
        need = f"{self._directory.path}: a snapshot is needed ({snapshot.reason})"
        chain = self._directory.chain()
        is_diverged = self._published is not None and bool(resume.lost_history(self._published, self._ballot, self._excluded))
        is_wanted = options_of(self._config).space_filter()
        lacking = ""
        for file in self._directory.snapshots():
            if chain and not file.vclock.covers(chain[0].vclock):
                raise PositionError(
                    f"{need}, but .xlog files are missing from {file.path.name}, which is at {file.vclock}, "
                    f"to {chain[0].path.name}, which begins at {chain[0].vclock}{lacking}",
                    "Put them into the directory, or a newer .snap.",
                )
            if self._published is not None and not is_diverged and not file.vclock.covers(self._published):
                raise PositionError(
                    f"{need}, but {file.path.name} is at {file.vclock}, older than the checkpoint at {self._published}{lacking}",
                    _NEWER_SNAPSHOT,
                )
            if file.vclock[origin] < lsn:
                raise PositionError(
                    f"{need}, but {file.path.name} is at {file.vclock}, and the snapshot must have {origin}:{lsn} in it{lacking}",
                    _NEWER_SNAPSHOT,
                )
            vinyl = self._directory.head(file).vinyl.items() if snapshot.publish else ()
            names = [name for space_id, name in vinyl if is_wanted(space_id, name)]
            if not names:
                return file
            lacking = lacking or f"; newer ones lack the rows of vinyl spaces ({', '.join(names)}), which no .snap has"
        raise PositionError(
            f"{need}, and there is no complete .snap with all rows{lacking}",
            "Leave such spaces out with spaces.exclude, or let `tarantool-cdc run` take the snapshot from the server."
            if lacking
            else "Put the server's newest .snap into the directory, or name its memtx_dir too.",
        )

    # Reading.

    def _take_snapshot(self, file: LogFile, *, publish: bool) -> bool:
        """Publish a snapshot and wait until it is durable. Return False if a stop was requested meanwhile."""
        intake = SnapshotIntake(self._runner, self._checkpoint, self._status, self._log, publish=publish)
        with intake:
            intake.begin(file.vclock)
            for frames in self._directory.snapshot_rows(file):
                intake.rows(frames)
                self._runner.collect_commits()
                if self._is_stopping.is_set():
                    return False
            intake.end()
        return intake.wait_until_durable()

    def _stream(self) -> bool:
        runner, status = self._runner, self._status
        pipeline = runner.pipeline
        stream = LogStream(
            self._directory,
            self._vclock_for_upstream(pipeline.position.vclock, self._ballot.vclock),
            follows=self._follows,
            excluded=self._excluded,
        )
        position = pipeline.position
        status.replicaset_uuid = str(position.replicaset_uuid)
        status.state, status.error = "streaming", None
        self.has_streamed = True
        self._log.info("reading the logs", vclock=str(position.vclock), end=str(self._ballot.vclock))
        runner.submit_all(pipeline.resume_unfinished_work(now_us()))
        file: LogFile | None = None
        for frames in stream.rows():
            if stream.file is not None and stream.file is not file:
                file = stream.file
                self._log.debug("reading", file=file.path.name)
                if _kind(file.meta.writer_version or _OLDEST_VERSION) != _kind(self._server.version):
                    return self._leave_to_next_version(file)
            self._buckets.look()
            if frames is None:
                runner.collect_commits()
                self._show(stream)
                if self._is_stopping.wait(POLL_SECONDS):
                    return False
                continue
            runner.submit_all(pipeline.feed(frames, now_us()))
            runner.collect_commits()
            self._show(stream)
            while not self._buckets.has_room and not self._is_stopping.wait(POLL_SECONDS):
                runner.collect_commits()
                self._buckets.look()
                self._show(stream)
            if self._is_stopping.is_set():
                return False
        self._show(stream)
        if not runner.wait_until_settled():
            return False
        self._report_end(stream)
        return True

    def _leave_to_next_version(self, file: LogFile) -> bool:
        """Finish the files of this version. The next pipeline begins with `file`. Returns False, as more is to be read."""
        if not self._runner.wait_until_settled():
            return False
        position = self._runner.pipeline.position.vclock
        if not self._vclock_for_upstream(position, file.vclock).covers(file.vclock):
            waiting = self._runner.pipeline.limbo.transaction_count
            raise PositionError(
                f"the server's version changes with {file.path}, which begins at {file.vclock}, and the rows before it "
                f"lead to {position} only, {waiting} transactions waiting for a quorum",
                "Let `tarantool-cdc run` continue from here.",
            )
        self._log.info("the server's version changes", file=file.path.name, version=file.meta.values.get("Version"))
        return False

    def _report_end(self, stream: LogStream) -> None:
        pipeline = self._runner.pipeline
        if stream.tail_bytes:
            self._log.warning("the last file ends within a block, which is ignored", tail_bytes=stream.tail_bytes)
        if pipeline.open_byte_count:
            self._log.warning("the files end within a transaction, which is ignored", bytes=pipeline.open_byte_count)
        if pipeline.limbo.transaction_count:
            self._log.warning(
                "the files neither confirm nor roll back some transactions; the next run reads them again",
                transactions=pipeline.limbo.transaction_count,
                rows=pipeline.limbo.row_count,
            )
        if waiting := self._buckets.state.waiting_count:
            self._log.warning("rows of buckets wait for other shards; the next run goes on with them", buckets=waiting)
        self._log.info("all files have been read", vclock=str(pipeline.position.vclock), end=str(stream.vclock))

    def _show(self, stream: LogStream) -> None:
        self._runner.update_status()
        status = self._status
        status.master_vclock = join(self._ballot.vclock, stream.vclock)
        status.received_bytes = stream.read_byte_count
        status.last_heard_at = time.monotonic()


def _kind(version: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the part of a version that decides how a server treats rows: UPDATEs and UPSERTs changed twice within 2.10."""
    return version if version[:2] == (2, 10) else version[:2]
