"""What is measured, a section at a time. Each has a master of its own and a prefix of its own in the one Kafka."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdc.local.interface import KafkaServer
from cdc.local.ports import free_port
from cdc.local.process import ChildProcess
from cdc.local.servers import LocalServers
from cdc.local.spark import spark_environment
from cdc.positions.vclock import VClock
from spark_jobs.tables import iceberg
from tests.bench.consumer import LatencyReader, count_rows
from tests.bench.process import DELIVERIES, RUN_TIMEOUT_SECONDS, CheckpointWatch, Daemon, Delivery, Run, Usage, wait_logged
from tests.bench.raw_drain import drain
from tests.bench.replica import Replica
from tests.bench.results import STORE_FACTOR, SYNC_PEER, Result
from tests.bench.shards import ShardDaemons
from tests.bench.spark_peers import PEERS
from tests.bench.store import update_stored
from tests.bench.visitors import visitors
from tests.bench.workload import SPACE, Master, start_master
from tests.spark.formats import FORMATS

_WARM_UP_SECONDS: Final = 3.0
_WARM_UP_ROWS: Final = 20_000
_SETTLE_SECONDS: Final = 5.0
_PAGES: Final = 1_000
_SPARK_TIMEOUT_SECONDS: Final = 1800.0
_SPARK_JOBS: Final[Mapping[str, Sequence[str]]] = {
    "changes": (),
    "changelog": (),
    "current": (),
    "history": (),
    "changes-avro": ("--value-format", "avro"),
    "current-avro": ("--value-format", "avro"),
    "current-iceberg": ("--table-format", "iceberg"),
}
"""Options by name; the part before the hyphen is the job. Without options its topics are in JSON and its tables Delta's."""
_FEED_SHARE: Final = 5
"""Of as many documents or keys as this share of the stored rows, changes are measured: OpenSearch takes its time."""


@dataclass
class Bench:
    """What all sections share. `token` keeps the topics of one run apart from another's."""

    servers: LocalServers
    kafka: KafkaServer
    directory: Path
    token: str
    rows: int
    rounds: int
    rate: int
    latency_seconds: float
    backlog: int
    properties: dict[str, str | int] = field(default_factory=dict)
    """For the daemon's `kafka.properties`."""

    def daemon(self, name: str, master: Master, delivery: Delivery, *, images: bool = False, listen: str = "") -> Daemon:
        """A daemon with a name of this run."""
        prefix = f"bench-{self.token}-{name}"
        return Daemon(
            self.directory,
            prefix,
            master.server,
            self.kafka,
            delivery,
            properties=self.properties,
            images=images,
            listen=listen,
        )

    @contextmanager
    def master(self, name: str, rows: int, *, is_sync: bool = False) -> Iterator[Master]:
        """A master for `rows` rows, stopped afterwards."""
        master = start_master(self.servers, name, rows, is_sync=is_sync)
        with closing(master.server):
            yield master

    def counted(self, result: Result, daemon: Daemon, delivery: Delivery, *, written: int | None = None) -> Result:
        """Add what is found in Kafka, of `written` rows or else the result's.

        Raises RuntimeError if a row is missing, or comes twice where it must not.
        """
        expected = result.rows if written is None else written
        found = count_rows(self.kafka, f"{daemon.prefix}.{SPACE}", expected)
        result.counted, result.repeated = found.rows, found.repeated
        if found.rows != expected or (found.repeated and delivery == "exactly_once"):
            raise RuntimeError(f"{found.rows:,} of {expected:,} rows are in Kafka, {found.repeated:,} of them again")
        return result


def tail_500(bench: Bench) -> Iterator[Result]:
    """The stream of transactions of 500 rows."""
    yield from _tail(bench, "tail, 500 a transaction", "tail-500", 500)


def tail_1(bench: Bench) -> Iterator[Result]:
    """The stream of single rows."""
    yield from _tail(bench, "tail, single rows", "tail-1", 1)


