"""Job materialize: whole rows from patches, as live servers made them, whatever comes again."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from cdc.protocol.extensions import unpack
from spark_jobs import run
from spark_jobs.contract import json_text
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.materialize import job
from spark_jobs.materialize.images import Fold
from spark_jobs.materialize.job import Materialize, MaterializeSink
from spark_jobs.materialize.publishing import destination
from spark_jobs.tables import delta as tables
from spark_jobs.tables.places import Table
from tests.spark.contract.test_patch import CAPTURED, ENCODER, values
from tests.spark.formats import under
from tests.spark.messages import (
    COLUMNS,
    FakeTopics,
    compact,
    delete,
    event,
    put,
    schema,
    snapshot,
    truncate,
    update,
    upsert,
)

pytestmark = pytest.mark.spark


def sink(spark: SparkSession, path: Path, topics: FakeTopics, **options: Any) -> MaterializeSink:
    state_path, read = f"{path}/_order", topics.read
    return MaterializeSink(spark, Topics("k", "shop"), under(path), state_path=state_path, read_topic=read, **options)


def stored(spark: SparkSession, path: Path) -> list[Row]:
    return spark.read.format("delta").load(str(path)).orderBy("seq").collect()


class Published:
    """A publisher in memory, with two partitions for each topic; stands in for Kafka."""

    prefix = "whole"

    def __init__(self) -> None:
        """Nothing is sent yet."""
        self.records: list[Row] = []

    def prepare(self, used: Mapping[str, int]) -> None:
        """As `Publisher.prepare`."""

    def send(self, records: DataFrame) -> None:
        """As `Publisher.send`."""
        self.records += records.collect()

    def send_forms(self, records: DataFrame) -> None:
        """As `Publisher.send_forms`."""
        self.send(records)

    def of(self, topic: str, partition: int = 0) -> list[Row]:
        """The records of a partition, in order."""
        return [row for row in self.records if (row["topic"], row["partition"]) == (topic, partition)]


def add(balance: int) -> list[dict[str, Any]]:
    return [{"op": "+", "field": "balance", "value": balance}]


@pytest.mark.one_of_these("materialize")
def test_events_get_both_rows_once_however_their_batches_come(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    longer = (*COLUMNS[:1], ("title", "string"), *COLUMNS[2:], ("more", "boolean"))
    twice = update(1, add(5), 3)
    first = topics.send(
        schema(0, in_snapshot=True),
        put("r", {"id": 1, "name": "a", "balance": 1e300}, 1),
        put("r", {"id": 2, "name": "a", "balance": 1}, 2),
        twice,
        twice,
        update(2, add(5), 4),
        delete(9, 5),
        put("u", {"id": 3, "name": "c"}, 6),
    )
    second = topics.send(
        schema(6, version=2, columns=longer),
        update(2, [{"op": "=", "field": "title", "value": "z"}], 7, version=2),
        upsert({"id": 4, "title": "d", "balance": 1}, add(1), 8, version=2),
        upsert({"id": 4, "title": "d", "balance": 1}, add(1), 9, version=2),
        delete(3, 10, version=2),
        truncate(11, version=2),
        put("u", {"id": 2, "title": "new"}, 12, version=2),
        put("u", {"id": 2, "title": "newer"}, 13, version=2),
        snapshot("STARTED", 13),
        snapshot("COMPLETED", 13, sweep_seq=13),
        put("u", {"id": 2, "title": "again"}, 14, version=2),
    )
    place, history = tmp_path / "whole", tmp_path / "history"
    published = Published()
    writing = sink(spark, place, topics, publisher=published)
    writing.write(first, 0, "query")
    writing.write(second, 1, "query")
    found = [(row["seq"], row["op"], row["key"], row["before"], row["after"]) for row in stored(spark, place)]
    one, two, four = '{"id":1}', '{"id":2}', '{"id":4}'
    whole = [
        (1, "r", one, None, '{"id":1,"name":"a","balance":1e+300}'),
        (2, "r", two, None, '{"id":2,"name":"a","balance":1}'),
        (3, "u", one, '{"id":1,"name":"a","balance":1e+300}', '{"id":1,"name":"a","balance":1e300}'),
        (4, "u", two, '{"id":2,"name":"a","balance":1}', '{"id":2,"name":"a","balance":6}'),
        (6, "c", '{"id":3}', None, '{"id":3,"name":"c"}'),
        (7, "u", two, '{"id":2,"title":"a","balance":6}', '{"id":2,"title":"z","balance":6}'),
        (8, "c", four, None, '{"id":4,"title":"d","balance":1}'),
        (9, "u", four, '{"id":4,"title":"d","balance":1}', '{"id":4,"title":"d","balance":2}'),
        (10, "d", '{"id":3}', '{"id":3,"name":"c"}'.replace("name", "title"), None),
        (11, "t", None, None, None),
        (12, "c", two, None, '{"id":2,"title":"new"}'),
        (13, "u", two, '{"id":2,"title":"new"}', '{"id":2,"title":"newer"}'),
        (14, "c", two, None, '{"id":2,"title":"again"}'),
    ]
    assert found == whole
    # The same is published: each key where it was, a truncation everywhere, and the forms before what they are needed for.
    for partition in (0, 1):
        sent = published.of("whole.users", partition)
        values = [json.loads(row["value"]) if row["value"] is not None else None for row in sent]
        assert [
            (value["source"]["seq"], value["op"], row["key"], value["before"], value["after"]) if value else (row["key"],)
            for row, value in zip(sent, values, strict=True)
        ] == [
            shown
            for seq, op, key, *images in whole
            if key is None or sum(key.encode()) % 2 == partition
            for shown in [(seq, op, key, *(image and json.loads(image) for image in images)), (key,)][: 2 if op == "d" else 1]
        ]
    (text,) = (row["value"] for row in published.of("whole.users", sum(two.encode()) % 2) if '"seq":7,' in (row["value"] or ""))
    original = json.loads(str(second.where("value like '%\"seq\":7,%'").selectExpr("string(value)").collect()[0][0]))
    del original["patch"]
    original |= {"before": {"id": 2, "title": "a", "balance": 6}, "after": {"id": 2, "title": "z", "balance": 6}}
    original["source"]["name"] = "whole"
    assert text == compact(original)
    topics_in_order = [row["topic"] for row in published.records]
    assert topics_in_order[0] == "whole.schema"
    assert [json.loads(row["value"])["status"] for row in published.of("whole.snapshot")] == ["STARTED", "COMPLETED"]
    assert len(published.of("whole.schema")) == 2
    # A history is made of it.
    assert run.main(["history_of", "--changes", str(place), "--path", str(history), "--checkpoint", str(tmp_path / "read")]) == 0
    begun = spark.read.format("delta").load(str(history / "users")).orderBy("_begin_seq").collect()
    assert [(row["_begin_seq"], row["_end_seq"]) for row in begun] == [
        *((1, 3), (2, 4), (3, 11), (4, 7), (6, 10), (7, 11), (8, 9), (9, 11), (12, 13), (13, 13), (14, None)),
    ]


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.one_of_these("materialize")
def test_a_truncation_empties_its_keys_whichever_partition_is_read_ahead(spark: SparkSession, tmp_path: Path, ahead: int) -> None:
    topics, published = FakeTopics(spark), Published()
    events = [put("c", {"id": 1, "name": "a", "balance": 1}, 1), put("c", {"id": 2, "name": "b", "balance": 2}, 2), truncate(3)]
    rows = [{"id": identity, "name": "new", "balance": 0} for identity in (1, 2)]
    topics.send(schema(0), *events, upsert(rows[0], add(5), 4), upsert(rows[1], add(5), 5))
    begun = sink(spark, tmp_path / "whole", topics, publisher=published)
    begun.write(topics.slice({("shop.schema", 0): (0, 1), ("shop.users", ahead): (0, 3)}), 0, "query")
    begun.write(topics.slice({("shop.users", 1 - ahead): (0, 3)}), 1, "query")
    found = [(row["seq"], row["op"], row["before"], row["after"]) for row in stored(spark, tmp_path / "whole")]
    assert found[2:] == [(3, "t", None, None), *((seq, "c", None, compact(row)) for seq, row in zip((4, 5), rows, strict=True))]
    for partition in (0, 1):
        seqs = [json.loads(row["value"])["source"]["seq"] for row in published.of("whole.users", partition)]
        assert seqs in ([1, 3, 4], [2, 3, 5])


@pytest.mark.one_of_these("materialize")
@pytest.mark.parametrize("is_renamed", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_patches_of_a_row_on_two_partitions_are_applied_in_order(
    spark: SparkSession, tmp_path: Path, seed: int, *, is_renamed: bool
) -> None:
    """The events of a renamed space are on two topics, and a topic with another partition has a key's events on two."""
    random_ = random.Random(seed)
    topics = FakeTopics(spark)
    keys = range(3)
    later: dict[str, Any] = {"space": "people", "version": 2} if is_renamed else {}
    topics.send(schema(0), *([schema(6, **later)] if is_renamed else []))
    for seq, number in enumerate(range(12), 1):
        options = later if number >= 6 else {}
        identity = number % 3
        topics.send(
            put("c", {"id": identity, "name": "a", "balance": 0}, seq)
            if number < 3
            else update(identity, add(number), seq, **options)
        )
    if not is_renamed:
        for partition in (0, 1):
            log = topics.messages["shop.users", partition]
            half = sum(json.loads(message.value or "")["source"]["seq"] <= 6 for message in log)
            # The topic's third partition takes what comes later.
            topics.messages.setdefault(("shop.users", 2), []).extend(log[half:])
            del log[half:]
        topics.messages["shop.users", 2].sort(key=lambda message: json.loads(message.value or "")["source"]["seq"])
    done = dict.fromkeys(topics.messages, 0)
    batch = 0
    while any(done[place] < len(log) for place, log in topics.messages.items()):
        ends = {place: min(len(log), done[place] + random_.randrange(1, 4)) for place, log in topics.messages.items()}
        records = topics.slice({place: (done[place], end) for place, end in ends.items()})
        topics.took(records)
        for _ in range(random_.choice((1, 2))):  # sometimes the first process was killed before Spark noted the batch as done
            sink(spark, tmp_path / "whole", topics, positions=topics).write(records, batch, "query")
        done, batch = ends, batch + 1
    found = stored(spark, tmp_path / "whole")
    assert [row["seq"] for row in found] == list(range(1, 13))
    for key in keys:
        own = [json.loads(row["after"])["balance"] for row in found if row["key"] == f'{{"id":{key}}}']
        assert own == list(itertools.accumulate(range(key + 3, 12, 3), initial=0))


