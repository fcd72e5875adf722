"""Job current: tables that are as the space is, in whatever pieces and order the events come."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.current import CurrentSink, read_current
from spark_jobs.errors import JobError, sentence
from spark_jobs.folders import folder
from spark_jobs.source import Topics
from spark_jobs.space_table import SpaceTable
from tests.spark.messages import (
    COLUMNS,
    FakeTopics,
    Message,
    compact,
    delete,
    event,
    golden,
    put,
    schema,
    snapshot,
    truncate,
    update,
    upsert,
)

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")


class Job:
    """The job over topics in memory; each batch by a sink of its own, as after a restart."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self.session = session
        self.path = path
        self.topics = FakeTopics(session)

    def take(self, records: DataFrame, **options: Any) -> None:
        """Give a batch to a new process of the job."""
        sink = CurrentSink(self.session, TOPICS, str(self.path), read_topic=self.topics.read, **options)
        sink.write(records, 0, "query")

    def send(self, *messages: Message, **options: Any) -> DataFrame:
        """Send messages and give them to the job."""
        batch = self.topics.send(*messages)
        self.take(batch, **options)
        return batch

    def rows(self, space: str = "users") -> dict[str, str]:
        """Keys and rows."""
        frame = read_current(self.session, f"{self.path}/{space}")
        return {row["_key"]: row["_row"] for row in frame.collect()}

    def columns(self, *names: str, space: str = "users") -> list[tuple[Any, ...]]:
        """Columns of all rows, by key."""
        frame = read_current(self.session, f"{self.path}/{space}").orderBy("_key")
        return [tuple(row) for row in frame.select(*(f"`{name}`" for name in names)).collect()]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def plus(value: int) -> list[dict[str, Any]]:
    return [{"op": "+", "field": "balance", "value": value}]


def test_changes_of_every_kind(job: Job) -> None:
    job.send(
        schema(0),
        put("r", {"id": 1, "name": "a", "balance": 1}, 1),
        put("c", {"id": 2, "name": "b", "balance": 2}, 2),
        put("c", {"id": 3, "name": "c"}, 3),
        update(1, plus(10), 4),
        upsert({"id": 4, "name": "d", "balance": 4}, plus(1), 5),
    )
    job.send(
        update(1, plus(100), 6),
        put("u", {"id": 2, "name": "B"}, 7),
        delete(3, 8),
        upsert({"id": 4, "name": "no"}, plus(1), 9),
        delete(5, 10),
        event("u", {"id": 6}, 11, {"before": {"id": 6}, "after": {"id": 6, "name": "f"}}),
        update(6, [{"op": "!", "field": "balance", "value": 1}, {"op": "=", "field": "field_4", "value": 1.0}], 12),
    )
    expected = {
        '{"id":1}': '{"id":1,"name":"a","balance":111}',
        '{"id":2}': '{"id":2,"name":"B"}',
        '{"id":4}': '{"id":4,"name":"d","balance":5}',
        '{"id":6}': '{"id":6,"name":"f","balance":1,"field_4":1.0}',
    }
    assert job.rows() == expected
    assert job.columns("id", "name", "balance", "_seq")[0] == (1, "a", "111", 6)
    job.take(job.topics.read("shop.users"))
    assert job.rows() == expected
    # A row that comes back after its deletion.
    job.send(upsert({"id": 3, "name": "again"}, plus(1), 13))
    assert job.rows() == {**expected, '{"id":3}': '{"id":3,"name":"again"}'}


def test_golden_messages_lead_to_the_row_that_the_master_has(job: Job) -> None:
    names = ("schema-create", "r", "c", "u-replace", "u-patch", "u-upsert")
    job.send(*(message for name in names for message in golden(name)))
    assert job.rows() == {
        '{"id":1}': '{"id":1,"name":"one","balance":10}',
        '{"id":2}': '{"id":2,"name":"zÉei","balance":3.5}',
        '{"id":3}': '{"id":3,"name":"three","balance":3}',
    }
    job.send(*golden("d-and-tombstone"), *golden("t"))
    assert job.rows() == {}
    job.send(*golden("schema-alter"), *golden("schema-rename"))
    assert job.rows("people") == {}


