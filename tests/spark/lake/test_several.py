"""Work for several spaces at a time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake import several


@pytest.mark.spark
def test_events_that_are_not_merged_are_counted_by_few_queries(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_ASKED_AT_ONCE", 2)
    events = spark.createDataFrame([(f"s{seq % 3}", seq) for seq in range(1, 13)], "space string, seq bigint")
    merged = {"s0": -1, "s1": 4, "s2": 11, "none": 0}
    assert several.count_unmerged(events, merged, 10) == {"s0": 3, "s1": 2, "s2": 0, "none": 0}


def test_the_results_have_the_order_of_the_spaces_and_an_error_is_raised() -> None:
    assert several.each(len, ["bbb", "a", "cc", "", "dddd"]) == [3, 1, 2, 0, 4]
    assert several.each(len, []) == []
    with pytest.raises(KeyError):
        several.each({"a": 1}.__getitem__, ["a", "b"])
