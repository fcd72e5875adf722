"""Job history: each row's versions with their exact ends, however batches come, and the rows as of any event."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs import run
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.errors import operator_message
from spark_jobs.history.intervals import versions
from spark_jobs.history.job import HistorySink, rows_as_of
from spark_jobs.history.store import History
from tests.spark.messages import COLUMNS, FakeTopics, delete, put, schema, snapshot, truncate, update

pytestmark = pytest.mark.spark

EPOCH = datetime.fromtimestamp(1700000000.015, UTC)


def row(identity: int, name: str) -> dict[str, Any]:
    return {"id": identity, "name": name}


FIRST = [
    schema(0, in_snapshot=True),
    put("r", row(1, "a"), 1),
    put("c", row(2, "a"), 2),
    put("u", row(1, "b"), 3),
    delete(2, 4),
]
SECOND = [
    put("c", row(2, "b"), 5),
    # Another name of a field, and a field more.
    schema(5, version=2, columns=(("id", "unsigned"), ("title", "string"), *COLUMNS[2:], ("more", "boolean"))),
    put("u", {"id": 1, "title": "c", "balance": 1, "more": True}, 6, version=2),
    truncate(7, version=2),
    put("c", {"id": 1, "title": "d"}, 8, version=2),
    put("c", {"id": 3, "title": "d"}, 9, version=2),
]
THIRD = [
    snapshot("STARTED", 9),
    put("r", {"id": 1, "title": "e"}, 10, version=2),
    snapshot("COMPLETED", 10, sweep_seq=9),
    put("c", {"id": 3, "title": "f"}, 11, version=2),
]

# key, name, begin, end, by what it ended
WHOLE = [
    (1, "a", 1, 3, "u"),
    (2, "a", 2, 4, "d"),
    (1, "b", 3, 6, "u"),
    (2, "b", 5, 7, "t"),
    (1, "c", 6, 7, "t"),
    (1, "d", 8, 10, "r"),
    (3, "d", 9, 10, "snapshot"),
    (1, "e", 10, None, None),
    (3, "f", 11, None, None),
]


def test_versions_have_their_ends_in_whatever_way_they_come(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = FakeTopics(spark)
    path = str(tmp_path)
    first, second, third = topics.send(*FIRST), topics.send(*SECOND), topics.send(*THIRD)

    def sink() -> HistorySink:
        return HistorySink(spark, Topics("k", "shop"), path)

    def stored(found: Any) -> list[tuple[Any, ...]]:
        columns = ("id", "title", "_begin_seq", "_end_seq", "_end_op")
        return [(int(one[0]), *one[1:]) for one in found.select(*columns).orderBy("_begin_seq").collect()]

    # The second batch comes before the first one, which comes again by another process.
    one = sink()
    one.write(second, 0, "query")
    one.write(first, 1, "query")
    assert not (tmp_path / "users").exists()
    # It was killed before the end; the next run publishes what that had appended, though nothing new has come.
    assert sink().finish() == 0
    assert (tmp_path / "users").exists()
    other = sink()
    other.write(first, 1, "query")
    other.write(third, 2, "query")
    assert other.finish() == 0
    found = History(spark, path).intervals("users")
    assert stored(found) == WHOLE
    # What is written down is the same, in two steps as in one.
    published = spark.read.format("delta").load(str(tmp_path / "users"))
    assert stored(published) == WHOLE
    assert sorted(map(str, published.collect())) == sorted(map(str, found.collect()))
    (changed,) = published.where("_begin_seq = 3").collect()
    assert changed["_row"] == '{"id":1,"title":"b"}'
    assert (changed["_end"] - changed["_begin"]) == timedelta(milliseconds=3)
    (last,) = published.where("_begin_seq = 6").collect()
    assert (last["balance"], last["more"]) == (1, True)

    # As of every event: what a consumer has that has read so far.
    kept: dict[int, str] = {}
    expected = {}
    for seq in range(12):
        for identity, name, begin, end, _ in WHOLE:
            if end == seq:
                kept.pop(identity)
            if begin == seq:
                kept[identity] = name
        expected[seq] = dict(sorted(kept.items()))
    for seq in (0, 4, 5, 7, 10, 11):
        rows = rows_as_of(spark, path, "users", seq=seq).collect()
        assert {int(one["id"]): one["title"] for one in rows} == expected[seq], seq
    moment = EPOCH + timedelta(milliseconds=5.5)
    assert {int(one["id"]) for one in rows_as_of(spark, path, "users", time=moment).collect()} == {1, 2}
    assert rows_as_of(spark, path, "users", time=EPOCH).isEmpty()

    capsys.readouterr()
    assert run.main(["show_history", "--path", path, "--space", "users", "--as-of-time", moment.isoformat()]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"key": {"id": 1}, "row": {"id": 1, "title": "b"}, "begin_seq": 3, "end_seq": 6},
        {"key": {"id": 2}, "row": {"id": 2, "title": "b"}, "begin_seq": 5, "end_seq": 7},
    ]
    assert run.main(["show_history", "--path", path, "--space", "nobody"]) == 1
    assert "knows no space 'nobody', but users." in capsys.readouterr().err


def test_a_change_without_its_row_is_refused(spark: SparkSession) -> None:
    changes = parse(FakeTopics(spark).send(update(1, [{"op": "=", "field": "name", "value": "x"}], 1)))
    with pytest.raises(PySparkException) as raised:
        versions(changes).collect()
    assert operator_message(raised.value).startswith("Seq 1 of users has an UPDATE without its row")


def test_a_space_and_fields_that_are_called_as_what_a_history_has_itself(spark: SparkSession, tmp_path: Path) -> None:
    topics, path, space = FakeTopics(spark), str(tmp_path), "_versions"
    columns = [(name, "string") for name in ("id", "_Begin", "_begin__", "_begin___")]
    sink = HistorySink(spark, Topics("nowhere:9092", "shop"), path, publish_every=1)
    values = {name: name for name, _ in columns}
    sink.write(topics.send(schema(0, space=space, columns=columns), put("c", values, 1, space=space)), 0, "query")
    sink.write(topics.send(put("u", values, 2, space=space)), 1, "query")
    found = History(spark, path).intervals(space)
    assert found.columns[8:] == ["id", "_Begin____", "_begin__", "_begin___"]
    assert [row[8:] for row in found.orderBy("_begin_seq").collect()] == [tuple(values.values())] * 2
    assert spark.read.format("delta").load(f"{path}/~5fversions").count() == 2


def test_intervals_are_made_of_all_versions_where_those_appended_last_were_vacuumed(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), str(tmp_path)
    HistorySink(spark, Topics("k", "shop"), path, publish_every=1).write(topics.send(*FIRST), 0, "query")
    behind = HistorySink(spark, Topics("k", "shop"), path, publish_every=0)
    for batch, messages in enumerate((SECOND, THIRD), 1):
        behind.write(topics.send(*messages), batch, "query")
    table = f"delta.`{path}/_versions`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')")
    assert run.main(["maintain", "--path", f"{path}/_versions", "--vacuum-hours", "0"]) == 0
    assert HistorySink(spark, Topics("k", "shop"), path).finish() == 0
    published = spark.read.format("delta").load(str(tmp_path / "users"))
    assert sorted(map(str, published.collect())) == sorted(map(str, History(spark, path).intervals("users").collect()))
    assert published.count() == len(WHOLE)


def test_a_renamed_space_has_its_intervals_under_the_last_name_alone(spark: SparkSession, tmp_path: Path) -> None:
    topics, path = FakeTopics(spark), str(tmp_path)
    sink = HistorySink(spark, Topics("k", "shop"), path, publish_every=1)
    sink.write(topics.send(schema(0), put("c", {"id": 1}, 1)), 0, "query")
    sink.write(topics.send(schema(1, space="people", version=2), put("u", {"id": 1}, 2, space="people", version=2)), 1, "query")
    found = {
        name: spark.read.format("delta").load(f"{path}/{name}").select("_begin_seq", "_end_seq").collect()
        for name in ("users", "people")
    }
    assert (found["users"], sorted(found["people"])) == ([], [(1, 2), (2, None)])


def test_rows_of_a_form_that_was_removed_have_the_last_names(spark: SparkSession, tmp_path: Path) -> None:
    """Retention has removed it from the schema topic. A field keeps its place, whatever it was called."""
    topics, path = FakeTopics(spark), str(tmp_path)
    sink = HistorySink(spark, Topics("k", "shop"), path)
    form = schema(2, version=3, columns=[("id", "unsigned"), ("title", "string")])
    sink.write(topics.send(form, put("c", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "title": "b"}, 3, version=3)), 0, "q")
    sink.finish()
    for found in (History(spark, path).intervals("users"), spark.read.format("delta").load(f"{path}/users")):
        rows = found.orderBy("_begin_seq").select("_row", "title").collect()
        assert [tuple(row) for row in rows] == [('{"id":1,"title":"a"}', "a"), ('{"id":2,"title":"b"}', "b")]


def test_rows_of_any_year_are_printed(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topics, path = FakeTopics(spark), str(tmp_path)
    columns = [("id", "unsigned"), ("at", "datetime")]
    rows = [{"id": 1, "at": "+12000-01-01T00:00:00Z"}, {"id": 2, "at": "2024-01-01T00:00:00Z"}]
    records = topics.send(schema(0, columns=columns), *(put("c", row, seq) for seq, row in enumerate(rows, 1)))
    HistorySink(spark, Topics("k", "shop"), path, publish_every=0).write(records, 0, "query")
    capsys.readouterr()
    assert run.main(["show_history", "--path", path, "--space", "users"]) == 0
    assert [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()] == rows


def test_control_records_of_topics_that_were_created_again_are_not_taken_for_former_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The daemon has kept its state, so an empty checkpoint is enough."""
    path = str(tmp_path)
    carts: dict[str, Any] = {"space": "carts", "space_id": 514, "version": 3}
    begun = [schema(0), schema(0, space="orders", space_id=513, version=2), put("c", row(1, "a"), 1), put("c", row(2, "a"), 2)]
    again = [
        schema(2),
        schema(2, **carts),
        snapshot("STARTED", 2),
        put("r", row(1, "a"), 3),
        put("c", {"id": 9}, 4, **carts),
        snapshot("COMPLETED", 4, sweep_seq=2),
    ]
    ended = [snapshot("STARTED", 0, snapshot_id="1"), snapshot("COMPLETED", 0, snapshot_id="1")]
    for query, messages in (("first", [*begun, *ended]), ("second", again), ("third", again)):
        sink = HistorySink(spark, Topics("k", "shop"), path, publish_every=0)
        sink.write(FakeTopics(spark).send(*messages), 0, query)
    assert [one["_key"] for one in rows_as_of(spark, path, "users", seq=4).collect()] == ['{"id":1}']
    assert [one["_key"] for one in rows_as_of(spark, path, "carts", seq=4).collect()] == ['{"id":9}']
    assert History(spark, path).versions().count() == 6 + 6
