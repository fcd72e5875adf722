"""What a batch of the job `current` costs beside spaces in which nothing changes: `python -m tests.bench.spark_spaces`.

Each batch changes one space, in which few rows are. The CPU is that of the job with all of its processes, without what it uses in
as much time without any batch. Spark's jobs, and the calls from Python to Java, don't depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import GatewayConnection
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.local.jars import SPARK, jar_folder
from cdc.local.servers import local_servers
from spark_jobs import run
from spark_jobs.contract.source import Topics
from spark_jobs.runner.session import build_session
from tests.bench.spark_events import JsonEncoder, form_record
from tests.bench.spark_load import cpu_seconds, settings_for

_PARTITIONS: Final = 2
_KEYS: Final = 4
_CHANGES: Final = 100
_WARM_UPS: Final = 4
_IDLE_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 1.0
"""Time without a new Spark job after which a batch, and what it sets going, counts as done."""
_TIMEOUT_SECONDS: Final = 120.0


class Calls:
    """Counts the calls to Java of this process."""

    def __init__(self) -> None:
        """Count from now on."""
        self.count = 0
        for kind in (GatewayConnection, ClientServerConnection):
            kind.send_command = self._counting(kind.send_command)

    def _counting(self, send: Any) -> Any:
        def counted(connection: Any, command: str) -> Any:
            self.count += 1
            return send(connection, command)

        return counted


class Spaces:
    """Topics of some spaces, each with a few rows."""

    def __init__(self, bootstrap_servers: str, prefix: str, count: int) -> None:
        """Make the topics, and fill them."""
        self.prefix, self._names = prefix, [f"space_{number:03}" for number in range(count)]
        self._encoder, self._seqs = JsonEncoder(self._names), itertools.count(1)
        topics = [NewTopic(f"{prefix}.{name}", _PARTITIONS, 1) for name in self._names]
        topics += [NewTopic(f"{prefix}.{name}", 1, 1) for name in ("schema", "snapshot")]
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # kept: without it the topics aren't created
        for created in admin.create_topics(topics).values():
            created.result(_TIMEOUT_SECONDS)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": prefix})
        self._producer.init_transactions(_TIMEOUT_SECONDS)
        self._producer.begin_transaction()
        for name in self._names:
            self._producer.produce(f"{prefix}.schema", form_record(name, self._names), key=f'{{"space":"{name}"}}')
            for key in range(_KEYS):
                self._produce(name, "c", key)
        self._producer.commit_transaction(_TIMEOUT_SECONDS)

    def change(self) -> None:
        """Some changes of the first space."""
        self._producer.begin_transaction()
        for number in range(_CHANGES):
            self._produce(self._names[0], "u", number % _KEYS)
        self._producer.commit_transaction(_TIMEOUT_SECONDS)

    def _produce(self, name: str, op: str, key: int) -> None:
        seq = next(self._seqs)
        value = self._encoder.event(op, key, name, seq, seq)
        self._producer.produce(f"{self.prefix}.{name}", value, self._encoder.key(name, key), partition=key % _PARTITIONS)


def measure(
    session: SparkSession, calls: Calls, spaces: Spaces, start: Callable[[], StreamingQuery], rounds: int
) -> dict[str, Any]:
    """The first start, with all tables to be made; the median batch of some rounds, when all is warm; and another start."""
    scheduler: Any = session.sparkContext._jsc.sc().dagScheduler()

    def jobs() -> int:
        return int(scheduler.nextJobId())

    def settled() -> None:
        before = -1
        while before != (now := jobs()):
            before = now
            time.sleep(_QUIET_SECONDS)

    def wait_for(batch: int) -> None:
        while (last := query.lastProgress) is None or last["batchId"] < batch or "addBatch" not in last["durationMs"]:
            if not query.isActive:
                raise RuntimeError(f"the job has ended: {query.exception()}")
            time.sleep(0.05)

    def started(batch: int) -> tuple[float, int]:
        """The CPU and the Spark jobs of a start, up to the end of all that its first batch sets going."""
        wait_for(batch)
        settled()
        return round(cpu_seconds() - used, 1), jobs() - before

    used, before = cpu_seconds(), jobs()
    query = start()
    first = started(0)
    found = []
    for number in range(1, _WARM_UPS + rounds + 1):
        settled()
        used, began, before, counted = cpu_seconds(), time.monotonic(), jobs(), calls.count
        spaces.change()
        wait_for(number)
        seconds = time.monotonic() - began
        settled()
        figures = cpu_seconds() - used, time.monotonic() - began, jobs() - before, calls.count - counted, seconds
        if number > _WARM_UPS:
            found.append(figures)
    used, counted = cpu_seconds(), calls.count
    time.sleep(_IDLE_SECONDS)
    idle, idle_calls = (cpu_seconds() - used) / _IDLE_SECONDS, (calls.count - counted) / _IDLE_SECONDS
    query.stop()
    spaces.change()
    used, before = cpu_seconds(), jobs()
    query = start()
    again = started(_WARM_UPS + rounds + 1)
    query.stop()
    return {
        "cpu_seconds": round(statistics.median(cpu - idle * whole for cpu, whole, *_ in found), 3),
        "spark_jobs": statistics.median(jobs for _, _, jobs, *_ in found),
        "calls": round(statistics.median(calls - idle_calls * whole for _, whole, _, calls, _ in found)),
        "seconds": round(statistics.median(seconds for *_, seconds in found), 2),
        "idle_cpu_share": round(idle, 3),
        "first_start": first,
        "another_start": again,
    }


def figures(options: argparse.Namespace, directory: Path) -> Iterator[dict[str, Any]]:
    """The figures for each number of spaces."""
    jars, known = str(jar_folder(SPARK)), options.table_format
    settings = settings_for(known)
    session = build_session("bench", master="local[2]", jars_directory=jars, settings=settings, table_format=known)
    session.sparkContext.setLogLevel("ERROR")
    calls = Calls()
    with local_servers(directory / "servers") as servers:
        kafka = servers.start_kafka()
        for count in options.spaces:
            spaces = Spaces(kafka.bootstrap_servers, f"bench-{count}", count)
            place = directory / f"{count}"
            given = ["--bootstrap-servers", kafka.bootstrap_servers, "--prefix", spaces.prefix, "--merge-interval", "1 hour"]
            given += ["--path", f"{place}/lake", "--checkpoint", f"{place}/checkpoint", "--table-format", known]
            job = run.parse_options("current", given)
            start = partial(run.start, session, run.JOBS["current"], Topics.of(job), job)
            yield {"format": known, "spaces": count, **measure(session, calls, spaces, start, options.rounds)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="tests.bench.spark_spaces", description=__doc__)
    parser.add_argument("--spaces", type=int, nargs="+", default=[1, 10, 100], help="numbers of spaces (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="batches that are measured (default: %(default)s)")
    parser.add_argument("--table-format", default="delta", help="the format of the job's tables (default: %(default)s)")
    with tempfile.TemporaryDirectory() as directory:
        for found in figures(parser.parse_args(), Path(directory)):
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
