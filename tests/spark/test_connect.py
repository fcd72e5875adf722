"""Readers through Spark Connect, which has only SQL: of tables and views that a job has made with a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from cdc.local.packages import SPARK_CONNECT, package_folder
from cdc.local.spark import spark_environment
from spark_jobs.contract.source import Topics
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.tables import iceberg
from spark_jobs.tables.codegen import interpreting
from spark_jobs.tables.location import Location
from tests.spark.messages import FakeTopics, Message, delete, put, schema
from tests.spark.sinks import current_sink

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
TOPICS = Topics("nowhere:9092", "shop")
CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from spark_jobs.current import read_current, watermark
from spark_jobs.errors import JobError
from spark_jobs.history.store import History

schema, version, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
builder = SparkSession.builder.remote("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__
users = f"{schema}.shop_users"
for table in (f"{users}_fresh", users, f"{users} VERSION AS OF {version}"):
    rows = spark.sql(f"SELECT id, balance FROM {table} ORDER BY id").collect()
    print(json.dumps({int(row.id): int(row.balance) for row in rows}))
print(json.dumps(spark.read.table(f"{users}_fresh").where("balance > 20").count()))
for read in (lambda: read_current(spark, users), lambda: watermark(spark, schema), lambda: History(spark, schema)):
    try:
        read()
    except JobError as error:
        print(json.dumps(str(error)))
"""


def test_views_and_tables_are_read_and_functions_say_why_not(spark: SparkSession, tmp_path: Path) -> None:
    topics, name = FakeTopics(spark), f"connect_{uuid4().hex}"
    location = Location(schema=(name, "cdc"), prefix="shop", format=iceberg)
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{tmp_path}/catalog",
        ".warehouse": f"file:{tmp_path}/warehouse",
        ".jdbc.schema-version": "V1",
    }
    catalog = {f"spark.sql.catalog.{name}{key}": value for key, value in settings.items()}
    for session in (spark, interpreting(spark)):
        for key, value in catalog.items():
            session.conf.set(key, value)
    spark.sql(f"CREATE NAMESPACE {name}.cdc")

    def process(batch: int, share: float, *messages: Message) -> None:
        records = topics.send(*messages)
        topics.took(records)
        views = FreshViews.at(spark, location)
        current_sink(spark, TOPICS, location, topics, share=share, min_unmerged=1, views=views).write(records, batch, "query")

    process(0, 0.0, schema(0), *(put("c", {"id": key, "balance": key * 10}, key) for key in range(1, 4)))
    merged = iceberg.state(spark, location.of("users"))
    assert merged is not None
    process(1, 0.0, put("u", {"id": 1, "balance": 11}, 4), delete(2, 5))
    later = topics.send(put("c", {"id": 4, "balance": 40}, 6))
    current_sink(spark, TOPICS, location, topics, share=9, min_unmerged=9).write(later, 2, "query")

    settings = {**catalog, "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"}
    packages = f"{package_folder(SPARK_CONNECT)}:{ROOT}"
    outcome = subprocess.run(
        [sys.executable, "-c", CLIENT, f"{name}.cdc", str(merged.version), json.dumps(settings)],
        env={**os.environ, **spark_environment(), "PYTHONPATH": packages},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    fresh, table, before, count, *refusals = map(json.loads, outcome.stdout.splitlines())
    assert fresh == {"1": 11, "3": 30, "4": 40}
    assert table == {"1": 11, "3": 30}
    assert before == {"1": 10, "2": 20, "3": 30}
    assert count == 2
    assert [text.partition(" ")[0] for text in refusals] == ["read_current", "watermark", "History"]
    assert f"Read the view {name}.cdc.shop_users_fresh, which" in refusals[0]
