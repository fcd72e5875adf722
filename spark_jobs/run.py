"""`spark-submit spark_jobs/run.py JOB …` or `python -m spark_jobs JOB …`: run a job from Kafka to its sink until it is stopped.

The exit status is 0 when the job has finished, or after SIGINT, SIGTERM or SIGHUP; 1 after an error, or if `audit` found
something; 2 for wrong usage. A job keeps its position in its checkpoint, and the next start resumes from there.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # spark-submit runs this file by its path, so its parent's parent must be searched for the package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.audit.job import Audit
from spark_jobs.audit.sink import IMAGES
from spark_jobs.contract.envelope import NO_CHANGE_EVENT, with_fault_column
from spark_jobs.contract.fleet import with_shards
from spark_jobs.contract.source import Topics
from spark_jobs.current.job import Current
from spark_jobs.errors import JobError, operator_message
from spark_jobs.feeds.cache_invalidation import CacheInvalidation
from spark_jobs.feeds.search_index import SearchIndex
from spark_jobs.history.job import HistoryJob, HistoryOf, ShowHistory
from spark_jobs.history.store import VERSIONS
from spark_jobs.lake.changes import Changelog, Changes
from spark_jobs.lake.lake import CHANGES
from spark_jobs.lake.maintain import Maintain
from spark_jobs.materialize.job import Materialize
from spark_jobs.runner.checkpoint import check_owner, claim, has_begun_batch
from spark_jobs.runner.dead_letters import DeadLetterTable
from spark_jobs.runner.job import FailAtOnce, Job, Sink, Task, query_of_batch
from spark_jobs.runner.lineage import Columns, Lineage, Place
from spark_jobs.runner.options import add_kafka_options, add_spark_options, add_table_options, hide
from spark_jobs.runner.output import prepare, tell
from spark_jobs.runner.own_topics import OwnTopics
from spark_jobs.runner.progress import observed
from spark_jobs.runner.reachable import refusals
from spark_jobs.runner.registered import Names, job_folder
from spark_jobs.runner.report import Log, metrics
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE, build_session
from spark_jobs.runner.watch import Gate, Listener, Watch, last_step
from spark_jobs.tables import delta
from spark_jobs.tables.formats import FORMATS, check_format
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import check_schema, qualified

JOBS: Final[dict[str, Job]] = {
    job.name: job
    for job in (Changelog(), Changes(), Current(), SearchIndex(), CacheInvalidation(), Audit(), HistoryJob(), Materialize())
}
TASKS: Final[dict[str, Task]] = {task.name: task for task in (HistoryOf(), ShowHistory(), Maintain())}

_OWN_TABLES: Final = (CHANGES, VERSIONS, IMAGES)
"""Tables with fixed names under a job's path, by which the format of its tables is known."""
_OFFSETS_PER_TRIGGER: Final = 500_000
_ONCE: Final = {"processingTime": "36500 days"}
"""Trigger for one batch at once, and no other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    prepare()
    options = _options(arguments)
    try:
        session = build_session(
            f"tarantool-cdc {options.job}",
            master=options.master,
            jars_directory=options.jars_dir,
            settings=dict(options.spark_conf),
            table_format=getattr(options, "table_format", delta.NAME),
        )
        if options.job in TASKS:
            locate(session, options)
            return TASKS[options.job].run(session, options)
        return _follow(session, options)
    except (JobError, PySparkException, Py4JError) as error:
        message = operator_message(error, getattr(options, "bootstrap_servers", None))
        tell(hide(f"{options.job}: {message}", options))
        return 1


def start(session: SparkSession, job: Job, topics: Topics, options: argparse.Namespace) -> StreamingQuery:
    """Start a job's query, after the batch that an earlier run has begun, if there is one. Raises JobError."""
    sink = _sink(session, job, topics, options)
    if has_begun_batch(session, options.checkpoint):
        gate = Gate()
        begun = _start(session, job, topics, options, sink, gate, _ONCE)
        Watch(session, begun, gate, check=sink.check).wait(is_one_batch=True)
    return _start(session, job, topics, options, sink, Gate(), _trigger(options))


