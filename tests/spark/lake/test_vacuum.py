"""Files are removed before a read that needs them is carried out: a sentence says what to do, and then all is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import operator_message
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.tables import delta as tables
from spark_jobs.tables import iceberg
from spark_jobs.tables.places import qualified
from spark_jobs.tables.views import SparkViews
from tests.spark.formats import forget_at_once
from tests.spark.lake.test_fresh_views import LOCATION
from tests.spark.messages import FakeTopics, event, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

KEYS = 4
SENTENCE = "A file of a table is gone: `maintain` or VACUUM has removed it while it was still needed. Try again"
KEPT = "delta.deletedFileRetentionDuration"


@pytest.fixture
def catalog(spark: SparkSession) -> Iterator[None]:
    spark.sql("CREATE SCHEMA cdc")
    yield
    spark.sql("DROP SCHEMA cdc CASCADE")


@pytest.mark.usefixtures("catalog")
@pytest.mark.one_of_these("views and layout", seconds=50)
def test_reads_that_began_before_vacuum_are_right_or_end_with_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), f"file:{tmp_path}"
    users, changes = f"{path}/users", f"{path}/_changes"

    def take(records: DataFrame, batch: int, share: float = 0.0) -> None:
        """Give a batch to a new process of the job, which merges it at once, or with a large share only appends it."""
        topics.took(records)
        views = FreshViews(LOCATION, SparkViews(spark))
        sink = current_sink(
            spark, Topics("k", "shop"), path, topics, views=views, is_background=share > 0, share=share, min_unmerged=1
        )
        sink.write(records, batch, "query")
        sink.close()
        sink.check()

    def update(batch: int) -> DataFrame:
        """One transaction that changes all rows."""
        first = batch * KEYS + 1
        rows = ({"id": key, "balance": batch} for key in range(KEYS))
        return topics.send(
            *(event("u", {"id": row["id"]}, first + row["id"], {"after": row}, place=(first, row["id"] + 1)) for row in rows)
        )

    def balances(frame: DataFrame) -> list[float]:
        return [float(row["balance"]) for row in frame.select("balance").collect()]

    take(topics.send(schema(0), *(put("c", {"id": key, "balance": 0}, key + 1) for key in range(KEYS))), 0)
    take(update(1), 1)
    take(update(2), 2, share=1e9)
    begun = {
        "view": spark.table("cdc.shop_users_fresh"),
        "current": read_current(spark, users),
        "watermark": read_current(spark, users, "watermark"),
        "table": spark.read.format("delta").load(users),
    }
    # The job's next merge replaces the files of the table, and `maintain` those of its events.
    take(update(3), 3)
    for table in (users, changes):
        tables.set_properties(spark, table, {KEPT: "interval 0 hours"})
        arguments = ["maintain", "--path", table, "--vacuum-hours", "0", "--no-forget-merged"]
        tables.set_properties(spark, f"{changes}/_control", {KEPT: "interval 0 hours"})
        tables.set_properties(spark, f"{changes}/_forgotten", {KEPT: "interval 0 hours"})
        assert run.main(arguments) == 0
    found, told = {}, {}
    for name, frame in begun.items():
        try:
            found[name] = balances(frame)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises, an operator reads the sentence
            told[name] = operator_message(error)
    # A frame of the table alone is of its newest version whenever it is read; the others are of the version when they began.
    assert found.pop("table") == [3.0] * KEYS
    assert all(rows == [2.0] * KEYS for rows in found.values()), found
    assert told
    assert all(sentence.startswith(SENTENCE) for sentence in told.values()), told
    # Read again, all is right; a view as soon as the job has started.
    assert balances(read_current(spark, users)) == balances(tables.read(spark, users)) == [3.0] * KEYS
    take(topics.slice({}), 4)
    assert balances(spark.table("cdc.shop_users_fresh")) == [3.0] * KEYS


@pytest.mark.one_of_these("Iceberg")
def test_reads_that_began_before_snapshots_expire_are_right_or_end_with_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), qualified(spark, str(tmp_path / "lake"))
    users, changes = f"{path}/users", f"{path}/_changes"

    def update(batch: int, share: float = 0.0) -> None:
        """One transaction that changes all rows; with a large share it is only appended."""
        first = batch * KEYS + 1
        rows = ({"id": key, "balance": batch} for key in range(KEYS))
        forms = [] if batch else [schema(0)]
        changed = (
            event("u" if batch else "c", {"id": row["id"]}, first + row["id"], {"after": row}, place=(first, row["id"] + 1))
            for row in rows
        )
        records = topics.send(*forms, *changed)
        topics.took(records)
        sink = current_sink(
            spark, Topics("k", "shop"), path, topics, table_format=iceberg, is_background=share > 0, share=share, min_unmerged=1
        )
        sink.write(records, batch, "query")
        sink.close()
        sink.check()

    def balances(frame: DataFrame) -> list[float]:
        return [float(row["balance"]) for row in frame.select("balance").collect()]

    update(0)
    update(1)
    update(2, share=1e9)
    begun = {
        "current": read_current(spark, users),
        "watermark": read_current(spark, users, "watermark"),
        "table": iceberg.read(spark, users),
    }
    update(3)
    for table in (users, changes):
        options = [*forget_at_once(spark, iceberg, table), "--no-forget-merged"]
        for inner in ("_control", "_forgotten"):
            if iceberg.exists(spark, f"{table}/{inner}"):
                forget_at_once(spark, iceberg, f"{table}/{inner}")
        assert run.main(["maintain", "--path", table, *options]) == 0
    found, told = {}, {}
    for name, frame in begun.items():
        try:
            found[name] = balances(frame)
        except (PySparkException, Py4JError) as error:
            told[name] = operator_message(error)
    # Iceberg caches a table for half a minute: within that, a frame of the table alone is of its newest version.
    assert found.pop("table", [3.0] * KEYS) == [3.0] * KEYS
    assert all(rows == [2.0] * KEYS for rows in found.values()), found
    assert told
    assert all(sentence.startswith(SENTENCE) for sentence in told.values()), told
    assert balances(read_current(spark, users)) == balances(iceberg.read(spark, users)) == [3.0] * KEYS
