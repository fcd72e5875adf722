"""Prometheus' alerts, as they are in config/prometheus-alerts.yml: made here, so that they name only metrics that there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from cdc.stream.reports.limbo_watch import QUORUM_REMEDY

MARK: Final = "# made from the code: pytest tests/ops/test_dashboards.py --update-golden"
DOCS: Final = "docs/operations.md"


class Alert(NamedTuple):
    """One alert: its name, severity, expression, how long it must hold, a sentence, and what to do."""

    name: str
    severity: Literal["critical", "warning"]
    expression: str
    holds: str
    summary: str
    remedy: str


ALERTS: Final = (
    Alert(
        "TarantoolCdcAbsent",
        "critical",
        "absent(tarantool_cdc_ready)",
        "2m",
        "No daemon's metrics are scraped",
        "Check whether the daemon runs, and its log; http.listen, and http.view with the token that Prometheus shows.",
    ),
    Alert(
        "TarantoolCdcStalled",
        "critical",
        "tarantool_cdc_stalled_seconds > 60",
        "0m",
        "Changes have been waiting for {{ $value | humanizeDuration }} without a commit in Kafka",
        "Check whether the brokers run and have enough replicas in sync, and whether a topic was deleted. The page says more.",
    ),
    Alert(
        "TarantoolCdcNotReady",
        "critical",
        "tarantool_cdc_ready == 0 unless on(instance, shard) rate(tarantool_cdc_snapshot_rows_read[5m]) > 0 "
        "unless on(instance, shard) tarantool_cdc_standby >= 0",
        "5m",
        "Changes don't flow, and no snapshot is being taken",
        "Look at the page, or at `tarantool-cdc status`: state and error.",
    ),
    Alert(
        "TarantoolCdcStandbyNotReady",
        "warning",
        "tarantool_cdc_standby == 0",
        "10m",
        "A standby couldn't take over",
        "Look at its page, or at `tarantool-cdc status`: its error says why. It fills its state store at its first start.",
    ),
    Alert(
        "TarantoolCdcNobodyPublishes",
        "critical",
        "min by(name) ((tarantool_cdc_standby >= bool 0) * on(instance, shard) group_left(name) tarantool_cdc_info) == 1",
        "2m",
        "Only standbys of {{ $labels.name }} are left, and none has taken over",
        "Start the one again that published last, with its state.path: a standby that isn't ready takes nothing over, and its "
        "error (`tarantool-cdc status`) says why. If another one does publish, have its metrics scraped, too.",
    ),
    Alert(
        "TarantoolCdcNobodyFollowed",
        "critical",
        "max without(upstream) (tarantool_cdc_upstream_following) == 0",
        "2m",
        "No member of the replica set is followed",
        "Start a member, or correct source.uris. `tarantool-cdc check` says what each of them answers.",
    ),
    Alert(
        "TarantoolCdcLag",
        "warning",
        "max_over_time(tarantool_cdc_lag_seconds[2m]) > 60",
        "5m",
        "Consumers are {{ $value | humanizeDuration }} behind the master",
        "If TarantoolCdcStalled or TarantoolCdcQuorum fires, too, that is the reason. Else the master writes more than the "
        "daemon or Kafka can take: look at rates and commit times on the page.",
    ),
    Alert(
        "TarantoolCdcQuorum",
        "warning",
        "tarantool_cdc_limbo_overdue == 1",
        "1m",
        "A synchronous transaction waits for its quorum, and everything behind it",
        QUORUM_REMEDY,
    ),
    Alert(
        "TarantoolCdcLogsGone",
        "critical",
        "tarantool_cdc_upstream_headroom_rows < 0 and tarantool_cdc_upstream_following == 1",
        "0m",
        "{{ $labels.upstream }} no longer has the logs that the daemon needs next",
        "The stream ends with a gap at the next change or reconnect; then source.on_gap decides. Raise checkpoint_count, or "
        'choose source.mode = "registered".',
    ),
    Alert(
        "TarantoolCdcLogsGoneSoon",
        "warning",
        "predict_linear(tarantool_cdc_upstream_headroom_rows[30m], 3600) < 0 and tarantool_cdc_upstream_headroom_rows >= 0 "
        "and tarantool_cdc_upstream_following == 1",
        "10m",
        "{{ $labels.upstream }} will have dropped logs that the daemon needs within an hour",
        "Find out why the daemon lags, and raise checkpoint_count on that member meanwhile.",
    ),
    Alert(
        "TarantoolCdcMember",
        "warning",
        'tarantool_cdc_upstream_state{state=~"unreachable|refused|gap"} == 1',
        "10m",
        "{{ $labels.upstream }} couldn't take the followed member's place: {{ $labels.state }}",
        "`tarantool-cdc check` says why.",
    ),
    Alert(
        "TarantoolCdcRegistry",
        "critical",
        "tarantool_cdc_registry_wait_seconds > 30",
        "0m",
        "Rows wait for the registry's id of {{ $labels.subject }}: {{ $labels.reason }}",
        "The table in the operations page (The registry of schemas) says what to do for each reason.",
    ),
    Alert(
        "TarantoolCdcAborts",
        "warning",
        "increase(tarantool_cdc_aborts_total[15m]) > 5",
        "0m",
        "{{ $value | humanize }} Kafka transactions were aborted in 15 minutes",
        "The log says why each was. Nothing is lost: they are published again.",
    ),
    Alert(
        "TarantoolCdcReconnects",
        "warning",
        "increase(tarantool_cdc_reconnects_total[15m]) > 10",
        "0m",
        "The daemon has connected to Tarantool {{ $value | humanize }} times in 15 minutes",
        "Look at the network, and into the logs of the daemon and of the servers.",
    ),
    Alert(
        "TarantoolCdcNotReading",
        "warning",
        "tarantool_cdc_reading == 0",
        "10m",
        "The daemon doesn't read from the master, because Kafka takes too little",
        "Look at commit times and at the brokers. The master keeps the logs that are not read yet only if it has to.",
    ),
    Alert(
        "TarantoolCdcBucketWaits",
        "warning",
        "tarantool_cdc_bucket_wait_seconds > 60",
        "0m",
        "A bucket has been waiting for {{ $value | humanizeDuration }} for the daemon of the shard that it leaves",
        "Look at that shard's daemon: the fleet's page shows which one doesn't stream. Other buckets go on.",
    ),
    Alert(
        "TarantoolCdcBucketChangesLost",
        "critical",
        "increase(tarantool_cdc_bucket_changes_lost_total[15m]) > 0",
        "0m",
        "{{ $value | humanize }} changes to copies of buckets that other shards own weren't published",
        "Clients wrote past the router. The log names the buckets; have all clients write through vshard's router.",
    ),
    Alert(
        "TarantoolCdcTopicLost",
        "critical",
        "tarantool_cdc_lost_topics > 0",
        "0m",
        "{{ $value }} topics were deleted, and consumers may lack what was there",
        "`tarantool-cdc status` and `doctor` name them, and the command that publishes their rows again.",
    ),
    Alert(
        "TarantoolCdcDoubtfulKeys",
        "warning",
        "tarantool_cdc_doubtful_keys > 0",
        "0m",
        "The rows of {{ $value }} keys are unknown, because a change couldn't be applied",
        "The records of the topic <prefix>.dlq say which, and what to do.",
    ),
    Alert(
        "TarantoolCdcLogLines",
        "warning",
        "increase(tarantool_cdc_log_lines_lost_total[15m]) > 0",
        "0m",
        "Lines of the log could not be written",
        "Its disk is full, or nobody reads the daemon's stderr.",
    ),
    Alert(
        "TarantoolCdcShardDown",
        "critical",
        "tarantool_cdc_shard_up == 0",
        "2m",
        "The daemon of shard {{ $labels.shard }} doesn't run, or doesn't answer",
        "`tarantool-cdc status` says which, and why it ended last. It is started again by itself; one that is frozen, after "
        "fleet.watchdog_ms.",
    ),
    Alert(
        "TarantoolCdcShardRestarts",
        "warning",
        "increase(tarantool_cdc_shard_restarts_total[30m]) > 3",
        "0m",
        "The daemon of shard {{ $labels.shard }} was started again {{ $value | humanize }} times in 30 minutes",
        "The log says why it ended.",
    ),
)


def alerts() -> Iterator[str]:
    """The lines of the file."""
    yield MARK
    yield f"# What they mean and what to do: {DOCS}. Thresholds are a beginning: raise or lower them as your consumers need it."
    yield "groups:"
    yield "  - name: tarantool-cdc"
    yield "    rules:"
    for alert in ALERTS:
        yield f"      - alert: {alert.name}"
        yield f"        expr: {json.dumps(alert.expression)}"
        yield f"        for: {alert.holds}"
        yield "        labels:"
        yield f"          severity: {alert.severity}"
        yield "        annotations:"
        yield f"          summary: {json.dumps(alert.summary)}"
        yield f"          description: {json.dumps(alert.remedy)}"


def tests() -> Iterator[str]:
    """The lines of a file for `promtool test rules`: a quiet daemon raises no alert, and a troubled one each of its own."""
    yield "rule_files: [prometheus-alerts.yml]"
    yield "evaluation_interval: 1m"
    yield "tests:"
    yield from _case(_WELL, 60, set())
    for name, (series, minute) in TROUBLES.items():
        yield from _case(_WELL | series, minute, {name})


_LABELS: Final = 'instance="i", job="cdc"'
_OTHER: Final = 'instance="j", job="cdc"'
_WELL: Final = {
    f"tarantool_cdc_ready{{{_LABELS}}}": "1+0x90",
    f"tarantool_cdc_standby{{{_LABELS}}}": "NaN+0x90",
    f'tarantool_cdc_info{{{_LABELS}, name="shop"}}': "1+0x90",
    # Its standby, which has been waiting and ready all the time.
    f"tarantool_cdc_ready{{{_OTHER}}}": "0+0x90",
    f"tarantool_cdc_standby{{{_OTHER}}}": "1+0x90",
    f'tarantool_cdc_info{{{_OTHER}, name="shop"}}': "1+0x90",
    f"tarantool_cdc_stalled_seconds{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_lag_seconds{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_limbo_overdue{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_reading{{{_LABELS}}}": "1+0x90",
    f"tarantool_cdc_doubtful_keys{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_lost_topics{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_aborts_total{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_reconnects_total{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_log_lines_lost_total{{{_LABELS}}}": "0+0x90",
    f"tarantool_cdc_snapshot_rows_read{{{_LABELS}}}": "500+0x90",
    f'tarantool_cdc_upstream_following{{{_LABELS}, upstream="a"}}': "1+0x90",
    f'tarantool_cdc_upstream_headroom_rows{{{_LABELS}, upstream="a"}}': "10000+0x90",
}
TROUBLES: Final[dict[str, tuple[dict[str, str], int]]] = {
    "TarantoolCdcAbsent": (
        {f"tarantool_cdc_ready{{{_LABELS}}}": "1+0x10 stale", f"tarantool_cdc_ready{{{_OTHER}}}": "0+0x10 stale"},
        60,
    ),
    "TarantoolCdcStalled": ({f"tarantool_cdc_stalled_seconds{{{_LABELS}}}": "0+0x50 61+60x40"}, 52),
    "TarantoolCdcNotReady": ({f"tarantool_cdc_ready{{{_LABELS}}}": "1+0x50 0+0x40"}, 57),
    "TarantoolCdcStandbyNotReady": ({f"tarantool_cdc_standby{{{_OTHER}}}": "1+0x50 0+0x40"}, 62),
    "TarantoolCdcNobodyPublishes": (
        {
            f"tarantool_cdc_ready{{{_LABELS}}}": "1+0x50 stale",
            f"tarantool_cdc_standby{{{_LABELS}}}": "NaN+0x50 stale",
            f'tarantool_cdc_info{{{_LABELS}, name="shop"}}': "1+0x50 stale",
            f"tarantool_cdc_standby{{{_OTHER}}}": "1+0x50 0+0x40",
        },
        55,
    ),
    "TarantoolCdcNobodyFollowed": ({f'tarantool_cdc_upstream_following{{{_LABELS}, upstream="a"}}': "1+0x50 0+0x40"}, 55),
    "TarantoolCdcLag": ({f"tarantool_cdc_lag_seconds{{{_LABELS}}}": "0+0x50 70+0x40"}, 57),
    "TarantoolCdcQuorum": ({f"tarantool_cdc_limbo_overdue{{{_LABELS}}}": "0+0x50 1+0x40"}, 53),
    "TarantoolCdcLogsGone": ({f'tarantool_cdc_upstream_headroom_rows{{{_LABELS}, upstream="a"}}': "10000+0x58 -5+0x40"}, 60),
    "TarantoolCdcLogsGoneSoon": ({f'tarantool_cdc_upstream_headroom_rows{{{_LABELS}, upstream="a"}}': "10000-100x90"}, 70),
    "TarantoolCdcMember": ({f'tarantool_cdc_upstream_state{{{_LABELS}, upstream="b", state="gap"}}': "1+0x90"}, 30),
    "TarantoolCdcRegistry": (
        {f'tarantool_cdc_registry_wait_seconds{{{_LABELS}, subject="s", reason="away"}}': "_x50 31+60x40"},
        52,
    ),
    "TarantoolCdcTopicLost": ({f"tarantool_cdc_lost_topics{{{_LABELS}}}": "0+0x50 1+0x40"}, 52),
    "TarantoolCdcAborts": ({f"tarantool_cdc_aborts_total{{{_LABELS}}}": "0+0x50 0+1x40"}, 60),
    "TarantoolCdcReconnects": ({f"tarantool_cdc_reconnects_total{{{_LABELS}}}": "0+0x50 0+2x40"}, 60),
    "TarantoolCdcNotReading": ({f"tarantool_cdc_reading{{{_LABELS}}}": "1+0x50 0+0x40"}, 62),
    "TarantoolCdcBucketWaits": ({f"tarantool_cdc_bucket_wait_seconds{{{_LABELS}}}": "0+0x50 61+60x40"}, 52),
    "TarantoolCdcBucketChangesLost": ({f"tarantool_cdc_bucket_changes_lost_total{{{_LABELS}}}": "0+0x50 3+0x40"}, 55),
    "TarantoolCdcDoubtfulKeys": ({f"tarantool_cdc_doubtful_keys{{{_LABELS}}}": "0+0x50 2+0x40"}, 52),
    "TarantoolCdcLogLines": ({f"tarantool_cdc_log_lines_lost_total{{{_LABELS}}}": "0+0x50 3+0x40"}, 55),
    "TarantoolCdcShardDown": ({f'tarantool_cdc_shard_up{{{_LABELS}, shard="s1"}}': "1+0x50 0+0x40"}, 54),
    "TarantoolCdcShardRestarts": ({f'tarantool_cdc_shard_restarts_total{{{_LABELS}, shard="s1"}}': "0+0x50 0+1x40"}, 60),
}
"""For each alert: series that raise it and no other, and the minute at which they do."""


def _case(series: dict[str, str], minute: int, expected: set[str]) -> Iterator[str]:
    yield "  - interval: 1m"
    yield "    input_series:"
    for name, values in series.items():
        yield f"      - series: {json.dumps(name)}"
        yield f"        values: {json.dumps(values)}"
    yield "    promql_expr_test:"
    yield '      - expr: count by(alertname) (ALERTS{alertstate="firing"})'
    yield f"        eval_time: {minute}m"
    # A list of samples; none is an empty one.
    yield "        exp_samples:" + ("" if expected else " []")
    for name in sorted(expected):
        yield f"          - labels: '{{alertname=\"{name}\"}}'"
        yield "            value: 1"
