"""Tables by path and by name: the same from a job's side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError
from spark_jobs.tables import delta as tables
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, Table, check_schema, schema_location

pytestmark = pytest.mark.spark

SCHEMA = ("spark_catalog", "lake_1")


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[tuple[str, ...]]:
    spark.sql("CREATE SCHEMA `lake_1`")
    yield SCHEMA
    spark.sql("DROP SCHEMA `lake_1` CASCADE")


def test_locations_name_tables() -> None:
    path = Location(path="s3a://bucket/lake/")
    assert (path.of("a/b"), path.only("changelog")) == ("s3a://bucket/lake/a~2fb", "s3a://bucket/lake/")
    catalog = Location(schema=SCHEMA, prefix="shop", template="{prefix}_{table}_v1")
    assert str(catalog.only("changelog")) == "spark_catalog.lake_1.shop_changelog_v1"
    assert tables.identifier(catalog.of("users")) == "`lake_1`.`shop_users_v1`"


@pytest.mark.parametrize(
    "by_name",
    [
        pytest.param(False, id="path", marks=pytest.mark.soak),
        pytest.param(True, id="catalog", marks=pytest.mark.one_of_these("Delta")),
    ],
)
def test_every_step_works_with_both_kinds(spark: SparkSession, tmp_path: Path, schema: tuple[str, ...], by_name: bool) -> None:
    location = Location(schema=schema, prefix="shop") if by_name else Location(path=str(tmp_path))
    table: Table = location.of("a `b")
    assert not tables.exists(spark, table)
    rows = spark.createDataFrame([("1", 1, "x"), ("2", 2, "x")], "_key string, _seq bigint, part string")
    for _ in range(2):
        tables.create(spark, table, rows.schema, {"tarantool_cdc.prefix": "it's"}, partition_by=["part"])
    assert tables.exists(spark, table)
    properties, has_rows = tables.describe(spark, table)
    assert (properties["tarantool_cdc.prefix"], has_rows) == ("it's", False)
    for _ in range(2):
        tables.append_once(rows, table, partition_by=["part"], application="query", batch=0)
    filled = tables.version(spark, table)
    tables.set_properties(spark, table, {"tarantool_cdc.prefix": "shop"})
    columns = "_key string, _seq bigint, part string"
    newer = spark.createDataFrame([("1", 5, "y"), ("2", 1, "y"), ("4", 6, "x")], columns)
    gone = [("2", 1, "x"), ("3", 5, "x"), ("4", 7, "x")]
    marked = spark.createDataFrame(gone, columns).withColumn("_deleted", F.lit(True))
    tables.merge_rows(spark, table, newer.withColumn("_deleted", F.lit(False)))
    tables.merge_rows(spark, table, marked)
    assert sorted(tuple(row) for row in tables.read(spark, table).collect()) == [("1", 5, "y"), ("2", 2, "x")]
    assert sorted(tuple(row) for row in tables.read(spark, table, filled).collect()) == [("1", 1, "x"), ("2", 2, "x")]
    tables.delete(spark, table, "_key = '2'")
    assert [tuple(row) for row in tables.read(spark, table).collect()] == [("1", 5, "y")]
    tables.overwrite(tables.read(spark, table).withColumn("more", F.lit(7)), table)
    assert [tuple(row) for row in tables.read(spark, table).collect()] == [("1", 5, "y", 7)]
    assert tables.describe(spark, table)[0]["tarantool_cdc.prefix"] == "shop"


def test_a_schema_that_is_not_there_and_a_table_of_another_kind(spark: SparkSession, schema: tuple[str, ...]) -> None:
    check_schema(spark, schema)
    with pytest.raises(JobError, match=r"no schema spark_catalog\.nowhere .*CREATE SCHEMA `spark_catalog`\.`nowhere`"):
        check_schema(spark, ("spark_catalog", "nowhere"))
    with pytest.raises(JobError, match=r"no schema unity\.lake .*spark\.sql\.catalog\.unity="):
        check_schema(spark, ("unity", "lake"))
    spark.sql("CREATE TABLE `lake_1`.other (a int) USING parquet")
    with pytest.raises(JobError, match="other isn't a Delta table"):
        tables.exists(spark, CatalogTable((*schema, "other")))


def test_a_schema_is_where_its_location_says(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "a lake, 100%"
    spark.sql(f"CREATE SCHEMA elsewhere LOCATION '{place}'")
    try:
        assert schema_location(spark, ("spark_catalog", "elsewhere")) == f"file:{place}"
    finally:
        spark.sql("DROP SCHEMA elsewhere")


def test_a_step_is_done_again_when_somebody_else_has_changed_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java: Any = spark.sparkContext._jvm
    conflicts = [
        java.io.delta.exceptions.ConcurrentAppendException("appended"),
        java.io.delta.exceptions.ConcurrentDeleteReadException("deleted"),
        java.io.delta.exceptions.ConcurrentDeleteDeleteException("deleted"),
    ]

    def conflict() -> None:
        if conflicts:
            java.scala.util.Failure(conflicts.pop()).get()

    save = tables._save

    def late(writer: DataFrameWriter, table: Table) -> None:
        conflict()
        save(writer, table)

    table = str(tmp_path / "table")
    monkeypatch.setattr(tables, "_save", late)
    tables.overwrite(spark.range(3), table)
    assert (conflicts, tables.read(spark, table).count()) == ([], 3)


@pytest.mark.one_of_these("Delta")
def test_rows_of_600_kb_are_read_in_a_gigabyte(spark: SparkSession, tmp_path: Path) -> None:
    runtime: Any = spark.sparkContext._jvm
    assert runtime.java.lang.Runtime.getRuntime().maxMemory() <= 1 << 30
    row, table = "repeat(uuid(), 17000)", str(tmp_path / "table")
    spark.range(0, 300, 1, 1).selectExpr(f"{row} before", f"{row} after").write.format("delta").save(table)
    lengths = tables.read(spark, table).selectExpr("sum(length(before)) before", "sum(length(after)) after").collect()
    assert [tuple(found) for found in lengths] == [(300 * 17000 * 36,) * 2]