def test_values_of_every_type_are_exact_in_the_row_and_typed_in_columns(job: Job) -> None:
    types = (
        "unsigned",
        "integer",
        "double",
        "number",
        "decimal",
        "boolean",
        "uuid",
        "varbinary",
        "datetime",
        "array",
        "map",
        "any",
    )
    full = (
        '{"id":18446744073709551615,"integer":-9223372036854775808,"double":1e300,"number":9007199254740993,'
        '"decimal":"-12345678901234567890.123456789","boolean":true,"uuid":"64d22e4d-ac92-4a23-899a-e59f34af5479",'
        '"varbinary":"3q2+7w==","datetime":"2024-02-29T23:59:58.123456789+03:00","array":[1,"𝄞",1.50],"map":{"a":-0.0},"any":"text"}'
    )
    odd = '{"id":1,"integer":18446744073709551615,"double":"NaN","number":"0.000","decimal":null,"boolean":"no"}'
    columns = [("id" if kind == "unsigned" else kind, kind) for kind in types]
    key = {"id": 18446744073709551615}
    job.send(schema(0, columns=columns), event("c", key, 1, {"after": full}), event("c", {"id": 1}, 2, {"after": odd}))
    assert set(job.rows().values()) == {full, odd}
    frame = read_current(job.session, f"{job.path}/users").orderBy("_seq")
    assert [kind for name, kind in frame.dtypes if not name.startswith("_")] == (
        ["decimal(20,0)", "decimal(20,0)", "double", "string", "string", "boolean", "string", "binary", "timestamp"]
        + ["string"] * 3
    )
    shown = frame.withColumn("datetime", frame["datetime"].cast("string"))
    first, second = (tuple(row)[4:] for row in shown.collect())
    assert first[:6] == (2**64 - 1, -(2**63), 1e300, "9007199254740993", "-12345678901234567890.123456789", True)
    assert first[6:9] == ("64d22e4d-ac92-4a23-899a-e59f34af5479", bytearray.fromhex("deadbeef"), "2024-02-29 20:59:58.123456")
    assert (json.loads(first[9]), json.loads(first[10]), first[11]) == ([1, "𝄞", 1.5], {"a": 0.0}, "text")
    assert second[:2] == (1, 2**64 - 1)
    assert str(second[2]) == "nan"
    assert second[3:] == ("0.000", None, False, None, None, None, None, None, None)


def test_truncation_voids_what_is_older_also_if_it_is_read_later(job: Job) -> None:
    first = job.topics.send(schema(0), *(put("c", {"id": number}, number) for number in range(1, 5)))
    job.take(first.where("topic = 'shop.schema' or partition = 0"))
    everything = job.topics.send(truncate(5), put("c", {"id": 2}, 6), put("c", {"id": 9}, 7), update(9, plus(0), 8))
    assert len(job.rows()) == 2
    # The truncation is read from one partition while the other still has rows from before it.
    with pytest.raises(PySparkException) as raised:
        job.take(everything)
    assert "at seq 8 doesn't fit the row" in sentence(raised.value)
    job.take(everything.where("offset < 4"))
    assert sorted(job.rows()) == ['{"id":2}', '{"id":9}']
    job.take(first)
    assert sorted(job.rows()) == ['{"id":2}', '{"id":9}']


def test_a_snapshot_sweeps_what_it_did_not_see_and_nothing_else(job: Job) -> None:
    old = [put("r", {"id": number, "name": "old"}, number) for number in range(1, 7)]
    first = job.topics.send(schema(0), *old, snapshot("STARTED", 0, snapshot_id="1"), snapshot("COMPLETED", 6, snapshot_id="1"))
    # One partition lags behind the end of the next snapshot, and the other one's rows of it come after its end too.
    job.take(first.where("topic <> 'shop.users' or partition = 0"))
    seen = [put("r", {"id": number, "name": "new"}, number + 6) for number in (1, 2, 3)]
    second = job.topics.send(
        snapshot("STARTED", 6),
        *seen,
        snapshot("COMPLETED", 9, sweep_seq=6),
        update(1, [{"op": "=", "field": "name", "value": "x"}], 10),
    )
    job.take(second.where("topic = 'shop.snapshot'"))
    assert job.rows() == {}
    expected = {'{"id":1}': "x", '{"id":2}': "new", '{"id":3}': "new"}
    for batch in (first.where("topic = 'shop.users'"), second, first):
        job.take(batch)
    assert {key: json.loads(row)["name"] for key, row in job.rows().items()} == expected


