"""The job against a real OpenSearch, with topics in memory."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch as Client
from pyspark.sql import DataFrame, SparkSession

from cdc.local.opensearch import OpenSearch
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds.index_sink import Change, SearchIndexSink, Writing
from spark_jobs.feeds.made_indexes import NoNotes
from spark_jobs.feeds.opensearch import Address, Indexes
from spark_jobs.runner.job import DeadLetters, FailAtOnce
from tests.spark.messages import (
    PREFIX,
    SPACE_ID,
    FakeTopics,
    Message,
    delete,
    event,
    put,
    schema,
    snapshot,
    truncate,
    update,
)

pytestmark = pytest.mark.spark


class Letters(DeadLetters):
    """Dead letters that a test can read."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str]] = []

    def take(self, records: DataFrame) -> int:
        rows = records.collect()
        self.taken += [(row["topic"], bytes(row["value"]).decode(), row["sentence"]) for row in rows]
        return len(rows)


class Bench:
    """A job's sink with its topics and its OpenSearch."""

    def __init__(self, spark: SparkSession, server: OpenSearch) -> None:
        self.topics = FakeTopics(spark)
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.address = Address((server.url,))
        self.client: Client = self.address.connect()
        self.letters = Letters()
        self._spark = spark
        self._batch = 0
        self.notes = NoNotes()
        self.sink = self.started()

    def started(self, **options: Any) -> SearchIndexSink:
        """The job as it is after a start."""
        document, table = options.pop("document", None), options.pop("table", None)
        options.setdefault("notes", self.notes)
        options = {"template": f"{self.name}-{{space}}", **options}
        writing = Writing(self.address, document, count_max=7, patience_seconds=30, table=table)
        self.sink = SearchIndexSink(self._spark, Topics("", PREFIX), writing, read_topic=self.topics.read, **options)
        self.sink.dead_letters = self.letters
        return self.sink

    def send(self, *messages: Message) -> None:
        """One batch."""
        self.sink.write(self.topics.send(*messages), self._batch, "query")
        self._batch += 1

    def count(self, query: Mapping[str, Any]) -> int:
        """How many documents of the index match, hidden ones too."""
        index = f"{self.name}-space-{SPACE_ID}"
        self.client.indices.refresh(index=index)
        return int(self.client.count(index=index, body={"query": query})["count"])

    def parts(self, space: str) -> list[int]:
        """The partitions of a space's topic that have records."""
        return [partition for topic, partition in self.topics.messages if topic == f"{PREFIX}.{space}"]

    def found(self, space: str = "users") -> dict[str, dict[str, Any]]:
        """What a search for everything finds: rows by id."""
        alias = f"{self.name}-{space}"
        self.client.indices.refresh(index=alias)
        hits = self.client.search(index=alias, body={"size": 1000})["hits"]["hits"]
        rows = {hit["_id"]: hit["_source"] for hit in hits}
        return {key: {name: value for name, value in row.items() if name != "_cdc"} for key, row in rows.items()}


@pytest.fixture
def bench(spark: SparkSession, opensearch: OpenSearch) -> Bench:
    return Bench(spark, opensearch)


