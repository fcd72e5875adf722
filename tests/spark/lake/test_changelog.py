"""Job changelog: every event once, whatever is repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from spark_jobs import run
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, event_rows
from tests.spark.messages import FakeTopics, delete, golden, put, truncate, update
from tests.spark.sinks import changelog_sink

pytestmark = pytest.mark.spark

FIRST = [put("r", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "name": "b", "balance": 1e300}, 2)]
SECOND = [update(1, [{"op": "=", "field": "name", "value": "x"}], 3), delete(2, 4), truncate(5)]


def stored(spark: SparkSession, path: Path) -> list[Row]:
    return spark.read.format("delta").load(str(path)).orderBy("seq").collect()


def test_every_event_becomes_one_row_whatever_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    first, second = topics.send(*FIRST), topics.send(*SECOND)
    for batch, records in ((0, first), (0, first), (1, second), (1, second)):
        # As after a crash between the table's commit and the checkpoint's: a new process, the same query and batch.
        changelog_sink(spark, str(tmp_path), "shop").write(records, batch, "query")
    rows = stored(spark, tmp_path)
    assert [(row["seq"], row["op"], row["key"]) for row in rows] == [
        (1, "r", '{"id":1}'),
        (2, "c", '{"id":2}'),
        (3, "u", '{"id":1}'),
        (4, "d", '{"id":2}'),
        (5, "t", None),
    ]
    snapshot, create, patched = rows[:3]
    assert (snapshot["snapshot"], snapshot["snapshot_id"], snapshot["transaction_id"], snapshot["lsn"]) == (
        "true",
        "1",
        None,
        None,
    )
    assert (create["after"], create["transaction_id"], create["total_order"]) == (
        '{"id":2,"name":"b","balance":1e+300}',
        "1:2",
        1,
    )
    assert (patched["before"], patched["after"]) == (None, None)
    assert patched["patch"] == '[{"op":"=","field":"name","value":"x"}]'
    assert (create["space"], str(create["date"]), create["vclock"], create["lsn"]) == ("users", "2023-11-14", {"1": 2}, 2)
    assert (create["kafka_topic"], create["kafka_partition"], create["daemon"]) == ("shop.users", 1, "shop")
    detail = spark.sql(f"describe detail delta.`{tmp_path}`").collect()[0]
    assert list(detail["partitionColumns"]) == ["space", "date"]
    # A lost checkpoint: another query reads all from the beginning, and what has come meanwhile.
    topics.send(put("c", {"id": 3}, 6))
    sink = changelog_sink(spark, str(tmp_path), "shop")
    sink.write(topics.read("shop.users"), 0, "another query")
    sink.write(topics.send(put("c", {"id": 3}, 7)), 1, "another query")
    assert [row["seq"] for row in stored(spark, tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    # Another daemon counts its events by itself.
    with pytest.raises(JobError, match="'shop'"):
        changelog_sink(spark, str(tmp_path), "market").write(first, 0, "query")


def test_dates_are_those_of_utc(spark: SparkSession) -> None:
    """So that an event has one date, whatever zone the session of a later run has: it is looked for under its date."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        (row,) = event_rows(parse(FakeTopics(spark).send(FIRST[0])), CHANGELOG_COLUMNS).select("date").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert str(row["date"]) == "2023-11-14"


def test_a_lost_table_whose_checkpoint_is_there_is_told_of(spark: SparkSession, tmp_path: Path) -> None:
    later = FakeTopics(spark).send(*SECOND)
    with pytest.raises(JobError, match=r"is gone, but earlier batches of this checkpoint"):
        changelog_sink(spark, str(tmp_path), "shop").write(later, 1, "query")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_of_these("changelog")
def test_of_two_jobs_with_the_same_events_the_first_ends_and_none_is_there_twice(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    former, later, other = (
        changelog_sink(spark, str(tmp_path), "shop", spaces=spaces) for spaces in ("users", "users", "orders")
    )
    first, second = topics.send(*FIRST), topics.send(*SECOND)
    for sink, query in ((former, "former"), (later, "later")):
        sink.write(first, 0, query)
    with pytest.raises(JobError, match="Run only one of the two"):
        former.write(second, 1, "former")
    # One of other spaces may share the table, if both list their names.
    other.write(topics.send(put("c", {"id": 1}, 6, space="orders")), 0, "other")
    later.write(second, 1, "later")
    assert [row["seq"] for row in stored(spark, tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.one_of_these("changelog")
def test_events_that_the_stream_itself_repeats_are_found_when_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    sink = changelog_sink(spark, str(tmp_path), "shop", always=True)
    sink.write(topics.send(*FIRST, FIRST[0]), 0, "query")
    sink.write(topics.send(FIRST[1], *SECOND), 1, "query")
    assert [row["seq"] for row in stored(spark, tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.one_of_these("changelog")
def test_golden_messages_and_spaces_of_any_name_are_inside_the_table(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "in" / "changelog"
    names = ["..", "a/b", "a_b", "users=1", "я" * 100]
    messages = [put("c", {"id": seq}, seq, space=name, space_id=600 + seq) for seq, name in enumerate(names, 1)]
    kinds = ("r", "c", "u-replace", "u-patch", "u-upsert", "d-and-tombstone", "t")
    messages += [message for kind in kinds for message in golden(kind)]
    changelog_sink(spark, str(path), "shop").write(FakeTopics(spark).send(*messages), 0, "query")
    rows = stored(spark, path)
    assert [row["space"] for row in rows if row["space"] != "users"] == names
    assert [row["op"] for row in rows if row["space"] == "users"] == ["r", "c", "u", "u", "u", "d", "t"]
    assert list(tmp_path.iterdir()) == [path.parent]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.one_of_these("changelog")
def test_the_table_may_be_one_of_a_catalog(spark: SparkSession) -> None:
    spark.sql("CREATE SCHEMA events")
    try:
        arguments = [
            "--bootstrap-servers",
            "k:9092",
            "--prefix",
            "Shop",
            "--checkpoint",
            "c",
            "--catalog",
            "spark_catalog.events",
        ]
        options = run.parse_options("changelog", [*arguments, "--table-template", "{prefix}_{table}_v2"])
        run.locate(spark, options)
        topics = FakeTopics(spark)
        first, second = topics.send(*FIRST), topics.send(*SECOND)
        for batch, records in enumerate((first, second, second)):
            sink = run.JOBS["changelog"].sink(spark, Topics.of(options), options)
            sink.write(records, min(batch, 1), "query")
        (table,) = spark.sql("SHOW TABLES IN events").collect()
        assert re.fullmatch(r"shop__[0-9a-f]{12}_changelog_v2", table["tableName"])
        assert [row["seq"] for row in spark.table(f"events.{table['tableName']}").orderBy("seq").collect()] == [1, 2, 3, 4, 5]
    finally:
        spark.sql("DROP SCHEMA events CASCADE")
