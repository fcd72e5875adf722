"""The job against real caches, with topics in memory."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest
import redis
from pymemcache.client.base import Client
from pyspark.sql import DataFrame, SparkSession

from cdc.local.caches import Memcached, Redis
from spark_jobs import run
from spark_jobs.contract.envelope import Names
from spark_jobs.contract.owner import Owner
from spark_jobs.contract.source import Known, Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds import cache_invalidation, fill
from spark_jobs.feeds.bulk import Place, Refused
from spark_jobs.feeds.cache_invalidation import InvalidationSink, RecentHolds, Stale, chunks
from spark_jobs.feeds.caches import Address
from spark_jobs.feeds.keys import Template
from tests.spark.feeds.test_index_sink import Letters
from tests.spark.messages import COLUMNS, PREFIX, FakeTopics, Message, delete, event, put, schema, snapshot, truncate

REQUIRED = ["--bootstrap-servers", "k:9092", "--prefix", "shop", "--checkpoint", "c"]


def test_options() -> None:
    options = run.parse_options(
        "cache_invalidation", [*REQUIRED, "--to", "redis://r", "--key", "users=u:{mail}", "--key", "a=b{key}"]
    )
    assert dict(options.key) == {"users": Template.parsed("u:{mail}").of("users"), "a": Template.parsed("b{key}").of("a")}


@pytest.mark.parametrize("key", ["users", "users=", "users=user", "=x{id}", "users={id}"])
def test_templates_that_would_not_do_are_wrong_usage(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.parse_options("cache_invalidation", [*REQUIRED, "--to", "redis://r", "--key", key])
    assert "--key" in capsys.readouterr().err


def test_chunks_have_each_key_once_with_its_newest_change() -> None:
    found = [Stale(f"k{n % 3}", "users", "u", n) for n in (0, 4, 2, 3, 1, 5)]
    assert list(chunks(found)) == [[Stale("k0", "users", "u", 3), Stale("k1", "users", "u", 4), Stale("k2", "users", "u", 5)]]


@pytest.mark.parametrize(
    ("template", "key", "row"),
    [
        *(("u:{key}", key, "{}") for key in ("{bad}", "{'id':1}", '{"id":1}{}')),
        ("u:{mail}", "{bad}", '{"mail":"a"}'),
        ("u:{mail}", '{"id":1}', "{'mail':'a'}"),
    ],
)
def test_a_change_whose_key_or_row_is_not_json_is_refused_with_its_place(template: str, key: str, row: str) -> None:
    plan = cache_invalidation.Plan({"users": Template.parsed(template).of("users")}, {(512, 1): ("id", "mail")})
    report = cache_invalidation.Report()
    good = ("c", '{"id":2}', None, '{"id":2,"mail":"b"}', "users", 512, 1, 2, "shop.users", 0, 8)
    changes: Any = [("c", key, None, row, "users", 512, 1, 1, "shop.users", 0, 7), good]
    assert [stale.seq for stale in cache_invalidation.Invalidations(changes, plan, report)] == [2]
    ((place, sentence),) = report.refused
    assert place == Place("shop.users", 0, 7)
    what = "a row of the change isn't JSON" if key == '{"id":1}' else f"the record's key {key!r} isn't JSON"
    assert sentence == f"topic shop.users, partition 0, offset 7: {what}. --on-error dead-letter skips it"


def test_a_renamed_field_is_followed_through_the_forms_and_one_of_no_form_is_refused() -> None:
    names = {(512, 1): ("id", "mail"), (512, 3): ("id", "address"), (513, 2): ("id", "nosuch")}
    changes: Any = [
        ("u", '{"id":1}', '{"id":1,"mail":"a"}', '{"id":1,"mail":"b"}', "users", 512, 1, 1, "shop.users", 0, 7),
        ("u", '{"id":1}', '{"id":1,"address":"b"}', '{"id":1,"address":"c"}', "users", 512, 3, 2, "shop.users", 0, 8),
    ]

    def judged(template: str) -> tuple[set[str], list[str]]:
        plan = cache_invalidation.Plan({"users": Template.parsed(template).of("users")}, names)
        report = cache_invalidation.Report()
        stale = {stale.key for stale in cache_invalidation.Invalidations(changes, plan, report)}
        return stale, [refused.sentence for refused in report.refused]

    for name in ("mail", "address"):
        assert judged(f"u:{{{name}}}") == ({"u:a", "u:b", "u:c"}, [])
    assert judged("u:{nosuch}") == (
        set(),
        [
            f"topic shop.users, partition 0, offset {offset}: the template 'u:{{nosuch}}' names 'nosuch', which no form of the"
            " space has; its fields are id, address. Name one of these in --key"
            for offset in (7, 8)
        ],
    )


def test_reports_survive_as_text() -> None:
    report = cache_invalidation.Report([Refused(Place("t", 1, 2), "why")], {"users": 5}, {(512, 3)}, True)
    assert cache_invalidation._report_of(cache_invalidation._text_of(report)) == report


@pytest.mark.spark
def test_a_sink_is_made_of_the_options(spark: SparkSession) -> None:
    job, topics = run.JOBS["cache_invalidation"], Topics("", PREFIX)
    for url in ("redis://r:1", "memcached://m:1,m:2", "kafka://k:1/topic"):
        sink = job.sink(spark, topics, run.parse_options("cache_invalidation", [*REQUIRED, "--to", url]))
        assert isinstance(sink, InvalidationSink)
    with pytest.raises(JobError, match="must begin with"):
        job.sink(spark, topics, run.parse_options("cache_invalidation", [*REQUIRED, "--to", "http://x"]))


@pytest.mark.spark
def test_changed_rows_are_gone_from_redis_and_others_are_not(spark: SparkSession, redis_server: Redis, seed: int) -> None:
    random_ = random.Random(seed)
    mark = uuid.uuid4().hex[:8]
    client = redis.Redis.from_url(redis_server.url)
    topics = FakeTopics(spark)
    templates = {"users": Template.parsed(f"{mark}:mail:{{name}}").of("users")}
    letters = Letters()

    def started() -> InvalidationSink:
        sink = InvalidationSink(spark, Topics("", PREFIX), Address(redis_server.url), templates, read_topic=topics.read)
        sink.dead_letters = letters
        return sink

    def kept() -> set[str]:
        return {key.decode() for key in client.scan_iter(match="*", count=1000) if mark.encode() in key}

    names = [f"n{n}" for n in range(30)]
    orders = f"orders{mark}"
    for name in names:
        client.set(f"{mark}:mail:{name}", "v")
    for number in range(8):
        client.set(f"{orders}:{number}", "v")
    topics.send(schema(0), schema(0, space=orders, space_id=513, version=2))
    events = [
        event("u", {"id": n}, n + 1, {"before": {"id": n, "name": f"n{n}"}, "after": {"id": n, "name": f"n{n + 10}"}})
        for n in range(5)
    ]
    events += [
        event("d", {"id": 20}, 10, {"before": {"id": 20, "name": "n20"}}),
        put("c", {"id": 21, "name": "n21"}, 11),
        put("c", {"id": 22, "name": None}, 12),
        put("u", {"id": 5}, 13, space=orders, space_id=513, version=2),
        delete(6, 14, space=orders, space_id=513, version=2),
    ]
    random_.shuffle(events)
    sink = started()
    sink.write(topics.send(*events, *events[:3]), 0, "query")
    gone = {f"n{n}" for n in (*range(5), *range(10, 15), 20, 21)}
    expected = {f"{mark}:mail:{name}" for name in names if name not in gone} | {
        f"{orders}:{n}" for n in range(8) if n not in (5, 6)
    }
    assert kept() == expected
    assert letters.taken == []

    # A truncation, and a snapshot that tells what to sweep, concern all rows of their space and no others.
    sink = started()
    sink.write(
        topics.send(truncate(20, space=orders, space_id=513, version=2), snapshot("COMPLETED", 20, sweep_seq=0)), 1, "query"
    )
    assert kept() == {key for key in expected if key.startswith(mark)}
    sink.write(topics.send(snapshot("COMPLETED", 30, snapshot_id="3", sweep_seq=25)), 2, "query")
    assert kept() == set()

    # A batch with events of two forms, between which the template's field got another name.
    topics.send(schema(30, version=3, columns=[("id", "unsigned"), ("title", "string")]))
    for name in names[:2]:
        client.set(f"{mark}:mail:{name}", "v")
    sink.write(topics.send(put("c", {"id": 1, "name": "n0"}, 31), put("c", {"id": 2, "title": "n1"}, 32, version=3)), 3, "query")
    assert (kept(), letters.taken) == (set(), [])

    # What doesn't tell its keys is not passed over.
    sink.write(topics.send(delete(1, 33)), 4, "query")
    ((_, _, sentence),) = letters.taken
    assert "the event has no row before" in sentence
    client.close()


@pytest.mark.spark
def test_rows_of_forms_that_were_removed_tell_their_keys_themselves(spark: SparkSession, redis_server: Redis) -> None:
    """Retention has removed former forms from the schema topic."""
    topics, mark = FakeTopics(spark), uuid.uuid4().hex[:8]
    topics.send(schema(3, version=3, columns=[("id", "unsigned"), ("mail", "string"), ("rank", "unsigned")]))
    client = redis.Redis.from_url(redis_server.url)
    for name in "abcdefg":
        client.set(f"{mark}:{name}", "v")
    templates = {"users": Template.parsed(f"{mark}:{{mail}}").of("users")}
    sink = InvalidationSink(spark, Topics("", PREFIX), Address(redis_server.url), templates, read_topic=topics.read)
    letters = sink.dead_letters = Letters()
    changes = [
        # Its name at that time, then another place, and a name that only the place tells.
        ({"id": 1, "mail": "a"}, {"id": 1, "mail": "b"}, 1, 1),
        ({"id": 1, "rank": 5, "mail": "c"}, {"id": 1, "rank": 5, "mail": None}, 2, 2),
        ({"id": 1, "address": "d"}, {"id": 1, "address": "e"}, 3, 4),
        ({"id": 1, "mail": "f", "rank": 7}, None, 4, 3),
        # A short row has no value, and thus no key.
        ({"id": 1}, {"id": 1}, 5, 5),
    ]
    events = [
        event("u" if after else "d", {"id": 1}, seq, {"before": before, "after": after}, version=version)
        for before, after, seq, version in changes
    ]
    sink.write(topics.send(*events), 0, "query")
    assert [name.decode() for name in client.scan_iter(f"{mark}*")] == [f"{mark}:g"]
    assert letters.taken == []
    # Not even the space is known.
    orders = event("d", {"id": 1}, 6, {"before": {"id": 1, "address": "x"}}, space="users", space_id=513, version=6)
    sink.write(topics.send(orders), 1, "query")
    ((*_, sentence),) = letters.taken
    assert "names 'mail', which no form of the space has; its fields are id, address" in sentence
    client.close()


@pytest.mark.spark
def test_memcached_is_invalidated_and_flushed(spark: SparkSession, memcached_server: Memcached) -> None:
    client = Client(memcached_server.address)
    topics = FakeTopics(spark)
    sink = InvalidationSink(spark, Topics("", PREFIX), Address(f"memcached://{memcached_server.address}"), read_topic=topics.read)
    long = "é" * 300
    for key in ("users:1", "users:2", "a b", long, "elsewhere"):
        client.set(fill.memcached_key(key if key in ("users:1", "users:2", "elsewhere") else f"users:{key}"), b"v", noreply=False)
    sink.write(topics.send(put("u", {"id": 1}, 1), put("u", {"id": "a b"}, 2), put("u", {"id": long}, 3)), 0, "query")
    keys = [fill.memcached_key(f"users:{key}") for key in (1, 2, "a b", long)]
    assert list(client.get_many(keys)) == [b"users:2"]
    sink.write(topics.send(truncate(4)), 1, "query")
    assert client.get_many([*keys, b"elsewhere"]) == {}
    client.close()


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["redis", "memcached"])
def test_holds_outlast_truncations(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        client: Any = redis.Redis.from_url(url)
        fetch: Any = fill.from_redis
    else:
        address = request.getfixturevalue("memcached_server").address
        url, client, fetch = f"memcached://{address}", Client(address), fill.from_memcached
    waited: list[float] = []

    def paused(_: RecentHolds, now: float) -> float:
        waited.append(now)
        return 0

    with monkeypatch.context() as patched:
        # A hold of an earlier process may be there for as long.
        patched.setattr(cache_invalidation.RecentHolds, "pause_seconds", paused)
        topics, space = FakeTopics(spark), f"held{uuid.uuid4().hex[:8]}"
        users: dict[str, Any] = {"space": space, "space_id": 513, "version": 2}
        sink = InvalidationSink(spark, Topics("", PREFIX), Address(url, hold_seconds=60), read_topic=topics.read)
        sink.write(topics.send(put("u", {"id": 1}, 1, **users)), 0, "query")
        sink.write(topics.send(truncate(2, **users), put("c", {"id": 2}, 3, **users)), 1, "query")
        sink.write(topics.send(truncate(4)), 2, "query")
    for key in (f"{space}:1", f"{space}:2"):
        assert [fetch(client, key, lambda row=row: row, ttl_seconds=60) for row in (b"of a replica", b"new")] == [
            b"of a replica",
            b"new",
        ]
    assert fetch(client, f"{space}:3", lambda: b"other", ttl_seconds=60) == b"other"
    assert fetch(client, f"{space}:3", lambda: b"newer", ttl_seconds=60) == b"other"
    assert bool(waited) == (kind == "memcached")
    client.close()


def test_keys_are_remembered_for_as_long_as_they_are_held() -> None:
    holds = RecentHolds(10, 100)
    assert (holds.pause_seconds(104), holds.pause_seconds(111)) == (6, 0)
    holds.add(["a", "b"], 101)
    holds.add([], 105)
    holds.add(["b", "c"], 108)
    assert holds.keys() == ["a", "b", "c"]
    holds.add([], 112)
    assert holds.keys() == ["b", "c"]


@pytest.mark.spark
def test_a_topic_is_told_keys_alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = FakeTopics(spark)
    sent: list[tuple[Any, dict[str, Any]]] = []

    def collect(_: InvalidationSink, told: DataFrame) -> None:
        sent.extend((row["key"], json.loads(row["value"])) for row in told.collect())

    monkeypatch.setattr(InvalidationSink, "_send", collect)
    sink = InvalidationSink(spark, Topics("", PREFIX), Address("kafka://127.0.0.1:9/invalidations"), read_topic=topics.read)
    messages: list[Message] = [
        put("c", {"id": 1, "name": "secret"}, 1),
        put("u", {"id": 1, "name": "secret"}, 2),
        delete(2, 3),
        truncate(4),
    ]
    sink.write(topics.send(*messages), 0, "query")
    assert sorted(sent, key=lambda record: record[1]["seq"]) == [
        ("users:1", {"space": "users", "key": "users:1", "op": "u", "seq": 2}),
        ("users:2", {"space": "users", "key": "users:2", "op": "d", "seq": 3}),
        (None, {"space": "users", "key": "users:*", "op": "t", "seq": 4}),
    ]
    with pytest.raises(JobError, match="names no topic"):
        InvalidationSink(spark, Topics("", PREFIX), Address("kafka://127.0.0.1:9"))


@pytest.mark.parametrize("topic", ["shop.users", "shop.schema", "shop.dlq"])
def test_no_keys_are_sent_to_a_topic_of_the_daemon(topic: str) -> None:
    topics = Topics("", PREFIX, known=Known(Owner(Names(frozenset({PREFIX})), frozenset({"shop.users"}))))
    nothing: Any = None
    sink = InvalidationSink(nothing, topics, Address(f"kafka://127.0.0.1:9/{topic}"))
    with pytest.raises(JobError, match=rf"{topic} is a topic of the daemon itself"):
        sink.write(nothing, 0, "query")


@pytest.mark.spark
def test_spaces_that_swap_their_names_or_get_another_key_leave_no_row_of_before(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = FakeTopics(spark)
    sent: list[tuple[Any, ...]] = []

    def collect(_: InvalidationSink, told: DataFrame) -> None:
        sent.extend((row["key"], *(json.loads(row["value"])[name] for name in ("key", "op", "seq"))) for row in told.collect())

    monkeypatch.setattr(InvalidationSink, "_send", collect)

    def taken(*messages: Message, spaces: str = ".*") -> list[tuple[Any, ...]]:
        sent.clear()
        options = Topics("", PREFIX, spaces)
        sink = InvalidationSink(spark, options, Address("kafka://127.0.0.1:9/invalidations"), read_topic=topics.read)
        sink.write(topics.send(*messages), 0, "query")
        return sorted(sent, key=str)

    assert taken(schema(0), schema(0, space="new", space_id=513, version=2), put("c", {"id": 1}, 1)) == [
        ("users:1", "users:1", "c", 1)
    ]
    swapped = [schema(1, space="old", version=3), schema(1, space="users", space_id=513, version=4)]
    assert taken(*swapped) == [(None, f"{space}:*", "t", 1) for space in ("new", "old", "users")]
    assert taken(*swapped, spaces="users") == [(None, "users:*", "t", 1)]
    # Other names of fields that the key doesn't have are no such change.
    renamed = [("id", "unsigned"), ("title", "string"), *COLUMNS[2:]]
    named: dict[str, Any] = {"space": "users", "space_id": 513, "columns": renamed}
    assert taken(schema(2, version=5, **named)) == []
    assert taken(schema(3, version=6, key=("balance",), **named)) == [(None, "users:*", "t", 3)]
