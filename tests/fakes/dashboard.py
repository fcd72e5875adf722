"""Grafana's dashboard, as it is in config/grafana-dashboard.json: made here, so that it shows every metric that there is."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

SELECTED: Final = '{instance=~"$instance"}'
WIDTH: Final = 24
HEIGHT: Final = 7
LEFT_OUT: Final = {
    "tarantool_cdc_schema_version": "a number without a meaning over time",
    "tarantool_cdc_info": "it tells alerts which daemons have one name",
    "tarantool_cdc_native": "the daemon's first log line says it, and rows by path show it",
    "tarantool_cdc_upstream_state": "a table would repeat the daemon's own page",
    "tarantool_cdc_upstream_read_only": "the same",
    "tarantool_cdc_upstream_lsn": "the same",
}
"""Metrics that no panel shows, and why."""


class Plot(NamedTuple):
    """A panel: its title, Grafana's unit, and lines as an expression and a legend."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    columns: int = 8


def rate(name: str) -> str:
    """How fast a counter grows."""
    return f"rate({name}{SELECTED}[$__rate_interval])"


def gain(name: str) -> str:
    """By how much a counter has grown lately."""
    return f"increase({name}{SELECTED}[5m])"


def level(name: str) -> str:
    """A gauge as it is."""
    return f"{name}{SELECTED}"


