"""The feeds over a fleet: the index has the rows of the whole cluster, and the cache none that have changed."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from cdc.local.caches import Redis
from cdc.local.opensearch import OpenSearch
from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.feeds import caches
from spark_jobs.feeds.cache_invalidation import InvalidationSink
from spark_jobs.feeds.opensearch import Address
from spark_jobs.lake.changes import ChangesSink
from tests.spark.lake import test_fleet_changes as fleet
from tests.spark.messages import PREFIX, FakeTopics, put, schema, truncate

KEYS = range(12)


@pytest.mark.one_of_these("fleets in Spark")
def test_an_index_and_a_cache_follow_the_whole_cluster(
    spark: SparkSession, tmp_path: Path, opensearch: OpenSearch, redis_server: Redis
) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    cluster = fleet.Cluster(FakeTopics(spark, shards=fleet.SHARDS))
    client, cache = Address((opensearch.url,)).connect(), redis.Redis.from_url(redis_server.url)
    changes = ["--changes", str(tmp_path / "changes"), "--available-now", "--checkpoint"]

    def follow() -> dict[int, dict[str, Any]]:
        """What is found after both jobs have run."""
        to = ["--to", opensearch.url, "--index", f"{name}-{{space}}", "--spaces", "users"]
        assert run.main(["search_index", *changes, str(tmp_path / "index"), *to]) == 0
        to = ["--to", redis_server.url, "--key", f"users={name}:{{id}}"]
        assert run.main(["cache_invalidation", *changes, str(tmp_path / "cache"), *to]) == 0
        client.indices.refresh(index=f"{name}-users")
        rows = [hit["_source"] for hit in client.search(index=f"{name}-users", body={"size": 100})["hits"]["hits"]]
        return {row["id"]: {field: value for field, value in row.items() if field != "_cdc"} for row in rows}

    def cached() -> set[int]:
        return {key for key in KEYS if cache.exists(f"{name}:{key}")}

    for key in KEYS:
        cache.set(f"{name}:{key}", "v")
    read: dict[tuple[str, int], int] = {}
    cluster.write(*KEYS)
    for _ in range(3):
        cluster.write(*reversed(KEYS))
    moved = next(bucket for bucket, owner in cluster.owner.items() if owner == "s2")
    cluster.move(moved)
    # Its next change has a lower number in its shard than the one before.
    cluster.write(moved)
    assert cluster.seqs["s1"] < cluster.seqs["s2"]
    append(spark, tmp_path, cluster, read, 0)
    assert follow() == cluster.rows
    assert not cached()
    # The truncation takes rows whose last change is another shard's, and leaves that shard's own.
    cluster.send("s1", truncate(cluster.next("s1"), space_id=512, version=3))
    cluster.lose("s1")
    for key in KEYS:
        cache.set(f"{name}:{key}", "v")
    append(spark, tmp_path, cluster, read, 1)
    assert follow() == cluster.rows
    assert cached() == cluster.rows.keys() != set()


def append(spark: SparkSession, path: Path, cluster: fleet.Cluster, read: dict[tuple[str, int], int], batch: int) -> None:
    """The job `changes` appends all that hasn't been `read` yet."""
    logs = {place: log for place, log in cluster.topics.messages.items() if not place[0].endswith((".schema", ".snapshot"))}
    records = cluster.topics.slice({place: (read.get(place, 0), len(log)) for place, log in logs.items()})
    cluster.topics.took(records)
    fleet.sink(spark, path, cluster.topics).write(records, batch, "query")
    read.update({place: len(log) for place, log in logs.items()})


def test_another_table_is_refused(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of one daemon, in which a truncation concerns all rows, and none."""
    topics = FakeTopics(spark)
    topics.send(schema(0))
    records = topics.send(put("c", {"id": 1}, 1))
    ChangesSink(spark, Topics("nowhere:9092", PREFIX), str(tmp_path / "changes"), topics).write(records, 0, "query")
    for table in ("changes", "nothing"):
        more = ["--changes", str(tmp_path / table), "--checkpoint", str(tmp_path / "c"), "--to", "redis://127.0.0.1:1"]
        assert run.main(["cache_invalidation", *more]) == 1
        assert "start the job with --bootstrap-servers and --prefix" in " ".join(capsys.readouterr().err.split())


def test_invalidations_are_not_written_among_a_shards_events(spark: SparkSession) -> None:
    sink = InvalidationSink(spark, Topics("", PREFIX), caches.Address(f"kafka://127.0.0.1:9/{PREFIX}.s1.users"))
    with pytest.raises(JobError, match="is a topic of the daemon itself"):
        sink.write(FakeTopics(spark).send(put("c", {"id": 1}, 1)), 0, "query")