def parse_options(job: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return a job's options, as `main` would parse them."""
    return _options([job, *arguments])


def locate(session: SparkSession, options: argparse.Namespace) -> None:
    """Set `location`, and where needed `path` and `names`, of the options of a command with tables. Raises JobError."""
    if getattr(options, "path", None) is not None:
        options.path = qualified(session, options.path)
        known = FORMATS[getattr(options, "table_format", delta.NAME)]
        if options.job in JOBS:
            check_format(session, [options.path, *(f"{options.path}/{name}" for name in _OWN_TABLES)], known)
        options.location = Location(path=options.path, format=known)
    elif getattr(options, "catalog", None) is not None:
        check_schema(session, options.catalog)
        prefix = getattr(options, "prefix", "")
        known = FORMATS[options.table_format]
        options.location = Location(schema=options.catalog, prefix=prefix, template=options.table_template, format=known)
        if options.job in JOBS and known is delta and not JOBS[options.job].takes_catalog:
            options.names = Names(session, options.location)
            options.path = job_folder(session, options.location, options.job)
            options.location = Location(path=options.path)


def feed(
    sink: Sink,
    records: DataFrame,
    batch: int,
    query: str,
    control: Sequence[str],
    as_json: Callable[[DataFrame], DataFrame] = lambda records: records,
) -> None:
    """Write a batch to a sink.

    The sink first gets the batch unchanged: a search for records that aren't change events would cost time in every batch. If the
    batch fails at such a record, these records become dead letters, and the sink gets the batch again without them. `as_json`
    converts records in Avro.
    """
    try:
        sink.write(records if sink.reads_avro else as_json(records), batch, query)
    except (PySparkException, Py4JError) as error:
        if isinstance(sink.dead_letters, FailAtOnce) or NO_CHANGE_EVENT not in str(error):
            raise
        # Persisted, for two reasons: the records are read only once; and Spark would otherwise combine the sink's query with the
        # expressions of `with_fault_column` into one query, and plan that for half a minute, however few records there are.
        checked_records = with_fault_column(as_json(records), control).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if not sink.dead_letters.take(checked_records.where("sentence is not null")):
                raise
            sink.write(checked_records.where("sentence is null").drop("sentence"), batch, query)
        finally:
            checked_records.unpersist()


def _sink(session: SparkSession, job: Job, topics: Topics, options: argparse.Namespace) -> Sink:
    locate(session, options)
    sink = job.sink(session, topics, options)
    if options.on_error == "dead-letter":
        path = options.dead_letters or f"{options.checkpoint.rstrip('/')}_dead_letters"
        known = FORMATS[getattr(options, "table_format", delta.NAME)]
        sink.dead_letters = DeadLetterTable(session, qualified(session, path), job.name, known)
    return sink


def _trigger(options: argparse.Namespace) -> Mapping[str, Any]:
    if options.available_now:
        return {"availableNow": True}
    return {"processingTime": options.trigger_interval} if options.trigger_interval else {}


def _start(
    session: SparkSession,
    job: Job,
    topics: Topics,
    options: argparse.Namespace,
    sink: Sink,
    gate: Gate,
    trigger: Mapping[str, Any],
) -> StreamingQuery:
    place = job.place(options)
    owner = {"job": job.name, "prefix": topics.prefix, **({"place": place} if place else {})}
    check_owner(session, options.checkpoint, owner)
    control = topics.controls(job.control_topics)
    own = None
    if topics.bootstrap_servers:
        own = OwnTopics(session, topics, options.checkpoint, control)
        own.begin(job.name, ends_without_topics=options.available_now)
    claim(session, options.checkpoint, owner)  # not before: with a mistyped prefix it would be of no more use
    feeder = _feeder(session, job, topics, own, sink, gate, getattr(options, "names", None))
    knows_seq = sink.knows_seq or (sink.reads_avro and topics.schemas is not None)
    stream = observed(job.stream(session, topics, options), knows_seq=knows_seq)
    writer = stream.writeStream.foreachBatch(feeder)
    writer = writer.queryName(f"tarantool-cdc {job.name}").option("checkpointLocation", options.checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()


def _feeder(
    session: SparkSession, job: Job, topics: Topics, own: OwnTopics | None, sink: Sink, gate: Gate, names: Names | None
) -> Callable[[DataFrame, int], None]:
    control = topics.controls(job.control_topics)

    def feed_next(records: DataFrame, batch: int) -> None:
        query = query_of_batch(session)
        with gate.batch(session):
            if own is not None:
                own.before_batch(batch, job.name)
            feed(sink, topics.own(records), batch, query, control, topics.as_json)
            if names is not None:
                names.give(sink.tables())

    return feed_next


def _follow(session: SparkSession, options: argparse.Namespace) -> int:
    """Run a job until it ends or is stopped, and return the exit status."""
    job = JOBS[options.job]
    job.prepare(session, options)
    topics = Topics.of(options)
    topics.check_spaces(session)
    if options.bootstrap_servers and (reasons := refusals(options.bootstrap_servers)):
        tell(
            f"{job.name}: no connection to --bootstrap-servers from this host ({reasons}). If Spark can't connect either, the job"
            " ends after about three minutes."
        )
    if topics.bootstrap_servers:
        topics = with_shards(session, topics, job.name, takes_fleet=job.takes_fleet(options))
    sink = _sink(session, job, topics, options)
    with contextlib.ExitStack() as stack:
        stack.callback(sink.close)
        has_ended = _batches(session, job, topics, options, sink)
        status: int | None = 0
        if options.available_now and has_ended:
            # Not after the sink is closed, which ends the work beside the batches where it is.
            status = last_step(session, sink.finish, sink.close)
    names: Names | None = getattr(options, "names", None)
    if status is None or names is None:
        return status or 0

    def give() -> int:
        # The work beside the batches, and at the end, creates tables too.
        names.give(sink.tables())
        return 0

    return last_step(session, give) or status


def _batches(session: SparkSession, job: Job, topics: Topics, options: argparse.Namespace, sink: Sink) -> bool:
    """Run a job's batches, and return whether it has ended by itself, not by a signal."""
    with contextlib.ExitStack() as stack:
        listeners: list[Listener] = [stack.enter_context(Log(job.name, shows_progress=options.available_now))]
        if options.metrics_listen is not None:
            host, port = options.metrics_listen
            listeners.append(stack.enter_context(metrics(job.name, sink.dead_letters, host, port, sink.counts)))
        if options.lineage:
            named = Place(f"{topics.prefix}.{job.name}" if topics.prefix else job.name, topics.bootstrap_servers)
            listeners.append(stack.enter_context(Lineage(named, lambda: _columns(session, sink, options))))

        def follow(trigger: Mapping[str, Any], *, is_one_batch: bool = False) -> bool:
            gate = Gate()
            query = _start(session, job, topics, options, sink, gate, trigger)
            watch = Watch(
                session,
                query,
                gate,
                *listeners,
                stop_timeout_seconds=options.stop_timeout,
                check=sink.check,
                newest_seq=sink.newest_seq,
            )
            return watch.wait(is_one_batch=is_one_batch)

        # A batch that an earlier run has begun first runs alone: Spark 4.1.1 ends the query after it (`Watch.wait`). Besides,
        # with availableNow Spark refuses, at every start, to repeat a batch begun before a topic was created that exists now.
        is_half_way = has_begun_batch(session, options.checkpoint)
        return (not is_half_way or follow(_ONCE, is_one_batch=True)) and follow(_trigger(options))


def _columns(session: SparkSession, sink: Sink, options: argparse.Namespace) -> Mapping[str, Columns]:
    """Return the columns of the tables that a sink has made, for the lineage; none of those that can't be read now."""
    location: Location | None = getattr(options, "location", None)
    found: dict[str, Columns] = {}
    for place in sink.tables().values() if location is not None else ():
        try:
            fields = session.read.format(location.format.NAME).load(place).schema.fields if location is not None else []
        except (PySparkException, Py4JError):
            fields = []  # not made yet
        found[place] = [(field.name, field.dataType.simpleString()) for field in fields]
    return found or ({str(location): []} if location is not None else {})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.job in JOBS and JOBS[options.job].reads_tables:
        named = [name for name in ("bootstrap_servers", "prefix") if getattr(options, name) is not None]
        if options.changes is not None and named:
            parser.error("--changes can't be combined with --bootstrap-servers and --prefix: name either Kafka or a table")
        if options.changes is None and len(named) < 2:
            parser.error("--bootstrap-servers and --prefix are required, or --changes")
    if options.job in JOBS:
        if options.value_format == "avro" and options.registry is None:
            parser.error("--value-format avro needs the registry's address: --registry (the daemon's format.registry.url)")
        if options.value_format != "avro" and options.registry is not None:
            parser.error("--registry has an effect only with --value-format avro")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark_jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for job in JOBS.values():
        command = commands.add_parser(job.name, help=job.summary, description=job.summary)
        add_kafka_options(command, required=not job.reads_tables)
        if job.has_tables:
            add_table_options(command)
        _add_query_options(command)
        add_spark_options(command, JARS_DIRECTORY_VARIABLE)
        job.add_options(command)
    for task in TASKS.values():
        command = commands.add_parser(task.name, help=task.summary, description=task.summary)
        add_spark_options(command, JARS_DIRECTORY_VARIABLE)
        task.add_options(command)
    return parser


def _add_query_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, metavar="PATH", help="where this job keeps its position; one per job and --path")
    add(
        "--starting-offsets",
        default="earliest",
        metavar="earliest|latest|JSON",
        help="offsets at which a new checkpoint begins (default: %(default)s)",
    )
    add(
        "--max-offsets-per-trigger",
        type=int,
        default=_OFFSETS_PER_TRIGGER,
        metavar="N",
        help="limit a batch to about this many records; 0: no limit (default: %(default)s)",
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--available-now", action="store_true", help="process all records that are there now, then stop")
    when.add_argument("--trigger-interval", metavar="TEXT", help='start a batch this often ("10 seconds"); default: no pause')
    add(
        "--on-error",
        choices=("fail", "dead-letter"),
        default="fail",
        help="what to do with a record that isn't a change event, or that the sink refuses: end the job (fail), or keep the"
        " record in the table --dead-letters and continue (dead-letter); default: %(default)s",
    )
    add(
        "--stop-timeout",
        type=float,
        metavar="SECONDS",
        help="after a signal (SIGTERM, SIGINT), cancel the running batch if it takes longer than this; default: wait until it is"
        " done",
    )
    add(
        "--lineage",
        action="store_true",
        help="tell a catalog of lineage of the run, by OpenLineage, whose own configuration (OPENLINEAGE_URL,"
        " OPENLINEAGE_CONFIG) says where; needs the extra lineage",
    )
    add(
        "--metrics-listen",
        type=_address,
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus on this address; the default host is 127.0.0.1",
    )
    add("--dead-letters", metavar="PATH", help="table of --on-error dead-letter (default: --checkpoint with _dead_letters)")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} isn't HOST:PORT or PORT")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


if __name__ == "__main__":
    sys.exit(main())
