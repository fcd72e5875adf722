"""The list of the metrics that /metrics shows, each with its description and unit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from cdc import log
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.upstream.overview import Upstream

LOG_LINES_LOST: Final = "Lines of the log that could not be written to stderr: its disk is full, or nobody reads it"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


COUNTERS: Final[dict[str, tuple[str, Callable[[Status], float]]]] = {
    "tarantool_cdc_received_bytes": ("Bytes read from the server", lambda s: s.received_bytes),
    "tarantool_cdc_events": ("Events handed to Kafka", lambda s: s.kafka.event_count),
    "tarantool_cdc_event_bytes": ("Bytes of values handed to Kafka", lambda s: s.kafka.byte_count),
    "tarantool_cdc_commits": ("Kafka commits", lambda s: s.kafka.commit_count),
    "tarantool_cdc_commit_seconds": ("Time spent in Kafka commits", lambda s: s.kafka.commit_seconds),
    "tarantool_cdc_aborts": ("Kafka transactions that were aborted and published again", lambda s: s.kafka.abort_count),
    "tarantool_cdc_vinyl_upserts": (
        "UPSERTs of vinyl spaces from a master before 2.6.1, whose result may differ there because it may merge them",
        lambda s: s.merging_upsert_count,
    ),
    "tarantool_cdc_reconnects": ("Connections to Tarantool after the first", lambda s: s.reconnect_count),
    "tarantool_cdc_signals_taken": (
        "Signals that were carried out",
        lambda s: s.requests.signals.taken if s.requests is not None else 0,
    ),
    "tarantool_cdc_signals_skipped": (
        "Signals that were skipped, because of what they contain or because there was nothing to do",
        lambda s: s.requests.signals.skipped if s.requests is not None else 0,
    ),
    "tarantool_cdc_bucket_changes_lost": (
        "Changes that clients wrote past the router to copies of buckets that other shards own: they aren't published",
        lambda s: s.buckets.lost_count if s.buckets is not None else 0,
    ),
    "tarantool_cdc_buckets_changed": (
        "Buckets that have arrived with other rows than they had where they came from: their rows were shown again",
        lambda s: s.buckets.changed_count if s.buckets is not None else 0,
    ),
    "tarantool_cdc_log_lines_lost": (LOG_LINES_LOST, lambda _: log.lost_count()),
}
"""Names without `_total`, which the exposition adds."""

GAUGES: Final[dict[str, tuple[str, Callable[[Status], float]]]] = {
    "tarantool_cdc_ready": ("1 while changes flow and become durable", lambda s: float(s.is_ready)),
    "tarantool_cdc_standby": (
        "1 while the daemon waits as a standby and could take over, 0 while it waits and couldn't; NaN if it doesn't wait",
        lambda s: float(s.is_standby_ready) if s.state == "standby" else math.nan,
    ),
    "tarantool_cdc_stalled_seconds": (
        "How long changes have been waiting without a Kafka commit, in seconds; 0 if none waits",
        lambda s: s.stalled_seconds,
    ),
    "tarantool_cdc_lag_seconds": (
        "Age of the oldest received change that isn't committed, in seconds; 0 if all are",
        lambda s: s.lag_seconds(time.time()),
    ),
    "tarantool_cdc_seq": ("The last seq assigned", lambda s: s.seq),
    "tarantool_cdc_schema_version": ("The last schema version assigned", lambda s: s.schema_version),
    "tarantool_cdc_snapshot_rows": (
        "Events that the latest snapshot has published so far",
        lambda s: s.snapshot.published_rows if s.snapshot is not None else 0,
    ),
    "tarantool_cdc_snapshot_rows_read": (
        "Rows of published spaces that the latest snapshot has read so far, those that consumers have already among them",
        lambda s: s.snapshot.reading.rows if s.snapshot is not None else 0,
    ),
    "tarantool_cdc_snapshot_share": (
        "Part of the expected rows that the latest snapshot has read, 1 at its end; NaN if no number is expected",
        lambda s: _or_nan(s.snapshot.share if s.snapshot is not None else None),
    ),
    "tarantool_cdc_snapshot_seconds_left": (
        "Expected time until the end of the snapshot that is being taken, 0 after its end; NaN if unknown",
        lambda s: _or_nan(s.snapshot.seconds_left if s.snapshot is not None else None),
    ),
    "tarantool_cdc_queued_bytes": ("Bytes of events that wait for Kafka's producer", lambda s: s.queued_bytes),
    "tarantool_cdc_unwritten_bytes": (
        "Memory for changes of images that the store doesn't have yet; it holds complete source transactions",
        lambda s: s.unwritten_bytes,
    ),
    "tarantool_cdc_open_transaction_bytes": (
        "Bytes of the source transaction whose end has not arrived yet",
        lambda s: s.open_transaction_bytes,
    ),
    "tarantool_cdc_limbo_transactions": (
        "Transactions that wait for a quorum, or behind one that waits",
        lambda s: s.limbo.transaction_count,
    ),
    "tarantool_cdc_limbo_bytes": (
        "Bytes in memory of the transactions in tarantool_cdc_limbo_transactions",
        lambda s: s.limbo.memory_byte_count,
    ),
    "tarantool_cdc_limbo_disk_bytes": (
        "Bytes on disk of the transactions in tarantool_cdc_limbo_transactions",
        lambda s: s.limbo.disk_byte_count,
    ),
    "tarantool_cdc_limbo_seconds": (
        "How long the oldest transaction has been waiting for a quorum, in seconds",
        lambda s: s.limbo_seconds(time.time()),
    ),
    "tarantool_cdc_limbo_overdue": (
        "1 while a transaction has been waiting for longer than source.quorum_alert_ms; /status names it",
        lambda s: float(s.overdue_quorum is not None),
    ),
    "tarantool_cdc_buckets_waiting": (
        "Buckets whose rows wait for the daemon of the shard where they were before",
        lambda s: s.buckets.waiting_count if s.buckets is not None else 0,
    ),
    "tarantool_cdc_bucket_wait_seconds": (
        "How long the first of these buckets has been waiting, in seconds; 0 if none waits",
        lambda s: s.buckets.oldest_seconds(time.time_ns() // 1000) if s.buckets is not None else 0,
    ),
    "tarantool_cdc_bucket_waiting_bytes": (
        "Memory of the rows that wait with these buckets",
        lambda s: s.buckets.byte_count if s.buckets is not None else 0,
    ),
    "tarantool_cdc_buckets_arrived_unseen": (
        "Buckets that have arrived while the daemon didn't follow: rows that were deleted then may be left over",
        lambda s: s.buckets.arrived_unseen if s.buckets is not None else 0,
    ),
    "tarantool_cdc_buckets_doubled": (
        "Buckets that more than one shard owns",
        lambda s: len(s.buckets.doubled) if s.buckets is not None else 0,
    ),
    "tarantool_cdc_lost_topics": (
        "Topics that were deleted, and whose rows have not all been published again; /status names them",
        lambda s: len(s.kafka.losses),
    ),
    "tarantool_cdc_state_bytes": ("Bytes of the state store's file, free pages included", lambda s: s.state_bytes),
    "tarantool_cdc_state_rows": ("Rows in the state store", lambda s: s.state_rows),
    "tarantool_cdc_doubtful_keys": (
        'Keys whose row is unknown because a change could not be applied (format.on_image_error = "dlq")',
        lambda s: s.doubtful_key_count,
    ),
    "tarantool_cdc_native": (
        "1 where the compiled row path runs, 0 where the Python one does",
        lambda s: float(s.row_path == "native"),
    ),
    "tarantool_cdc_reading": ("0 while the daemon doesn't read the socket because Kafka lags", lambda s: float(s.is_reading)),
}

UPSTREAM_GAUGES: Final[dict[str, tuple[str, Callable[[Upstream], float | None]]]] = {
    "tarantool_cdc_upstream_following": ("1 for the followed member", lambda u: float(u.is_following)),
    "tarantool_cdc_upstream_read_only": ("1 for a read-only member", lambda u: u.is_read_only),
    "tarantool_cdc_upstream_lag_rows": ("Rows that the most advanced members have and this one lacks", lambda u: u.lag_rows),
    "tarantool_cdc_upstream_headroom_rows": (
        "Headroom until a gap: rows before the daemon's position whose logs a member keeps; negative: rows whose logs are gone",
        lambda u: u.headroom_rows,
    ),
}
"""Metrics of each member as of the last survey (source.survey_interval_ms). The label `upstream` is the member's address. A value
that is unknown, because the member doesn't answer, is absent."""

