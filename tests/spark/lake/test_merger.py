"""Merges at the end of a run with --available-now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.tables import delta as tables
from tests.spark.messages import FakeTopics, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark


def test_a_run_that_leaves_events_unmerged_says_as_of_which_seq_the_tables_are(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = FakeTopics(spark)
    topics.send(schema(0), *(put("c", {"id": number, "name": "a", "balance": 1}, number) for number in range(1, 6)))
    ends = topics.ends()
    (behind,) = (place for place in ends if '"seq":5,' not in str(topics.messages[place][-1].value))
    for batch, (records, told) in enumerate(
        (
            # One partition lacks its last record, so a transaction might go on there.
            (topics.slice({place: (0, end - (place == behind)) for place, end in ends.items()}), True),
            (topics.slice({behind: (ends[behind] - 1, ends[behind])}), False),
        )
    ):
        topics.took(records)
        sink = current_sink(spark, Topics("nowhere:9092", "shop"), str(tmp_path), topics)
        sink.write(records, batch, "query")
        sink.finish()
        merged = {row["_seq"] for row in tables.read(spark, f"{tmp_path}/users").select("_seq").collect()}
        lines = capsys.readouterr().err
        assert (f"the tables are as of seq {max(merged, default=0)}. Later events are kept" in lines) == told
    assert merged == {1, 2, 3, 4, 5}