@pytest.mark.one_of_these("materialize")
def test_a_change_that_is_read_after_a_later_one_of_its_row_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    topics = FakeTopics(spark)
    begun = sink(spark, tmp_path / "whole", topics)
    row = {"id": 1, "name": "a", "balance": 0}
    first = topics.send(schema(0), schema(1, space="people", version=2), put("c", row, 5, space="people", version=2))
    begun.write(first, 0, "query")
    # Repeated, or of another row, an older event is no trouble.
    begun.write(first.unionByName(topics.send(put("c", {**row, "id": 2}, 2))), 1, "query")
    with pytest.raises(
        JobError, match=r"topic shop.users, partition \d, offset \d: the change of seq 1 .* after the one of seq 5"
    ):
        begun.write(topics.send(put("c", row, 1)), 2, "query")
    assert [row["seq"] for row in stored(spark, tmp_path / "whole")] == [2, 5]


@pytest.mark.one_of_these("materialize")
def test_of_two_jobs_that_publish_from_one_path_the_first_ends_before_it_sends_more(spark: SparkSession, tmp_path: Path) -> None:
    topics, published = FakeTopics(spark), Published()
    first, second = (sink(spark, tmp_path / "whole", topics, publisher=published) for _ in range(2))
    records = topics.send(schema(0), put("c", {"id": 1, "name": "a", "balance": 1}, 1))
    first.write(records, 0, "first")
    second.write(records, 0, "second")
    sent = len(published.records)
    later = topics.send(update(1, add(5), 2))
    with pytest.raises(JobError, match="Another job"):
        first.write(later, 1, "first")
    assert len(published.records) == sent
    second.write(later, 1, "second")
    assert [json.loads(row["after"])["balance"] for row in stored(spark, tmp_path / "whole")] == [1, 6]


