"""Job `changes` over a fleet whose shards share their topics, and the tables that are made of its table."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current, watermark
from spark_jobs.errors import JobError
from spark_jobs.lake.fleet_changes import FleetChangesSink
from spark_jobs.tables import delta as tables
from tests.spark.messages import FakeTopics, Message, by, event, put, schema, snapshot, truncate, update
from tests.spark.sinks import current_sink

pytestmark = pytest.mark.spark

SHARDS = ("s1", "s2")
TOPICS = Topics("nowhere:9092", "shop", shards=SHARDS)
COLUMNS = (("id", "unsigned"), ("bucket_id", "unsigned"), ("n", "unsigned"))
STATES = (("id", "unsigned"), ("status", "string"), ("destination", "string"), ("opts", "map"))
BUCKETS = 4
SPACE_IDS = {"s1": 512, "s2": 530}


class Cluster:
    """Two shards, what users do there, and buckets that move unseen."""

    def __init__(self, topics: FakeTopics) -> None:
        """Each shard has half of the buckets, and numbers of its own."""
        self.topics = topics
        self.seqs = dict.fromkeys(SHARDS, 0)
        self.owner = {bucket: SHARDS[bucket % 2] for bucket in range(BUCKETS)}
        self.generation = dict.fromkeys(self.owner, 0)
        self.rows: dict[int, dict[str, int]] = {}
        self.changes: dict[int, list[dict[str, int] | None]] = defaultdict(list)
        self._n = 0
        for number, shard in enumerate(SHARDS):
            form = schema(0, space_id=SPACE_IDS[shard], version=3 + number, columns=COLUMNS)
            topics.send(by(shard, form), by(shard, schema(0, space="_bucket", space_id=600, columns=STATES), is_apart=True))
            for bucket in (bucket for bucket, owner in self.owner.items() if owner == shard):
                self.state(shard, bucket, "active")

    def next(self, shard: str) -> int:
        """The shard's next seq."""
        self.seqs[shard] += 1
        return self.seqs[shard]

    def send(self, shard: str, message: Message) -> None:
        """A message of a shard."""
        self.topics.send(by(shard, message))

    def state(self, shard: str, bucket: int, status: str) -> None:
        """A bucket's state in a shard."""
        row = {"id": bucket, "status": status, "destination": None, "opts": {"generation": self.generation[bucket]}}
        self.topics.send(by(shard, put("u", row, self.next(shard), space="_bucket", space_id=600), is_apart=True))

    def write(self, *keys: int, op: str = "c") -> None:
        """One source transaction of the shard that has the first key, of the keys that are there too."""
        shard = self.owner[keys[0] % BUCKETS]
        own = [key for key in keys if self.owner[key % BUCKETS] == shard]
        first = self.seqs[shard] + 1
        for order, key in enumerate(own, 1):
            self._n += 1
            before = self.rows.get(key)
            after = None if op == "d" else {"id": key, "bucket_id": key % BUCKETS, "n": self._n}
            which: dict[str, Any] = {"space_id": SPACE_IDS[shard], "version": 3 + SHARDS.index(shard), "place": (first, order)}
            told = op if op != "c" or before is None else "u"
            self.send(shard, event(told, {"id": key}, self.next(shard), {"before": before, "after": after}, **which))
            self.changes[key].append(after)
            self.rows.pop(key, None)
            if after is not None:
                self.rows[key] = after

    def move(self, bucket: int) -> None:
        """A bucket goes to the other shard; of its rows nothing is seen."""
        here = self.owner[bucket]
        there = SHARDS[here == SHARDS[0]]
        self.generation[bucket] += 1
        for shard, status in ((here, "sending"), (there, "receiving"), (here, "sent"), (there, "active")):
            self.state(shard, bucket, status)
        self.owner[bucket] = there

    def lose(self, shard: str, *, but: int | None = None) -> None:
        """The shard's rows are gone, but one: the model's side of a truncation or a sweep."""
        for key in [key for key in self.rows if self.owner[key % BUCKETS] == shard and key != but]:
            del self.rows[key]
            self.changes[key].append(None)


def run(spark: SparkSession, path: Path, cluster: Cluster, chance: random.Random, done: dict[Any, int], first: int) -> int:
    """Read what there is, each partition at a pace of its own, and return the number of the next batch."""
    topics, batch = cluster.topics, first
    ends = {place: len(log) for place, log in topics.messages.items() if not place[0].endswith(("schema", "snapshot"))}
    while done != ends:
        goal = {place: min(end, done.get(place, 0) + chance.randrange(1, 14)) for place, end in ends.items()}
        if batch > first:
            goal = ends
        records = topics.slice({place: (done.get(place, 0), goal[place]) for place in ends})
        topics.took(records)
        # A new sink, as after a start, and some batches twice.
        for _ in range(chance.choice((1, 1, 2))):
            sink(spark, path, topics).write(records, batch, "query")
        done.update(goal)
        batch += 1
    return batch


