"""The daemon's status: one object that the daemon's thread writes and other threads read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cdc import log
from cdc.ops.progress import SnapshotProgress
from cdc.ops.request_queue import RequestQueue
from cdc.ops.setup import Setup
from cdc.positions.vclock import VClock
from cdc.registry.schema_ids import RegistryWait
from cdc.stream.commits.losses import sentence_of
from cdc.stream.commits.publisher_statistics import PublisherStatistics
from cdc.stream.reports.bucket_waits import BucketsState
from cdc.stream.reports.limbo_watch import OverdueQuorum
from cdc.stream.transactions.limbo import LimboState
from cdc.upstream.overview import Upstream

RowPath = Literal["native", "python"]
State = Literal[
    "starting", "standby", "waiting for kafka", "connecting", "snapshot", "streaming", "stalled", "stopping", "failed"
]

LIFELESS_SECONDS: Final = 120.0
"""Time for one turn of the daemon's loop after which it counts as hanging. Every wait in a turn is shorter by far."""

LOSSES_SHOWN: Final = 20
"""Number of deleted topics that are named one by one; the metrics count all."""


@dataclass(slots=True)
class Status:
    """Current state of the daemon. Every field is replaced as a whole, so a reader never sees a partial value."""

    name: str
    state: State = "starting"
    error: str | None = None
    is_standby_ready: bool = False
    """Whether a standby could take over now."""
    standby_of: str | None = None
    """The process that a standby heard last: it publishes, or did."""
    is_standby_deaf: bool = False
    """Whether a standby gets no answer from Kafka, or finds no checkpoint topic there."""
    error_remedy: str = ""
    """What an operator can do about `error`, if anything."""
    error_detail: str = ""
    """What `error` quotes of received data, which may be rows: not for all who may see the status."""
    upstream: str | None = None
    upstreams: tuple[Upstream, ...] = ()
    surveyed_at: float = 0.0
    """Time of the survey that `upstreams` is from, by time.monotonic; 0 before the first."""
    upstream_version: str | None = None
    server_uuid: str | None = None
    replicaset_uuid: str | None = None
    master_vclock: VClock = field(default_factory=VClock)
    received: VClock = field(default_factory=VClock)
    published: VClock = field(default_factory=VClock)
    checkpoint: VClock = field(default_factory=VClock)
    seq: int = 0
    schema_version: int = 0
    snapshot_id: int = 0
    snapshot: SnapshotProgress | None = None
    """Progress of the last snapshot that this process has begun; None before the first."""
    native_row_count: int = 0
    """Rows that the compiled row path handled."""
    python_row_count: int = 0
    """Rows that the Python row path handled."""
    received_bytes: int = 0
    reconnect_count: int = 0
    recent_lag_seconds: float = 0.0
    """The most that `lag_seconds` was within the last seconds."""
    last_heard_at: float = 0.0
    clock_ahead_seconds: float | None = None
    """By how much the followed server's clock is ahead of this machine's, as of its last heartbeat; None before the first."""
    open_transaction_bytes: int = 0
    limbo: LimboState = field(default_factory=LimboState)
    overdue_quorum: OverdueQuorum | None = None
    """Transaction that has been waiting for its quorum for too long, or None."""
    queued_bytes: int = 0
    unwritten_bytes: int = 0
    """Memory for changes of images that the store doesn't have yet, in bytes."""
    is_reading: bool = True
    store_position: VClock | None = None
    is_store_removed: bool = False
    """Whether the store's files were removed, while the daemon goes on with those that it has open."""
    state_rows: int = 0
    state_bytes: int = 0
    merging_upsert_count: int = 0
    """Number of UPSERTs of vinyl spaces from a server that may merge them, so that their result there is uncertain."""
    doubtful_key_count: int = 0
    registry_wait: RegistryWait | None = None
    """What rows wait for in the registry of schemas, or None."""
    buckets: BucketsState | None = None
    """Buckets that move between shards which share topics, or None."""
    requests: RequestQueue | None = None
    kafka: PublisherStatistics = field(default_factory=PublisherStatistics)
    stalled_after_seconds: float = 15.0
    row_path: RowPath = "python"
    setup: Setup = field(default_factory=Setup)
    turned_at: float = 0.0
    """When the daemon's thread last went through its loop while it had a stream, by time.monotonic; 0 before the first time."""
    started_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = time.time()

    @property
    def is_ready(self) -> bool:
        """Whether changes flow and become durable."""
        return self.shown_state == "streaming"

    @property
    def is_in_service(self) -> bool:
        """Whether changes flow, or would flow within seconds if the daemon that a standby waits for ended."""
        return self.is_ready or (self.state == "standby" and self.is_standby_ready)

    @property
    def lifelessness(self) -> str | None:
        """Why this process can't go on by itself, so that a supervisor should start it again; None if it can.

        A daemon that waits for Kafka, a server, a quorum or the registry lives: a restart wouldn't help.
        """
        return self.shown_error or "failed" if self.state == "failed" else self.stuck

    @property
    def stuck(self) -> str | None:
        """What is wrong if the daemon's thread has been busy with one step for very long; None if it hasn't."""
        seconds = time.monotonic() - self.turned_at
        if self.turned_at and self.state in ("streaming", "snapshot", "standby") and seconds > LIFELESS_SECONDS:
            return f"the daemon's thread has been busy with one step for {seconds:.0f} s; SIGUSR2 prints where"
        return None

    @property
    def row_count(self) -> int:
        """Rows received in the stream and in snapshots."""
        return self.native_row_count + self.python_row_count

    @property
    def stalled_seconds(self) -> float:
        """How long changes have been waiting without a commit, or for the registry, in seconds; 0 if none waits."""
        since = self.kafka.backlog.stalled_since()
        return max(self.registry_seconds, time.monotonic() - since if since is not None else 0.0)

    @property
    def registry_seconds(self) -> float:
        """How long rows have been waiting for the registry of schemas, in seconds; 0 if none waits."""
        waits = self.registry_wait
        return max(0.0, time.monotonic() - waits.since) if waits is not None else 0.0

    @property
    def shown_state(self) -> State:
        """`state` as shown to operators: a stream whose changes don't become durable is `stalled`."""
        return "stalled" if self.state == "streaming" and self.stall else self.state

    @property
    def stall(self) -> str | None:
        """Message about a stall and its begin; None if there is none."""
        seconds = self.stalled_seconds
        if seconds < self.stalled_after_seconds:
            return None
        since = datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds")
        waits = self.registry_wait
        if waits is not None:
            return (
                f"Rows have been waiting for the registry of schemas since {since}, for {seconds:.0f} s (subject "
                f"{waits.subject!r}): {waits.sentence.rstrip('.')}. Nothing is lost, and the daemon resumes automatically"
            )
        trouble = f" (its client reports: {self.kafka.trouble})" if self.kafka.trouble else ""
        return (
            f"Kafka has committed nothing since {since}, for {seconds:.0f} s, while changes wait{trouble}. Nothing is lost, and "
            "the daemon resumes automatically. Check whether the brokers run and have enough replicas in sync "
            "(min.insync.replicas), and whether a topic was deleted."
        )

    @property
    def shown_error(self) -> str | None:
        """`error` as shown to operators: if it is None, the first other thing that is wrong, the most urgent first."""
        now_us, buckets = time.time_ns() // 1000, self.buckets
        found = (
            self.error,
            self.stuck,
            self.stall,
            f"rows wait for the registry: {self.registry_wait.sentence}" if self.registry_wait is not None else None,
            self.kafka.failure,
            self.overdue_quorum.sentence(now_us) if self.overdue_quorum is not None else None,
            buckets.sentence(now_us) if buckets is not None and buckets.is_overdue else None,
            self.requests.signals.sentence if self.requests is not None else None,
            "the state store's files were removed: its rows are lost once the daemon stops" if self.is_store_removed else None,
            self._refusal_to_come,
            sentence_of(self.kafka.losses),
            buckets.strangers_sentence if buckets is not None else None,
        )
        return next(filter(None, found), None)

    @property
    def _refusal_to_come(self) -> str | None:
        """What is wrong if the followed server would refuse a new connection."""
        refusing = (upstream for upstream in self.upstreams if upstream.is_following and upstream.is_refused)
        return next((f"the followed server would refuse a new connection: {upstream.error}" for upstream in refusing), None)

    def shards_waited_for(self) -> set[str]:
        """Return the shards for which rows of buckets wait."""
        waits = self.buckets.waits if self.buckets is not None else ()
        return {wait.waits_for for wait in waits if wait.waits_for is not None}

    @property
    def master(self) -> VClock:
        """The newest known position of the replica set: what the followed member and the surveys have told, and what arrived."""
        newest = dict(self.received.items())
        for vclock in (self.master_vclock, *(upstream.vclock for upstream in self.upstreams)):
            for origin, lsn in vclock.items() if vclock is not None else ():
                newest[origin] = max(lsn, newest.get(origin, 0))
        return VClock(newest)

    @property
    def lag_rows(self) -> int:
        """Rows that the replica set is known to have and Kafka hasn't. The master's position may be some seconds old."""
        checkpoint, ignored = self.checkpoint, self.setup.ignored_origins
        return sum(max(0, lsn - checkpoint[origin]) for origin, lsn in self.master.items() if origin not in ignored)

    def lag_seconds(self, now: float) -> float:
        """Return the age in seconds of the oldest received change that isn't committed or waits for a quorum; 0 if there is none.

        `now` is a time in seconds since the epoch.
        """
        return max(self.kafka.backlog.age(time.monotonic(), now), self.limbo_seconds(now))

    def steady_lag_seconds(self, now: float) -> float:
        """Return `lag_seconds`, or the most that it was lately while the replica set has more rows.

        Whenever all that has been received is committed there is no lag for a moment, however old it was.
        """
        seconds = self.lag_seconds(now)
        return max(seconds, self.recent_lag_seconds) if self.lag_rows else seconds

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the server was last heard; None before it was first heard."""
        return time.monotonic() - self.last_heard_at if self.last_heard_at else None

    def limbo_seconds(self, now: float) -> float:
        """Return how long the oldest transaction has been waiting for a quorum, in seconds; 0 if none waits."""
        return max(0.0, now - self.limbo.oldest_us / 1e6) if self.limbo.oldest_us else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the object that /status and `tarantool-cdc status --json` show."""
        now = time.time()
        recent = sorted(self.kafka.recent_commit_seconds)
        return {
            "name": self.name,
            "state": self.shown_state,
            "standby": {"is_ready": self.is_standby_ready, "of": self.standby_of} if self.state == "standby" else None,
            "error": self.shown_error,
            "is_stuck": self.stuck is not None,
            "process_id": os.getpid(),
            "uptime_seconds": round(now - self.started_at, 1),
            "row_path": self.row_path,
            "log_lines_lost": log.lost_count(),
            "upstream": {
                "address": self.upstream,
                "version": self.upstream_version,
                "uuid": self.server_uuid,
                "replicaset_uuid": self.replicaset_uuid,
                "vclock": self.master_vclock.to_json(),
                "idle_seconds": _rounded(self.idle_seconds),
                "clock_ahead_seconds": _rounded(self.clock_ahead_seconds),
                "reconnects": self.reconnect_count,
            },
            "upstreams": [self._upstream_to_json(upstream) for upstream in self.upstreams],
            "position": {
                "received": self.received.to_json(),
                "published": self.published.to_json(),
                "checkpoint": self.checkpoint.to_json(),
                "seq": self.seq,
                "schema_version": self.schema_version,
                "snapshot_id": self.snapshot_id,
            },
            "lag_seconds": round(self.steady_lag_seconds(now), 3),
            "rows": self.row_count,
            "rows_by_path": {"native": self.native_row_count, "python": self.python_row_count},
            "snapshot_rows": self.snapshot.published_rows if self.snapshot is not None else 0,
            "snapshot": self.snapshot.to_json() if self.snapshot is not None else None,
            "received_bytes": self.received_bytes,
            "store": None
            if self.store_position is None
            else {
                "position": self.store_position.to_json(),
                "rows": self.state_rows,
                "bytes": self.state_bytes,
                "doubtful_keys": self.doubtful_key_count,
                "is_removed": self.is_store_removed,
            },
            "vinyl_upserts": self.merging_upsert_count,
            "snapshot_request": self.requests.to_json() if self.requests is not None else None,
            "last_snapshot_request": self.requests.last_ended if self.requests is not None else None,
            "signals": self.requests.signals.to_json() if self.requests is not None else None,
            "limbo": {
                "transactions": self.limbo.transaction_count,
                "rows": self.limbo.row_count,
                "bytes": self.limbo.memory_byte_count,
                "bytes_on_disk": self.limbo.disk_byte_count,
                "oldest_seconds": round(self.limbo_seconds(now), 3),
                "oldest": f"{self.limbo.oldest_origin}:{self.limbo.oldest_lsn}" if self.limbo.oldest_us else None,
                "is_overdue": self.overdue_quorum is not None,
            },
            "lost_topics": [loss.to_json() | {"remedy": loss.remedy} for loss in self.kafka.losses[:LOSSES_SHOWN]],
            "buckets": self.buckets.to_json(round(now * 1e6)) if self.buckets is not None else None,
            "registry": None
            if self.registry_wait is None
            else {
                "subject": self.registry_wait.subject,
                "reason": self.registry_wait.reason,
                "message": self.registry_wait.sentence,
                "schema": self.registry_wait.schema or None,
                "waiting_seconds": round(self.registry_seconds, 3),
            },
            "buffers": {
                "queued_bytes": self.queued_bytes,
                "unwritten_bytes": self.unwritten_bytes,
                "open_transaction_bytes": self.open_transaction_bytes,
                "is_reading": self.is_reading,
            },
            "kafka": {
                "events": self.kafka.event_count,
                "bytes": self.kafka.byte_count,
                "commits": self.kafka.commit_count,
                "aborts": self.kafka.abort_count,
                "stalled_seconds": round(self.stalled_seconds, 3),
                "commit_ms_median": round(recent[len(recent) // 2] * 1000, 2) if recent else None,
                "commit_ms_max": round(recent[-1] * 1000, 2) if recent else None,
            },
        }

    def _upstream_to_json(self, upstream: Upstream) -> dict[str, Any]:
        return {
            "address": upstream.address,
            "state": upstream.state,
            "uuid": upstream.server_uuid,
            "version": upstream.version,
            "read_only": upstream.is_read_only,
            "vclock": upstream.vclock.to_json() if upstream.vclock is not None else None,
            "gc_vclock": upstream.gc_vclock.to_json() if upstream.gc_vclock is not None else None,
            "lag_rows": upstream.lag_rows,
            "headroom_rows": upstream.headroom_rows,
            "idle_seconds": _rounded(self.idle_seconds) if upstream.is_following else None,
            "error": upstream.error,
            "age_seconds": _rounded(time.monotonic() - self.surveyed_at) if self.surveyed_at else None,
        }


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None
