"""Job current: tables that are as the space is, in whatever pieces and order the events come."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.current.job import CurrentSink
from spark_jobs.delta import tables
from spark_jobs.errors import JobError
from spark_jobs.lake import current_rows, few_events
from spark_jobs.lake.lake import lake_folder
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
from tests.spark.sinks import current_sink

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
        return self.shown(read_current(self.session, f"{self.path}/{space}"))

    def merged(self, space: str = "users") -> dict[str, str]:
        """Keys and rows of the table itself."""
        return self.shown(tables.read(self.session, f"{self.path}/{space}"))

    @staticmethod
    def shown(frame: DataFrame) -> dict[str, str]:
        """Its keys and rows, each key once."""
        rows = frame.collect()
        found = {row["_key"]: row["_row"] for row in rows}
        assert len(found) == len(rows)
        return found

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
        snapshot("COMPLETED", 1),
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
    assert job.columns("id", "name", "balance", "_seq")[0] == (1, "a", 111, 6)
    job.take(job.topics.read("shop.users"))
    assert job.rows() == job.merged() == expected
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
        [
            "decimal(20,0)",
            "decimal(20,0)",
            "double",
            *["decimal(37,18)", "string"] * 2,
            "boolean",
            "string",
            "binary",
            "timestamp",
        ]
        + ["string"] * 3
    )
    shown = frame.withColumn("datetime", frame["datetime"].cast("string"))
    first, second = (tuple(row)[4:] for row in shown.collect())
    assert first[:5] == (2**64 - 1, -(2**63), 1e300, 9007199254740993, None)
    assert first[5:8] == (None, "-12345678901234567890.123456789", True)
    assert first[8:11] == ("64d22e4d-ac92-4a23-899a-e59f34af5479", bytearray.fromhex("deadbeef"), "2024-02-29 20:59:58.123456")
    assert (json.loads(first[11]), json.loads(first[12]), first[13]) == ([1, "𝄞", 1.5], {"a": 0.0}, "text")
    assert second[:2] == (1, 2**64 - 1)
    assert str(second[2]) == "nan"
    assert second[3:] == (0, None, None, None, False, None, None, None, None, None, None)


def test_a_truncation_alone_after_a_restart(job: Job) -> None:
    job.send(schema(0), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2))
    job.send(truncate(3))
    assert job.rows() == job.merged() == {}
    job.send(put("c", {"id": 2}, 4))
    assert job.rows() == job.merged() == {'{"id":2}': '{"id":2}'}
    # What is merged needn't be kept, and may come again.
    later = job.topics.send(put("u", {"id": 2, "name": "b"}, 5), put("c", {"id": 3}, 6))
    job.take(later.where("string(key) = '{\"id\":2}'"))
    maintain = ["maintain", "--path", str(job.path), "--no-vacuum", "--no-optimize"]
    for more, left in ((["--dry-run", "--vacuum-hours", "0"], 5), ([], 5), (["--vacuum-hours", "0"], 1)):
        assert run.main([*maintain, *more]) == 0
        assert tables.read(job.session, f"{job.path}/_changes").count() == left
    job.take(job.topics.read("shop.users"))
    assert job.rows() == job.merged() == {'{"id":2}': '{"id":2,"name":"b"}', '{"id":3}': '{"id":3}'}


def test_truncation_voids_what_is_older_also_if_it_is_read_later(job: Job) -> None:
    first = job.topics.send(schema(0), *(put("c", {"id": number}, number) for number in range(1, 5)))
    job.take(first.where("topic = 'shop.schema' or partition = 0"))
    everything = job.topics.send(truncate(5), put("c", {"id": 2}, 6), put("c", {"id": 9}, 7), update(9, plus(0), 8))
    assert len(job.rows()) == 2
    # The truncation is read from one partition while the other still has rows from before it.
    job.take(everything.where("offset < 4"))
    assert sorted(job.rows()) == ['{"id":2}', '{"id":9}']
    assert job.merged() == {}
    with pytest.raises(JobError) as raised:
        job.take(first.union(everything))
    assert "at seq 8 doesn't fit the stored row" in str(raised.value)


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
    # One that finds nothing ends where everything is merged already.
    job.send(snapshot("STARTED", 10, snapshot_id="3"), snapshot("COMPLETED", 10, snapshot_id="3", sweep_seq=10))
    assert job.rows() == job.merged() == {}


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
    job.topics.took(batch)
    sink = current_sink(job.session, TOPICS, str(job.path), job.topics, is_background=True, interval_seconds=0)
    sink.write(batch, 0, "query")
    for told in (sink.close, sink.check):  # by the end of the thread that merges, and by what asks for it until then
        with pytest.raises(JobError) as raised:
            told()
        assert str(raised.value).startswith('The UPDATE of {"id":1} in users at seq 7 has no row to apply to')
    job.take(batch, skips_missing_rows=True)
    assert job.rows() == {'{"id":2}': '{"id":2}'}


def test_a_key_with_a_collation_is_refused_or_taken_by_its_texts(job: Job) -> None:
    columns = [("id", "string"), ("balance", "unsigned")]
    batch = job.topics.send(schema(0, columns=columns, collated=["id"]), put("c", {"id": "Ann"}, 1), put("c", {"id": "ANN"}, 2))
    with pytest.raises(JobError, match=r"key of space 'users' has a collation \(id\).*--collated-keys apart"):
        job.take(batch)
    job.take(batch, takes_collated=True)
    assert set(job.rows()) == {'{"id":"Ann"}', '{"id":"ANN"}'}


def test_a_form_that_is_not_there_is_an_error(job: Job) -> None:
    with pytest.raises(Exception, match="no form of space 'users'"):
        job.send(put("c", {"id": 1}, 1))


@pytest.mark.parametrize("few", [few_events.FEW, pytest.param(0, marks=pytest.mark.soak)])
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
    # What it means for rows that haven't been read isn't told before they have.
    job.take(swapped)
    assert {space: job.rows(space) for space in ("a", "b")} == {"a": {}, "b": {}}
    for batch in (first, swapped.union(first)):
        job.take(batch)
        for rows in (job.rows, job.merged):
            assert {space: rows(space) for space in ("a", "b")} == expected
    rekeyed = job.topics.send(
        schema(5, space="b", space_id=600, version=5, key=("name", "id")),
        event("d", {"name": "of 600", "id": 2}, 6, {}, space="b", space_id=600, version=5),
    )
    for batch in (rekeyed, swapped.union(rekeyed)):
        job.take(batch)
        assert job.rows("b") == {'{"name":"600","id":1}': '{"id":1,"name":"600"}'}


RENAMED = [("number", "unsigned"), *COLUMNS[1:]]


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        pytest.param(COLUMNS, "name", id="altered"),
        pytest.param(RENAMED, "number", id="renamed", marks=pytest.mark.soak),
    ],
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


def test_rows_with_another_key_stay_until_a_later_truncation(job: Job) -> None:
    job.send(schema(0), *(put("c", {"id": number, "name": "n", "balance": 0}, number) for number in (1, 2)))
    changed = [1, 1, 2]  # 1 is in partition 0, 2 in the other one
    renamed = job.topics.send(
        schema(2, version=2, columns=RENAMED, key=("number",)),
        *(event("u", {"number": number}, seq, {"patch": plus(5)}, version=2) for seq, number in enumerate(changed, 3)),
        truncate(6, version=2),
    )
    job.take(renamed.where("partition = 0"))
    merged = {json.loads(text)["number"]: json.loads(text)["balance"] for text in job.merged().values()}
    assert (merged, job.rows()) == ({1: 5, 2: 0}, {})
    job.take(renamed)
    assert job.rows() == job.merged() == {}


@pytest.mark.parametrize("has_images", [True, pytest.param(False, marks=pytest.mark.soak)])
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
    with pytest.raises(JobError) as raised:
        job.take(altered)
    assert str(raised.value).startswith("The row {\"id\":1} of users has no value for the space's present primary key ['name']")
    row = event("r", {"name": "b"}, 3, {"after": {"id": 2, "name": "b"}}, version=2)
    later = job.topics.send(snapshot("STARTED", 2), row, snapshot("COMPLETED", 3, sweep_seq=2))
    for batch in (altered, later):
        job.take(batch)
    assert job.rows() == job.merged() == {'{"name":"b"}': '{"id":2,"name":"b"}'}


def test_each_space_has_its_table_whatever_it_is_called(job: Job) -> None:
    outside = job.path
    job.path = outside / "in" / "lake"
    names = ["..", "a/b", "a_b", "_changes"]
    messages = []
    for version, name in enumerate(names, 1):
        which: dict[str, Any] = {"space": name, "space_id": 600 + version, "version": version}
        messages += [schema(2 * version, **which), put("c", {"id": version, "name": name}, 2 * version + 1, **which)]
    job.send(*messages)
    assert [job.rows(lake_folder(name)) for name in names] == [
        {f'{{"id":{version}}}': compact({"id": version, "name": name})} for version, name in enumerate(names, 1)
    ]
    assert sorted(found.name for found in job.path.iterdir()) == sorted([*map(lake_folder, names), "_changes", "_watermark"])
    assert list(job.path.parent.iterdir()) == [job.path]
    assert list(outside.iterdir()) == [job.path.parent]


def test_a_table_of_an_unknown_layout_is_refused(job: Job) -> None:
    """Another version of the job has made it. Neither the job nor a reader takes its rows for their own."""
    job.send(schema(0), put("c", {"id": 1}, 1))
    job.session.sql(f"ALTER TABLE delta.`{job.path}/users` UNSET TBLPROPERTIES ('tarantool_cdc.layout')")
    job.restart()
    told = rf"The table at {job.path}/users has a layout .* doesn't know.*new --path and an empty --checkpoint"
    with pytest.raises(JobError, match=told):
        job.send(put("c", {"id": 2}, 2))
    with pytest.raises(JobError, match=told):
        job.rows()


def test_the_events_of_another_table_are_refused(job: Job) -> None:
    job.send(schema(0), put("c", {"id": 1}, 1))
    with pytest.raises(JobError, match="have been made from a table of its own, and now they would be from --changes"):
        job.send(put("c", {"id": 4}, 4), changes_path=f"{job.path}/elsewhere")


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
