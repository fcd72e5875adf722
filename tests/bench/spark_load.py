"""One Spark job, warm and into full tables: what a record costs, and how soon it is seen.

Runs in a process of its own, with one Spark session for everything, and prints a JSON object per phase. The table is filled,
then the same number of changes again warms everything up; only what comes after that is measured. The records are written here
as the daemon writes them, a thousand times faster than a master could make them: three spaces (70, 25 and 5 %), four partitions
each, transactions of one to five changes with both images, random keys.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from cdc.local.jars import SPARK, jar_folder
from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.current import read_current
from spark_jobs.runner.session import build_session
from tests.bench.spark_events import AvroEncoder, Encoder, JsonEncoder, form_record
from tests.bench.spark_peers import PEERS
from tests.fakes.registry import FakeRegistry

PARTITIONS: Final = 4
BATCH: Final = 500_000
FRESH: Final = 256
_WARM_UPS: Final = 4
_ROUNDS: Final = 10
SPACES: Final = ("users",) * 14 + ("orders",) * 5 + ("audit",)
_TIMEOUT_SECONDS: Final = 120.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Load:
    """A stream of changes of `rows` keys."""

    def __init__(self, bootstrap_servers: str, prefix: str, rows: int, encoder: Encoder) -> None:
        """Makes the topics."""
        self.prefix = prefix
        self._encoder = encoder
        self.seq = 0
        self._rows = rows
        self._chance = random.Random(1)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": prefix, "linger.ms": 20})
        spaces = sorted(set(SPACES))
        topics = [NewTopic(f"{prefix}.{space}", PARTITIONS, 1) for space in spaces]
        topics += [NewTopic(f"{prefix}.{name}", 1, 1) for name in ("schema", "snapshot")]
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        for created in admin.create_topics(topics).values():
            created.result(_TIMEOUT_SECONDS)
        self._producer.init_transactions(_TIMEOUT_SECONDS)
        self._producer.begin_transaction()
        for space in spaces:
            self._producer.produce(f"{prefix}.schema", form_record(space, spaces), key=f'{{"space":"{space}"}}')
        self._producer.commit_transaction(_TIMEOUT_SECONDS)

    def fill(self) -> None:
        """An insert of each key."""
        self._send(("c", number) for number in range(self._rows))

    def change(self, count: int) -> None:
        """Updates of random keys."""
        self._send(("u", self._chance.randrange(self._rows)) for _ in range(count))

    def _send(self, changes: Iterator[tuple[str, int]]) -> None:
        self._producer.begin_transaction()
        first, left = self.seq + 1, self._chance.randrange(1, 6)
        for op, number in changes:
            self.seq += 1
            if left == 0:
                first, left = self.seq, self._chance.randrange(1, 6)
                if self.seq % 50_000 < 5:
                    self._producer.commit_transaction(_TIMEOUT_SECONDS)
                    self._producer.begin_transaction()
            left -= 1
            space = SPACES[number % len(SPACES)]
            value, key = self._encoder.event(op, number, space, self.seq, first), self._encoder.key(space, number)
            self._produce(f"{self.prefix}.{space}", value, key, number // len(SPACES) % PARTITIONS)
        self._producer.commit_transaction(_TIMEOUT_SECONDS)

    def _produce(self, topic: str, value: bytes, key: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key=key, partition=partition)
                return
            except BufferError:
                self._producer.poll(0.1)


def cpu_seconds() -> float:
    """User and system time of this process, of Java, and of Java's Python workers, those that have ended included."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            stats[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    while more := {pid for pid, stat in stats.items() if int(stat[1]) in family} - family:
        family |= more
    return sum(int(ticks) for pid in family for ticks in stats[pid][11:15]) / _TICKS


