"""Sinks against random histories, killed, repeated, removed and read in any order: they have what the topics say.

Or the job ends with a sentence. Kills are interruptions of the process at a random step of the sink.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from pymemcache import Client as MemcachedClient
from pyspark.sql import SparkSession

from cdc.local.opensearch import OpenSearch
from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.errors import JobError
from spark_jobs.feeds.cache_invalidation import InvalidationSink
from spark_jobs.feeds.caches import Address as CacheAddress
from spark_jobs.feeds.caches import MemcachedCache, RedisCache
from spark_jobs.feeds.index_sink import SearchIndexSink, Writing
from spark_jobs.feeds.keys import Template
from spark_jobs.feeds.made_indexes import NoNotes
from spark_jobs.feeds.opensearch import Address, Indexes, Writer
from spark_jobs.history.job import HistorySink
from spark_jobs.history.store import History
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.materialize.job import MaterializeSink
from spark_jobs.runner.job import Sink
from spark_jobs.tables import iceberg, state_files
from spark_jobs.tables.format import TableFormat
from tests.spark.formats import in_either_format, load, under
from tests.spark.histories import Story, ends_of_batch
from tests.spark.messages import PREFIX, FakeTopics
from tests.spark.sinks import changelog_sink, current_sink

pytestmark = [pytest.mark.spark, pytest.mark.soak]

STORIES = 5
CHANGES = 120
MOST = 12
"""Records of a partition in one batch."""


class Killed(BaseException):
    """End of a process that no part of it can handle."""


@contextmanager
def kills(random_: random.Random, *steps: tuple[Any, str]) -> Iterator[None]:
    """Sometimes end the process before or after one of these steps (an object and the name of its function)."""
    left = random_.randrange(8) if random_.random() < 0.4 else None

    def step() -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                raise Killed

    with pytest.MonkeyPatch.context() as patched:
        for owner, name in steps:
            patched.setattr(owner, name, _stepped(getattr(owner, name), step))
        yield


def _stepped(function: Callable[..., Any], step: Callable[[], None]) -> Callable[..., Any]:
    def carried_out(*arguments: Any, **options: Any) -> Any:
        step()
        answer = function(*arguments, **options)
        step()
        return answer

    return carried_out


def lead(
    random_: random.Random,
    topics: FakeTopics,
    story: Story,
    started: Callable[[], Sink],
    of_sink: Sequence[tuple[Any, str]],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Let a job read a story, in batches that its lives begin, repeat and finish."""
    done: Mapping[tuple[str, int], int] = {}
    sink, batch = started(), 0
    story.go_on(CHANGES)
    left = list(story.messages)
    while left or any(done.get(place, 0) < len(log) for place, log in topics.messages.items()):
        count = random_.randrange(40)
        topics.send(*left[:count])
        del left[:count]
        ends = ends_of_batch(random_, done, {place: len(log) for place, log in topics.messages.items()}, MOST)
        records = topics.slice({place: (done.get(place, 0), end) for place, end in ends.items()})
        topics.took(records)
        while True:
            try:
                with kills(random_, *of_sink):
                    sink.write(records, batch, "query")
                break
            except Killed:
                sink = started()
        done, batch = ends, batch + 1
        if random_.random() < 0.2:
            sink = started()
            between()
    sink.finish()


def steps(known: TableFormat) -> list[tuple[Any, str]]:
    """The steps at which a sink is killed: before the tables and the files of state are written, and within a table's write."""
    of_format = [(iceberg, "_stage"), (iceberg, "_publish"), (iceberg, "_publish_branch")] if known is iceberg else []
    return [*((known, step) for step in ("append_once", "overwrite", "upsert")), (state_files, "write_whole"), *of_format]


@pytest.mark.parametrize("number", range(STORIES))
@in_either_format
def test_materialize_has_every_change_with_both_rows(
    spark: SparkSession, tmp_path: Path, seed: int, number: int, known: TableFormat
) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=False)
    path = str(tmp_path / "whole")
    lead(
        random_,
        topics,
        story,
        lambda: MaterializeSink(
            spark, Topics("k", PREFIX), under(path, known), state_path=f"{path}/_order", read_topic=topics.read, positions=topics
        ),
        steps(known),
    )
    found = load(spark, known, path).select("seq", "op", "before", "after").orderBy("seq").collect()
    assert [tuple(row) for row in found] == story.expected
    # No event tells that a row has got another key, and a history of these events has each row under its present key.
    history, checkpoint = str(tmp_path / "history"), str(tmp_path / "checkpoint")
    options = ["--path", history, "--checkpoint", checkpoint, "--table-format", known.NAME]
    assert run.main(["history_of", "--changes", path, *options]) == 0
    rows = load(spark, known, f"{history}/{story.space}").where("_end_seq is null").collect()
    assert sorted((row["_key"], row["_row"]) for row in rows) == sorted(
        (key, story.shown(row.values())) for key, row in story.fold().items()
    )