def by_key(*rows: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {f'{{"id":{row["id"]}}}': dict(row) for row in rows}


def test_shuffled_repeated_and_delayed_events_end_in_what_the_space_has(bench: Bench, seed: int) -> None:
    random_ = random.Random(seed)
    events: list[Message] = []
    rows: dict[int, dict[str, Any]] = {}
    for seq in range(1, 141):
        identity = random_.randrange(12)
        if seq in (60, 110):
            events.append(truncate(seq))
            rows.clear()
        elif identity in rows and random_.random() < 0.4:
            events.append(event("d", {"id": identity}, seq, {"before": rows.pop(identity)}))
        else:
            row = {"id": identity, "name": f"n{seq}", "balance": seq}
            events.append(put("u" if identity in rows else "c", row, seq))
            rows[identity] = row
    shuffled = events + random_.sample(events, 40)
    random_.shuffle(shuffled)
    bench.topics.send(schema(0))
    for start in range(0, len(shuffled), 60):
        bench.send(*shuffled[start : start + 60])
        if start == 60:
            bench.started()
    assert bench.found() == by_key(*rows.values())
    # What the truncations have passed is removed, and not only hidden; late events don't bring it back.
    bench.send(put("c", {"id": 5, "name": "late"}, 109), put("c", {"id": 99, "name": "late"}, 59))
    assert bench.found() == by_key(*rows.values())
    bench.started().write(bench.topics.send(schema(0)), 9, "query")
    bench.sink.finish()
    assert bench.count({"range": {"_cdc.seq": {"lte": 110}}}) == 0


@pytest.mark.one_of_these("documents")
def test_what_searches_can_do_with_the_types(bench: Bench) -> None:
    columns = [
        *(("id", "unsigned"), ("title", "string"), ("price", "decimal"), ("at", "datetime"), ("n", "number"), ("tags", "array")),
        ("any", "any"),
    ]
    row = {"id": 2**64 - 1, "title": "Red apples", "price": "12.50", "at": "2024-02-29T23:59:58.123456789+03:00", "n": "NaN"}
    odd = {"tags": [1, "a", {"b": 2}], "any": {"deep": [1]}, "field_8": "past the format"}
    long_key = "k" * 600
    other = {
        "id": 1,
        "title": "Green pears",
        "price": "9.99",
        "at": "2020-01-01T00:00:00Z",
        "n": 1e300,
        "tags": ["x"],
        "any": "t",
    }
    bench.send(
        schema(0, columns=columns),
        put("c", {**row, **odd}, 1),
        put("c", other, 2),
        event("c", {"id": long_key}, 3, {"after": {"id": 3, "title": "long"}}),
    )

    def ids(query: dict[str, Any]) -> list[int]:
        alias = f"{bench.name}-users"
        bench.client.indices.refresh(index=alias)
        return sorted(hit["_source"]["id"] for hit in bench.client.search(index=alias, body={"query": query})["hits"]["hits"])

    assert ids({"match": {"title": "apples"}}) == [2**64 - 1]
    assert ids({"range": {"price": {"gt": 10}}}) == [2**64 - 1]
    assert ids({"term": {"price.exact": "9.99"}}) == [1]
    assert ids({"range": {"at": {"gte": "2024-01-01"}}}) == [2**64 - 1]
    assert ids({"range": {"n": {"gt": 0}}}) == [1]
    assert ids({"range": {"id": {"gt": 2**63}}}) == [2**64 - 1]
    assert bench.found()[f'{{"id":{2**64 - 1}}}'] == {**row, **odd}
    assert [key for key in bench.found() if key.startswith("sha256:")]


@pytest.mark.one_of_these("documents")
def test_names_change_and_documents_follow(bench: Bench) -> None:
    orders: dict[str, Any] = {"space": "orders", "space_id": 513, "version": 2}
    bench.send(schema(0), schema(0, **orders), put("c", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "name": "o"}, 2, **orders))
    # Two spaces swap their names, and one of them has a field renamed.
    renamed: dict[str, Any] = {"columns": [("id", "unsigned"), ("title", "string"), ("city", "string")]}
    bench.send(
        schema(3, space="orders", version=3, **renamed),
        schema(3, space="users", space_id=513, version=4),
        put("c", {"id": 3, "title": "new", "city": "Oslo"}, 4, space="orders", version=3),
        put("u", {"id": 1, "name": "late"}, 3),
    )
    assert bench.found("orders") == by_key({"id": 1, "title": "late"}, {"id": 3, "title": "new", "city": "Oslo"})
    assert bench.found("users") == by_key({"id": 2, "name": "o"})
    bench.send(put("u", {"id": 2, "name": "p"}, 5, space="users", space_id=513, version=4))
    assert bench.found("users") == by_key({"id": 2, "name": "p"})
    # Dropped, it stays to be found, empty, until another space takes the name.
    dropped = {"source": {"table": "users", "space_id": 513, "schema_version": 5, "seq": 6}}
    drop = Message(f"{PREFIX}.schema", None, json.dumps({**dropped, "tableChanges": [{"type": "DROP", "id": "", "table": None}]}))
    bench.send(truncate(6, space="users", space_id=513, version=4), drop)
    assert bench.found("users") == {}
    bench.send(schema(7, space_id=514, version=6), put("c", {"id": 9, "name": "z"}, 8, space_id=514, version=6))
    assert bench.found("users") == by_key({"id": 9, "name": "z"})