DAEMON: Final = "{{instance}} {{shard}}"
ROWS: Final[tuple[tuple[str, tuple[Plot, ...]], ...]] = (
    (
        "Is all well?",
        (
            Plot(
                "Ready",
                "bool_yes_no",
                ((level("tarantool_cdc_ready"), DAEMON), (level("tarantool_cdc_standby"), f"{DAEMON}, as a standby")),
                4,
            ),
            Plot("Lag", "s", ((level("tarantool_cdc_lag_seconds"), DAEMON),), 10),
            Plot(
                "Stalled: by Kafka, by the registry",
                "s",
                (
                    (level("tarantool_cdc_stalled_seconds"), DAEMON),
                    (level("tarantool_cdc_registry_wait_seconds"), "{{subject}}: {{reason}}"),
                ),
                10,
            ),
        ),
    ),
    (
        "Flow",
        (
            Plot("Rows received, by row path", "rowsps", ((rate("tarantool_cdc_rows_total"), f"{DAEMON} {{{{path}}}}"),)),
            Plot("Events to Kafka", "ops", ((rate("tarantool_cdc_events_total"), DAEMON),)),
            Plot(
                "Bytes from Tarantool, to Kafka",
                "Bps",
                (
                    (rate("tarantool_cdc_received_bytes_total"), f"received {DAEMON}"),
                    (rate("tarantool_cdc_event_bytes_total"), f"published {DAEMON}"),
                ),
            ),
            Plot("Seq", "none", ((level("tarantool_cdc_seq"), DAEMON),)),
            Plot(
                "Time of a commit",
                "s",
                ((f"{rate('tarantool_cdc_commit_seconds_total')} / {rate('tarantool_cdc_commits_total')}", DAEMON),),
            ),
            Plot(
                "Rows behind the replica set, by origin",
                "none",
                (
                    (
                        "max by(instance, shard, replica_id) "
                        '(tarantool_cdc_upstream_lsn{instance=~"$instance", position="vclock"}) '
                        '- on(instance, shard, replica_id) tarantool_cdc_lsn{instance=~"$instance", position="checkpoint"}',
                        f"{DAEMON} {{{{replica_id}}}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "What waits",
        (
            Plot("For a quorum: transactions", "none", ((level("tarantool_cdc_limbo_transactions"), DAEMON),)),
            Plot(
                "For a quorum: how long",
                "s",
                ((level("tarantool_cdc_limbo_seconds"), DAEMON), (level("tarantool_cdc_limbo_overdue"), f"overdue {DAEMON}")),
            ),
            Plot(
                "Memory and disk of what waits",
                "bytes",
                tuple(
                    (level(f"tarantool_cdc_{name}"), f"{name} {DAEMON}")
                    for name in ("queued_bytes", "unwritten_bytes", "open_transaction_bytes", "limbo_bytes", "limbo_disk_bytes")
                ),
            ),
            Plot("Reads from the master", "bool_yes_no", ((level("tarantool_cdc_reading"), DAEMON),), 4),
            Plot(
                "Snapshot: rows",
                "none",
                (
                    (level("tarantool_cdc_snapshot_rows_read"), f"read {DAEMON}"),
                    (level("tarantool_cdc_snapshot_rows"), f"published {DAEMON}"),
                ),
                10,
            ),
            Plot(
                "Snapshot: share, and time left",
                "none",
                (
                    (level("tarantool_cdc_snapshot_share"), f"share {DAEMON}"),
                    (level("tarantool_cdc_snapshot_seconds_left"), f"seconds left {DAEMON}"),
                ),
                10,
            ),
        ),
    ),
    (
        "Members and store",
        (
            Plot("Rows of logs until a gap", "none", ((level("tarantool_cdc_upstream_headroom_rows"), "{{upstream}}"),)),
            Plot("Rows behind the newest member", "none", ((level("tarantool_cdc_upstream_lag_rows"), "{{upstream}}"),)),
            Plot(
                "Followed, and last heard",
                "none",
                (
                    (level("tarantool_cdc_upstream_following"), "{{upstream}}"),
                    (level("tarantool_cdc_upstream_idle_seconds"), f"seconds {DAEMON}"),
                ),
            ),
            Plot("State store", "bytes", ((level("tarantool_cdc_state_bytes"), DAEMON),)),
            Plot("Rows in the store", "none", ((level("tarantool_cdc_state_rows"), DAEMON),)),
            Plot("Topics that were deleted", "none", ((level("tarantool_cdc_lost_topics"), DAEMON),)),
            Plot("Keys whose row is unknown", "none", ((level("tarantool_cdc_doubtful_keys"), DAEMON),)),
        ),
    ),
    (
        "Buckets that move between shards",
        (
            Plot("Buckets that wait for the shard that they leave", "none", ((level("tarantool_cdc_buckets_waiting"), DAEMON),)),
            Plot("How long the first has been waiting", "s", ((level("tarantool_cdc_bucket_wait_seconds"), DAEMON),)),
            Plot("Memory of their rows", "bytes", ((level("tarantool_cdc_bucket_waiting_bytes"), DAEMON),)),
            Plot(
                "Buckets of several shards, changed on the way, or come unseen, and lost changes",
                "none",
                (
                    (level("tarantool_cdc_buckets_doubled"), f"doubled {DAEMON}"),
                    (level("tarantool_cdc_buckets_arrived_unseen"), f"unseen {DAEMON}"),
                    (gain("tarantool_cdc_buckets_changed_total"), f"changed {DAEMON}"),
                    (gain("tarantool_cdc_bucket_changes_lost_total"), f"lost {DAEMON}"),
                ),
            ),
        ),
    ),
    (
        "Events worth a look",
        (
            Plot(
                "Aborts and reconnects",
                "none",
                tuple((gain(f"tarantool_cdc_{name}_total"), f"{name} {DAEMON}") for name in ("aborts", "reconnects")),
            ),
            Plot(
                "Signals, merging UPSERTs, lost log lines",
                "none",
                tuple(
                    (gain(f"tarantool_cdc_{name}_total"), f"{name} {DAEMON}")
                    for name in ("signals_taken", "signals_skipped", "vinyl_upserts", "log_lines_lost")
                ),
            ),
            Plot(
                "Shards: up, and restarts",
                "none",
                (
                    (level("tarantool_cdc_shard_up"), "up {{shard}}"),
                    (gain("tarantool_cdc_shard_restarts_total"), "restarts {{shard}}"),
                ),
            ),
        ),
    ),
)


def dashboard() -> str:
    """The file."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, plots in ROWS:
        panels.append(
            _panel(len(panels) + 1, {"type": "row", "title": title, "collapsed": False, "panels": []}, 0, top, WIDTH, 1)
        )
        top += 1
        left = 0
        for plot in plots:
            if left + plot.columns > WIDTH:
                left, top = 0, top + HEIGHT
            panels.append(_panel(len(panels) + 1, _shown(plot), left, top, plot.columns, HEIGHT))
            left += plot.columns
        top += HEIGHT
    return json.dumps(_around(panels), indent=1) + "\n"


SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def _panel(number: int, content: dict[str, Any], left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {"id": number, "gridPos": {"x": left, "y": top, "w": width, "h": height}, **content}


def _shown(plot: Plot) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(plot.lines)
    ]
    return {
        "type": "timeseries",
        "title": plot.title,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": plot.unit, "min": 0 if plot.unit in ("s", "Bps", "bytes") else None},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def _around(panels: list[dict[str, Any]]) -> dict[str, Any]:
    variables = [
        {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Daemon",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(tarantool_cdc_ready, instance)", "refId": "instances"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "tarantool-cdc",
        "uid": "tarantool-cdc",
        "tags": ["tarantool", "kafka"],
        "description": "Made from the code: pytest tests/ops/test_dashboards.py --update-golden",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": panels,
    }
