"""The Spark jobs over a fleet: two replica sets whose buckets move, and tables that equal the union of their masters."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.local.interface import KafkaServer, TarantoolServer
from spark_jobs import run
from spark_jobs.current import read_current
from spark_jobs.history.job import rows_as_of
from spark_jobs.tables import delta as tables
from tests.conftest import TarantoolFactory
from tests.live.test_fleet import SHARDS, Fleet
from tests.live.test_moving_buckets import KEYS, Router, is_waiting, sharded_masters
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TRUNCATE = "box.space.orders:truncate()"


@pytest.fixture
def masters(tarantool_factory: TarantoolFactory) -> dict[str, TarantoolServer]:
    return sharded_masters(tarantool_factory)


class Jobs:
    """The jobs of one test, with their tables and checkpoints."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self._folder, self._fleet = folder, fleet

    def path(self, name: str) -> str:
        """Where a job has its tables."""
        return str(self._folder / name)

    def start(self, job: str, *more: str, name: str = "", prefix: str = "") -> int:
        """Run a job over what is there, and return the exit status."""
        own = ["--path", self.path(name or job), "--checkpoint", self.path(f"{name or job}.checkpoint"), *more]
        if "--changes" in more and job != "current":
            return run.main([job, *own, *(["--available-now"] if job == "audit" else [])])
        kafka = ["--bootstrap-servers", self._fleet.kafka.bootstrap_servers, "--prefix", prefix or self._fleet.prefix]
        return run.main([job, *own, *kafka, "--available-now", "--max-offsets-per-trigger", "300"])


@pytest.fixture(params=["shared", "per_shard"])
def fleet(
    tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer], request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    made = Fleet(tmp_path, kafka, masters, request.param)
    yield made
    made.close()


@pytest.mark.one_of_these("Spark at length", seconds=60)
def test_tables_equal_the_union_of_the_masters(
    spark: SparkSession, fleet: Fleet, masters: dict[str, TarantoolServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is SparkSession.getActiveSession()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    router, jobs = Router(masters, random.Random(seed)), Jobs(tmp_path, fleet)
    router.write(KEYS)
    running = fleet.start()
    wait_for("both stream", fleet.caught_up)
    for _ in range(5):
        router.write(10)
        router.move()
    masters["s1"].eval(TRUNCATE)
    router.write(KEYS // 2)
    wait_for("both have caught up", fleet.caught_up, 300)
    if fleet.topics == "shared":
        wait_for("no bucket waits", lambda: not any(is_waiting(state) for state in fleet.statuses().values()), 300)
    assert running.terminate(120) == 0, running.log_text()
    rows = sorted(tuple(row) for master in masters.values() for row in master.eval("return box.space.orders:select()")[0])
    (check_shared if fleet.topics == "shared" else check_per_shard)(spark, jobs, fleet.prefix, rows, capsys)


def check_shared(
    spark: SparkSession, jobs: Jobs, prefix: str, rows: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of `changes` has all events in one order, and the others are made of it."""
    for job in ("current", "history", "materialize"):
        assert jobs.start(job, name=f"{job} refused") == 1
    assert capsys.readouterr().err.count("is that of a fleet whose shards share their topics (s1, s2)") == 3
    assert jobs.start("changes", prefix=f"{prefix}.s1", name="of one shard") == 1
    assert f"Start with --prefix {prefix}." in capsys.readouterr().err
    assert jobs.start("audit") == 0
    assert jobs.start("changes") == 0
    assert jobs.start("audit", "--changes", jobs.path("changes"), name="audit of the table") == 1
    assert "start `audit` with --bootstrap-servers" in capsys.readouterr().err
    assert jobs.start("changelog") == 0
    assert jobs.start("current", "--changes", jobs.path("changes")) == 0
    assert jobs.start("history_of", "--changes", jobs.path("changes"), name="history") == 0
    orders = f"{jobs.path('current')}/orders"
    assert shown(tables.read(spark, orders)) == rows
    assert shown(read_current(spark, orders)) == rows
    last = tables.read(spark, jobs.path("changes")).agg({"seq": "max"}).collect()[0][0]
    assert shown(rows_as_of(spark, jobs.path("history"), "orders", seq=last)) == rows
    log = tables.read(spark, jobs.path("changelog"))
    assert log.select("shard", "seq").distinct().count() == log.count()


def check_per_shard(
    spark: SparkSession, jobs: Jobs, prefix: str, rows: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each shard has tables of its own, as a daemon's, and its `_bucket` says which rows are the cluster's."""
    assert jobs.start("current") == 1
    assert f"--prefix {prefix}.s1, --prefix {prefix}.s2" in capsys.readouterr().err
    for shard in SHARDS:
        assert jobs.start("current", prefix=f"{prefix}.{shard}", name=shard) == 0
        assert jobs.start("audit", prefix=f"{prefix}.{shard}", name=f"audit {shard}") == 0
        for space in ("orders", "_bucket"):
            read_current(spark, f"{jobs.path(shard)}/{space}").createOrReplaceTempView(f"{shard}_{space}")
    whole = spark.sql(" union all ".join(OWN_ROWS.format(shard=shard) for shard in SHARDS))
    assert shown(whole) == rows


OWN_ROWS = """
    select id, bucket_id, n from {shard}_orders as orders where exists (select 1 from {shard}__bucket as bucket
        where bucket.id = orders.bucket_id and bucket.status in ('active', 'pinned', 'readonly', 'sending'))
"""


def shown(frame: DataFrame) -> list[tuple[int, ...]]:
    """The rows, in order."""
    return sorted(tuple(int(row[name]) for name in ("id", "bucket_id", "n")) for row in frame.collect())