def test_a_dropped_space_is_not_found_after_a_kill_between_floor_and_filter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(schema(0), put("c", {"id": 1, "name": "a"}, 1))
    dropped = {"source": {"table": "users", "space_id": SPACE_ID, "schema_version": 2, "seq": 2}}
    drop = Message(f"{PREFIX}.schema", None, json.dumps({**dropped, "tableChanges": [{"type": "DROP", "id": "", "table": None}]}))
    batch = bench.topics.send(truncate(2), drop)
    put_mapping = Indexes.put_mapping

    def killed(indexes: Indexes, name: str, body: Mapping[str, Any]) -> None:
        put_mapping(indexes, name, body)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Indexes, "put_mapping", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.sink.write(batch, 1, "query")
    bench.started().write(batch, 1, "query")
    assert bench.found() == {}
    bench.sink.finish()
    assert bench.count({"match_all": {}}) == 0


@pytest.mark.one_of_these("documents")
def test_what_can_not_be_a_document_is_told_with_its_place(bench: Bench) -> None:
    bench.started(body={"mappings": {"properties": {"name": {"type": "integer"}}}})
    bench.send(
        schema(0),
        put("c", {"id": 1, "name": "no number"}, 1),
        update(2, [{"op": "=", "field": "name", "value": 1}], 2),
        put("c", {"id": 3, "name": 3}, 3),
        delete(4, 4),
        # A good event is kept beside a refused one of its key.
        put("c", {"id": 5, "name": "1"}, 5),
        put("u", {"id": 5, "name": "2"}, 6),
        put("u", {"id": 5, "name": "refused"}, 7),
    )
    assert bench.found() == by_key({"id": 3, "name": 3}, {"id": 5, "name": "2"})
    first, second, third = sorted(bench.letters.taken, key=lambda letter: json.loads(letter[1])["source"]["seq"])
    assert '"name":"refused"' in third[1]
    assert "mapper_parsing_exception: failed to parse field [name] of type [integer])" in first[2]
    assert "no number" not in first[2]
    assert '"name":"no number"' in first[1]
    assert first[2].startswith(f"topic {PREFIX}.users, partition ")
    assert 'state.images = "full"' in second[2]


@pytest.mark.one_of_these("documents")
def test_rows_of_forms_that_were_removed_get_the_latest_names(bench: Bench) -> None:
    """Retention has removed former forms from the schema topic. A space of which it has none at all is kept apart."""
    columns = [("id", "unsigned"), ("title", "string"), ("rank", "unsigned")]
    bench.topics.send(schema(6, version=3, columns=columns))
    orders = put("c", {"id": 5}, 4, space="orders", space_id=513, version=2)
    events = (
        put("c", {"id": 1, "name": "a", "field_3": 7}, 1),
        put("c", {"id": 2, "label": "b"}, 2, version=2),
        put("c", {"id": 4}, 3),
        delete(4, 5),
        orders,
        put("c", {"id": 3, "title": "c"}, 7, version=3),
    )
    records = bench.topics.send(*events)
    bench.sink.dead_letters = FailAtOnce()
    told = r"^topic shop.orders, partition \d, offset 0: .*no form of space 513 at schema_version 2.*nor any other.*dead-letter"
    with pytest.raises(JobError, match=told):
        bench.sink.write(records, 0, "query")
    bench.started().write(records, 0, "query")
    assert bench.found() == by_key({"id": 1, "title": "a", "rank": 7}, {"id": 2, "title": "b"}, {"id": 3, "title": "c"})
    assert [value for _, value, _ in bench.letters.taken] == [orders.value]
    # The daemon has written the present form again, and the other space's events become documents, those of the same batch, too.
    bench.letters.taken.clear()
    form = schema(8, space="orders", space_id=513, version=2, columns=columns)
    bench.sink.write(
        bench.topics.send(form, put("u", {"id": 5, "title": "x"}, 9, space="orders", space_id=513, version=2)), 1, "query"
    )
    assert bench.found("orders") == by_key({"id": 5, "title": "x"})
    assert bench.letters.taken == []