@pytest.mark.one_of_these("materialize")
def test_events_that_wait_stay_for_their_checkpoint_when_another_was_used_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_COMPACT_EVERY", 1)
    topics, whole = FakeTopics(spark), tmp_path / "whole"
    others = FakeTopics(spark, topics.messages)
    rows = [{"id": identity, "name": "a", "balance": 0} for identity in (1, 2)]
    topics.send(schema(0), *(put("c", row, seq) for seq, row in enumerate(rows, 1)))
    topics.send(*(update(2 - seq % 2, add(seq), seq) for seq in range(3, 7)))
    early, late = (("shop.users", sum(f'{{"id":{identity}}}'.encode()) % 2) for identity in (1, 2))

    def write(topics: FakeTopics, batch: int, query: str, *ends: int) -> None:
        starts = (0, 0) if batch == 0 else (3, 1)
        records = topics.slice({place: (start, end) for place, start, end in zip((early, late), starts, ends, strict=True)})
        topics.took(records)
        sink(spark, whole, topics, positions=topics).write(records, batch, query)

    write(topics, 0, "first", 3, 1)
    write(others, 0, "second", 1, 1)
    sink(spark, whole, others, positions=others).write(others.slice({}), 1, "second")
    write(topics, 1, "first", 3, 3)
    found = [(row["seq"], json.loads(row["after"])["balance"]) for row in stored(spark, whole)]
    assert found == [(1, 0), (2, 0), (3, 3), (4, 4), (5, 8), (6, 10)]