def _tail(bench: Bench, section: str, name: str, rows_per_transaction: int) -> Iterator[Result]:
    """From a cold start: followers take the snapshot of an empty space, the space is filled, they follow one after another."""
    rows = bench.rows
    with bench.master(name, rows) as master:
        with closing(Replica(bench.servers, f"{name}-replica", master, rows)) as replica:
            daemons = [
                (delivery, bench.daemon(f"{name}-{delivery}-{number}", master, delivery))
                for number in range(1, bench.rounds + 1)
                for delivery in DELIVERIES
            ]
            for _, daemon in daemons:
                daemon.catch_up()
            start = VClock(master.server.vclock())
            master.fill(rows, rows_per_transaction=rows_per_transaction)
            lsn = master.lsn
            drain(master.server, start, lsn)  # the first one finds the log and the master's caches cold
            yield _raw(section, master, start, lsn, rows)
            yield Result(section=section, what="replica", rows=rows, seconds=replica.catch_up(lsn))
            if replica.count() != rows:
                raise RuntimeError(f"the replica has {replica.count():,} of {rows:,} rows")
        for index, (delivery, daemon) in enumerate(daemons):
            if index and delivery == DELIVERIES[0]:
                yield _raw(section, master, start, lsn, rows)
            run = daemon.measure_tail(lsn)
            result = _of_run(section, delivery, rows, run, f"{run.commit_count} commits")
            yield bench.counted(result, daemon, delivery)


def _raw(section: str, master: Master, start: VClock, lsn: int, rows: int, what: str = "raw drain") -> Result:
    seconds, byte_count = drain(master.server, start, lsn)
    return Result(section=section, what=what, rows=rows, seconds=seconds, note=f"{byte_count / 1e6:.0f} MB")


def snapshot(bench: Bench) -> Iterator[Result]:
    """The snapshot of a full space."""
    with bench.master("snapshot", bench.rows) as master:
        master.fill(bench.rows, rows_per_transaction=500)
        for number in range(1, bench.rounds + 1):
            for delivery in DELIVERIES:
                daemon = bench.daemon(f"snapshot-{delivery}-{number}", master, delivery)
                run = daemon.measure_snapshot()
                yield bench.counted(_of_run("snapshot", delivery, bench.rows, run), daemon, delivery)


def images(bench: Bench) -> Iterator[Result]:
    """With before and after images: new keys, random updates of as many keys, and the snapshot into an empty store."""
    section, delivery, rows = "images", DELIVERIES[0], bench.rows
    with bench.master("images", rows) as master:
        for number in range(1, bench.rounds + 1):
            daemon = bench.daemon(f"images-{number}", master, delivery, images=True)
            daemon.catch_up()
            start = VClock(master.server.vclock())
            master.fill(rows, rows_per_transaction=500)
            drain(master.server, start, master.lsn)
            yield _raw(section, master, start, master.lsn, rows)
            run = daemon.measure_tail(master.lsn)
            yield bench.counted(_of_run(section, "new keys", rows, run, delivery), daemon, delivery)
            start = VClock(master.server.vclock())
            master.update(rows, rows, rows_per_transaction=500)
            yield _raw(section, master, start, master.lsn, rows)
            run = daemon.measure_tail(master.lsn)
            yield _of_run(section, "random updates", rows, run, delivery)
            daemon = bench.daemon(f"images-snapshot-{number}", master, delivery, images=True)
            yield bench.counted(_of_run(section, "snapshot", rows, daemon.measure_snapshot(), delivery), daemon, delivery)
            master.empty()


