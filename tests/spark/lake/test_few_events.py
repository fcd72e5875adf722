"""Which events the driver itself processes, because they are few."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.lake.few_events import FEW, SMALL_BYTES, fetch

pytestmark = pytest.mark.spark


def test_neither_many_events_nor_large_ones_are_fetched(spark: SparkSession) -> None:
    columns = "seq bigint, key string, op string, after string, patch string, upsert string, source_ts timestamp, space_id bigint"
    one = spark.createDataFrame([(1, "{}", "c", "{}", None, None, None, 512)], columns)
    one = one.withColumns({"schema_version": F.lit(1), "server_version": F.lit(None).cast("string")})

    def with_bytes(count: int) -> int | None:
        found = fetch(one.unionByName(one.withColumn("after", F.repeat(F.lit("x"), F.lit(count)))))
        return None if found is None else sum(len(row["after"]) for row in found)

    assert with_bytes(SMALL_BYTES - 2) == SMALL_BYTES
    assert with_bytes(SMALL_BYTES - 1) is None
    many = one.crossJoin(spark.range(FEW + 1)).drop("id")
    assert fetch(many) is None
    assert len(fetch(many.limit(FEW)) or ()) == FEW
