"""The metrics, as a documented list: what /metrics shows, each with its meaning and unit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc.status import Status
from cdc.vclock import VClock

COUNTERS: Final[dict[str, tuple[str, Callable[[Status], float]]]] = {
    "tarantool_cdc_rows": ("Rows of the stream and of snapshots that were taken in", lambda s: s.row_count),
    "tarantool_cdc_received_bytes": ("Bytes read from the server", lambda s: s.received_bytes),
    "tarantool_cdc_events": ("Events handed to Kafka", lambda s: s.kafka.event_count),
    "tarantool_cdc_event_bytes": ("Bytes of values handed to Kafka", lambda s: s.kafka.byte_count),
    "tarantool_cdc_commits": ("Kafka commits", lambda s: s.kafka.commit_count),
    "tarantool_cdc_commit_seconds": ("Time spent in Kafka commits", lambda s: s.kafka.commit_seconds),
    "tarantool_cdc_aborts": ("Kafka transactions that were aborted and published again", lambda s: s.kafka.abort_count),
    "tarantool_cdc_reconnects": ("Connections to Tarantool after the first", lambda s: s.reconnect_count),
}
"""Names without `_total`, which the exposition adds."""

GAUGES: Final[dict[str, tuple[str, Callable[[Status], float]]]] = {
    "tarantool_cdc_ready": ("1 while changes flow", lambda s: float(s.is_ready)),
    "tarantool_cdc_lag_seconds": (
        "Age of the newest committed change while newer ones wait",
        lambda s: s.lag_seconds(time.time()),
    ),
    "tarantool_cdc_seq": ("The last seq given out", lambda s: s.seq),
    "tarantool_cdc_schema_version": ("The last schema version given out", lambda s: s.schema_version),
    "tarantool_cdc_snapshot_rows": ("Rows of the latest snapshot so far", lambda s: s.snapshot_rows),
    "tarantool_cdc_queued_bytes": ("Bytes of events that wait for Kafka's producer", lambda s: s.queued_bytes),
    "tarantool_cdc_open_transaction_bytes": (
        "Bytes of the source transaction whose end has not arrived",
        lambda s: s.open_transaction_bytes,
    ),
    "tarantool_cdc_state_bytes": ("Bytes of the state store's file, free pages included", lambda s: s.state_bytes),
    "tarantool_cdc_state_rows": ("Rows in the state store", lambda s: s.state_rows),
    "tarantool_cdc_reading": ("0 while the socket isn't read because Kafka lags", lambda s: float(s.is_reading)),
}

VCLOCKS: Final = ("master", "received", "published", "checkpoint", "state")
"""Values of the label `position` of tarantool_cdc_lsn, beside the label `replica_id`."""


class StatusCollector(Collector):
    """Reads the status each time the metrics are asked for."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        status = self._status
        for name, (help_text, read) in COUNTERS.items():
            yield CounterMetricFamily(name, help_text, value=read(status))
        for name, (help_text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, help_text, value=read(status))
        lsn = GaugeMetricFamily("tarantool_cdc_lsn", "Positions by origin", labels=["position", "replica_id"])
        vclocks = (status.master_vclock, status.received, status.published, status.checkpoint, status.stored or VClock())
        for position, vclock in zip(VCLOCKS, vclocks, strict=True):
            for origin, value in vclock.items():
                lsn.add_metric([position, str(origin)], value)
        yield lsn