@pytest.mark.parametrize("number", range(STORIES))
@in_either_format
def test_history_has_every_version(spark: SparkSession, tmp_path: Path, seed: int, number: int, known: TableFormat) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    path = str(tmp_path)
    lead(
        random_,
        topics,
        story,
        lambda: HistorySink(spark, Topics("k", PREFIX), under(path, known), publish_every=random_.choice((1, 3))),
        steps(known),
    )
    published = load(spark, known, f"{path}/{story.space}").collect()
    assert sorted(map(str, published)) == sorted(map(str, History(spark, path).intervals(story.space).collect()))
    open_rows = {row["_key"]: row["_row"] for row in published if row["_end_seq"] is None}
    assert open_rows == {key: story.shown(row.values()) for key, row in story.fold().items()}
    begun = sorted((row["_begin_seq"], row["_begin_op"]) for row in published)
    assert begun == [(seq, op) for seq, op, _, after in story.expected if after is not None]


@pytest.mark.parametrize("number", range(STORIES))
def test_search_index_has_the_rows_or_ends(spark: SparkSession, opensearch: OpenSearch, seed: int, number: int) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    name, notes = f"t{uuid.uuid4().hex[:8]}", NoNotes()
    client = Address((opensearch.url,)).connect()
    removed: list[str] = []

    def started() -> SearchIndexSink:
        writing = Writing(Address((opensearch.url,)), None, count_max=random_.choice((3, 1000)), patience_seconds=30)
        template = f"{name}-{{space}}"
        return SearchIndexSink(
            spark, Topics("", PREFIX), writing, template=template, read_topic=topics.read, notes=notes, forget_after_hours=0
        )

    def between() -> None:
        index = f"{name}-space-512"
        if number == 0 and client.indices.exists(index=index):
            client.indices.delete(index=index)
            removed.append(index)

    steps = ((Indexes, "create"), (Indexes, "put_mapping"), (Indexes, "change_aliases"), (Writer, "write"))
    if number == 0:

        def lose() -> None:
            lead(random_, topics, story, started, steps, between)
            between()
            started().write(topics.slice({}), 1000, "query")

        with pytest.raises(JobError, match="new --checkpoint"):
            lose()
        assert removed
        return
    lead(random_, topics, story, started, steps, between)
    client.indices.refresh(index=f"{name}-{story.space}")
    hits = client.search(index=f"{name}-{story.space}", body={"size": 1000})["hits"]["hits"]
    rows = {hit["_id"]: {field: value for field, value in hit["_source"].items() if field != "_cdc"} for hit in hits}
    assert rows == story.fold()