VCLOCKS: Final = ("master", "received", "published", "checkpoint", "state")
"""Values of the label `position` of tarantool_cdc_lsn, which also has the label `replica_id`."""


LSN: Final = "tarantool_cdc_lsn"
UPSTREAM_STATE: Final = "tarantool_cdc_upstream_state"
UPSTREAM_LSN: Final = "tarantool_cdc_upstream_lsn"
UPSTREAM_IDLE: Final = "tarantool_cdc_upstream_idle_seconds"

INFO: Final = "tarantool_cdc_info"
ROWS: Final = "tarantool_cdc_rows"
REGISTRY: Final = "tarantool_cdc_registry_wait_seconds"

LABELLED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    INFO: ("1, with the daemon's name, which its standby has, too, as label", ("name",)),
    f"{ROWS}_total": (
        "Rows received in the stream and in snapshots, by the row path that handled them: native (the compiled one) or python",
        ("path",),
    ),
    LSN: ("Positions by origin", ("position", "replica_id")),
    UPSTREAM_STATE: (
        "1, with the member's state, as in /status, its uuid and its version as labels",
        ("upstream", "state", "uuid", "version"),
    ),
    UPSTREAM_LSN: (
        "Position of a member (vclock), and the position from which it keeps logs (gc_vclock)",
        ("upstream", "position", "replica_id"),
    ),
    UPSTREAM_IDLE: ("Seconds since the followed member was last heard", ()),
    REGISTRY: (
        "How long rows have been waiting for the registry's id of a schema, in seconds: its subject, and the reason, which is "
        "away, missing, incompatible, forbidden or refused; absent while none waits",
        ("subject", "reason"),
    ),
}
"""Metrics with other labels, and those that may be absent."""