def test_a_snapshot_that_names_what_is_gone_sweeps_nothing(job: Job) -> None:
    """With images, rows that a snapshot finds as they were are silent, and what it lacks comes as deletes."""
    job.take(job.topics.send(schema(0), *[put("r", {"id": number, "name": "old"}, number) for number in (1, 2, 3)]))
    events = [put("u", {"id": 1, "name": "new"}, 4), delete(2, 5)]
    healed = job.topics.send(snapshot("STARTED", 3), *events, snapshot("COMPLETED", 5))
    for _ in range(2):
        job.take(healed)
    assert {key: json.loads(row)["name"] for key, row in job.rows().items()} == {'{"id":1}': "new", '{"id":3}': "old"}


def test_an_update_without_its_row_is_an_error_with_a_remedy(job: Job) -> None:
    batch = job.topics.send(schema(0), update(1, plus(1), 7), put("c", {"id": 2}, 8))
    with pytest.raises(PySparkException) as raised:
        job.take(batch)
    assert sentence(raised.value).startswith('The UPDATE of {"id":1} in users at seq 7 has no row to apply to')
    job.take(batch, skip_missing=True)
    assert job.rows() == {'{"id":2}': '{"id":2}'}


def test_a_form_that_is_not_there_is_an_error(job: Job) -> None:
    with pytest.raises(Exception, match="no form of space 'users'"):
        job.send(put("c", {"id": 1}, 1))


def test_new_and_renamed_fields(job: Job) -> None:
    job.send(schema(0), put("c", {"id": 1, "name": "a", "balance": 1, "field_4": "Oslo"}, 1), put("c", {"id": 2, "name": "b"}, 2))
    longer = [*COLUMNS, ("city", "string")]
    job.send(schema(2, version=2, columns=longer), put("c", {"id": 3, "name": "c", "balance": 3, "city": "Rome"}, 3, version=2))
    assert job.columns("id", "city") == [(1, "Oslo"), (2, None), (3, "Rome")]
    assert job.rows()['{"id":1}'] == '{"id":1,"name":"a","balance":1,"city":"Oslo"}'
    renamed = [("id", "unsigned"), ("title", "string"), ("balance", "unsigned"), ("city", "string")]
    late = put("u", {"id": 2, "name": "bb"}, 4, version=2)
    patched = update(1, [{"op": "=", "field": "title", "value": "A"}, *plus(1)], 5, version=3)
    job.send(late, schema(4, version=3, columns=renamed), patched)
    assert job.rows() == {
        '{"id":1}': '{"id":1,"title":"A","balance":2,"city":"Oslo"}',
        '{"id":2}': '{"id":2,"title":"bb"}',
        '{"id":3}': '{"id":3,"title":"c","balance":3,"city":"Rome"}',
    }
    assert job.columns("title", "balance") == [("A", 2), ("bb", None), ("c", 3)]