def sync(bench: Bench) -> Iterator[Result]:
    """Single rows of a synchronous space, and by turns the same number of rows of an asynchronous one."""
    section, delivery, rows = "sync", DELIVERIES[0], bench.rows
    with bench.master("sync-off", rows) as asynchronous, bench.master("sync-on", rows, is_sync=True) as synchronous:
        masters = {SYNC_PEER: asynchronous, "synchronous": synchronous}
        runs = [
            (number, what, has_images)
            for has_images in (False, True)
            for number in range(1, bench.rounds + 1)
            for what in masters
        ]
        daemons = {}
        for number, what, has_images in runs:
            name = f"{what}-{'images' if has_images else 'none'}-{number}"
            daemons[number, what, has_images] = bench.daemon(name, masters[what], delivery, images=has_images)
            daemons[number, what, has_images].catch_up()
        for what, master in masters.items():
            start = VClock(master.server.vclock())
            master.fill(rows, rows_per_transaction=1)
            drain(master.server, start, master.lsn)
            yield _raw(section, master, start, master.lsn, rows, f"raw drain, {what}")
        for number, what, has_images in runs:
            daemon = daemons[number, what, has_images]
            run = daemon.measure_tail(masters[what].lsn)
            name = f"{what}, images" if has_images else what
            yield bench.counted(_of_run(section, name, rows, run, f"{delivery}, {run.commit_count} commits"), daemon, delivery)


def fleet(bench: Bench) -> Iterator[Result]:
    """New keys of two shards, with images: by turns one daemon alone, and the daemons of both at the same time."""
    section, delivery, rows = "fleet", DELIVERIES[0], bench.rows
    with bench.master("shard-1", rows * bench.rounds) as first, bench.master("shard-2", rows * bench.rounds) as second:
        masters = {"s1": first, "s2": second}
        for number in range(bench.rounds):
            alone = bench.daemon(f"fleet-alone-{number}", first, delivery, images=True)
            servers = {name: master.server for name, master in masters.items()}
            shards = ShardDaemons(bench.directory, f"bench-{bench.token}-fleet-{number}", servers, bench.kafka)
            alone.catch_up()
            shards.catch_up()
            start = VClock(first.server.vclock())
            for place, master in enumerate(masters.values()):
                master.fill(rows, rows_per_transaction=500, first=1 + (2 * number + place) * rows)
            yield _raw(section, first, start, first.lsn, rows)
            yield _of_run(section, "one daemon", rows, alone.measure_tail(first.lsn), delivery)
            runs = shards.measure_tails({name: master.lsn for name, master in masters.items()})
            for name, run in runs.items():
                yield _of_run(section, f"daemon of {name}", rows, run, delivery)
            seconds = max(run.last_commit for run in runs.values()) - min(run.first_row for run in runs.values())
            cpu = sum(run.cpu_seconds for run in runs.values())
            both = Result(section=section, what="both together", rows=2 * rows, seconds=seconds, cpu_seconds=cpu)
            both.counted = count_rows(bench.kafka, f"{shards.prefix}.{SPACE}", 2 * rows).rows
            yield both


def store(bench: Bench) -> Iterator[Result]:
    """Random updates of a store of as many rows as are updated, and of one of ten times as many; without servers (store.py)."""
    section, rows = "store", bench.rows
    for stored_rows in (rows, STORE_FACTOR * rows):
        updated = update_stored(bench.directory / section, stored_rows, rows)
        yield Result(
            section=section,
            what=f"random updates of {stored_rows:,} stored",
            rows=rows,
            seconds=updated.seconds,
            cpu_seconds=updated.cpu_seconds,
            note=f"a file of {updated.file_bytes / 1e6:,.0f} MB",
        )


def replay(bench: Bench) -> Iterator[Result]:
    """A server's files, from its first snapshot to their end."""
    section, delivery, rows = "replay", DELIVERIES[0], bench.rows
    with bench.master(section, rows) as master:
        master.fill(rows, rows_per_transaction=500)
        for number in range(1, bench.rounds + 1):
            for what, has_images in (("no images", False), ("images", True)):
                daemon = bench.daemon(
                    f"replay-{number}-{'images' if has_images else 'none'}", master, delivery, images=has_images
                )
                run = daemon.measure_replay(master.server.work_dir)
                yield bench.counted(_of_run(section, what, rows, run, delivery), daemon, delivery)


