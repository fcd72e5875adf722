"""What only Iceberg needs: its rules for two writers, and what others do to a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.errors import JobError
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.tables import delta, formats, iceberg, iceberg_tables
from spark_jobs.tables.format import Once, OvertakenError
from spark_jobs.tables.places import CatalogTable, qualified

pytestmark = pytest.mark.spark

COLUMNS = "_key string, _seq bigint"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> str:
    """The path of a table with a row of batch 1."""
    path = f"{qualified(spark, str(tmp_path))}/users"
    append(rows(spark, ("1", 1)), path, 1)
    return path


def rows(spark: SparkSession, *values: tuple[str, int]) -> DataFrame:
    return spark.createDataFrame(list(values), COLUMNS)


def append(frame: DataFrame, table: str, batch: int) -> None:
    iceberg.append_once(frame, table, partition_by=(), application="lane", batch=batch)


def seqs(spark: SparkSession, table: str) -> list[int]:
    return sorted(row["_seq"] for row in iceberg.read(spark, table).collect())


def after_staging(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen once, after the next write's rows are staged and before it is committed."""
    publish = iceberg._publish

    def late(transaction: object) -> None:
        monkeypatch.setattr(iceberg, "_publish", publish)
        happens()
        publish(transaction)

    monkeypatch.setattr(iceberg, "_publish", late)


def test_a_claim_between_the_check_and_the_commit_wins(spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after_staging(monkeypatch, lambda: append(rows(spark), table, 100))
    with pytest.raises(OvertakenError):
        append(rows(spark, ("2", 2)), table, 2)
    assert seqs(spark, table) == [1]


@pytest.mark.parametrize("write", ["append", "overwrite", "merge"])
def test_others_commits_only_delay_a_write(spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """Other applications' rows, a property: each commit is on top of everything that was committed before."""

    def happens() -> None:
        iceberg.set_properties(spark, table, {"some": "thing"})
        iceberg.append_once(rows(spark), table, partition_by=(), application="other", batch=7)

    after_staging(monkeypatch, happens)
    new = rows(spark, ("2", 2))
    if write == "append":
        append(new, table, 2)
    elif write == "overwrite":
        iceberg.overwrite(new, table, once=Once("lane", 2))
    else:
        iceberg.merge_rows(spark.newSession(), table, new.withColumn("_deleted", F.lit(False)), Once("lane", 2))
    state = iceberg.state(spark, table)
    assert state is not None
    assert dict(state.transactions) == {"lane": 2, "other": 7}
    assert state.properties["some"] == "thing"
    assert seqs(spark, table) == ([2] if write == "overwrite" else [1, 2])


def test_what_others_do_to_a_table_leaves_its_numbers(spark: SparkSession, table: str) -> None:
    append(rows(spark, ("2", 2)), table, 2)
    iceberg.delete(spark, table, "_seq = 1")
    found = iceberg_tables.load(spark, table)
    spark.sql(f"INSERT INTO {iceberg_tables.identifier(spark, table)} VALUES ('9', 9)")  # noqa: S608
    spark.sql(f"INSERT INTO {iceberg_tables.identifier(spark, table)} VALUES ('8', 8)")  # noqa: S608
    # Of the snapshots of others the one between expires, and everything before the jobs' last one.
    found.refresh()
    found.expireSnapshots().expireOlderThan(int(4e12)).retainLast(1).commit()
    state = iceberg.state(spark, table)
    assert state is not None
    assert dict(state.transactions) == {"lane": 2}
    append(rows(spark, ("2", 2)), table, 2)
    append(rows(spark, ("3", 3)), table, 3)
    assert seqs(spark, table) == [2, 3, 8, 9]


def test_rows_that_were_staged_only_are_in_no_version(spark: SparkSession, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        raise KeyboardInterrupt

    before = iceberg_tables.load(spark, table).currentSnapshot().snapshotId()
    after_staging(monkeypatch, dies)
    with pytest.raises(KeyboardInterrupt):
        append(rows(spark, ("2", 2)), table, 2)
    assert iceberg_tables.load(spark, table).currentSnapshot().snapshotId() == before
    append(rows(spark, ("2", 2)), table, 2)
    assert seqs(spark, table) == [1, 2]


def test_names_of_metadata_are_ordinary_names_of_spaces(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("files", "history"):
        path = f"{qualified(spark, str(tmp_path))}/{name}"
        assert not iceberg.exists(spark, path)
        append(rows(spark, ("1", 1)), path, 1)
        assert seqs(spark, path) == [1]


def test_spark_catalog_stays_deltas(spark: SparkSession) -> None:
    with pytest.raises(JobError, match="can't keep its tables in spark_catalog"):
        iceberg.exists(spark, CatalogTable(("spark_catalog", "lake", "users")))


def test_commands_refuse_tables_of_a_format_that_they_do_not_read(spark: SparkSession, table: str) -> None:
    known = formats.format_at(spark, [f"{table}/none", table])
    assert known is not None
    assert known.NAME == "iceberg"
    with pytest.raises(JobError, match="has the format iceberg, and this command was started for delta"):
        formats.check_format(spark, [table], delta)
    formats.check_format(spark, [table, f"{table}/none"], known)


def test_a_table_without_any_snapshot_belongs_to_someone_else(spark: SparkSession, tmp_path: Path) -> None:
    path = f"{qualified(spark, str(tmp_path))}/users"
    spark.sql(f"CREATE TABLE {iceberg.name_in_sql(spark, path)} (id bigint) USING iceberg")
    state = iceberg.state(spark, path)
    assert state is not None
    assert (state.columns, dict(state.transactions), state.previous_version) == (("id",), {}, None)
    with pytest.raises(JobError, match="doesn't belong to this job"):
        BaseTable(spark, path, "shop", iceberg)
