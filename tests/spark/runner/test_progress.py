"""What the jobs report about a batch, from Spark's progress records."""

from __future__ import annotations

import json
from typing import Any

from spark_jobs.runner.progress import Batch, batch_of

PROGRESS: dict[str, Any] = {
    "timestamp": "2026-01-01T00:00:00.500Z",
    "batchId": 17,
    "numInputRows": 3000,
    "durationMs": {"addBatch": 1500, "triggerExecution": 2000},
    "observedMetrics": {"tarantool_cdc": {"seq": 12345, "newest": 1767225600.25}},
    "sources": [
        {
            "startOffset": {"shop.users": {"0": 100, "1": 50}},
            "endOffset": {"shop.users": {"0": 600, "1": 550}, "shop.new": {"0": 10}},
            "latestOffset": {"shop.users": {"0": 700, "1": 550}, "shop.new": {"0": 10}, "shop.newer": {"0": 5}},
        }
    ],
}


def test_a_batch_is_told() -> None:
    batch = batch_of(json.dumps(PROGRESS))
    # 3,000 records were read by a sink that reads its batch three times.
    assert batch == Batch(
        number=17,
        records=1010,
        seconds=2.0,
        seq=12345,
        behind_seconds=2.25,
        behind_records=105,
        topics=("shop.new", "shop.users"),
    )
    assert batch.line("current") == (
        "current: batch=17 records=1010 seconds=2.0 records_per_second=505 seq=12345 behind_seconds=2.2 behind_records=105"
    )


def test_what_is_not_known_is_not_said() -> None:
    first = PROGRESS | {"sources": [{"startOffset": None, "endOffset": {"shop.users": {"0": 9}}}], "numInputRows": 27}
    batch = batch_of(json.dumps(first | {"observedMetrics": {"tarantool_cdc": {"seq": None, "newest": None}}}))
    assert batch == Batch(
        number=17, records=9, seconds=2.0, seq=None, behind_seconds=None, behind_records=None, topics=("shop.users",)
    )
    assert batch.line("x") == "x: batch=17 records=9 seconds=2.0 records_per_second=4"


def test_a_sink_that_reads_the_table_itself_has_no_number_of_records() -> None:
    of_a_table = PROGRESS | {"sources": [{"startOffset": None, "endOffset": {"reservoirVersion": 3}}], "numInputRows": 0}
    batch = batch_of(json.dumps(of_a_table | {"observedMetrics": {}}))
    assert batch is not None
    assert batch.line("current") == "current: batch=17 seconds=2.0"
    read = batch_of(json.dumps(of_a_table | {"numInputRows": 2}))
    assert read is not None
    assert read.records == 2


def test_a_trigger_without_records_is_no_batch() -> None:
    assert batch_of(json.dumps(PROGRESS | {"durationMs": {"latestOffset": 3, "triggerExecution": 4}})) is None


def test_a_clock_that_is_ahead_makes_no_negative_lag() -> None:
    late = PROGRESS | {"observedMetrics": {"tarantool_cdc": {"seq": 1, "newest": 1767225900.0}}}
    batch = batch_of(json.dumps(late))
    assert batch is not None
    assert batch.behind_seconds == 0.0