def latency(bench: Bench) -> Iterator[Result]:
    """From the master's commit to a read_committed consumer, at a steady rate: the row's timestamp against the clock here."""
    ways: list[tuple[Delivery, bool]] = [(DELIVERIES[0], True), *((delivery, False) for delivery in DELIVERIES)]
    for number, (delivery, has_images) in enumerate(ways):
        what = f"{delivery}{' with images' if has_images else ''}"
        yield _steady(bench, "latency", f"latency-{number}", what, delivery, has_images=has_images)


def pages(bench: Bench) -> Iterator[Result]:
    """The same while nobody looks, and while a thousand pages are open and others send hostile requests."""
    for name, count in (("nobody", 0), ("visitors", _PAGES)):
        what = f"{count:,} pages and hostile requests" if count else "nobody looks"
        yield _steady(bench, "pages", f"pages-{name}", what, DELIVERIES[0], has_images=True, page_count=count)


def _steady(
    bench: Bench, section: str, name: str, what: str, delivery: Delivery, *, has_images: bool, page_count: int = 0
) -> Result:
    """Return the latency and CPU time at a steady rate, with so many open pages."""
    seconds = bench.latency_seconds
    rows = round(bench.rate * (seconds + 2 * _WARM_UP_SECONDS))
    with bench.master(name, rows) as master:
        port = free_port()
        daemon = bench.daemon(name, master, delivery, images=has_images, listen=f"127.0.0.1:{port}" if page_count else "")
        daemon.catch_up()
        watch = CheckpointWatch(bench.kafka, daemon.prefix)
        process = daemon.start()
        usage = Usage(process.pid)
        try:
            wait_logged(process, "following")
            with visitors(port, page_count), closing(LatencyReader(bench.kafka, f"{daemon.prefix}.{SPACE}")) as reader:
                master.start_load(first=1, rate=bench.rate, seconds=seconds + 2 * _WARM_UP_SECONDS)
                began = time.time() + _WARM_UP_SECONDS
                found = reader.read(warm_up_seconds=_WARM_UP_SECONDS, seconds=seconds)
                cpu_seconds = usage.cpu_seconds(began, began + seconds)
            load = master.finish_load(seconds + 60)
            watch.wait(master.lsn, process)  # what isn't read by then is published at the next start
            process.terminate()
        finally:
            process.kill()
            usage.close()
            watch.close()
        counted = count_rows(bench.kafka, f"{daemon.prefix}.{SPACE}", rows)
        if counted.rows != load.rows or load.rows != rows:
            raise RuntimeError(f"{counted.rows:,} of {load.rows:,} rows are in Kafka")
        return Result(
            section=section,
            what=f"{what} at {bench.rate:,} rows/s",
            rows=len(found.milliseconds),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            peak_rss_bytes=usage.peak_rss_bytes,
            peak_anonymous_bytes=usage.peak_anonymous_bytes,
            p50_ms=found.quantile(0.5),
            p99_ms=found.quantile(0.99),
            p999_ms=found.quantile(0.999),
            max_ms=found.quantile(1.0),
            counted=counted.rows,
            repeated=counted.repeated,
            note=f"load up to {load.delay_seconds * 1000:.0f} ms late, consumer's limit {counted.rows_per_second:,.0f}/s",
        )