@pytest.mark.parametrize("prefix", ["shop", "shop.whole", "sh"])
def test_a_job_reads_nothing_that_it_has_published(prefix: str) -> None:
    with pytest.raises(JobError, match="isn't apart from"):
        destination(f"kafka://k:1,k:2/{prefix}", "shop" if prefix != "sh" else "sh.op")


def test_a_checkpoint_is_of_what_is_published() -> None:
    places = [Materialize().place(Namespace(location="lake", to=to)) for to in (None, "kafka://k:1/whole", "kafka://k:1/other")]
    assert places == ["lake", "lake --to kafka://k:1/whole", "lake --to kafka://k:1/other"]


def test_where_to_publish() -> None:
    assert destination("kafka://k:1,k:2/whole", "shop") == ("k:1,k:2", "whole")
    with pytest.raises(JobError, match="names no prefix"):
        destination("kafka://k:1", "shop")


def change(**members: Any) -> dict[str, Any]:
    """An event as the function gets it that Spark's workers run."""
    nothing = dict.fromkeys(("after", "patch", "upsert", "server_version"))
    return {"seq": 2, "op": "u", "schema_version": 1, **nothing, **members}


def test_an_update_without_its_row_ends_the_job_or_is_left_out() -> None:
    lonely = [change(patch='[{"op":"+","field":"balance","value":1}]'), change(seq=3, op="d")]
    with pytest.raises(JobError, match="in m at seq 2 has no row to apply to"):
        Fold({(512, 1): CAPTURED}, skip_missing=False)(512, '{"id":1}', None, None, None, lonely, [])
    found = Fold({(512, 1): CAPTURED}, skip_missing=True)(512, '{"id":1}', None, None, None, lonely, [])
    assert found == [(None, None, None), ("d", None, None)]


def test_rows_are_those_that_live_servers_made() -> None:
    """The requests of tests/captures, for each version that has answered them."""
    path = Path(__file__).parents[2] / "captures" / "updates.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        cases = [json.loads(line) for line in lines]
    fold = Fold({(512, 1): CAPTURED}, skip_missing=False)
    equal, wrong = 0, []
    for case in cases:
        operations = unpack(bytes.fromhex(case["operations"]))
        row = unpack(bytes.fromhex(case["row"]))
        request = [*row, *(value for operation in operations for value in operation)]
        if ":" in request and "Decimal(" in repr(request):
            continue  # as JSON a decimal is a text, and would be spliced
        if any(operation[0] in "=#" and operation[1] == "map[2]" for operation in operations):
            continue  # what such a server does to an integer key is not what it says
        patch = ENCODER.patch(operations, case["base"]).decode()
        text = ENCODER.rows[len(row)](row).decode()
        for version, answer in case["after"].items():
            if not isinstance(answer, str):
                continue
            added = None if case["request"] == "UPDATE" else text
            asked = change(patch=patch, upsert=added, server_version=version)
            ((op, before, after),) = fold(512, "{}", text, 1, 1, [asked], [])
            assert (op, before) == ("u", text)
            assert after is not None
            is_equal = list(json_text.parse(after).values()) == values(unpack(bytes.fromhex(answer)))
            equal += is_equal
            if not is_equal:
                wrong.append((version, text, patch, answer, after))
    assert not wrong, f"{len(wrong)}: {wrong[:3]}"
    assert equal > 5500


