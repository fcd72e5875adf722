"""Jobs that keep everything in one folder have names for their tables in a catalog."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from spark_jobs.runner.registered import Names
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import schema_location
from tests.spark.messages import PREFIX, FakeTopics, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

LAKE = ("spark_catalog", "lake_2")


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA lake_2")
    yield str(schema_location(spark, LAKE))
    spark.sql("DROP SCHEMA lake_2 CASCADE")


def test_every_job_with_tables_takes_a_catalog(spark: SparkSession, lake: str) -> None:
    arguments = ["--bootstrap-servers", "k:9092", "--prefix", "a/b", "--checkpoint", "c", "--catalog", "spark_catalog.lake_2"]
    for name, job in run.JOBS.items():
        if job.has_tables:
            options = run.parse_options(name, arguments)
            run.locate(spark, options)
            place = "spark_catalog.lake_2" if job.takes_catalog else f"{lake}/tarantool-cdc/a~2fb/{name}"
            assert (options.path, job.place(options)) == (None if job.takes_catalog else place, place)


def test_tables_get_their_names_once_they_are_made(spark: SparkSession, lake: str) -> None:
    topics, path = FakeTopics(spark), f"{lake}/tarantool-cdc/shop/current"
    sink = current_sink(spark, Topics("k", PREFIX), path, topics)
    names = Names(spark, Location(schema=LAKE, prefix=PREFIX, template="{prefix}_{table}_now"))
    names.give(sink.tables())
    assert spark.sql("SHOW TABLES IN lake_2").collect() == []
    records = topics.send(schema(0), put("c", {"id": 1, "name": "a"}, 1))
    topics.took(records)
    sink.write(records, 0, "query")
    sink.finish()
    for _ in range(2):
        names.give(sink.tables())
    assert [row["name"] for row in spark.table("lake_2.shop_users_now").collect()] == ["a"]
    assert [row["name"] for row in read_current(spark, f"{path}/users").collect()] == ["a"]
    # Another process finds them there, and another job's tables don't get their names.
    again = Names(spark, Location(schema=LAKE, prefix=PREFIX, template="{prefix}_{table}_now"))
    again.give(sink.tables())
    spark.range(1).write.format("delta").save(f"{lake}/elsewhere")
    with pytest.raises(
        JobError, match=r"spark_catalog\.lake_2\.shop_users_now is there already, .*Choose another --table-template"
    ):
        again.give({"users": f"{lake}/elsewhere"})
