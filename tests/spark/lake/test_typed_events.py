"""`changelog --typed`: a table per space whose columns grow with its forms, in one run as in several."""

from __future__ import annotations

import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS
from spark_jobs.lake.typed_events import TypedEventsSink
from spark_jobs.runner.checkpoint import MadeTables, claim
from spark_jobs.runner.dead_letters import DeadLetterTable
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import qualified
from tests.spark.messages import PREFIX, FakeTopics, delete, event, put, schema, snapshot, truncate, update
from tests.spark.sinks import changelog_sink

pytestmark = pytest.mark.spark

LARGE = 2**64 - 1
DEEP = "12345678901234567890123456789012345678"


def sink(spark: SparkSession, path: Path, topics: FakeTopics) -> TypedEventsSink:
    """As in another process."""
    made = MadeTables(spark, f"{path}-checkpoint")
    return TypedEventsSink(spark, Topics("k", PREFIX), Location(path=str(path)), made, read_topic=topics.read)


def stored(spark: SparkSession, path: Path) -> list[Row]:
    return spark.read.format("delta").load(str(path)).orderBy("seq").collect()


@pytest.mark.one_of_these("typed events")
def test_forms_come_and_go_and_no_value_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    orders = {"space": "or/ders", "space_id": 513, "version": 2}
    topics.send(
        schema(0, columns=[("id", "unsigned"), ("name", "string"), ("size", "unsigned"), ("a b", "boolean")]),
        schema(0, space="or/ders", space_id=513, version=2, columns=[("id", "unsigned"), ("at", "datetime")]),
    )
    first = topics.send(
        truncate(1),
        put("c", {"id": LARGE, "name": "ä😀", "size": LARGE, "a b": True, "field_5": DEEP}, 2),
        put("c", {"id": 1, "at": "2024-02-29T23:59:58.123456789+03:00"}, 3, **orders),
        update(LARGE, [{"op": "=", "field": "name", "value": "x"}], 4),
    )
    # Another name, another type, a field that is gone and one that is new: all in one batch, with rows of both forms.
    altered = [("id", "unsigned"), ("title", "string"), ("size", "string"), ("more", "map")]
    topics.send(schema(5, version=3, columns=altered))
    second = topics.send(
        put("c", {"id": 2, "name": "b", "size": 5, "a b": None}, 5),
        event(
            "u",
            {"id": 2},
            6,
            {
                "before": {"id": 2, "title": "b", "size": 5, "more": None},
                "after": {"id": 2, "title": "b", "size": "five", "more": {"deep": [1, 2]}},
            },
            version=3,
        ),
        delete(2, 7, version=3),
    )
    for batch, records in ((0, first), (1, second), (1, second)):
        # Each time as after a crash, the last one before the checkpoint was written.
        sink(spark, tmp_path, topics).write(records, batch, "query")

    rows = {row["seq"]: row for row in stored(spark, tmp_path / "users")}
    assert list(rows) == [1, 2, 4, 5, 6, 7]
    assert list(rows[1].asDict()) == [*CHANGELOG_COLUMNS, "old", "new"]
    fields = ("id", "name", "size", "a_b", "title", "size__string", "more")
    shown = {
        (seq, image): tuple(row[image][field] for field in fields)
        for seq, row in rows.items()
        for image in ("old", "new")
        if row[image] is not None
    }
    assert shown == {
        (2, "new"): (Decimal(LARGE), "ä😀", Decimal(LARGE), True, None, None, None),
        (5, "new"): (Decimal(2), "b", Decimal(5), None, None, None, None),
        (6, "old"): (Decimal(2), None, None, None, "b", "5", None),
        (6, "new"): (Decimal(2), None, None, None, "b", "five", '{"deep":[1,2]}'),
    }
    assert rows[2]["after"].endswith(f'"field_5":"{DEEP}"}}')
    assert (rows[1]["op"], rows[4]["patch"]) == ("t", '[{"op":"=","field":"name","value":"x"}]')
    (order,) = stored(spark, tmp_path / "or~2fders")
    assert (str(order["new"]["at"]), order["old"]) == ("2024-02-29 20:59:58.123456", None)