def backlog(bench: Bench) -> Iterator[Result]:
    """The most memory while Kafka stands still, the master goes on, and the daemon then works the backlog off."""
    rows, warm_up_rows = bench.backlog, _WARM_UP_ROWS
    with bench.master("backlog", rows + warm_up_rows) as master:
        daemon = bench.daemon("backlog", master, "exactly_once")
        daemon.catch_up()
        watch = CheckpointWatch(bench.kafka, daemon.prefix)
        process = daemon.start()
        usage = Usage(process.pid)
        try:
            # With topics and connections in use, so that everything on the way to Kafka is there to be filled.
            master.fill(warm_up_rows, rows_per_transaction=500)
            watch.wait(master.lsn, process)
            bench.kafka.pause()
            try:
                master.fill(rows, rows_per_transaction=500, first=warm_up_rows + 1)
                time.sleep(_SETTLE_SECONDS)
                waiting = usage.rss_bytes
            finally:
                bench.kafka.resume()
            resumed = time.time()
            last_commit = watch.wait(master.lsn, process)
            cpu_seconds = usage.cpu_seconds(resumed, last_commit)
            process.terminate()
        finally:
            process.kill()
            usage.close()
            watch.close()
        result = Result(
            section="backlog",
            what="exactly_once",
            rows=rows,
            seconds=last_commit - resumed,
            cpu_seconds=cpu_seconds,
            peak_rss_bytes=usage.peak_rss_bytes,
            peak_anonymous_bytes=usage.peak_anonymous_bytes,
            note=f"{waiting / 1e6:.0f} MB while Kafka stood still",
        )
        yield bench.counted(result, daemon, "exactly_once", written=rows + warm_up_rows)


def spark(bench: Bench) -> Iterator[Result]:
    """The Spark jobs, warm and into tables that are full already (spark_load.py)."""
    for name, options in _SPARK_JOBS.items():
        yield from _spark_job(bench, "spark", name.partition("-")[0], name, bench.rows, options)


def spark_peers(bench: Bench) -> Iterator[Result]:
    """What `current` is compared with (spark_peers.py)."""
    for name in PEERS:
        yield from _spark_job(bench, "spark-peers", name, name, bench.rows)


def formats(bench: Bench) -> Iterator[Result]:
    """Two jobs with tables of each format, and the bytes in their folders, also those that `maintain` would remove.

    At last `current` on Iceberg from topics in Avro, whose figures compare with those from JSON right before.
    """
    for job in ("changes", "current"):
        for known in FORMATS:
            options = ("--table-format", known)
            yield from _spark_job(bench, "formats", job, f"{job}-{known}", bench.rows, options)
    avro = ("--table-format", iceberg.NAME, "--value-format", "avro")
    yield from _spark_job(bench, "formats", "current", "current-iceberg-avro", bench.rows, avro)


