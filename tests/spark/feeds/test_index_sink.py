"""The job against a real OpenSearch, with topics in memory."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch as Client
from pyspark.sql import DataFrame, SparkSession

from cdc.local.opensearch import OpenSearch
from spark_jobs.errors import JobError
from spark_jobs.feeds.index_sink import Change, SearchIndexSink, Writing
from spark_jobs.feeds.opensearch import Address, Indexes
from spark_jobs.job import DeadLetters
from spark_jobs.source import Topics
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
        self.sink = self.started()

    def started(self, **options: Any) -> SearchIndexSink:
        """The job as it is after a start."""
        document = options.pop("document", None)
        options = {"template": f"{self.name}-{{space}}", **options}
        writing = Writing(self.address, document, count_max=7, patience_seconds=30)
        self.sink = SearchIndexSink(self._spark, Topics("", PREFIX), writing, read_topic=self.topics.read, **options)
        self.sink.dead_letters = self.letters
        return self.sink

    def send(self, *messages: Message) -> None:
        """One batch."""
        self.sink.write(self.topics.send(*messages), self._batch, "query")
        self._batch += 1

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
    for start in range(0, len(shuffled), 30):
        bench.send(*shuffled[start : start + 30])
        if start == 90:
            bench.started()
    assert bench.found() == by_key(*rows.values())
    # What the truncations have passed is removed, and not only hidden; late events don't bring it back.
    bench.send(put("c", {"id": 5, "name": "late"}, 109), put("c", {"id": 99, "name": "late"}, 59))
    assert bench.found() == by_key(*rows.values())
    name = f"{bench.name}-space-{SPACE_ID}"
    query = {"range": {"_cdc.seq": {"lte": 110}}}

    def left() -> int:
        Indexes(bench.client).remove_matching(name, query)
        bench.client.indices.refresh(index=name)
        return int(bench.client.count(index=name, body={"query": query})["count"])

    wait_until_none(left)


def wait_until_none(left: Callable[[], int]) -> None:
    """The removal goes on by itself: ask until it is done."""
    for _ in range(1000):
        if not left():
            return
    raise AssertionError("it isn't removed")


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

    def left() -> int:
        bench.client.indices.refresh(index=f"{bench.name}-space-{SPACE_ID}")
        return int(bench.client.count(index=f"{bench.name}-space-{SPACE_ID}")["count"])

    wait_until_none(left)


def test_a_completed_snapshot_sweeps(bench: Bench) -> None:
    bench.send(schema(0), put("c", {"id": 1}, 1), put("c", {"id": 2}, 2))
    bench.send(snapshot("STARTED", 2), put("r", {"id": 2}, 3), snapshot("COMPLETED", 3, sweep_seq=2))
    assert bench.found() == by_key({"id": 2})


def test_what_can_not_be_a_document_is_told_with_its_place(bench: Bench) -> None:
    bench.started(body={"mappings": {"properties": {"name": {"type": "integer"}}}})
    bench.send(
        schema(0),
        put("c", {"id": 1, "name": "no number"}, 1),
        update(2, [{"op": "=", "field": "name", "value": 1}], 2),
        put("c", {"id": 3, "name": 3}, 3),
        delete(4, 4),
    )
    assert bench.found() == by_key({"id": 3, "name": 3})
    first, second = sorted(bench.letters.taken, key=lambda letter: letter[1])
    assert "mapper_parsing_exception" in first[2]
    assert '"name":"no number"' in first[1]
    assert first[2].startswith(f"topic {PREFIX}.users, partition ")
    assert 'state.images = "full"' in second[2]


def made_of(row: dict[str, Any], change: Change) -> dict[str, Any] | None:
    """A user's function."""
    if row["name"] == "hidden":
        return None
    return {"key": dict(change.key), "space": change.space, "shout": row["name"].upper()}


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
    assert "KeyError: 'name'" in letter[2]


def test_an_index_of_somebody_else_is_not_touched(bench: Bench) -> None:
    bench.client.indices.create(index=f"{bench.name}-space-{SPACE_ID}", body={"mappings": {"_meta": {"theirs": 1}}})
    with pytest.raises(JobError, match="isn't one of this job's"):
        bench.send(schema(0), put("c", {"id": 1}, 1))
    taken = Bench(bench._spark, OpenSearchAt(bench.address.urls[0]))  # type: ignore[arg-type]
    with pytest.raises(JobError, match="would both be called"):
        taken.send(schema(0), schema(0, space="Users", space_id=513, version=2), put("c", {"id": 1}, 1))


class OpenSearchAt:
    def __init__(self, url: str) -> None:
        self.url = url