def settings_for(table_format: str) -> dict[str, str]:
    """The settings of a session for tables of a format."""
    # The quicker one makes no files of checksums. Iceberg asks for a file system's scheme, which it hasn't got.
    files = "LocalFileSystem" if table_format == "iceberg" else "RawLocalFileSystem"
    return {"spark.driver.memory": "2g", "spark.hadoop.fs.file.impl": f"org.apache.hadoop.fs.{files}"}


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The phases, each with its records, seconds and CPU seconds."""
    peer = PEERS.get(options.job)
    settings = settings_for(options.table_format) | ({} if peer is None else peer.settings(options.directory))
    jars, known = str(jar_folder(SPARK)), options.table_format
    session = build_session("bench", master="local[2]", jars_directory=jars, settings=settings, table_format=known)
    session.sparkContext.setLogLevel("ERROR")
    encoder, formats = encoding(options.value_format, options.prefix)
    load = Load(options.bootstrap_servers, options.prefix, options.rows, encoder)
    checkpoint = f"{options.directory}/checkpoint"
    if peer is not None:
        spaces = sorted(set(SPACES))
        yield from _phases(
            options,
            load,
            lambda: peer.process(session, options.bootstrap_servers, options.prefix, spaces, checkpoint, BATCH),
            [FRESH] * 3,
        )
        return
    formats += [] if options.to is not None else ["--table-format", options.table_format]
    given = ["--bootstrap-servers", options.bootstrap_servers, "--prefix", options.prefix, "--checkpoint", checkpoint]
    given += ["--path", f"{options.directory}/lake"] if options.to is None else ["--to", options.to]
    given += formats
    job = run.parse_options(options.job, [*given, "--available-now"])
    topics = replace(Topics.of(job), max_offsets_per_trigger=BATCH)
    yield from _phases(options, load, lambda: run.start(session, run.JOBS[options.job], topics, job).awaitTermination())
    if options.job == "current":
        yield from _until_seen(session, load, topics, run.parse_options(options.job, given))


def encoding(value_format: str, prefix: str) -> tuple[Encoder, list[str]]:
    """Return what encodes the records, and the options of a job that reads them. The registry is there as long as the process."""
    spaces = sorted(set(SPACES))
    if value_format == "json":
        return JsonEncoder(spaces), []
    registry = FakeRegistry()
    encoder = AvroEncoder(spaces, prefix, lambda wanted: registry.register(wanted.subject, wanted.text))
    return encoder, ["--value-format", "avro", "--registry", registry.url]


def _phases(
    options: argparse.Namespace, load: Load, process: Callable[[], object], more: Iterable[int] = ()
) -> Iterator[dict[str, Any]]:
    """What is processed into empty tables, into full ones, and again when all is warm; then after some more changes each."""
    phases = [
        ("fill", load.fill, options.rows),
        ("warm up", load.change, options.changes),
        ("warm", load.change, options.changes),
        *((f"{count} records", load.change, count) for count in more),
    ]
    for name, send, count in phases:
        send() if name == "fill" else send(count)  # type: ignore[operator]
        started, used = time.monotonic(), cpu_seconds()
        process()
        phase = _phase(name, count, time.monotonic() - started, cpu_seconds() - used)
        files = (Path(folder, file) for folder, _, names in os.walk(options.directory) for file in names)
        yield {**phase, "bytes": sum(file.stat().st_size for file in files if "checkpoint" not in file.parts)}


def _until_seen(session: SparkSession, load: Load, topics: Topics, job: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """How long it takes until those who ask for the newest rows see a few changes of full tables, while the job runs on.

    All spaces are asked, one after another, again and again; the first times warm up what asks. Seconds are those of the median
    round, CPU is that of the mean one. A read of all rows of all spaces comes last.
    """
    query = run.start(session, run.JOBS[job.job], topics, job)
    spaces = [f"{job.path}/{space}" for space in sorted(set(SPACES))]
    rounds: list[float] = []
    cpu = 0.0
    for number in range(_WARM_UPS + _ROUNDS):
        before = load.seq
        load.change(FRESH)
        started, used, seen = time.monotonic(), cpu_seconds(), before
        while seen < load.seq:
            asked = (read_current(session, space).where(f"_seq > {before}").agg({"_seq": "max"}) for space in spaces)
            seen = max(frame.collect()[0][0] or 0 for frame in asked)
            if not query.isActive:
                raise RuntimeError(f"the job has ended: {query.exception()}")
        if number >= _WARM_UPS:
            rounds.append(time.monotonic() - started)
            cpu += cpu_seconds() - used
    query.stop()
    seen_phase = _phase(f"{FRESH} records until they are seen", FRESH, statistics.median(rounds), cpu / _ROUNDS)
    yield {**seen_phase, "max_seconds": max(rounds), "rounds": [round(seconds, 2) for seconds in rounds]}
    for _ in range(2):
        started, used = time.monotonic(), cpu_seconds()
        rows = sum(read_current(session, space).where("_row is not null").count() for space in spaces)
    yield _phase("a read of all rows", rows, time.monotonic() - started, cpu_seconds() - used)


def _phase(name: str, records: int, seconds: float, cpu: float) -> dict[str, Any]:
    return {"phase": name, "records": records, "seconds": seconds, "cpu_seconds": cpu}


def main() -> int:
    """Measure one job."""
    parser = argparse.ArgumentParser(prog="tests.bench.spark_load", description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--job", required=True, choices=sorted([*run.JOBS, *PEERS]))
    parser.add_argument("--rows", type=int, required=True, help="so many keys are stored first")
    parser.add_argument("--changes", type=int, required=True, help="so many changes of them are measured")
    parser.add_argument("--table-format", default="delta", help="the format of the job's tables (default: %(default)s)")
    parser.add_argument("--value-format", choices=("json", "avro"), default="json", help="format of keys and values")
    parser.add_argument("--to", metavar="URL", help="the index or the cache of a job that writes no tables")
    for phase in measure(parser.parse_args()):
        print(json.dumps(phase), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