def made_of(row: dict[str, Any], change: Change) -> dict[str, Any] | None:
    """A user's function."""
    if row["name"] == "hidden":
        return None
    return {"key": dict(change.key), "space": change.space, "shout": row["name"].upper()}


@pytest.mark.one_of_these("documents")
def test_a_function_makes_documents(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers find it where they find the test itself.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    bench.started(document=f"{__name__}:made_of")
    bench.send(schema(0), put("c", {"id": 1, "name": "a"}, 1), put("c", {"id": 2, "name": "b"}, 2), put("c", {"id": 3}, 3))
    assert bench.found()['{"id":1}'] == {"key": {"id": 1}, "space": "users", "shout": "A"}
    bench.send(put("u", {"id": 2, "name": "hidden"}, 4))
    assert list(bench.found()) == ['{"id":1}']
    (letter,) = bench.letters.taken
    assert "no document can be made of the row" in letter[2]
    # What an error says may quote the row.
    assert letter[2].rpartition(": ")[2].startswith(f"KeyError in made_of, {Path(__file__).name} line ")


def test_an_index_with_the_numbers_of_another_table_is_refused(bench: Bench) -> None:
    """Its documents would stay, as if they were newer than those of lower numbers."""
    bench.started(table="a")
    bench.send(schema(0), put("c", {"id": 1, "name": "old"}, 7))
    for table in ("b", None):
        bench.started(table=table, notes=NoNotes())
        with pytest.raises(JobError, match="have the numbers of another table"):
            bench.send(put("u", {"id": 1, "name": "new"}, 5))
    bench.started(table="a")
    bench.send(put("u", {"id": 1, "name": "new"}, 8))
    assert bench.found() == by_key({"id": 1, "name": "new"})


def test_an_index_of_somebody_else_is_not_touched(bench: Bench) -> None:
    bench.client.indices.create(index=f"{bench.name}-space-{SPACE_ID}", body={"mappings": {"_meta": {"theirs": 1}}})
    with pytest.raises(JobError, match="isn't one of this job's"):
        bench.send(schema(0), put("c", {"id": 1}, 1))


@pytest.mark.one_of_these("fields of documents")
def test_a_space_that_can_not_be_indexed_does_not_stop_the_others(bench: Bench) -> None:
    """Two names that differ in case only: the second space's records go to the dead letters, or end the job with the reason."""
    other: dict[str, Any] = {"space": "Users", "space_id": 513, "version": 2}
    records = [schema(0), schema(0, **other), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2, **other), put("c", {"id": 3}, 3)]
    bench.send(*records)
    assert bench.found() == by_key({"id": 1}, {"id": 3})
    ((_, text, sentence),) = bench.letters.taken
    assert '"id":2' in text
    assert "the rows of space 'Users' can't be indexed: the spaces 'users' and 'Users' would both be called" in sentence
    bench.started().dead_letters = FailAtOnce()
    with pytest.raises(JobError, match=r"space 'Users' can't be indexed.*--on-error dead-letter"):
        bench.sink.write(
            bench.topics.slice({(f"{PREFIX}.Users", partition): (0, 1) for partition in bench.parts("Users")}), 1, ""
        )
    # A space without new records stops nobody.
    bench.send(put("c", {"id": 4}, 4))
    assert bench.found() == by_key({"id": 1}, {"id": 3}, {"id": 4})


