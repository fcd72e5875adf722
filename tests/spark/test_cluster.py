"""`current` and `history` on a cluster of Spark of which a worker is killed while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.local.interface import KafkaServer
from cdc.local.jars import SPARK, jar_folder
from cdc.local.process import ChildProcess
from spark_jobs.current import read_current
from spark_jobs.history.store import History
from spark_jobs.lake.lake import Lake
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE
from tests.live.waiting import wait_for
from tests.spark.messages import Message, put, schema, update
from tests.spark.spark_cluster import spark_cluster
from tests.spark.test_live import Daemon

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1200)]

KEYS = 40
ROUNDS = 9
PATIENCE_SECONDS = 400


def _transaction(first: int, *, has_patches: bool) -> list[Message]:
    """Write each key again, every third one by a patch, which Python on the workers applies."""
    return [
        update(number, [{"op": "=", "field": "balance", "value": first + number}], first + number)
        if has_patches and number % 3 == 0
        else put("u", {"id": number, "name": "changed", "balance": first + number}, first + number)
        for number in range(KEYS)
    ]


@pytest.mark.parametrize("job", ["current", "history"])
def test_the_tables_are_right_though_a_worker_was_killed(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path, job: str
) -> None:
    daemon = Daemon(kafka.bootstrap_servers)
    daemon.create_topics("schema", "snapshot", "users")
    daemon.send(schema(0), *(put("c", {"id": number, "name": "new", "balance": 0}, number + 1) for number in range(KEYS)))
    arguments = [one for one in daemon.arguments(tmp_path) if one != "--available-now"]
    small = [
        "--max-offsets-per-trigger",
        "60",
        "--trigger-interval",
        "0 seconds",
        "--spark-conf",
        "spark.sql.shuffle.partitions=2",
    ]
    table = str(tmp_path / "tables")
    seen = _seen(spark, job, table)
    with spark_cluster(tmp_path / "cluster", workers=2) as cluster:
        process = ChildProcess(
            f"the job {job}",
            [sys.executable, "-m", "spark_jobs", job, *arguments, *small, "--master", cluster.url],
            log_file=tmp_path / f"{job}.log",
            working_directory=Path(__file__).parents[2],
            environment={
                JARS_DIRECTORY_VARIABLE: str(jar_folder(SPARK)),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        try:
            last = KEYS
            for number in range(ROUNDS):
                daemon.send(*_transaction(last + 1, has_patches=job == "current"))
                last += KEYS
                if number == ROUNDS // 3:
                    _wait(process, "the first rows", lambda: seen() > 0)
                    assert all(map(cluster.has_executor, cluster.workers))
                    cluster.workers[0].kill()
            _wait(process, "the last rows", partial(_has, seen, last))
        finally:
            process.kill()
    if job == "current":
        rows = read_current(spark, f"{table}/users", Lake.at(spark, table).watermark()).select("id", "balance").collect()
    else:
        rows = History(spark, table).intervals("users").where("_end_seq is null").select("id", "balance").collect()
    assert sorted((int(row["id"]), int(row["balance"])) for row in rows) == [
        (number, last - KEYS + 1 + number) for number in range(KEYS)
    ]


def _has(seen: Callable[[], int], seq: int) -> bool:
    return seen() >= seq


def _wait(process: ChildProcess, what: str, ask: Callable[[], bool]) -> None:
    wait_for(what, lambda: process.exit_status() is not None or ask(), PATIENCE_SECONDS)
    assert process.exit_status() is None, process.log_tail(60)


def _seen(spark: SparkSession, job: str, path: str) -> Callable[[], int]:
    """Return a function that returns up to which seq the job's tables have events, -1 if there are none yet."""

    def watermark() -> int:
        lake = Lake.at(spark, path)
        return lake.watermark() if lake.has_watermark() else -1

    def newest() -> int:
        history = History(spark, path)
        return int(history.versions().agg({"seq": "max"}).collect()[0][0] or -1) if history.exists() else -1

    return watermark if job == "current" else newest