def test_spaces_that_swap_their_names_and_get_another_key(job: Job) -> None:
    job.send(schema(0, space="a", space_id=600), schema(0, space="b", space_id=601, version=2))
    first = job.topics.send(
        *(put("c", {"id": number, "name": "of 600"}, number, space="a", space_id=600) for number in (1, 2)),
        put("c", {"id": 1, "name": "of 601"}, 3, space="b", space_id=601, version=2),
    )
    # Of the rows from before, the job has read none: it must fetch them from the topics before it applies the patches.
    swapped = job.topics.send(
        schema(3, space="b", space_id=600, version=3),
        schema(3, space="a", space_id=601, version=4),
        update(1, [{"op": "=", "field": "name", "value": "600"}], 4, space="b", space_id=600, version=3),
        update(1, [{"op": "=", "field": "name", "value": "601"}], 5, space="a", space_id=601, version=4),
    )
    expected = {
        "a": {'{"id":1}': '{"id":1,"name":"601"}'},
        "b": {'{"id":1}': '{"id":1,"name":"600"}', '{"id":2}': '{"id":2,"name":"of 600"}'},
    }
    for batch in (swapped, first):
        job.take(batch)
        assert {space: job.rows(space) for space in ("a", "b")} == expected
    rekeyed = job.topics.send(
        schema(5, space="b", space_id=600, version=5, key=("name", "id")),
        event("d", {"name": "of 600", "id": 2}, 6, {}, space="b", space_id=600, version=5),
    )
    for batch in (rekeyed, swapped.union(rekeyed)):
        job.take(batch)
        assert job.rows("b") == {'{"name":"600","id":1}': '{"id":1,"name":"600"}'}


RENAMED = [("number", "unsigned"), *COLUMNS[1:]]


@pytest.mark.parametrize(
    ("columns", "part"), [pytest.param(COLUMNS, "name", id="altered"), pytest.param(RENAMED, "number", id="renamed")]
)
def test_another_primary_key_with_images(job: Job, columns: list[tuple[str, str]], part: str) -> None:
    """All rows come again behind the truncation; what comes late of the former key is void, however the partitions are read."""
    first = job.topics.send(schema(0), *(put("c", {"id": number, "name": f"n{number}"}, number) for number in (1, 2, 3, 4)))
    named = [name for name, _ in columns]

    def row(number: int, **more: Any) -> dict[str, Any]:
        return {named[0]: number, "name": f"n{number}", **more}

    def again(op: str, seq: int, row: dict[str, Any]) -> Message:
        return event(op, {part: row[part]}, seq, {"after": row}, version=2)

    deletion = job.topics.send(event("d", {"id": 4}, 5, {"before": {"id": 4, "name": "n4"}}))
    altered = job.topics.send(
        schema(5, version=2, columns=columns, key=(part,)),
        truncate(6, version=2),
        snapshot("STARTED", 6, snapshot_id="7"),
        *(again("r", 6 + number, row(number)) for number in (1, 2, 3)),
        snapshot("COMPLETED", 9, snapshot_id="7"),
    )
    after = job.topics.send(
        event("u", {part: row(2)[part]}, 10, {"before": row(2), "after": row(2, balance=5)}, version=2),
        event("d", {part: row(3)[part]}, 11, {"before": row(3)}, version=2),
    )
    expected = {json.dumps({part: found[part]}, separators=(",", ":")): found for found in (row(1), row(2, balance=5))}
    for batch in (first, altered, deletion, after, job.topics.read("shop.users")):
        job.take(batch)
    assert {key: json.loads(text) for key, text in job.rows().items()} == expected
    # A part of the rows, and then a snapshot that made the space anew.
    job.send(
        schema(11, version=3, columns=columns, key=("balance", part)),
        truncate(12, version=3),
        snapshot("STARTED", 12, snapshot_id="8"),
        event("r", {"balance": 5, part: row(2)[part]}, 13, {"after": row(2, balance=5)}, version=3),
        snapshot("STARTED", 13, snapshot_id="9"),
        truncate(14, version=3),
        event("r", {"balance": 6, part: row(2)[part]}, 15, {"after": row(2, balance=6)}, version=3),
        snapshot("COMPLETED", 15, snapshot_id="9"),
    )
    assert [json.loads(text) for text in job.rows().values()] == [row(2, balance=6)]


def test_renamed_part_of_the_primary_key_without_images(job: Job) -> None:
    """Nothing but the schema record tells it: the rows are there under keys of the new name, and change under them."""
    job.send(schema(0), *(put("c", {"id": number, "name": f"n{number}", "balance": 0}, number) for number in (1, 2, 3)))
    renamed = job.topics.send(
        schema(3, version=2, columns=RENAMED, key=("number",)),
        event("u", {"number": 2}, 4, {"patch": plus(5)}, version=2),
        event("d", {"number": 3}, 5, {}, version=2),
    )
    late = job.topics.send(put("u", {"id": 1, "name": "late", "balance": 0}, 3))
    for batch in (renamed, late.union(renamed)):
        job.take(batch)
        found = {key: json.loads(text) for key, text in job.rows().items()}
        assert found['{"number":2}'] == {"number": 2, "name": "n2", "balance": 5}
        assert set(found) == {'{"number":1}', '{"number":2}'}


