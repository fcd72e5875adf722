"""Job changes: every event once, and what the control topics tell beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit.sources import TableSource
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.change_rows import CHANGES_COLUMNS, COLUMNS_OF_READERS
from spark_jobs.lake.changes import CHANGES, CHANGES_BY_DATE, CHANGES_OF_READERS, ChangesSink
from spark_jobs.lake.control import ControlTable
from spark_jobs.tables import delta as tables
from tests.spark.messages import FakeTopics, Message, golden, put, schema, snapshot, truncate, update

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")


@pytest.mark.one_of_these("events for readers")
def test_every_event_becomes_one_row_whatever_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    path = str(tmp_path)
    first = topics.send(schema(0), put("r", {"id": 1, "name": "ä"}, 1), put("c", {"id": 2, "balance": 1e300}, 2))
    second = topics.send(update(1, [{"op": "=", "field": "name", "value": "x"}], 3), truncate(4), snapshot("COMPLETED", 4))
    for batch, records in ((0, first), (1, second), (1, second)):
        ChangesSink(spark, TOPICS, path, topics).write(records, batch, "query")
    frame = tables.read(spark, path).orderBy("seq")
    assert frame.columns == [*CHANGES_COLUMNS, "batch"]
    rows = frame.collect()
    assert [(row["seq"], row["op"], row["key"], row["batch"]) for row in rows] == [
        (1, "r", '{"id":1}', 0),
        (2, "c", '{"id":2}', 0),
        (3, "u", '{"id":1}', 1),
        (4, "t", None, 1),
    ]
    assert (rows[0]["after"], rows[0]["snapshot"], rows[0]["transaction_id"]) == ('{"id":1,"name":"ä"}', "true", None)
    assert (rows[1]["after"], rows[1]["transaction_id"], rows[1]["total_order"]) == ('{"id":2,"balance":1e+300}', "1:2", 1)
    assert (rows[2]["after"], rows[2]["patch"]) == (None, '[{"op":"=","field":"name","value":"x"}]')
    assert (rows[2]["space"], rows[2]["lsn"], rows[2]["kafka_topic"], rows[2]["daemon"]) == ("users", 3, "shop.users", "shop")
    control = ControlTable(spark, path, tables).read()
    assert control.forms.names() == {"users"}
    assert [ended.seq for ended in control.completed] == [4]
    # A start that finds no new control records writes none.
    assert len(list((tmp_path / "_control" / "_delta_log").glob("*.json"))) == 1
    # A lost checkpoint: another query reads all from the beginning.
    everything = topics.read("shop.users").union(topics.send(put("c", {"id": 3}, 5)))
    ChangesSink(spark, TOPICS, path, topics).write(everything, 0, "another query")
    assert [row["seq"] for row in tables.read(spark, path).orderBy("seq").collect()] == [1, 2, 3, 4, 5]
    with pytest.raises(JobError, match="'shop'"):
        ChangesSink(spark, Topics("nowhere:9092", "market"), path, topics).write(everything, 1, "query")


@pytest.mark.one_of_these("events for readers")
def test_current_keeps_what_it_reads_and_goes_on_in_a_table_with_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Earlier versions of the job wrote all columns. Job `audit` takes neither of the two tables for one of job `changes`."""
    topics, mixed, own = FakeTopics(spark), tmp_path / "mixed", tmp_path / "own"
    batches = topics.send(schema(0), put("c", {"id": 1}, 1)), topics.send(put("c", {"id": 2}, 2))
    layouts = {mixed: (CHANGES, CHANGES_OF_READERS), own: (CHANGES_OF_READERS, CHANGES_OF_READERS)}
    for path, both in layouts.items():
        for batch, (records, layout) in enumerate(zip(batches, both, strict=True)):
            ChangesSink(spark, TOPICS, str(path), topics, layout=layout).write(records, batch, "query")
        rows = tables.read(spark, str(path)).orderBy("seq").collect()
        assert [(row["key"], row["after"], row["batch"]) for row in rows] == [
            ('{"id":1}', '{"id":1}', 0),
            ('{"id":2}', '{"id":2}', 1),
        ]
        with pytest.raises(JobError, match="fewer columns"):
            TableSource(spark, str(path)).prefix()
    assert tables.read(spark, str(own)).columns == [*COLUMNS_OF_READERS, "batch"]


@pytest.mark.one_of_these("events for readers")
def test_golden_messages_are_kept_to_the_byte_by_day_if_wanted(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    messages = [message for name in ("r", "c", "u-replace", "u-patch", "u-upsert", "d-and-tombstone") for message in golden(name)]
    ChangesSink(spark, TOPICS, str(tmp_path), topics, layout=CHANGES_BY_DATE).write(topics.send(*messages), 0, "query")
    rows = tables.read(spark, str(tmp_path)).collect()
    published = [message.value for message in messages if message.value is not None]
    assert len(rows) == len(published)
    for row in rows:
        texts = [row[name] for name in ("before", "after", "patch", "upsert") if row[name] is not None]
        assert any(all(text in value for text in texts) and f'"seq":{row["seq"]},' in value for value in published)
    found = spark.sql(f"describe detail delta.`{tmp_path}`").collect()[0]
    assert list(found["partitionColumns"]) == ["space", "date"]


def test_a_control_record_that_is_none_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    ChangesSink(spark, TOPICS, str(tmp_path), topics).write(
        topics.send(Message("shop.snapshot", None, '{"status":"COMPLETED"}')), 0, "q"
    )
    with pytest.raises(JobError, match="no snapshot record"):
        ControlTable(spark, str(tmp_path), tables).read()


@pytest.mark.one_of_these("events for readers")
def test_the_sink_knows_the_newest_seq_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    sink = ChangesSink(spark, TOPICS, str(tmp_path), topics)
    assert sink.knows_seq
    assert sink.newest_seq() is None
    sink.write(topics.send(schema(0), *(put("c", {"id": seq}, seq) for seq in (2, 7, 5))), 0, "query")
    assert sink.newest_seq() == 7


@pytest.mark.one_of_these("events for readers")
def test_a_small_batch_has_no_task_and_no_file_for_each_partition(spark: SparkSession, tmp_path: Path) -> None:
    topics, counts = FakeTopics(spark), []
    sink = ChangesSink(spark, TOPICS, str(tmp_path), topics)
    for batch in range(2):
        records = topics.send(schema(0), *(put("c", {"id": batch * 4 + number}, batch * 4 + number + 1) for number in range(4)))
        topics.took(records)
        sink.write(records.repartition(4, "offset", "key"), batch, "query")
        files = tables.read(spark, str(tmp_path)).where(f"batch = {batch}").select(F.input_file_name())
        counts.append(files.distinct().count())
    assert counts[0] > 1  # nobody knows yet how small it is
    assert counts[1] == spark.sparkContext.defaultParallelism