@pytest.mark.one_of_these("fields of documents")
def test_fields_that_opensearch_can_not_take_have_other_names(bench: Bench) -> None:
    names = ["id", "_id", "a", "a.b", "a.", "", "x.y.z", "x.y"]
    form = schema(0, columns=[("id", "unsigned"), *((name, "string") for name in names[1:])])
    bench.send(form, put("c", {name: 1 if name == "id" else f"w{name}" for name in names}, 1))
    stored = ["id", "~5fid", "a", "a~2eb", "a~2e", "~", "x.y.z", "x~2ey"]
    expected = {stored_name: 1 if name == "id" else f"w{name}" for name, stored_name in zip(names, stored, strict=True)}
    assert bench.found() == {'{"id":1}': expected}
    # An object in the mapping stays one: the field that takes the name of its first part is called otherwise.
    renamed = [*((name, "string") for name in ("id", "_id", "b", "a.b", "a.", "", "x", "x.y")), ("n", "string")]
    both: list[dict[str, Any]] = [{"id": 2, "x": "new"}, {name: 3 if name == "id" else f"w{name}" for name, _ in renamed}]
    bench.send(schema(1, version=2, columns=renamed), *(put("c", row, seq, version=2) for seq, row in enumerate(both, 2)))
    assert bench.found()['{"id":2}'] == {"id": 2, "~5fid": "new"}
    found = bench.found()['{"id":3}']
    assert list(found.values()) == [3, *(f"w{name}" for name, _ in renamed[1:])]
    assert list(found) == ["id", "~5fid", "b", "a~2eb", "a~2e", "~", "x~", "x~2ey", "n"]


@pytest.mark.one_of_these("fields of documents")
def test_a_space_with_many_fields_is_indexed_and_gets_more(bench: Bench) -> None:
    columns = [("id", "unsigned"), *((f"f{n}", "string") for n in range(600))]
    bench.send(schema(0, columns=columns), put("c", {"id": 1, "f599": "last"}, 1))
    more = [*columns, *((f"g{n}", "string") for n in range(700))]
    bench.send(schema(1, version=2, columns=more), put("c", {"id": 2, "g699": "last"}, 2, version=2))
    assert bench.found() == by_key({"id": 1, "f599": "last"}, {"id": 2, "g699": "last"})


@pytest.mark.one_of_these("indexes")
def test_an_index_that_was_removed_is_not_made_again(bench: Bench) -> None:
    index = f"{bench.name}-space-{SPACE_ID}"
    bench.send(schema(0), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2))
    bench.client.indices.delete(index=index)
    for notes in (bench.notes, NoNotes()):  # the other ones are of a checkpoint of an earlier version
        bench.notes = notes
        for _ in range(2):
            bench.started()
            with pytest.raises(JobError, match=rf"no index {index} any more.*new --checkpoint"):
                bench.send(put("u", {"id": 1, "name": "new"}, 3))
        assert not bench.client.indices.exists(index=index)


@pytest.mark.one_of_these("indexes")
def test_an_index_that_was_made_again_or_has_another_name_is_refused(bench: Bench) -> None:
    bench.send(schema(0), put("c", {"id": 1}, 1))
    bench.started(template="other-{space}")
    with pytest.raises(JobError, match=r"would be written to other-space-512, which would lack the earlier rows"):
        bench.send(put("c", {"id": 2}, 2))
    bench.client.indices.delete(index=f"{bench.name}-space-{SPACE_ID}")
    bench.started(notes=NoNotes()).write(bench.topics.read(f"{PREFIX}.schema"), 0, "another query")
    bench.started()
    with pytest.raises(JobError, match=r"isn't the one to which this job wrote.*If you know that the index has all these rows"):
        bench.send(put("c", {"id": 2}, 3))


@pytest.mark.one_of_these("indexes")
def test_an_event_with_the_very_next_seq_after_a_removed_document_is_written(bench: Bench) -> None:
    """The last change before a snapshot is of the row that the snapshot reads first, from a partition that is read late."""
    bench.send(schema(0), put("c", {"id": 2}, 5), put("c", {"id": 1}, 10))
    bench.send(snapshot("STARTED", 10), put("r", {"id": 2}, 12), snapshot("COMPLETED", 13, sweep_seq=10))
    assert bench.found() == by_key({"id": 2})
    bench.sink.finish()
    assert bench.count({"range": {"_cdc.seq": {"lte": 10}}}) == 0
    bench.send(put("r", {"id": 1}, 11))
    assert bench.found() == by_key({"id": 1}, {"id": 2})


