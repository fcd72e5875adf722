"""A job from its start to a signal, by the command itself; in the place of Kafka, files."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from unittest.mock import create_autospec
from urllib.error import URLError

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.runner.job import Job, Sink
from spark_jobs.runner.own_topics import OwnTopics
from spark_jobs.runner.progress import Batch
from spark_jobs.runner.report import Log
from spark_jobs.runner.watch import Gate, Watch, last_step
from tests.spark.messages import put

pytestmark = pytest.mark.spark

STREAM = "binary(value) value, binary('k') key, 'shop.users' topic, 0 partition, 0L offset, timestamp'2026-01-01' timestamp"


class Scripted(Job, Sink):
    """Does in each batch what a test says; `done` are those that it came to the end of. Each file of a folder is a batch."""

    name = "scripted"
    summary = "for tests"
    has_tables = False

    def __init__(self, files: Path) -> None:
        self.files = files
        self.steps: dict[int, Callable[[DataFrame], object]] = {}
        self.done: list[tuple[int, int]] = []
        self.failed: list[int] = []
        self.closed = 0
        self.failure: JobError | None = None
        self.last: Callable[[], int] = lambda: 0

    def add_options(self, parser: argparse.ArgumentParser) -> None: ...

    def check(self) -> None:
        if self.failure is not None and self.done:
            raise self.failure

    def finish(self) -> int:
        return self.last()

    def close(self) -> None:
        self.closed += 1

    def stream(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> DataFrame:  # noqa: ARG002
        lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        return lines.selectExpr(*STREAM.split(", "))

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:  # noqa: ARG002
        return self

    def write(self, records: DataFrame, batch: int, query: str) -> None:  # noqa: ARG002
        try:
            if batch in self.steps:
                self.steps[batch](records)
            self.done.append((batch, records.count()))
        except BaseException:
            self.failed.append(batch)
            raise


def kill(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def _own_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Kafka nobody can say whose a topic is, or which cluster it is."""
    monkeypatch.setattr(run, "OwnTopics", create_autospec(OwnTopics))
    monkeypatch.setattr(run, "with_shards", lambda session, topics, job, *, takes_fleet: topics)  # noqa: ARG005 - as it is called


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a gate is closed."""
    event, close = threading.Event(), Gate.close

    def tell(gate: Gate) -> None:
        close(gate)
        event.set()

    monkeypatch.setattr(Gate, "close", tell)
    return event


@pytest.mark.usefixtures("spark")
def test_a_signal_ends_a_job_behind_the_batch_that_runs_and_a_second_one_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closed: threading.Event
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(4):
        events = [put("c", {"id": number, "seq": 7, "x": ',"seq":99,'}, 10 * number + index) for index in (2, 1)]
        (files / f"{number}.txt").write_text("".join(f"{event.value}\n" for event in events))
        os.utime(files / f"{number}.txt", (number, number))
    job = Scripted(files)
    monkeypatch.setitem(run.JOBS, "scripted", job)
    port = free_port()
    arguments = ["scripted", "--bootstrap-servers", "k:9092", "--prefix", "shop", "--checkpoint", str(tmp_path / "checkpoint")]

    def start() -> int:
        closed.clear()
        return run.main([*arguments, "--metrics-listen", str(port)])

    def signaled(_: DataFrame) -> None:
        kill()
        assert closed.wait(60)

    # The batch goes on to its end; the next one, which is there, finds the gate closed.
    job.steps[0] = signaled
    assert start() == 0
    assert (job.done, job.closed) == ([(0, 2)], 1)
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]
    shown = capsys.readouterr().err
    assert re.search(
        r"^scripted: batch=0 records=2 seconds=\d+\.\d records_per_second=\d+ seq=2 behind_seconds=\d+\.\d$", shown, re.M
    )
    assert "batch=1" not in shown

    def signaled_twice(records: DataFrame) -> None:
        signaled(records)
        kill()
        records.sparkSession.range(1 << 50).where("id < 0").count()

    # A second signal cancels a batch that takes too long; it comes again at the next start.
    job.steps[1] = signaled_twice
    assert start() == 0
    assert (job.done, job.failed) == ([(0, 2)], [1])

    read: list[str] = []

    def scraped(_: DataFrame) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            read.append(answer.read().decode())

    # A job that waits for records is stopped at once.
    def when_idle(log: Log, batch: Batch) -> None:
        told(log, batch)
        if batch.number == 3:
            kill()

    told = Log.batch
    monkeypatch.setattr(Log, "batch", when_idle)
    job.steps = {3: scraped}
    assert start() == 0
    assert job.done == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert 'tarantool_cdc_spark_dead_letters{job="scripted"} 0.0' in read[0]
    assert 'tarantool_cdc_spark_batch_seconds_count{job="scripted"}' in read[0]
    with pytest.raises(URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


@pytest.mark.usefixtures("spark")
def test_a_batch_that_fails_while_the_job_stops_is_an_error_and_so_is_what_fails_beside_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closed: threading.Event
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0").write_text("x\n")
    job = Scripted(tmp_path / "files")
    monkeypatch.setitem(run.JOBS, "scripted", job)

    def fails(records: DataFrame) -> None:
        kill()
        assert closed.wait(60)
        records.selectExpr("raise_error('the disk is full')").collect()

    job.steps[0] = fails
    arguments = ["scripted", "--bootstrap-servers", "k:9092", "--prefix", "shop", "--checkpoint", str(tmp_path / "checkpoint")]
    assert (run.main(arguments), job.done, job.closed) == (1, [], 1)
    assert "scripted: the disk is full" in capsys.readouterr().err

    # Told while no batch comes; the one before is committed.
    job.steps, job.failure = {}, JobError("A merge has failed.")
    assert (run.main(arguments), job.done, job.closed) == (1, [(0, 1)], 2)
    assert capsys.readouterr().err.endswith("scripted: A merge has failed.\n")
    assert [path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")] == ["0"]


@pytest.mark.usefixtures("spark")
def test_a_signal_ends_the_work_behind_the_last_batch_and_the_next_start_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0").write_text("x\n")
    job = Scripted(tmp_path / "files")
    monkeypatch.setitem(run.JOBS, "scripted", job)
    arguments = ["scripted", "--bootstrap-servers", "k:9092", "--prefix", "shop", "--checkpoint", str(tmp_path / "checkpoint")]
    order: list[str] = []
    is_closed = threading.Event()

    def close() -> None:
        order.append("closed")
        is_closed.set()

    def canceled() -> int:
        kill()
        assert is_closed.wait(60)
        raise CancelledError

    def finish() -> int:
        order.append("finished")
        return 1

    monkeypatch.setattr(job, "close", close)
    # A signal closes the sink, which ends its work beside Spark.
    job.last = canceled
    assert (run.main([*arguments, "--available-now"]), job.done) == (0, [(0, 1)])
    assert capsys.readouterr().err.endswith(CANCELED)
    # Otherwise it is closed after this work.
    order.clear()
    job.last = finish
    assert (run.main([*arguments, "--available-now"]), job.done) == (1, [(0, 1)])
    assert order == ["finished", "closed"]


def test_the_error_of_spark_after_a_repeated_batch_ends_nothing_but_that_batch(spark: SparkSession) -> None:
    query = create_autospec(StreamingQuery, instance=True)
    query.lastProgress = None
    query.awaitTermination.side_effect = StreamingQueryException(
        'Cannot invoke "scala.collection.IterableOps.map(…)" because the return value of "scala.Option.get()" is null'
    )
    assert Watch(spark, query, Gate()).wait(is_one_batch=True)
    with pytest.raises(StreamingQueryException):
        Watch(spark, query, Gate()).wait()


CANCELED = "Stopping: the work after the last batch is canceled. The next start does it.\n"


def test_work_behind_the_last_batch_ends_by_a_signal_whatever_spark_is_at(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in stopping]

    def forever() -> int:
        kill(signal.SIGHUP)
        while True:
            spark.range(1 << 50).where("id < 0").count()

    assert last_step(spark, forever) is None
    assert capsys.readouterr().err == CANCELED
    assert [signal.getsignal(number) for number in stopping] == handlers

    def fails() -> int:
        kill()
        raise JobError("The index is full.")

    # An error that isn't the cancellation is one, signal or not; a signal that comes too late changes nothing.
    with pytest.raises(JobError, match="The index is full"):
        last_step(spark, fails)

    def found() -> int:
        kill()
        return 1

    assert last_step(spark, found) == 1
    assert [signal.getsignal(number) for number in stopping] == handlers