class StatusCollector(Collector):
    """Collector that reads the status at each scrape."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        status = self._status
        for name, (help_text, read) in COUNTERS.items():
            yield CounterMetricFamily(name, help_text, value=read(status))
        for name, (help_text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, help_text, value=read(status))
        info = _family(INFO)
        info.add_metric([status.name], 1.0)
        yield info
        rows = CounterMetricFamily(ROWS, LABELLED[f"{ROWS}_total"][0], labels=["path"])
        rows.add_metric(["native"], status.native_row_count)
        rows.add_metric(["python"], status.python_row_count)
        yield rows
        waits = status.registry_wait
        if waits is not None:
            registry = _family(REGISTRY)
            registry.add_metric([waits.subject, waits.reason], status.registry_seconds)
            yield registry
        lsn = _family(LSN)
        vclocks = (status.master_vclock, status.received, status.published, status.checkpoint, status.store_position or VClock())
        for position, vclock in zip(VCLOCKS, vclocks, strict=True):
            for origin, value in vclock.items():
                lsn.add_metric([position, str(origin)], value)
        yield lsn
        yield from self._upstreams()

    def _upstreams(self) -> Iterator[Metric]:
        upstreams = self._status.upstreams
        for name, (help_text, read) in UPSTREAM_GAUGES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=["upstream"])
            for upstream in upstreams:
                value = read(upstream)
                if value is not None:
                    gauge.add_metric([upstream.address], value)
            yield gauge
        state = _family(UPSTREAM_STATE)
        lsn = _family(UPSTREAM_LSN)
        for upstream in upstreams:
            state.add_metric([upstream.address, upstream.state, upstream.server_uuid or "", upstream.version or ""], 1.0)
            for position, vclock in (("vclock", upstream.vclock), ("gc_vclock", upstream.gc_vclock)):
                for origin, value in vclock.items() if vclock is not None else ():
                    lsn.add_metric([upstream.address, position, str(origin)], value)
        yield state
        yield lsn
        idle = self._status.idle_seconds
        if idle is not None:
            yield GaugeMetricFamily(UPSTREAM_IDLE, LABELLED[UPSTREAM_IDLE][0], value=idle)


def page_of(status: Status, registry: CollectorRegistry) -> bytes:
    """Return what /metrics shows: all metrics of the registry, with the label `shard` if the daemon is one of a fleet."""
    page = generate_latest(registry)
    shard = status.setup.shard
    if shard is None:
        return page
    lines = page.decode().splitlines()
    return "".join(f"{line if line.startswith('#') else _labelled(line, shard)}\n" for line in lines).encode()


def _labelled(line: str, shard: str) -> str:
    """Return a line of Prometheus' text with the label `shard` in front of the others. Names of shards need no escapes."""
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{shard="{shard}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{shard="{shard}"}} {value}'


def _family(name: str) -> GaugeMetricFamily:
    text, labels = LABELLED[name]
    return GaugeMetricFamily(name, text, labels=labels)
