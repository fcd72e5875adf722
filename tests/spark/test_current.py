"""Job current: tables that are as the space is, in whatever pieces and order the events come."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.current.job import CurrentSink
from spark_jobs.errors import JobError
from spark_jobs.lake import current_rows, few_events
from spark_jobs.tables import delta as tables
from tests.spark.messages import (
    COLUMNS,
    FakeTopics,
    Message,
    Place,
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
from tests.spark.sinks import current_sink, folder_of
from tests.spark.stories import Space, Story, side_by_side

pytestmark = pytest.mark.spark

TOPICS = Topics("nowhere:9092", "shop")


class Job:
    """The job over topics in memory. Each second batch is given to a sink of its own, as after a restart."""

    def __init__(self, session: SparkSession, path: Path) -> None:
        self.session = session
        self.path = path
        self.topics = FakeTopics(session)
        self.batch = -1
        self._sink: CurrentSink | None = None

    def take_places(self, places: Iterable[Place]) -> None:
        """Give the records at these places to the job."""
        self.take(self.topics.at(places))

    def take(self, records: DataFrame, **options: Any) -> None:
        """Give a batch to the job, with other options to a new process of it. One that fails ends the process."""
        self.batch += 1
        self.topics.took(records)
        sink, self._sink = self._sink, None
        if sink is None or options:
            # A few changes are enough to be merged.
            sink = current_sink(self.session, TOPICS, str(self.path), self.topics, **{"share": 0.2, "min_unmerged": 1, **options})
        sink.write(records, self.batch, "query")
        self._sink = sink if self.batch % 2 and not options else None

    def restart(self) -> None:
        """Have the next batch given to a new process of the job."""
        self._sink = None

    def send(self, *messages: Message, **options: Any) -> DataFrame:
        """Send messages and give them to the job."""
        batch = self.topics.send(*messages)
        self.take(batch, **options)
        return batch

    def rows(self, space: str = "users") -> dict[str, str]:
        """Keys and rows."""
        return self.shown(read_current(self.session, f"{self.path}/{folder_of(space)}"))

    def merged(self, space: str = "users") -> dict[str, str]:
        """Keys and rows of the table itself."""
        return self.shown(tables.read(self.session, f"{self.path}/{folder_of(space)}"))

    @staticmethod
    def shown(frame: DataFrame) -> dict[str, str]:
        """Its keys and rows, each key once."""
        rows = frame.collect()
        found = {row["_key"]: row["_row"] for row in rows}
        assert len(found) == len(rows)
        return found

    def columns(self, *names: str, space: str = "users") -> list[tuple[Any, ...]]:
        """Columns of all rows, by key."""
        frame = read_current(self.session, f"{self.path}/{folder_of(space)}").orderBy("_key")
        return [tuple(row) for row in frame.select(*(f"`{name}`" for name in names)).collect()]


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def plus(value: int) -> list[dict[str, Any]]:
    return [{"op": "+", "field": "balance", "value": value}]


# Stories of spaces whose partitions are read to their ends by each batch: seqs from 1, 101, 201, ….


def changes_of_every_kind(job: Job, space: Space) -> Story:
    yield job.topics.append(
        space.schema(0),
        space.put("r", {"id": 1, "name": "a", "balance": 1}, 1),
        space.put("c", {"id": 2, "name": "b", "balance": 2}, 2),
        space.put("c", {"id": 3, "name": "c"}, 3),
        space.update(1, plus(10), 4),
        space.upsert({"id": 4, "name": "d", "balance": 4}, plus(1), 5),
        space.snapshot("COMPLETED", 1),
    )
    yield job.topics.append(
        space.update(1, plus(100), 101),
        space.put("u", {"id": 2, "name": "B"}, 102),
        space.delete(3, 103),
        space.upsert({"id": 4, "name": "no"}, plus(1), 104),
        space.delete(5, 105),
        space.event("u", {"id": 6}, 106, {"before": {"id": 6}, "after": {"id": 6, "name": "f"}}),
        space.update(6, [{"op": "!", "field": "balance", "value": 1}, {"op": "=", "field": "field_4", "value": 1.0}], 107),
    )
    expected = {
        '{"id":1}': '{"id":1,"name":"a","balance":111}',
        '{"id":2}': '{"id":2,"name":"B"}',
        '{"id":4}': '{"id":4,"name":"d","balance":5}',
        '{"id":6}': '{"id":6,"name":"f","balance":1,"field_4":1.0}',
    }
    assert job.rows(space.name) == expected
    assert job.columns("id", "name", "balance", "_seq", space=space.name)[0] == (1, "a", 111, 101)
    yield space.all()
    assert job.rows(space.name) == job.merged(space.name) == expected
    # A row that comes back after its deletion.
    yield job.topics.append(space.upsert({"id": 3, "name": "again"}, plus(1), 301))
    assert job.rows(space.name) == {**expected, '{"id":3}': '{"id":3,"name":"again"}'}


def values_of_every_type(job: Job, space: Space) -> Story:
    """They are exact in the row, and typed in columns."""
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
    events = (space.event("c", key, 1, {"after": full}), space.event("c", {"id": 1}, 2, {"after": odd}))
    yield job.topics.append(space.schema(0, columns=columns), *events)
    assert set(job.rows(space.name).values()) == {full, odd}
    frame = read_current(job.session, f"{job.path}/{folder_of(space.name)}").orderBy("_seq")
    assert [kind for name, kind in frame.dtypes if not name.startswith("_")] == (
        [
            "decimal(20,0)",
            "decimal(20,0)",
            "double",
            *["decimal(37,18)", "string"] * 2,
            "boolean",
            "string",
            "binary",
            "timestamp",
            "int",
        ]
        + ["string"] * 3
    )
    shown = frame.withColumn("datetime", frame["datetime"].cast("string"))
    first, second = (tuple(row)[4:] for row in shown.collect())
    assert first[:5] == (2**64 - 1, -(2**63), 1e300, 9007199254740993, None)
    assert first[5:8] == (None, "-12345678901234567890.123456789", True)
    assert first[8:11] == ("64d22e4d-ac92-4a23-899a-e59f34af5479", bytearray.fromhex("deadbeef"), "2024-02-29 20:59:58.123456")
    assert (first[11], json.loads(first[12]), json.loads(first[13]), first[14]) == (180, [1, "𝄞", 1.5], {"a": 0.0}, "text")
    assert second[:2] == (1, 2**64 - 1)
    assert str(second[2]) == "nan"
    assert second[3:] == (0, None, None, None, False, None, None, None, None, None, None, None)


def a_truncation_alone(job: Job, space: Space) -> Story:
    yield job.topics.append(space.schema(0), space.put("c", {"id": 1}, 1), space.put("c", {"id": 2}, 2))
    yield job.topics.append(space.truncate(101))
    assert job.rows(space.name) == job.merged(space.name) == {}
    yield job.topics.append(space.put("c", {"id": 2}, 201))
    assert job.rows(space.name) == job.merged(space.name) == {'{"id":2}': '{"id":2}'}


def a_snapshot_that_names_what_is_gone(job: Job, space: Space) -> Story:
    """With images, rows that a snapshot finds as they were are silent, and what it lacks comes as deletes. It sweeps nothing."""
    rows = (space.put("r", {"id": number, "name": "old"}, number) for number in (1, 2, 3))
    yield job.topics.append(space.schema(0), *rows, space.snapshot("COMPLETED", 3, snapshot_id="1"))
    events = [space.put("u", {"id": 1, "name": "new"}, 101), space.delete(2, 102)]
    healed = job.topics.append(space.snapshot("STARTED", 100), *events, space.snapshot("COMPLETED", 102))
    for _ in range(2):
        yield healed
    assert {key: json.loads(row)["name"] for key, row in job.rows(space.name).items()} == {'{"id":1}': "new", '{"id":3}': "old"}


def new_and_renamed_fields(job: Job, space: Space) -> Story:
    city = {"id": 1, "name": "a", "balance": 1, "field_4": "Oslo"}
    yield job.topics.append(space.schema(0), space.put("c", city, 1), space.put("c", {"id": 2, "name": "b"}, 2))
    longer = [*COLUMNS, ("city", "string")]
    third = space.put("c", {"id": 3, "name": "c", "balance": 3, "city": "Rome"}, 101, version=2)
    yield job.topics.append(space.schema(100, version=2, columns=longer), third)
    assert job.columns("id", "city", space=space.name) == [(1, "Oslo"), (2, None), (3, "Rome")]
    assert job.rows(space.name)['{"id":1}'] == '{"id":1,"name":"a","balance":1,"city":"Oslo"}'
    renamed = [("id", "unsigned"), ("title", "string"), ("balance", "unsigned"), ("city", "string")]
    late = space.put("u", {"id": 2, "name": "bb"}, 201, version=2)
    patched = space.update(1, [{"op": "=", "field": "title", "value": "A"}, *plus(1)], 202, version=3)
    yield job.topics.append(late, space.schema(201, version=3, columns=renamed), patched)
    assert job.rows(space.name) == {
        '{"id":1}': '{"id":1,"title":"A","balance":2,"city":"Oslo"}',
        '{"id":2}': '{"id":2,"title":"bb"}',
        '{"id":3}': '{"id":3,"title":"c","balance":3,"city":"Rome"}',
    }
    assert job.columns("title", "balance", space=space.name) == [("A", 2), ("bb", None), ("c", 3)]


def a_primary_key_that_was_altered_in_a_gap(job: Job, space: Space, *, has_images: bool) -> Story:
    """The table has rows that the new key has no place for, and two that would have the same; the snapshot tells what is so."""
    names = {1: {"name": "a"}, 2: {"name": "a"}, 3: {}, 4: {"name": "d"}}
    rows = (space.put("c", {"id": number, **more}, number) for number, more in names.items())
    yield job.topics.append(space.schema(0), *rows)
    form: dict[str, Any] = {"version": 2, "key": ("name",), "in_snapshot": True}
    yield job.topics.append(space.snapshot("STARTED", 101), space.schema(101, **form))
    assert set(job.rows(space.name)) == {'{"name":"a"}', '{"name":"d"}'}
    if has_images:
        yield job.topics.append(space.truncate(201, version=2))
        assert job.rows(space.name) == {}
    begin = 300 if has_images else 200
    found = [{"id": 2, "name": "a"}, {"id": 3, "name": "c"}]
    read = [
        space.event("r", {"name": row["name"]}, begin + place, {"after": row}, version=2) for place, row in enumerate(found, 1)
    ]
    yield job.topics.append(*read, space.snapshot("COMPLETED", begin + 2, sweep_seq=0 if has_images else begin))
    assert job.columns("_key", "id", space=space.name) == [('{"name":"a"}', 2), ('{"name":"c"}', 3)]


def a_hash_index_in_place_of_a_tree(job: Job, space: Space) -> Story:
    """Without images: where the TREE had 1 and 1.00 as one row, the HASH has two."""
    columns = [("id", "decimal"), *COLUMNS[1:]]
    yield job.topics.append(
        space.schema(0, columns=columns),
        space.event("c", {"id": "1"}, 1, {"after": {"id": "1.00", "name": "a", "balance": 1}}),
        space.event("c", {"id": "2"}, 2, {"after": {"id": "2", "name": "b", "balance": 2}}),
    )
    yield job.topics.append(
        space.schema(100, version=2, columns=columns, as_written=("id",)),
        space.event("c", {"id": "1"}, 101, {"after": {"id": "1", "name": "c", "balance": 3}}, version=2),
        space.event("u", {"id": "1.00"}, 102, {"patch": plus(5)}, version=2),
        space.event("d", {"id": "2"}, 103, {}, version=2),
    )
    found = {key: json.loads(text)["balance"] for key, text in job.rows(space.name).items()}
    assert found == {'{"id":"1"}': 3, '{"id":"1.00"}': 6}


def a_row(job: Job, space: Space) -> Story:
    yield job.topics.append(space.schema(0), space.put("c", {"id": 1, "name": space.name}, 1))
    assert job.rows(space.name) == {'{"id":1}': compact({"id": 1, "name": space.name})}


IN_ORDER: dict[str, dict[str, Callable[[Job, Space], Story]]] = {
    "changes and keys": {
        "changes": changes_of_every_kind,
        "truncation": a_truncation_alone,
        "key in a gap with images": partial(a_primary_key_that_was_altered_in_a_gap, has_images=True),
        "key in a gap": partial(a_primary_key_that_was_altered_in_a_gap, has_images=False),
        **dict.fromkeys(["a/b", "a_b"], a_row),
    },
    "forms and types": {
        "types": values_of_every_type,
        "healed": a_snapshot_that_names_what_is_gone,
        "fields": new_and_renamed_fields,
        "hash index": a_hash_index_in_place_of_a_tree,
        **dict.fromkeys(["..", "_changes"], a_row),
    },
}


@pytest.mark.one_of_these
@pytest.mark.parametrize("part", IN_ORDER)
def test_spaces_whose_events_come_in_order_and_whatever_they_are_called(job: Job, part: str) -> None:
    outside, stories = job.path, IN_ORDER[part]
    job.path = outside / "in" / "lake"
    side_by_side(job.topics, job.take_places, {name: partial(story, job) for name, story in stories.items()})
    assert sorted(found.name for found in job.path.iterdir()) == sorted([*map(folder_of, stories), "_changes", "_watermark"])
    assert list(job.path.parent.iterdir()) == [job.path]
    assert list(outside.iterdir()) == [job.path.parent]


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
    history = tables.delta(job.session, f"{job.path}/people").history().where("operation = 'WRITE'")
    told = [json.loads(row["userMetadata"] or "{}") for row in history.select("userMetadata").collect()]
    assert told
    assert all("tarantool_cdc.seq" in one for one in told)


@pytest.mark.one_of_these("order of events")
def test_what_is_merged_need_not_be_kept_and_may_come_again(job: Job) -> None:
    job.send(schema(0), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2), truncate(3), put("c", {"id": 2}, 4))
    later = job.topics.send(put("u", {"id": 2, "name": "b"}, 5), put("c", {"id": 3}, 6))
    job.take(later.where("string(key) = '{\"id\":2}'"))
    maintain = ["maintain", "--path", str(job.path), "--no-vacuum", "--no-optimize"]
    for more, left in ((["--dry-run", "--vacuum-hours", "0"], 5), ([], 5), (["--vacuum-hours", "0"], 1)):
        assert run.main([*maintain, *more]) == 0
        assert tables.read(job.session, f"{job.path}/_changes").count() == left
    job.take(job.topics.read("shop.users"))
    assert job.rows() == job.merged() == {'{"id":2}': '{"id":2,"name":"b"}', '{"id":3}': '{"id":3}'}


# Stories of spaces whose partitions are read in uneven pieces. The first four batches leave something out, so that nothing is
# merged; the fourth one has the rest. What the stories send later has seqs from 51 on.

RENAMED = [("number", "unsigned"), *COLUMNS[1:]]


def a_truncation_that_is_read_before_what_is_older(job: Job, space: Space) -> Story:
    first = job.topics.append(space.schema(0), *(space.put("c", {"id": number}, number) for number in range(1, 5)))
    yield [place for place in first if place[1] == 0]
    everything = job.topics.append(space.truncate(5), space.put("c", {"id": 2}, 6), space.put("c", {"id": 9}, 7))
    assert len(job.rows(space.name)) == 2
    # The truncation is read from one partition while the other still has rows from before it.
    yield everything
    assert sorted(job.rows(space.name)) == ['{"id":2}', '{"id":9}']
    assert job.merged(space.name) == {}
    yield [place for place in first if place[1] == 1]
    assert sorted(job.rows(space.name)) == ['{"id":2}', '{"id":9}']
    yield []
    assert sorted(job.merged(space.name)) == ['{"id":2}', '{"id":9}']


def a_snapshot_that_sweeps_what_it_did_not_see(job: Job, space: Space) -> Story:
    old = [space.put("r", {"id": number, "name": "old"}, number + 10) for number in range(1, 7)]
    ends = space.snapshot("STARTED", 10, snapshot_id="1"), space.snapshot("COMPLETED", 16, snapshot_id="1")
    first = job.topics.append(space.schema(0), *old, *ends)
    # One partition lags behind the end of the next snapshot, and the other one's rows of it come after its end too.
    yield [place for place in first if place[0] != f"shop.{space.name}" or place[1] == 0]
    seen = [space.put("r", {"id": number, "name": "new"}, number + 16) for number in (1, 2, 3)]
    second = job.topics.append(
        space.snapshot("STARTED", 16),
        *seen,
        space.snapshot("COMPLETED", 19, sweep_seq=16),
        space.update(1, [{"op": "=", "field": "name", "value": "x"}], 20),
    )
    yield [place for place in second if place[0] == "shop.snapshot"]
    assert job.rows(space.name) == {}
    expected = {'{"id":1}': "x", '{"id":2}': "new", '{"id":3}': "new"}
    yield [place for place in first if place[0] == f"shop.{space.name}"]
    yield second
    yield first
    for rows in (job.rows, job.merged):
        assert {key: json.loads(row)["name"] for key, row in rows(space.name).items()} == expected
    yield []
    # One that finds nothing ends where everything is merged already.
    ends = (space.snapshot("STARTED", 61, snapshot_id="3"), space.snapshot("COMPLETED", 61, snapshot_id="3", sweep_seq=61))
    yield job.topics.append(*ends)
    assert job.rows(space.name) == job.merged(space.name) == {}


def spaces_that_swap_their_names(job: Job, a: Space, b: Space) -> Story:
    first = job.topics.append(
        a.schema(0),
        b.schema(0, version=2),
        *(a.put("c", {"id": number, "name": f"of {a.space_id}"}, number + 20) for number in (1, 2)),
        b.put("c", {"id": 1, "name": f"of {b.space_id}"}, 23, version=2),
    )
    former: dict[str, Any] = {"space": b.name, "space_id": a.space_id}
    other: dict[str, Any] = {"space": a.name, "space_id": b.space_id}
    swapped = job.topics.append(
        schema(23, version=3, **former),
        schema(23, version=4, **other),
        update(1, [{"op": "=", "field": "name", "value": "first"}], 24, version=3, **former),
        update(1, [{"op": "=", "field": "name", "value": "second"}], 25, version=4, **other),
    )
    expected = {
        a.name: {'{"id":1}': '{"id":1,"name":"second"}'},
        b.name: {'{"id":1}': '{"id":1,"name":"first"}', '{"id":2}': f'{{"id":2,"name":"of {a.space_id}"}}'},
    }
    # What it means for rows that haven't been read isn't told before they have.
    yield swapped
    assert {name: job.rows(name) for name in expected} == {a.name: {}, b.name: {}}
    yield first
    yield []
    for batch in ([], [*swapped, *first]):
        yield batch
        for rows in (job.rows, job.merged):
            assert {name: rows(name) for name in expected} == expected
    rekeyed = job.topics.append(
        schema(60, version=5, key=("name", "id"), **former),
        event("d", {"name": f"of {a.space_id}", "id": 2}, 61, {}, version=5, **former),
    )
    for batch in (rekeyed, [*swapped, *rekeyed]):
        yield batch
        assert job.rows(b.name) == {'{"name":"first","id":1}': '{"id":1,"name":"first"}'}


def another_primary_key_with_images(job: Job, space: Space, *, columns: Sequence[tuple[str, str]], part: str) -> Story:
    """All rows come again behind the truncation; what comes late of the former key is void, however the partitions are read."""
    first = job.topics.append(
        space.schema(0), *(space.put("c", {"id": number, "name": f"n{number}"}, number + 30) for number in (1, 2, 3, 4))
    )
    named = [name for name, _ in columns]

    def row(number: int, **more: Any) -> dict[str, Any]:
        return {named[0]: number, "name": f"n{number}", **more}

    def again(op: str, seq: int, row: dict[str, Any]) -> Message:
        return space.event(op, {part: row[part]}, seq, {"after": row}, version=2)

    deletion = job.topics.append(space.event("d", {"id": 4}, 35, {"before": {"id": 4, "name": "n4"}}))
    altered = job.topics.append(
        space.schema(35, version=2, columns=columns, key=(part,)),
        space.truncate(36, version=2),
        space.snapshot("STARTED", 36, snapshot_id="7"),
        *(again("r", 36 + number, row(number)) for number in (1, 2, 3)),
        space.snapshot("COMPLETED", 39, snapshot_id="7"),
    )
    after = job.topics.append(
        space.event("u", {part: row(2)[part]}, 40, {"before": row(2), "after": row(2, balance=5)}, version=2),
        space.event("d", {part: row(3)[part]}, 41, {"before": row(3)}, version=2),
    )
    expected = {json.dumps({part: found[part]}, separators=(",", ":")): found for found in (row(1), row(2, balance=5))}
    yield from (first, altered, deletion, after, space.all())
    for rows in (job.rows, job.merged):
        assert {key: json.loads(text) for key, text in rows(space.name).items()} == expected
    # A part of the rows, and then a snapshot that made the space anew.
    yield job.topics.append(
        space.schema(50, version=3, columns=columns, key=("balance", part)),
        space.truncate(51, version=3),
        space.snapshot("STARTED", 51, snapshot_id="8"),
        space.event("r", {"balance": 5, part: row(2)[part]}, 52, {"after": row(2, balance=5)}, version=3),
        space.snapshot("STARTED", 52, snapshot_id="9"),
        space.truncate(53, version=3),
        space.event("r", {"balance": 6, part: row(2)[part]}, 54, {"after": row(2, balance=6)}, version=3),
        space.snapshot("COMPLETED", 54, snapshot_id="9"),
    )
    assert [json.loads(text) for text in job.rows(space.name).values()] == [row(2, balance=6)]


def in_pieces(job: Job, **stories: Callable[[Space], Story]) -> None:
    side_by_side(job.topics, job.take_places, stories)


@pytest.mark.one_of_these("order of events")
def test_spaces_that_are_emptied_while_their_partitions_are_read_in_uneven_pieces(job: Job) -> None:
    in_pieces(
        job,
        truncation=partial(a_truncation_that_is_read_before_what_is_older, job),
        sweep=partial(a_snapshot_that_sweeps_what_it_did_not_see, job),
    )


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        pytest.param(COLUMNS, "name", id="altered", marks=pytest.mark.one_of_these("order of events", seconds=50)),
        pytest.param(RENAMED, "number", id="renamed", marks=pytest.mark.soak),
    ],
)
def test_names_and_keys_that_change_while_their_partitions_are_read_in_uneven_pieces(
    job: Job, columns: list[tuple[str, str]], part: str
) -> None:
    b = Space(job.topics, "b", 700)
    in_pieces(
        job,
        a=lambda a: spaces_that_swap_their_names(job, a, b),
        key=partial(another_primary_key_with_images, job, columns=columns, part=part),
    )


# Stories of renamed parts of primary keys without images. The seqs of both have no gap, so what one partition tells is merged
# while the other one lags.


def rows_that_keep_changing_under_the_new_name(job: Job, space: Space) -> Story:
    """Nothing but the schema record tells it: the rows are there under keys of the new name, and change under them."""
    rows = (space.put("c", {"id": number, "name": f"n{number}", "balance": 0}, number) for number in (1, 2, 3))
    yield job.topics.append(space.schema(0), *rows)
    renamed = job.topics.append(
        space.schema(5, version=2, columns=RENAMED, key=("number",)),
        space.event("u", {"number": 2}, 6, {"patch": plus(5)}, version=2),
        space.event("d", {"number": 3}, 7, {}, version=2),
    )
    late = job.topics.append(space.put("u", {"id": 1, "name": "late", "balance": 0}, 3))
    for batch in (renamed, [*late, *renamed]):
        yield batch
        found = {key: json.loads(text) for key, text in job.rows(space.name).items()}
        assert found['{"number":2}'] == {"number": 2, "name": "n2", "balance": 5}
        assert set(found) == {'{"number":1}', '{"number":2}'}


def rows_that_stay_until_a_later_truncation(job: Job, space: Space) -> Story:
    rows = (space.put("c", {"id": number, "name": "n", "balance": 0}, number + 3) for number in (1, 2))
    yield job.topics.append(space.schema(0), *rows)
    changed = [1, 1, 2]  # 1 is in partition 0, 2 in the other one
    renamed = job.topics.append(
        space.schema(5, version=2, columns=RENAMED, key=("number",)),
        *(space.event("u", {"number": number}, seq, {"patch": plus(5)}, version=2) for seq, number in enumerate(changed, 8)),
        space.truncate(11, version=2),
    )
    yield [place for place in renamed if place[1] == 0]
    merged = {json.loads(text)["number"]: json.loads(text)["balance"] for text in job.merged(space.name).values()}
    assert (merged, job.rows(space.name)) == ({1: 5, 2: 0}, {})
    yield renamed
    assert job.rows(space.name) == job.merged(space.name) == {}


@pytest.mark.one_of_these("order of events")
def test_renamed_parts_of_primary_keys_without_images(job: Job) -> None:
    stories = {"changed": rows_that_keep_changing_under_the_new_name, "truncated": rows_that_stay_until_a_later_truncation}
    side_by_side(job.topics, job.take_places, {name: partial(story, job) for name, story in stories.items()})


@pytest.mark.one_of_these("order of events")
def test_what_ends_the_job_is_told_with_its_remedy_and_the_next_start_goes_on(job: Job) -> None:
    texts: dict[str, Any] = {"space": "texts", "space_id": 600}
    with pytest.raises(JobError, match="no form of space 'users'"):
        job.send(put("c", {"id": 2, "name": "b"}, 1))
    by_text = schema(0, columns=[("id", "string"), ("balance", "unsigned")], collated=["id"], **texts)
    with pytest.raises(JobError, match=r"key of space 'texts' has a collation \(id\).*--collated-keys apart"):
        job.send(schema(0), by_text, put("c", {"id": "Ann"}, 2, **texts), put("c", {"id": "ANN"}, 3, **texts))
    # An UPDATE whose row isn't there.
    batch = job.topics.send(update(1, plus(1), 4), put("c", {"id": 3}, 5))
    job.topics.took(batch)
    job.batch += 1
    apart: dict[str, Any] = {"takes_collated": True}
    sink = current_sink(job.session, TOPICS, str(job.path), job.topics, is_background=True, interval_seconds=0, **apart)
    sink.write(batch, job.batch, "query")
    for told in (sink.close, sink.check):  # by the end of the thread that merges, and by what asks for it until then
        with pytest.raises(JobError) as raised:
            told()
        assert str(raised.value).startswith('The UPDATE of {"id":1} in users at seq 4 has no row to apply to')
    job.take(job.topics.slice({}), skips_missing_rows=True, **apart)
    assert (set(job.rows()), set(job.rows("texts"))) == ({'{"id":2}', '{"id":3}'}, {'{"id":"Ann"}', '{"id":"ANN"}'})
    # A row that the new primary key has no place for: there is no gap that would tell why.
    with pytest.raises(JobError) as raised:
        job.send(schema(5, version=2, key=("name",)), **apart)
    assert str(raised.value).startswith("The row {\"id\":3} of users has no value for the space's present primary key ['name']")
    row = event("r", {"name": "b"}, 6, {"after": {"id": 2, "name": "b"}}, version=2)
    job.send(snapshot("STARTED", 5), row, snapshot("COMPLETED", 6, sweep_seq=5), **apart)
    assert job.rows() == job.merged() == {'{"name":"b"}': '{"id":2,"name":"b"}'}
    with pytest.raises(JobError) as raised:
        job.send(event("u", {"name": "b"}, 7, {"patch": plus(0)}, version=2), **apart)
    assert "at seq 7 doesn't fit the stored row" in str(raised.value)
    with pytest.raises(JobError, match="have been made from a table of its own, and now they would be from --changes"):
        current_sink(job.session, TOPICS, str(job.path), job.topics, changes_path=f"{job.path}/elsewhere")
    # Another version of the job has made the table. Neither the job nor a reader takes its rows for their own.
    job.session.sql(f"ALTER TABLE delta.`{job.path}/users` UNSET TBLPROPERTIES ('tarantool_cdc.layout')")
    told_of_layout = rf"The table at {job.path}/users has a layout .* doesn't know.*new --path and an empty --checkpoint"
    with pytest.raises(JobError, match=told_of_layout):
        job.take(job.topics.slice({}), **apart)
    with pytest.raises(JobError, match=told_of_layout):
        job.rows()


@pytest.mark.parametrize("few", [few_events.FEW, pytest.param(0, marks=pytest.mark.soak)])
@pytest.mark.one_of_these("order of events")
def test_a_lost_form_is_not_needed_for_events_below_a_snapshot(job: Job, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """The daemon can write only present forms again; a snapshot that sweeps leaves no row of a former one."""
    monkeypatch.setattr(few_events, "FEW", few)
    former, present = put("c", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "name": "b"}, 3, version=2)
    begun = (schema(2, version=2), former, present, snapshot("STARTED", 4), put("r", {"id": 1, "name": "a"}, 5, version=2))
    with pytest.raises(JobError, match="no form of space 512 at schema_version 1"):
        job.send(*begun)
    again = Job(job.session, job.path.with_name("again"))
    again.send(*begun, put("r", {"id": 2, "name": "b"}, 6, version=2), snapshot("COMPLETED", 6, sweep_seq=4))
    assert again.rows() == {'{"id":1}': '{"id":1,"name":"a"}', '{"id":2}': '{"id":2,"name":"b"}'}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_any_cut_and_repetition_of_the_partitions_gives_the_same_rows(
    job: Job, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Batches are on both sides of both, so all ways are taken to put events on top of merged rows.
    monkeypatch.setattr(current_rows, "_FEW_UNMERGED", 20)
    monkeypatch.setattr(few_events, "FEW", 10)
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
    for rows in (job.rows(), job.merged()):
        assert {key: json.loads(row) for key, row in rows.items()} == model


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