@pytest.mark.parametrize("has_images", [True, False])
def test_primary_key_that_was_altered_in_a_gap_of_the_stream(job: Job, has_images: bool) -> None:
    """The table has rows that the new key has no place for, and two that would have the same; the snapshot tells what is so."""
    names = {1: {"name": "a"}, 2: {"name": "a"}, 3: {}, 4: {"name": "d"}}
    job.send(schema(0), *(put("c", {"id": number, **more}, number) for number, more in names.items()))
    form: dict[str, Any] = {"version": 2, "key": ("name",), "in_snapshot": True}
    job.send(snapshot("STARTED", 4), schema(4, **form))
    assert set(job.rows()) == {'{"name":"a"}', '{"name":"d"}'}
    if has_images:
        job.send(truncate(5, version=2))
        assert job.rows() == {}
    found = [{"id": 2, "name": "a"}, {"id": 3, "name": "c"}]
    rows = [event("r", {"name": row["name"]}, seq, {"after": row}, version=2) for seq, row in enumerate(found, 6)]
    job.send(*rows, snapshot("COMPLETED", 7, sweep_seq=0 if has_images else 4))
    assert job.columns("_key", "id") == [('{"name":"a"}', 2), ('{"name":"c"}', 3)]


def test_a_row_that_the_new_primary_key_has_no_place_for(job: Job) -> None:
    """There is no gap that would tell why; after a snapshot the job goes on, as the error says."""
    job.send(schema(0), put("c", {"id": 1}, 1), put("c", {"id": 2, "name": "b"}, 2))
    altered = job.topics.send(schema(2, version=2, key=("name",)))
    with pytest.raises(PySparkException) as raised:
        job.take(altered)
    assert sentence(raised.value).startswith("The row {\"id\":1} of users has no value for the primary key ['name']")
    row = event("r", {"name": "b"}, 3, {"after": {"id": 2, "name": "b"}}, version=2)
    later = job.topics.send(snapshot("STARTED", 2), row, snapshot("COMPLETED", 3, sweep_seq=2))
    for batch in (altered, later):
        job.take(batch)
        assert set(job.rows()) <= {'{"name":"b"}'}
    assert job.rows() == {'{"name":"b"}': '{"id":2,"name":"b"}'}


def test_each_space_has_its_table_whatever_it_is_called(job: Job) -> None:
    outside = job.path
    job.path = outside / "in" / "lake"
    names = ["..", "a/b", "a_b"]
    messages = []
    for version, name in enumerate(names, 1):
        which: dict[str, Any] = {"space": name, "space_id": 600 + version, "version": version}
        messages += [schema(2 * version, **which), put("c", {"id": version, "name": name}, 2 * version + 1, **which)]
    job.send(*messages)
    assert [job.rows(folder(name)) for name in names] == [
        {f'{{"id":{version}}}': compact({"id": version, "name": name})} for version, name in enumerate(names, 1)
    ]
    assert sorted(found.name for found in job.path.iterdir()) == sorted(map(folder, names))
    assert list(job.path.parent.iterdir()) == [job.path]
    assert list(outside.iterdir()) == [job.path.parent]


def test_a_table_where_an_earlier_version_made_it(job: Job) -> None:
    """It isn't passed over in silence, and after what the error says the job goes on with it."""
    which: dict[str, Any] = {"space": "a/b", "space_id": 600}
    job.send(schema(0, **which), put("c", {"id": 1, "name": "a"}, 1, **which))
    (job.path / "a~2fb").rename(job.path / "a_b")
    with pytest.raises(JobError, match=r"The table of space 'a/b' is in .*/a_b, where .* called .*/a~2fb now. Rename the folder"):
        job.send(put("c", {"id": 2, "name": "b"}, 2, **which))
    (job.path / "a_b").rename(job.path / "a~2fb")
    job.take(job.topics.read("shop.a/b"))
    assert job.rows("a~2fb") == {'{"id":1}': '{"id":1,"name":"a"}', '{"id":2}': '{"id":2,"name":"b"}'}


