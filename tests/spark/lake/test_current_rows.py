"""Unmerged events, one row per key."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.current_rows import latest

pytestmark = pytest.mark.spark

COLUMNS = "key string, seq bigint, op string, after string, source_ts timestamp, space_id bigint, schema_version bigint"


def test_of_events_with_complete_rows_the_last_one_of_each_key_counts_whatever_their_order(spark: SparkSession) -> None:
    """Events that aren't few, and have no patches, take this way."""
    rows = [
        ("b", 3, "d", None),
        ("a", 10, "u", "tenth"),
        ("b", 2, "u", "second"),
        ("a", 9, "c", "ninth"),
        ("c", 4, "r", "fourth"),
    ]
    events = spark.createDataFrame([(*row, None, 512, 1) for row in rows], COLUMNS)
    found = latest(events, has_patches=False).select("key", "image.seq", "image.deleted", "image.row").collect()
    assert sorted(map(tuple, found)) == [("a", 10, False, "tenth"), ("b", 3, True, None), ("c", 4, False, "fourth")]
