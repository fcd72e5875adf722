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
from spark_jobs.history.intervals import as_of, versions
from spark_jobs.history.job import HistorySink, rows_as_of
from spark_jobs.history.store import History
from spark_jobs.tables.format import TableFormat
from tests.spark.formats import forget_at_once, in_either_format, load, under
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


@in_either_format
def test_versions_have_their_ends_in_whatever_way_they_come(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], known: TableFormat
) -> None:
    topics = FakeTopics(spark)
    path = str(tmp_path)
    first, second, third = topics.send(*FIRST), topics.send(*SECOND), topics.send(*THIRD)

    def sink() -> HistorySink:
        return HistorySink(spark, Topics("k", "shop"), under(path, known))

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
    computed = History(spark, path).intervals("users")
    found = spark.createDataFrame(computed.collect(), computed.schema)
    assert stored(found) == WHOLE
    # What is written down is the same, in two steps as in one.
    rows = load(spark, known, tmp_path / "users").orderBy("_begin_seq").collect()
    assert sorted(map(str, rows)) == sorted(map(str, found.collect()))
    changed, last = (row for row in rows if row["_begin_seq"] in (3, 6))
    assert changed["_row"] == '{"id":1,"title":"b"}'
    assert (changed["_end"] - changed["_begin"]) == timedelta(milliseconds=3)
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
        assert {int(one["id"]): one["title"] for one in as_of(found, seq).collect()} == expected[seq], seq
    moment = EPOCH + timedelta(milliseconds=5.5)
    assert {int(one["id"]) for one in rows_as_of(spark, path, "users", time=moment).collect()} == {1, 2}
    assert History(spark, path).seq_at(EPOCH) == -1

    capsys.readouterr()
    assert run.main(["show_history", "--path", path, "--space", "users", "--as-of-time", moment.isoformat()]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {"key": {"id": 1}, "row": {"id": 1, "title": "b"}, "begin_seq": 3, "end_seq": 6},
        {"key": {"id": 2}, "row": {"id": 2, "title": "b"}, "begin_seq": 5, "end_seq": 7},
    ]
    assert run.main(["show_history", "--path", path, "--space", "nobody"]) == 1
    assert "knows no space 'nobody', but users." in capsys.readouterr().err

    # What was appended since is vacuumed before it is published: then the intervals are made of all versions.
    behind = HistorySink(spark, Topics("k", "shop"), under(path, known), publish_every=0)
    behind.write(topics.send(put("u", {"id": 3, "title": "g"}, 12, version=2)), 3, "query")
    options = forget_at_once(spark, known, f"{path}/_versions")
    assert run.main(["maintain", "--path", f"{path}/_versions", *options]) == 0
    assert sink().finish() == 0
    assert stored(load(spark, known, tmp_path / "users")) == [
        *WHOLE[:-1],
        (3, "f", 11, 12, "u"),
        (3, "g", 12, None, None),
    ]


def test_a_change_without_its_row_is_refused(spark: SparkSession) -> None:
    changes = parse(FakeTopics(spark).send(update(1, [{"op": "=", "field": "name", "value": "x"}], 1)))
    with pytest.raises(PySparkException) as raised:
        versions(changes).collect()
    assert operator_message(raised.value).startswith("Seq 1 of users has an UPDATE without its row")


@pytest.mark.one_of_these("history")
def test_spaces_are_published_whatever_their_names_and_their_fields_are_and_were(spark: SparkSession, tmp_path: Path) -> None:
    """One is called as a table of the history and has fields called as its columns; one is renamed; and of one, retention has
    removed a form from the schema topic: a field keeps its place, whatever it was called.
    """
    topics, path = FakeTopics(spark), str(tmp_path)
    sink = HistorySink(spark, Topics("nowhere:9092", "shop"), under(path), publish_every=1)
    own: dict[str, Any] = {"space": "_versions", "space_id": 513}
    columns = [(name, "string") for name in ("id", "_Begin", "_begin__", "_begin___")]
    values = {name: name for name, _ in columns}
    people: dict[str, Any] = {"space": "people", "version": 2}
    carts: dict[str, Any] = {"space": "carts", "space_id": 514, "version": 3}
    sink.write(
        topics.send(schema(0, **own, columns=columns), put("c", values, 1, **own), schema(1), put("c", {"id": 1}, 2)), 0, "q"
    )
    second = [
        put("u", values, 3, **own),
        schema(3, **people),
        put("u", {"id": 1}, 4, **people),
        schema(5, **carts, columns=[("id", "unsigned"), ("title", "string")]),
        put("c", {"id": 1, "name": "a"}, 5, **{**carts, "version": 1}),
        put("c", {"id": 2, "title": "b"}, 6, **carts),
    ]
    sink.write(topics.send(*second), 1, "q")
    published = {
        name: spark.read.format("delta").load(f"{path}/{folder}").orderBy("_begin_seq")
        for name, folder in (("_versions", "~5fversions"), ("users", "users"), ("people", "people"), ("carts", "carts"))
    }
    for found in (History(spark, path).intervals("_versions").orderBy("_begin_seq"), published["_versions"]):
        assert found.columns[8:] == ["id", "_Begin____", "_begin__", "_begin___"]
        assert [row[8:] for row in found.collect()] == [tuple(values.values())] * 2
    seqs = {name: published[name].select("_begin_seq", "_end_seq").collect() for name in ("users", "people")}
    assert seqs == {"users": [], "people": [(2, 4), (4, None)]}
    for found in (History(spark, path).intervals("carts").orderBy("_begin_seq"), published["carts"]):
        assert [(row["_row"], row["title"]) for row in found.collect()] == [
            ('{"id":1,"title":"a"}', "a"),
            ('{"id":2,"title":"b"}', "b"),
        ]


@pytest.mark.one_of_these("history")
def test_control_records_of_topics_that_were_created_again_are_not_taken_for_former_ones(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon has kept its state, so an empty checkpoint is enough. Rows of any year are printed."""
    path = str(tmp_path)
    carts: dict[str, Any] = {"space": "carts", "space_id": 514, "version": 3}
    in_carts = [{"id": 9, "at": "+12000-01-01T00:00:00Z"}, {"id": 10, "at": "2024-01-01T00:00:00Z"}]
    begun = [schema(0), schema(0, space="orders", space_id=513, version=2), put("c", row(1, "a"), 1), put("c", row(2, "a"), 2)]
    again = [
        schema(2),
        schema(2, **carts, columns=[("id", "unsigned"), ("at", "datetime")]),
        snapshot("STARTED", 2),
        put("r", row(1, "a"), 3),
        *(put("c", one, seq, **carts) for seq, one in enumerate(in_carts, 4)),
        snapshot("COMPLETED", 5, sweep_seq=2),
    ]
    ended = [snapshot("STARTED", 0, snapshot_id="1"), snapshot("COMPLETED", 0, snapshot_id="1")]
    for query, messages in (("first", [*begun, *ended]), ("second", again), ("third", again)):
        sink = HistorySink(spark, Topics("k", "shop"), under(path), publish_every=0)
        sink.write(FakeTopics(spark).send(*messages), 0, query)
    assert [one["_key"] for one in rows_as_of(spark, path, "users", seq=5).collect()] == ['{"id":1}']
    assert History(spark, path).versions().count() == 6 + 7
    capsys.readouterr()
    assert run.main(["show_history", "--path", path, "--space", "carts"]) == 0
    assert [json.loads(line)["row"] for line in capsys.readouterr().out.splitlines()] == in_carts
