"""--on-error dead-letter: what can't be taken is kept, once, and the rest goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.envelope import with_fault_column
from spark_jobs.errors import JobError, operator_message
from spark_jobs.runner.dead_letters import DeadLetterTable
from spark_jobs.runner.job import REFUSED_SCHEMA, FailAtOnce
from tests.spark.messages import FakeTopics, Message, put, schema, snapshot
from tests.spark.sinks import changelog_sink

pytestmark = pytest.mark.spark

BAD = Message("shop.users", '{"id":2}', '{"not":"an event"}')
SENTENCE = 'topic shop.users, partition 0, offset 0 holds something that is no change event: {"not":"an event"}'


def test_a_record_that_is_no_event_is_kept_and_the_rest_is_written(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    events = [put("c", {"id": 1}, 1), put("c", {"id": 3}, 2), Message("shop.users", '{"id":1}', None)]
    batch = topics.send(*events, BAD, Message("shop.users", None, "\0\ufffd"))
    table, letters = str(tmp_path / "changelog"), str(tmp_path / "letters")

    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        run.feed(changelog_sink(spark, table, "shop"), batch, 0, "query", [])
    assert "holds something that is no change event: " in operator_message(raised.value)

    for query in ("query", "query", "after the checkpoint was lost"):
        sink = changelog_sink(spark, table, "shop")
        sink.dead_letters = DeadLetterTable(spark, letters, "changelog")
        run.feed(sink, batch, 0, query, [])
    assert sorted(row["seq"] for row in spark.read.format("delta").load(table).collect()) == [1, 2]
    kept = spark.read.format("delta").load(letters).orderBy("partition", "offset").collect()
    where = batch.where("value = X'00EFBFBD'").select("partition", "offset").collect()
    assert [(row["job"], row["topic"]) for row in kept] == [("changelog", "shop.users")] * 3
    (bad,) = [row for row in kept if row["key"] is not None]
    assert (bytes(bad["key"]), bytes(bad["value"])) == (b'{"id":2}', b'{"not":"an event"}')
    assert bad["sentence"] == SENTENCE.replace("0, offset 0", f"{bad['partition']}, offset {bad['offset']}")
    assert bad["taken_at"] is not None
    assert {(row["partition"], row["offset"]) for row in kept if row["key"] is None} == {tuple(row) for row in where}


def test_control_records_are_no_dead_letters(spark: SparkSession) -> None:
    records = FakeTopics(spark).send(schema(0), snapshot("STARTED", 1), BAD)
    found = with_fault_column(records, ["shop.schema", "shop.snapshot"]).where("sentence is not null").collect()
    assert [row["topic"] for row in found] == ["shop.users"]


def test_another_error_ends_the_job_as_ever(spark: SparkSession, tmp_path: Path) -> None:
    sink = changelog_sink(spark, str(tmp_path / "changelog"), "shop")
    sink.dead_letters = DeadLetterTable(spark, str(tmp_path / "letters"), "changelog")
    with pytest.raises(PySparkException, match="seq"):
        run.feed(sink, FakeTopics(spark).send(put("c", {"id": 1}, 1)).drop("value").selectExpr("*", "seq as value"), 0, "q", [])
    assert not (tmp_path / "letters").exists()


def test_what_a_sink_refuses_is_kept_once_or_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        ("shop.users", 0, offset, None, b"k", b"v", f"topic shop.users, partition 0, offset {offset}: no") for offset in (7, 5, 7)
    ]
    refused = spark.createDataFrame(rows, REFUSED_SCHEMA)
    with pytest.raises(JobError, match="offset 5: no"):
        FailAtOnce().take(refused)
    assert FailAtOnce().take(refused.limit(0)) == 0

    table = DeadLetterTable(spark, str(tmp_path), "search_index")
    assert [table.take(refused), table.take(refused.where("offset = 5")), table.take(refused.limit(0))] == [2, 1, 0]
    assert table.count == 3
    made_anew = refused.where("offset = 5").selectExpr(*refused.columns[:5], "cast('other' as binary) as value", "sentence")
    table.take(made_anew)
    stored = spark.read.format("delta").load(str(tmp_path)).orderBy("offset", "value").collect()
    assert [(row["offset"], bytes(row["value"])) for row in stored] == [(5, b"other"), (5, b"v"), (7, b"v")]