@pytest.mark.one_of_these("indexes")
def test_two_jobs_for_different_spaces_leave_each_other_s_aliases_alone(bench: Bench) -> None:
    orders: dict[str, Any] = {"space": "orders", "space_id": 513, "version": 2}
    bench.topics.send(schema(0), schema(0, **orders), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2, **orders))
    for spaces in ("users", "orders", "users"):
        topics = Topics("", PREFIX, spaces=spaces)
        writing = Writing(bench.address, None, count_max=7, patience_seconds=30)
        sink = SearchIndexSink(bench._spark, topics, writing, template=f"{bench.name}-{{space}}", read_topic=bench.topics.read)
        batch = bench.topics.read(f"{PREFIX}.schema").unionByName(bench.topics.read(f"{PREFIX}.{spaces}"))
        sink.write(batch, 0, spaces)
    assert bench.found("users") == by_key({"id": 1})
    assert bench.found("orders") == by_key({"id": 2})


@pytest.mark.one_of_these("floors")
def test_two_jobs_with_floors_on_one_index_end_in_what_the_space_has(bench: Bench, seed: int) -> None:
    """Jobs with checkpoints of their own, each as far as it happens to be, for example while an index is moved to another."""
    random_ = random.Random(seed)
    rows: dict[int, dict[str, Any]] = {}
    bench.topics.send(schema(0))
    for seq in range(1, 61):
        identity = random_.randrange(6)
        if seq in (20, 45):
            bench.topics.send(truncate(seq))
            rows.clear()
        elif identity in rows and random_.random() < 0.4:
            bench.topics.send(event("d", {"id": identity}, seq, {"before": rows.pop(identity)}))
        else:
            rows[identity] = {"id": identity, "name": f"n{seq}"}
            bench.topics.send(put("u", rows[identity], seq))
    jobs = [(bench.started(notes=NoNotes()), dict.fromkeys(bench.topics.messages, 0)) for _ in range(2)]
    batch = 0
    while any(done[place] < len(log) for _, done in jobs for place, log in bench.topics.messages.items()):
        sink, done = random_.choice(jobs)
        ends = {place: min(len(log), done[place] + random_.randrange(10, 45)) for place, log in bench.topics.messages.items()}
        sink.write(bench.topics.slice({place: (done[place], end) for place, end in ends.items()}), batch, "query")
        done.update(ends)
        batch += 1
    for sink, _ in jobs:
        sink.finish()
    assert bench.found() == by_key(*rows.values())


@pytest.mark.one_of_these("floors")
def test_a_floor_that_another_job_sets_back_is_raised_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job reads the metadata, the other one raises the floor, and the first one writes back what it has read."""
    bench.topics.send(schema(0), put("c", {"id": 1}, 1), truncate(45), put("c", {"id": 2}, 46))
    ahead, behind = (bench.started(notes=NoNotes()) for _ in range(2))
    for sink in (ahead, behind):
        sink.write(bench.topics.read(f"{PREFIX}.schema"), 0, "query")
    renamed = bench.topics.send(schema(47, space="people", version=2))
    put_mapping = Indexes.put_mapping

    def late(indexes: Indexes, name: str, body: Mapping[str, Any]) -> None:
        monkeypatch.setattr(Indexes, "put_mapping", put_mapping)
        ahead.write(bench.topics.read(f"{PREFIX}.users"), 1, "query")
        put_mapping(indexes, name, body)

    monkeypatch.setattr(Indexes, "put_mapping", late)
    behind.write(renamed, 1, "query")
    assert Indexes.put_mapping is put_mapping
    behind.write(bench.topics.send(put("c", {"id": 3}, 30)), 2, "query")
    # The other job never gets as far as the truncation.
    ahead.write(renamed, 2, "query")
    assert bench.found("people") == by_key({"id": 2})