def feeds(bench: Bench) -> Iterator[Result]:
    """The Spark jobs that keep an index and caches, into full ones. The CPU is that of the job, without theirs."""
    search = bench.servers.start_opensearch("bench-opensearch", heap="1g", is_lasting=True)
    with closing(search):
        yield from _spark_job(bench, "feeds", "search_index", "search_index", bench.rows // _FEED_SHARE, ("--to", search.url))
    redis = bench.servers.start_redis("bench-redis")
    with closing(redis):
        yield from _spark_job(bench, "feeds", "cache_invalidation", "redis", bench.rows, ("--to", redis.url))
    memcached = bench.servers.start_memcached("bench-memcached")
    with closing(memcached):
        url = f"memcached://{memcached.address}"
        yield from _spark_job(bench, "feeds", "cache_invalidation", "memcached", bench.rows, ("--to", url))


def _spark_job(bench: Bench, section: str, job: str, name: str, changes: int, options: Sequence[str] = ()) -> Iterator[Result]:
    directory = bench.directory / f"spark-{name}"
    directory.mkdir()
    whole = 0.0
    for phase in _run_spark(bench, directory, job, changes, options):
        whole += phase["seconds"]
        worst = phase.get("max_seconds")
        yield Result(
            section=section,
            what=f"{name}, {phase['phase']}",
            rows=phase["records"],
            seconds=phase["seconds"],
            whole_seconds=whole,
            cpu_seconds=phase["cpu_seconds"],
            max_ms=None if worst is None else worst * 1000,
            note=(f"{phase['bytes']:,} bytes" if "bytes" in phase else "")
            if worst is None
            else f"the median of {len(phase['rounds'])} rounds; the worst took {worst:.2f} s",
        )


def _run_spark(bench: Bench, directory: Path, job: str, changes: int, options: Sequence[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.bench.spark_load", "--job", job]
    command += ["--bootstrap-servers", bench.kafka.bootstrap_servers, "--prefix", f"bench-{bench.token}-{directory.name}"]
    command += ["--directory", str(directory), "--rows", str(bench.rows), "--changes", str(changes)]
    command += options
    file = directory / "phases.log"
    environment = spark_environment()
    # They are for programs that end before better code would have paid for its compilation.
    del environment["PYSPARK_SUBMIT_ARGS"]
    process = ChildProcess(f"the load of {job}", command, log_file=file, working_directory=Path.cwd(), environment=environment)
    try:
        status = process.exit_status(wait_seconds=_SPARK_TIMEOUT_SECONDS)
        if status != 0:
            raise RuntimeError(f"the load of {job} ended with status {status}:\n{process.log_tail()}")
    finally:
        process.kill()
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith('{"phase"')]


def tap(bench: Bench) -> Iterator[Result]:
    """The TAP server's CPU: a dump of all rows from the daemon's store, then as many changes as they come from Kafka."""
    section, rows = "tap", bench.rows
    with bench.master(section, 2 * rows) as master:
        daemon = bench.daemon(section, master, DELIVERIES[0], images=True)
        daemon.catch_up()
        master.fill(rows, rows_per_transaction=500)
        daemon.catch_up()
        port = free_port()
        server = daemon.start_tap(port)
        usage = Usage(server.pid)
        try:
            wait_logged(server, "clients can connect")
            with _tap_client(bench, port, "dump", rows) as client:
                yield _of_tap(section, "dump", rows, client, usage)
            with _tap_client(bench, port, "follow", rows) as client:
                wait_logged(server, "a client has connected", count=2)
                master.fill(rows, rows_per_transaction=500, first=rows + 1)
                daemon.catch_up()
                yield _of_tap(section, "live", rows, client, usage)
        finally:
            server.kill()
            usage.close()


@contextmanager
def _tap_client(bench: Bench, port: int, mode: str, count: int) -> Iterator[ChildProcess]:
    command = [sys.executable, "-m", "tests.bench.tap_client", str(port), mode, str(count)]
    file = bench.directory / f"tap-{mode}.log"
    process = ChildProcess(f"the TAP client that takes a {mode}", command, log_file=file, working_directory=Path.cwd())
    try:
        yield process
    finally:
        process.kill()


def _of_tap(section: str, what: str, rows: int, client: ChildProcess, usage: Usage) -> Result:
    if client.exit_status(wait_seconds=RUN_TIMEOUT_SECONDS) != 0:
        raise RuntimeError(f"the client has ended:\n{client.log_tail()}")
    told = json.loads(client.log_text().splitlines()[-1])
    seconds = told["last"] - told["first"]
    cpu_seconds = usage.cpu_seconds(told["first"], told["last"])
    return Result(
        section=section, what=what, rows=rows, seconds=seconds, cpu_seconds=cpu_seconds, peak_rss_bytes=usage.peak_rss_bytes
    )


def _of_run(section: str, what: str, rows: int, run: Run, note: str = "") -> Result:
    return Result(
        section=section,
        what=what,
        rows=rows,
        seconds=run.seconds,
        whole_seconds=run.whole_seconds,
        cpu_seconds=run.cpu_seconds,
        peak_rss_bytes=run.peak_rss_bytes,
        peak_anonymous_bytes=run.peak_anonymous_bytes,
        note=note,
    )


SECTIONS: Final[dict[str, Callable[[Bench], Iterator[Result]]]] = {
    "tail-500": tail_500,
    "tail-1": tail_1,
    "snapshot": snapshot,
    "images": images,
    "sync": sync,
    "fleet": fleet,
    "store": store,
    "replay": replay,
    "latency": latency,
    "pages": pages,
    "spark": spark,
    "spark-peers": spark_peers,
    "formats": formats,
    "feeds": feeds,
    "backlog": backlog,
    "tap": tap,
}
"""By the names that --only takes, in the order in which they run."""