@contextmanager
def pauses(random_: random.Random, *steps: tuple[Any, str]) -> Iterator[None]:
    """Sometimes wait before or after one of these steps, so that steps of two jobs come in any order."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in steps:
            patched.setattr(owner, name, _stepped(getattr(owner, name), lambda: time.sleep(random_.choice((0, 0, 0.02, 0.3)))))
        yield


def side_by_side(seed: int, topics: FakeTopics, story: Story, *jobs: Callable[[], Sink]) -> None:
    """Let jobs read a story at the same time, each in batches of its own."""
    left, lock = list(story.messages), threading.Lock()

    def follow(number: int, started: Callable[[], Sink]) -> None:
        done: Mapping[tuple[str, int], int] = {}
        random_, sink, batch = random.Random(f"{seed} {number}"), started(), 0
        while True:
            with lock:
                count = random_.randrange(20)
                topics.send(*left[:count])
                del left[:count]
                lengths = {place: len(log) for place, log in topics.messages.items()}
                if not left and done == lengths:
                    break
                ends = ends_of_batch(random_, done, lengths, MOST)
                records = topics.slice({place: (done.get(place, 0), end) for place, end in ends.items()})
            sink.write(records, batch, "query")
            done, batch = ends, batch + 1
            if random_.random() < 0.1:
                sink = started()
        sink.finish()

    with ThreadPoolExecutor(len(jobs)) as threads:
        for one in [threads.submit(follow, number, started) for number, started in enumerate(jobs)]:
            one.result()


@pytest.mark.parametrize("number", range(STORIES))
def test_two_search_index_jobs_at_once_end_in_the_rows(
    spark: SparkSession, opensearch: OpenSearch, seed: int, number: int
) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    name, client = f"t{uuid.uuid4().hex[:8]}", Address((opensearch.url,)).connect()

    def job() -> Callable[[], Sink]:
        notes = NoNotes()

        def started() -> SearchIndexSink:
            writing = Writing(Address((opensearch.url,)), None, count_max=3, patience_seconds=30)
            template = f"{name}-{{space}}"
            return SearchIndexSink(spark, Topics("", PREFIX), writing, template=template, read_topic=topics.read, notes=notes)

        return started

    story.go_on(CHANGES)
    with pauses(random_, *((Indexes, step) for step in ("describe", "create", "put_mapping", "change_aliases", "matching"))):
        side_by_side(seed + number, topics, story, job(), job())
    client.indices.refresh(index=f"{name}-{story.space}")
    hits = client.search(index=f"{name}-{story.space}", body={"size": 1000})["hits"]["hits"]
    rows = {hit["_id"]: {field: value for field, value in hit["_source"].items() if field != "_cdc"} for hit in hits}
    assert rows == story.fold()


@pytest.mark.parametrize("job", ["changes", "changelog"])
@pytest.mark.parametrize("number", range(STORIES))
@in_either_format
def test_a_table_of_events_has_each_once(
    spark: SparkSession, tmp_path: Path, seed: int, number: int, job: str, known: TableFormat
) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    path = str(tmp_path / "events")

    def started() -> Sink:
        if job == "changes":
            return ChangesSink(spark, Topics("k", PREFIX), path, topics, table_format=known)
        return changelog_sink(spark, path, PREFIX, known=known)

    lead(random_, topics, story, started, steps(known))
    found = load(spark, known, path).select("seq", "op", "before", "after").orderBy("seq").collect()
    assert [tuple(row) for row in found] == story.expected


@pytest.mark.parametrize("number", range(STORIES))
@in_either_format
def test_current_has_the_rows(spark: SparkSession, tmp_path: Path, seed: int, number: int, known: TableFormat) -> None:
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    path = str(tmp_path)

    def started() -> Sink:
        share = random_.choice((0.0, 0.5, 100.0))
        return current_sink(spark, Topics("k", PREFIX), path, topics, table_format=known, share=share, min_unmerged=1)

    lead(random_, topics, story, started, steps(known))
    rows = read_current(spark, f"{path}/{story.space}").select(*story.names).collect()
    assert {row[story.key]: row.asDict() for row in rows} == {row[story.key]: row for row in story.fold().values()}


@pytest.mark.parametrize("kind", ["redis", "memcached"])
@pytest.mark.parametrize("number", range(STORIES))
def test_no_changed_row_stays_in_a_cache(
    spark: SparkSession, request: pytest.FixtureRequest, seed: int, number: int, kind: str
) -> None:
    """Before each batch the cache has all rows; after it, none that the batch has changed."""
    random_ = random.Random(seed + number)
    topics, story = FakeTopics(spark), Story(random_, has_images=True)
    client: Any
    if kind == "redis":
        url = request.getfixturevalue("redis_server").url
        client = redis.Redis.from_url(url)
    else:
        server = request.getfixturevalue("memcached_server")
        url, client = f"memcached://{server.address}", MemcachedClient(server.address)
    mark = uuid.uuid4().hex[:8]
    names = {identity: f"{mark}:{identity}" for identity in range(8)}
    template = Template.parsed(f"{mark}:{{key}}")
    templates = {space: template.of(space) for space in ("users", "people", "humans")}
    story.go_on(CHANGES)
    left, batch = list(story.messages), 0
    space: str | None = None
    while left:
        count = random_.randrange(1, 20)
        some, left = left[:count], left[count:]
        for name in names.values():
            client.set(name, "old")
        records = topics.send(*some)
        while True:
            sink = InvalidationSink(spark, Topics("", PREFIX), CacheAddress(url), templates, read_topic=topics.read)
            try:
                with kills(random_, (RedisCache, "_empty"), (MemcachedCache, "_empty")):
                    sink.write(records, batch, "query")
                break
            except Killed:
                continue
        batch += 1
        changed: set[int] = set()
        for message in some:
            if message.topic.endswith(".schema"):
                assert message.value is not None
                former, space = space, json.loads(message.value)["source"]["table"]
                changed |= set(range(8)) if former not in (None, space) else set()
            else:
                changed |= set(range(8)) if message.key is None else {json.loads(message.key)["id"]}
        kept = {identity for identity, name in names.items() if client.get(name) is not None}
    assert kept == set(range(8)) - changed
    client.close()
