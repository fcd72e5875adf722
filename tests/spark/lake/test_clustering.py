"""Rows that `maintain` puts together by the fields that a user names (`--cluster-by`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.lake.clustering import Clustering, cluster_by
from spark_jobs.tables import delta, iceberg_tables, iceberg_upkeep
from spark_jobs.tables.format import TableFormat
from tests.spark.formats import in_either_format
from tests.spark.messages import FakeTopics, Message, put, schema
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

COLUMNS = (("id", "unsigned"), ("city", "string"), ("paid", "boolean"))
TOPICS = Topics("nowhere:9092", "shop")
RENAMED = (("id", "unsigned"), ("town", "string"), ("paid", "boolean"))


def clustering(spark: SparkSession, known: TableFormat, table: str) -> list[str]:
    """The columns by which a table's rows are put together."""
    if known is delta:
        return list(delta.delta(spark, table).detail().collect()[0]["clusteringColumns"])
    return list(iceberg_upkeep._clustered_by(iceberg_tables.load(spark, table)))


@pytest.mark.one_of_these("views and layout")
@in_either_format
def test_rows_are_put_together_by_the_chosen_fields(
    spark: SparkSession, tmp_path: Path, known: TableFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    topics, path = FakeTopics(spark), str(tmp_path / "lake")
    users = f"{path}/users"

    def process(batch: int, *messages: Message, **rules: Any) -> None:
        records = topics.send(*messages)
        topics.took(records)
        sink = current_sink(spark, TOPICS, path, topics, table_format=known, share=0.0, min_unmerged=1, **rules)
        sink.write(records, batch, "query")

    def cities(column: str) -> dict[int, str]:
        return {int(row["id"]): row[column] for row in read_current(spark, users).collect()}

    expected = {number: "Oslo" if number % 2 else "Rome" for number in range(1, 9)}
    some = [put("c", {"id": number, "city": city, "paid": True}, number) for number, city in expected.items()]
    process(0, schema(0, columns=COLUMNS), *some)
    assert clustering(spark, known, users) == []
    # A table that exists gets it at the next start; rewriting and merging rows keep it.
    by = Clustering([("users", ("city", "none")), ("nobody", ("x",))])
    for batch, seq in ((1, 9), (2, 10)):
        expected[seq] = "Oslo"
        process(batch, put("c", {"id": seq, "city": "Oslo", "paid": True}, seq), clustering=by)
        assert clustering(spark, known, users) == ["city"]
    said = capsys.readouterr().err
    assert "--cluster-by: no space is called so: nobody" in said
    assert (
        "--cluster-by: rows of the space 'users' aren't put together by none: it has no such fields, or their columns are" in said
    )
    assert run.main(["maintain", "--path", users, "--table-format", known.NAME, "--no-vacuum"]) == 0
    assert cities("city") == expected
    if known is delta:
        done = spark.sql(f"DESCRIBE HISTORY {delta.identifier(users)}").where("operation = 'OPTIMIZE'").collect()
        assert [row["operationParameters"]["clusterBy"] for row in done] == ['["city"]']
    else:
        (file,) = spark.table(f"{iceberg_tables.identifier(spark, users)}.files").select("file_path").collect()
        assert [row["city"] for row in spark.read.parquet(file[0]).collect()] == ["Oslo"] * 6 + ["Rome"] * 4
    # The field's column is another one from now on, and the first rewriting has no such column any more.
    expected[11] = "Oslo"
    process(3, schema(10, version=2, columns=RENAMED), put("c", {"id": 11, "town": "Oslo", "paid": True}, 11, version=2))
    assert cities("town") == expected
    expected[12] = "Rome"
    process(4, put("c", {"id": 12, "town": "Rome", "paid": True}, 12, version=2), clustering=Clustering([("users", ("town",))]))
    assert (clustering(spark, known, users), cities("town")) == (["town"], expected)
    process(5, put("c", {"id": 12, "town": "Rome", "paid": True}, 13, version=2), clustering=Clustering([("users", ())]))
    assert (clustering(spark, known, users), cities("town")) == ([], expected)


@pytest.mark.one_of_these("views and layout")
@in_either_format
def test_a_field_by_which_rows_are_put_together_may_become_one_of_another_type(
    spark: SparkSession, tmp_path: Path, known: TableFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one without order: what the master's users alter must not end the job. Each time its column is another one."""
    topics, path = FakeTopics(spark), str(tmp_path / "lake")
    users, chosen = f"{path}/users", Clustering([("users", ("ci.ty", "id"))])
    for version, (kind, value) in enumerate((("string", "a"), ("unsigned", 7), ("varbinary", "AAA="), ("string", "b")), 1):
        form = schema(version - 1, version=version, columns=(("id", "unsigned"), ("ci.ty", kind)))
        records = topics.send(form, put("u", {"id": 1, "ci.ty": value}, version, version=version))
        topics.took(records)
        sink = current_sink(spark, TOPICS, path, topics, table_format=known, share=0.0, min_unmerged=1, clustering=chosen)
        sink.write(records, version - 1, "query")
        (row,) = read_current(spark, users).select("`ci.ty`").collect()
        assert row[0] == (b"\0\0" if kind == "varbinary" else value)
        by = ["id"] if kind == "varbinary" else ["ci.ty", "id"]
        assert [name.strip("`") for name in clustering(spark, known, users)] == by
        if known is not delta:
            summed_up = iceberg_tables.load(spark, users).properties()
            assert all(summed_up.get(f"write.metadata.metrics.column.{name}") == "full" for name in by)
    assert capsys.readouterr().err.count("rows of the space 'users' aren't put together by ci.ty: ") == 1


def test_what_is_no_clustering_is_refused() -> None:
    assert cluster_by("a=b=x,y") == ("a=b", ("x", "y"))
    assert cluster_by("users=") == ("users", ())
    for text in ("users", "=x", "users=x,", "users=a,b,c,d,e"):
        with pytest.raises(argparse.ArgumentTypeError, match="isn't SPACE=FIELD"):
            cluster_by(text)
