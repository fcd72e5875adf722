"""One page of metrics for all shards."""

from __future__ import annotations

from cdc.ops.fleet_page import ShardView, merged

PAGE = """# HELP rows_total Rows
# TYPE rows_total counter
rows_total{path="native"} 5.0
rows_total{path="python"} 0.0
# HELP lag_seconds Lag
# TYPE lag_seconds gauge
lag_seconds 1.5
"""


def view(phase: str, restarts: int) -> ShardView:
    return ShardView(phase, None, None, restarts, None)


def test_families_stay_together() -> None:
    """Prometheus refuses a page where the lines of a metric are apart, or where it is described twice."""
    views = {"s1": view("running", 0), "s2": view("running", 2), "s3": view("waiting", 7)}
    assert list(merged({"s1": PAGE, "s2": PAGE.replace("5.0", "6.0")}, views)) == [
        "# HELP rows_total Rows",
        "# TYPE rows_total counter",
        'rows_total{shard="s1",path="native"} 5.0',
        'rows_total{shard="s1",path="python"} 0.0',
        'rows_total{shard="s2",path="native"} 6.0',
        'rows_total{shard="s2",path="python"} 0.0',
        "# HELP lag_seconds Lag",
        "# TYPE lag_seconds gauge",
        'lag_seconds{shard="s1"} 1.5',
        'lag_seconds{shard="s2"} 1.5',
        "# HELP tarantool_cdc_shard_up 1 while the shard's daemon runs and serves its metrics",
        "# TYPE tarantool_cdc_shard_up gauge",
        'tarantool_cdc_shard_up{shard="s1"} 1',
        'tarantool_cdc_shard_up{shard="s2"} 1',
        'tarantool_cdc_shard_up{shard="s3"} 0',
        "# HELP tarantool_cdc_shard_restarts_total How often the shard's daemon was started again",
        "# TYPE tarantool_cdc_shard_restarts_total counter",
        'tarantool_cdc_shard_restarts_total{shard="s1"} 0',
        'tarantool_cdc_shard_restarts_total{shard="s2"} 2',
        'tarantool_cdc_shard_restarts_total{shard="s3"} 7',
    ]