@pytest.mark.one_of_these("materialize")
def test_batches_that_come_twice_leave_each_event_once_and_the_rows_of_the_last_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of the first batch was killed half way; those of the others before Spark noted the batch as done. Each
    compacts the rows. The last batch has earlier events again: of a deleted row nothing but the table tells that they came.
    """
    monkeypatch.setattr(job, "_COMPACT_EVERY", 1)
    topics, published, whole = FakeTopics(spark), Published(), tmp_path / "whole"
    append_once = tables.append_once

    def killed(frame: DataFrame, table: Table, **options: Any) -> None:
        if str(table).endswith("_rows"):
            raise KeyboardInterrupt
        append_once(frame, table, **options)

    repeated = [put("c", {"id": 9, "name": "a", "balance": 1}, 1), delete(9, 2), truncate(3)]
    batches = [
        [schema(0), *repeated, put("c", {"id": 1, "name": "a", "balance": 0}, 4)],
        [update(1, add(100), 5), put("c", {"id": 2}, 6)],
        [*repeated, update(1, add(1), 7)],
    ]
    for batch, messages in enumerate(batches):
        records = topics.send(*messages)
        topics.took(records)

        def write(records: DataFrame = records, batch: int = batch) -> None:
            sink(spark, whole, topics, positions=topics, publisher=published).write(records, batch, "query")

        if batch == 0:
            with monkeypatch.context() as patched:
                patched.setattr(tables, "append_once", killed)
                with pytest.raises(KeyboardInterrupt):
                    write()
        else:
            write()
        write()
    found = [(row["seq"], row["op"], row["after"] and json.loads(row["after"]).get("balance")) for row in stored(spark, whole)]
    assert found == [(1, "c", 1), (2, "d", None), (3, "t", None), (4, "c", 0), (5, "u", 100), (6, "c", None), (7, "u", 101)]
    # What a killed process has published comes once more.
    values = [json.loads(row["value"]) for row in published.records if row["topic"] == "whole.users" and row["value"]]
    assert [value["after"]["balance"] for value in values if value["source"]["seq"] in (4, 5, 7)] == [0, 0, 100, 100, 101, 101]


@pytest.mark.one_of_these("materialize")
def test_a_snapshot_s_end_is_heeded_though_it_is_read_late_or_retention_has_taken_it(spark: SparkSession, tmp_path: Path) -> None:
    topics, whole = FakeTopics(spark), tmp_path / "whole"
    rows = [{"id": identity, "name": "a", "balance": 2} for identity in (1, 2)]
    first = topics.send(
        schema(0),
        put("c", rows[0], 1),
        snapshot("STARTED", 1, snapshot_id="2"),
        snapshot("COMPLETED", 1, snapshot_id="2", sweep_seq=1),
        put("c", rows[1], 2),
    )
    sink(spark, whole, topics).write(first, 0, "query")
    # Of the first snapshot only that batch has told, and of the second one only the topic does.
    del topics.messages["shop.snapshot", 0]
    topics.append(snapshot("STARTED", 3, snapshot_id="3"), snapshot("COMPLETED", 4, snapshot_id="3", sweep_seq=3))
    later = topics.send(*(upsert(row, add(5), seq) for row, seq in zip(rows, (3, 5), strict=True)))
    sink(spark, whole, topics).write(later, 1, "query")
    found = [(row["seq"], row["op"], row["before"]) for row in stored(spark, whole)]
    assert found[2:] == [(3, "c", None), (5, "c", None)]


@pytest.mark.one_of_these("materialize", seconds=90)
def test_rows_and_their_history_follow_a_space_to_another_key_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """Though no event tells that a row has another key, and though the schema topic is compacted meanwhile."""
    topics, whole, history = FakeTopics(spark), tmp_path / "whole", str(tmp_path / "history")
    command = ["history_of", "--changes", str(whole), "--path", history, "--checkpoint", str(tmp_path / "read")]
    renamed = (("uid", "unsigned"), *COLUMNS[1:])
    names: dict[str, Any] = {"version": 2, "columns": renamed, "key": ("uid",)}
    balances: dict[str, Any] = {"version": 3, "columns": renamed, "key": ("balance",)}
    back: dict[str, Any] = {"version": 4, "columns": renamed, "key": ("uid",)}
    carts: dict[str, Any] = {"space": "carts", "space_id": 514, "version": 3}
    rows = [{"id": identity, "name": "a", "balance": identity * 10} for identity in range(1, 6)]
    batches = [
        [schema(0), schema(0), *(put("c", row, seq) for seq, row in enumerate(rows, 1))],
        [
            schema(5, **names),
            event("d", {"uid": 1}, 6, {}, version=2),
            event("u", {"uid": 2}, 7, {"after": {"uid": 2, "name": "b", "balance": 20}}, version=2),
            event("u", {"uid": 3}, 8, {"patch": add(5)}, version=2),
        ],
        [
            schema(8, **balances),
            event("d", {"balance": 35}, 9, {}, version=3),
            event("u", {"balance": 40}, 10, {"patch": [{"op": "=", "field": "name", "value": "z"}]}, version=3),
            event("d", {"balance": 20}, 11, {}, version=3),
            schema(11, **back),
            event("u", {"uid": 4}, 12, {"patch": add(1)}, version=4),
        ],
        [
            event("u", {"uid": 2}, 13, {"patch": add(1), "upsert": {"uid": 2, "name": "new", "balance": 0}}, version=4),
            event("d", {"uid": 5}, 14, {}, version=4),
            event("d", {"uid": 3}, 15, {}, version=4),
            schema(15, **carts),
            put("c", {"id": 9}, 16, **carts),
        ],
    ]
    for batch, messages in enumerate(batches):
        sink(spark, whole, topics).write(topics.send(*messages), batch, "query")
        if batch == 0:
            del topics.messages["shop.schema", 0][0]
        if batch != 1:
            assert run.main(command) == 0
    found = [(row["seq"], row["op"], row["before"], row["after"]) for row in stored(spark, whole)][5:-1]

    def shown(identity: int, name: str, balance: int) -> str:
        return compact({"uid": identity, "name": name, "balance": balance})

    assert found == [
        (6, "d", shown(1, "a", 10), None),
        (7, "u", shown(2, "a", 20), shown(2, "b", 20)),
        (8, "u", shown(3, "a", 30), shown(3, "a", 35)),
        (9, "d", shown(3, "a", 35), None),
        (10, "u", shown(4, "a", 40), shown(4, "z", 40)),
        (11, "d", shown(2, "b", 20), None),
        (12, "u", shown(4, "z", 40), shown(4, "z", 41)),
        (13, "c", None, shown(2, "new", 0)),
        (14, "d", shown(5, "a", 50), None),
    ]
    versions = spark.read.format("delta").load(f"{history}/users").orderBy("_begin_seq", "_key").collect()
    columns = ("_key", "name", "balance", "_begin_seq", "_begin_op", "_end_seq", "_end_op")
    assert [tuple(row[name] for name in columns) for row in versions] == [
        *((f'{{"id":{number}}}', "a", number * 10, number, "c", 5, "key") for number in range(1, 6)),
        ('{"uid":1}', "a", 10, 5, "key", 6, "d"),
        ('{"uid":2}', "a", 20, 5, "key", 7, "u"),
        ('{"uid":3}', "a", 30, 5, "key", 8, "u"),
        ('{"uid":4}', "a", 40, 5, "key", 8, "key"),
        ('{"uid":5}', "a", 50, 5, "key", 8, "key"),
        ('{"uid":2}', "b", 20, 7, "u", 8, "key"),
        ('{"balance":20}', "b", 20, 8, "key", 11, "d"),
        ('{"balance":35}', "a", 35, 8, "key", 9, "d"),
        ('{"balance":40}', "a", 40, 8, "key", 10, "u"),
        ('{"balance":50}', "a", 50, 8, "key", 11, "key"),
        ('{"uid":3}', "a", 35, 8, "u", 8, "key"),
        ('{"balance":40}', "z", 40, 10, "u", 11, "key"),
        ('{"uid":4}', "z", 40, 11, "key", 12, "u"),
        ('{"uid":5}', "a", 50, 11, "key", 14, "d"),
        ('{"uid":4}', "z", 41, 12, "u", None, None),
        ('{"uid":2}', "new", 0, 13, "c", None, None),
    ]
    assert [row["_key"] for row in spark.read.format("delta").load(f"{history}/carts").collect()] == ['{"id":9}']