def sink(spark: SparkSession, path: Path, topics: FakeTopics) -> FleetChangesSink:
    """The job's sink."""
    return FleetChangesSink(spark, TOPICS, str(path / "changes"), topics, str(path / "plan"))


def events(spark: SparkSession, path: Path, condition: str = "true") -> list[Row]:
    """The events in the fleet's table."""
    return tables.read(spark, str(path / "changes")).where(condition).orderBy("seq").collect()


def shown(frame: DataFrame) -> dict[int, int]:
    """The rows of orders."""
    return {row["id"]: row["n"] for row in frame.collect()}


@pytest.mark.one_of_these("Spark at length", seconds=130)
def test_tables_are_those_of_the_whole_cluster_whatever_moves(spark: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    cluster = Cluster(FakeTopics(spark, shards=SHARDS))
    done: dict[Any, int] = {}
    for _ in range(20):
        cluster.write(*chance.sample(range(12), 3), op=chance.choice(("c", "c", "c", "d")) if len(cluster.rows) == 12 else "c")
        if chance.random() < 0.3:
            cluster.move(chance.randrange(BUCKETS))
    batch = run(spark, tmp_path, cluster, chance, done, 0)
    # A shard's TRUNCATE takes what it has, also what came unseen; then its daemon repeats one row of all, as its state was lost.
    cluster.write(*range(12))
    cluster.write(*range(11, -1, -1))
    # Nothing but `_bucket` tells that these rows, whose last change is another shard's, are the truncation's, too.
    cluster.move(next(bucket for bucket, owner in cluster.owner.items() if owner == "s2"))
    cluster.send("s1", truncate(cluster.next("s1"), space_id=512, version=3))
    cluster.lose("s1")
    cluster.write(*range(12))
    cluster.move(next(bucket for bucket, owner in cluster.owner.items() if owner == "s1"))
    began = cluster.seqs["s2"]
    kept = next(key for key in cluster.rows if cluster.owner[key % BUCKETS] == "s2")
    cluster.send("s2", snapshot("STARTED", began, spaces=("users",), space_id=530))
    cluster.send("s2", put("r", cluster.rows[kept], cluster.next("s2"), space_id=530, version=4))
    cluster.changes[kept].append(cluster.rows[kept])
    cluster.send("s2", snapshot("COMPLETED", cluster.seqs["s2"], spaces=("users",), space_id=530, sweep_seq=began))
    cluster.lose("s2", but=kept)
    run(spark, tmp_path, cluster, chance, done, batch)
    check(spark, tmp_path, cluster, seed)


def check(spark: SparkSession, path: Path, cluster: Cluster, seed: int) -> None:
    """Hold that the fleet's table has all in order, and the tables of `current` the rows."""
    found = events(spark, path)
    assert [row["seq"] for row in found] == list(range(1, len(found) + 1)), seed
    for shard in SHARDS:
        own = [row["shard_seq"] for row in found if row["shard"] == shard]
        assert (own, set(own)) == (sorted(own), {*range(1, cluster.seqs[shard] + 1)} & {*own}), seed
    by_key: dict[int, list[Any]] = defaultdict(list)
    for row in found:
        if row["space"] == "users":
            by_key[int(row["key"].strip('{"id:}'))].append(
                None if row["op"] == "d" else int(row["after"].rpartition(":")[2][:-1])
            )
    wanted = {key: [None if row is None else row["n"] for row in rows] for key, rows in cluster.changes.items()}
    assert by_key == wanted, seed
    assert {row["op"] for row in found} <= {"r", "c", "u", "d"}
    current_sink(spark, TOPICS, str(path / "current"), cluster.topics, changes_path=str(path / "changes")).finish()
    rows = {key: row["n"] for key, row in cluster.rows.items()}
    assert shown(tables.read(spark, str(path / "current" / "users"))) == rows, seed
    assert shown(read_current(spark, str(path / "current" / "users"))) == rows, seed
    assert watermark(spark, str(path / "current")) == len(found)
    assert tables.read(spark, str(path / "current" / "s1._bucket")).where("status = 'active'").count() == sum(
        owner == "s1" for owner in cluster.owner.values()
    )


@pytest.mark.one_of_these("fleets in Spark")
def test_a_removal_that_is_read_late_spares_what_the_next_owner_has_written(spark: SparkSession, tmp_path: Path) -> None:
    cluster = Cluster(FakeTopics(spark, shards=SHARDS))
    topics = cluster.topics
    for key in (0, 4):
        cluster.write(key)
    cluster.send("s1", truncate(cluster.next("s1"), space_id=SPACE_IDS["s1"], version=3))
    cluster.lose("s1")
    cluster.move(0)
    cluster.write(8)
    cluster.state("s2", 3, "active")
    ranges = {place: (0, len(log)) for place, log in topics.messages.items() if not place[0].endswith(("schema", "snapshot"))}
    # Of the TRUNCATE the job takes what is in partition 0; the keys are in the other one.
    rest = topics.slice({("shop.users", 0): ranges.pop(("shop.users", 0))})
    for batch, records in enumerate((topics.slice(ranges), rest)):
        topics.took(records)
        sink(spark, tmp_path, topics).write(records, batch, "query")
    ops = [(row["key"], row["op"]) for row in events(spark, tmp_path, "space = 'users'")]
    assert ops == [('{"id":0}', "c"), ('{"id":8}', "c"), ('{"id":4}', "c"), ('{"id":0}', "d"), ('{"id":4}', "d")]


def test_what_no_order_can_be_right_for_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Events without rows, events that are there twice, and a table with another checkpoint."""
    for name, message, said in (
        ("patch", update(1, [], 2, version=3), "state.images"),
        ("twice", put("c", {"id": 1, "n": 1}, 1, version=3), "are there twice"),
    ):
        topics = FakeTopics(spark, shards=SHARDS)
        first = put("c", {"id": 1, "n": 1}, 1, version=3)
        records = topics.send(*(by("s1", each) for each in (schema(0, columns=COLUMNS, version=3), first, message)))
        with pytest.raises(JobError, match=said):
            sink(spark, tmp_path / name, topics).write(records.where("topic = 'shop.users'"), 0, "query")
    topics = FakeTopics(spark, shards=SHARDS)
    # A space that all shards have, and whose name looks like that of one's own.
    form, first = schema(0, columns=COLUMNS, space="s1.x"), put("c", {"id": 1, "n": 1}, 1, space="s1.x")
    records = topics.send(by("s1", form), by("s1", first))
    topics.took(records)
    sink(spark, tmp_path, topics).write(records, 0, "query")
    assert [(row["seq"], row["shard"], row["shard_seq"], row["space"]) for row in events(spark, tmp_path)] == [
        (1, "s1", 1, "s1.x")
    ]
    with pytest.raises(JobError, match="of another checkpoint"):
        sink(spark, tmp_path, topics).write(records, 0, "another query")
    late = topics.send(by("s2", put("c", {"id": 2, "n": 1}, 9)))
    topics.took(late)
    sink(spark, tmp_path, topics).write(late, 1, "query")
    with pytest.raises(JobError, match=r"event 3 of the shard 's2' in shop.users was read after later ones"):
        sink(spark, tmp_path, topics).write(topics.send(by("s2", put("c", {"id": 3, "n": 1}, 3))), 2, "query")


@pytest.mark.one_of_these("fleets in Spark")
def test_events_that_wait_and_forms_are_kept_beside_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """What waits isn't lost without a word, and `--decimal-scale` is among the forms."""
    topics = FakeTopics(spark, shards=SHARDS)
    topics.send(*(by(shard, schema(0, columns=(("id", "unsigned"), ("n", "decimal")))) for shard in SHARDS))
    before, first = (topics.send(by("s2", put("c", {"id": seq, "n": seq}, seq))) for seq in (1, 2))
    topics.took(first)
    of_table = replace(TOPICS, scales={"users.n": 2})
    made = FleetChangesSink(spark, of_table, str(tmp_path / "changes"), topics, str(tmp_path / "plan"))
    made.write(first, 0, "query")
    assert events(spark, tmp_path) == []
    (form,) = tables.read(spark, str(tmp_path / "changes" / "_control")).collect()
    assert '"typeName":"decimal","position":2,"scale":2' in form["value"]
    alone = FleetChangesSink(spark, replace(TOPICS, shards=("s1",)), str(tmp_path / "changes"), topics, str(tmp_path / "plan"))
    with pytest.raises(JobError, match=r"Events of the shard 's2' wait for others, and the fleet has no such shard any more"):
        alone.write(before.where("false"), 1, "query")
    shutil.move(tmp_path / "changes" / "_held", tmp_path / "elsewhere")
    with pytest.raises(JobError, match=r"_held is gone"):
        sink(spark, tmp_path, topics).write(before, 1, "query")
    shutil.move(tmp_path / "elsewhere", tmp_path / "changes" / "_held")
    topics.took(before)
    sink(spark, tmp_path, topics).write(before, 1, "query")
    assert [row["shard_seq"] for row in events(spark, tmp_path)] == [1, 2]