@pytest.mark.one_of_these("typed events")
def test_rows_of_a_form_that_was_removed_end_the_job_or_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Retention has removed the record of the first form from the schema topic."""
    path, topics = tmp_path / "lake", FakeTopics(spark)
    topics.send(schema(3, version=2, columns=[("id", "unsigned"), ("title", "string")]))
    messages = (
        put("c", {"id": 1, "name": "a"}, 1),
        update(1, [{"op": "=", "field": "name", "value": "x"}], 2),
        truncate(3),
        put("c", {"id": 2, "name": "b"}, 4),
        put("c", {"id": 3, "title": "c"}, 5, version=2),
        put("c", {"id": 4}, 6, space="orders", space_id=513, version=7),
    )
    records = topics.send(*messages)
    told = (
        r"^topic shop\.\w+, partition \d, offset \d: The topic shop.schema has no form of space \d+ at schema_version \d,.*"
        "--on-error dead-letter"
    )
    with pytest.raises(JobError, match=told):
        sink(spark, path, topics).write(records, 0, "query")
    for _ in range(2):
        # Repeated as after a crash.
        process = sink(spark, path, topics)
        process.dead_letters = DeadLetterTable(spark, str(tmp_path / "letters"), "changelog")
        process.write(records, 0, "query")
    rows = stored(spark, path / "users")
    assert [(row["seq"], row["new"] and row["new"]["title"]) for row in rows] == [(2, None), (3, None), (5, "c")]
    letters = spark.read.format("delta").load(str(tmp_path / "letters")).collect()
    assert sorted(bytes(row["value"]).decode() for row in letters) == sorted(str(messages[place].value) for place in (0, 3, 5))
    assert all(re.match(told, row["sentence"]) for row in letters)


def test_a_table_of_another_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    untyped = tmp_path / "users"
    changelog_sink(spark, str(untyped), PREFIX).write(topics.send(put("c", {"id": 1}, 1)), 0, "query")
    with pytest.raises(JobError, match="isn't one of events with --typed"):
        sink(spark, tmp_path, topics).write(topics.send(truncate(2)), 0, "query")
    with pytest.raises(JobError, match="is a table itself"):
        sink(spark, untyped, topics)


@pytest.mark.one_of_these("typed events")
def test_a_table_that_is_gone_is_not_made_anew_and_one_of_a_new_space_is(spark: SparkSession, tmp_path: Path) -> None:
    lake, topics = tmp_path / "lake", FakeTopics(spark)
    orders: dict[str, Any] = {"space": "orders", "space_id": 513, "version": 2}
    topics.send(schema(0), schema(0, **orders))
    running = sink(spark, lake, topics)
    running.write(topics.send(put("c", {"id": 1}, 1)), 0, "query")
    shutil.rmtree(lake / "users")
    again = topics.send(put("c", {"id": 2}, 2), put("c", {"id": 1}, 3, **orders))
    for process in (running, sink(spark, lake, topics)):
        with pytest.raises(JobError, match=r"lake/users is gone, but earlier batches of this checkpoint"):
            process.write(again, 1, "query")
    assert not (lake / "users").exists()
    assert [row["seq"] for row in stored(spark, lake / "orders")] == [3]


@pytest.mark.one_of_these("typed events")
def test_an_older_copy_of_a_table_is_refused_and_a_table_without_news_is_not(spark: SparkSession, tmp_path: Path) -> None:
    lake, topics = tmp_path / "lake", FakeTopics(spark)
    orders: dict[str, Any] = {"space": "orders", "space_id": 513, "version": 2}
    first = topics.send(schema(0), schema(0, **orders), put("c", {"id": 1}, 1), put("c", {"id": 1}, 2, **orders))
    sink(spark, lake, topics).write(first, 0, "query")
    shutil.copytree(lake / "users", tmp_path / "copy")
    sink(spark, lake, topics).write(topics.send(put("c", {"id": 2}, 3)), 1, "query")
    sink(spark, lake, topics).write(topics.send(put("c", {"id": 2}, 4, **orders)), 2, "query")
    third = topics.send(put("c", {"id": 3}, 5), put("c", {"id": 3}, 6, **orders))
    running = sink(spark, lake, topics)
    running.write(third, 3, "query")
    shutil.rmtree(lake / "users")
    shutil.copytree(tmp_path / "copy", lake / "users")
    fourth = topics.send(put("c", {"id": 4}, 7))
    for process in (running, sink(spark, lake, topics)):
        with pytest.raises(JobError, match=r"lake/users lacks batches that this checkpoint has written to it"):
            process.write(fourth, 4, "query")
    assert [row["seq"] for row in stored(spark, lake / "users")] == [1]
    assert [row["seq"] for row in stored(spark, lake / "orders")] == [2, 4, 6]


@pytest.mark.one_of_these("typed events")
def test_changes_and_changelog_are_one_job_with_two_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`changes` gets the control records, too, and its tables get names in a catalog by the program."""
    topics = FakeTopics(spark)
    monkeypatch.setattr(Topics, "read", lambda _, __, topic: topics.read(topic))
    records = topics.send(schema(0), put("c", {"id": 1, "name": "a"}, 1), snapshot("COMPLETED", 1))
    found = {}
    for name in ("changes", "changelog"):
        path = qualified(spark, str(tmp_path / name))
        arguments = ["--bootstrap-servers", "k:1", "--prefix", PREFIX, "--checkpoint", f"{path}-checkpoint", "--path", path]
        options = run.parse_options(name, [*arguments, "--typed"])
        run.locate(spark, options)
        made = run.JOBS[name].sink(spark, Topics("k", PREFIX), options)
        assert made.tables() == {}
        made.write(records, 0, "query")
        assert made.tables() == {"users": f"{path}/users"}
        found[name] = [row.asDict() for row in stored(spark, tmp_path / name / "users")]
    assert found["changes"] == found["changelog"]
    assert [(row["seq"], row["new"]["name"]) for row in found["changes"]] == [(1, "a")]