def test_a_hash_index_in_place_of_a_tree_without_images(job: Job) -> None:
    """Where the TREE had 1 and 1.00 as one row, the HASH has two."""
    columns = [("id", "decimal"), *COLUMNS[1:]]
    job.send(
        schema(0, columns=columns),
        event("c", {"id": "1"}, 1, {"after": {"id": "1.00", "name": "a", "balance": 1}}),
        event("c", {"id": "2"}, 2, {"after": {"id": "2", "name": "b", "balance": 2}}),
    )
    job.send(
        schema(2, version=2, columns=columns, as_written=("id",)),
        event("c", {"id": "1"}, 3, {"after": {"id": "1", "name": "c", "balance": 3}}, version=2),
        event("u", {"id": "1.00"}, 4, {"patch": plus(5)}, version=2),
        event("d", {"id": "2"}, 5, {}, version=2),
    )
    assert {key: json.loads(text)["balance"] for key, text in job.rows().items()} == {'{"id":"1"}': 3, '{"id":"1.00"}': 6}


def test_deleted_rows_can_be_forgotten(job: Job) -> None:
    job.send(schema(0), put("c", {"id": 1}, 1), delete(2, 2))
    table = SpaceTable(job.session, f"{job.path}/users", "shop")
    assert table.rows().count() == 2
    job.send(put("c", {"id": 3}, 3), forget_after=timedelta(hours=1))
    assert sorted(row["_key"] for row in table.rows().collect()) == ['{"id":1}', '{"id":3}']


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_any_cut_and_repetition_of_the_partitions_gives_the_same_rows(job: Job, seed: int) -> None:
    chance = random.Random(seed)
    model = _random_workload(job.topics, chance)
    job.take(job.topics.read("shop.schema"))
    ends = {place: len(log) for place, log in job.topics.messages.items() if place[0] == "shop.users"}
    done = dict.fromkeys(ends, 0)
    while done != ends:
        # Each partition goes on by as much as chance will have it, from where it was or, repeating, from before.
        goal = {place: min(end, done[place] + chance.randrange(40)) for place, end in ends.items()}
        start = {place: max(0, done[place] - chance.choice((0, 0, 15))) for place in ends}
        job.take(job.topics.slice({place: (start[place], goal[place]) for place in ends}))
        done = goal
    assert {key: json.loads(row) for key, row in job.rows().items()} == model


def _random_workload(topics: FakeTopics, chance: random.Random) -> dict[str, dict[str, Any]]:
    """Send changes of a few keys; the rows after them, worked out here in the plainest way."""
    topics.send(schema(0))
    model: dict[int, dict[str, Any]] = {}
    for seq in range(1, 150):
        identity = chance.randrange(12)
        row = {"id": identity, "name": f"n{seq}", "balance": chance.randrange(100)}
        kind = chance.choice(("put", "put", "update", "update", "update", "upsert", "delete"))
        if chance.randrange(60) == 0:
            topics.send(truncate(seq))
            model.clear()
        elif kind == "put" or (kind == "update" and identity not in model):
            topics.send(put("u", row, seq))
            model[identity] = row
        elif kind == "update":
            topics.send(update(identity, [*plus(seq), {"op": "=", "field": "name", "value": row["name"]}], seq))
            model[identity] = {**model[identity], "balance": model[identity]["balance"] + seq, "name": row["name"]}
        elif kind == "upsert":
            topics.send(upsert(row, plus(1), seq))
            there = model.get(identity)
            model[identity] = row if there is None else {**there, "balance": there["balance"] + 1}
        else:
            topics.send(delete(identity, seq))
            model.pop(identity, None)
    return {f'{{"id":{identity}}}': row for identity, row in model.items()}