@pytest.mark.one_of_these("typed events")
def test_the_tables_may_be_those_of_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("CREATE SCHEMA typed")
    try:
        topics = FakeTopics(spark)
        where = Location(schema=("spark_catalog", "typed"), prefix=PREFIX, template="{prefix}_{table}_log")
        made = MadeTables(spark, str(tmp_path))
        process = TypedEventsSink(spark, Topics("k", PREFIX), where, made, read_topic=topics.read)
        # No row tells of its fields yet.
        process.write(topics.send(truncate(0)), 0, "query")
        columns = [("id", "unsigned"), ("a-b.c", "string")]
        topics.send(schema(0, columns=columns))
        process.write(topics.send(put("c", {"id": 1, "a-b.c": "x"}, 1)), 1, "query")
        columns.append(("d", "double"))
        topics.send(schema(1, version=2, columns=columns))
        process.write(topics.send(put("c", {"id": 2, "d": 0.5}, 2, version=2)), 2, "query")
        found = spark.sql("SELECT new.id, new.`a-b.c`, new.d FROM typed.shop_users_log WHERE op = 'c' ORDER BY seq").collect()
        assert [tuple(row) for row in found] == [(Decimal(1), "x", None), (Decimal(2), None, 0.5)]
    finally:
        spark.sql("DROP SCHEMA typed CASCADE")
    # A checkpoint of the one kind of tables is none of the other's.
    arguments = ["--bootstrap-servers", "k:1", "--prefix", PREFIX, "--checkpoint", "c", "--path", str(tmp_path)]
    places = []
    for more in ([], ["--typed"]):
        options = run.parse_options("changelog", [*arguments, *more])
        run.locate(spark, options)
        places.append(run.JOBS["changelog"].place(options))
    assert places == [qualified(spark, str(tmp_path)), f"{qualified(spark, str(tmp_path))} --typed"]
    claim(spark, str(tmp_path / "c"), {"place": places[0]})
    with pytest.raises(JobError, match="belongs to place"):
        claim(spark, str(tmp_path / "c"), {"place": places[1]})
