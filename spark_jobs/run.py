"""`spark-submit spark_jobs/run.py JOB …` or `python -m spark_jobs JOB …`: Kafka → a job's sink, until stopped.

Exit status 0 when all is done or on SIGINT or SIGTERM, 1 after an error, 2 for wrong usage. Where the job stands is in its
checkpoint: the next start goes on from there.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

if not __package__:  # spark-submit runs this file by its path; the package is its folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs import tables
from spark_jobs.changelog import Changelog
from spark_jobs.current import Current
from spark_jobs.errors import JobError, sentence
from spark_jobs.job import Job, Sink
from spark_jobs.session import JARS_DIRECTORY_VARIABLE, build_session
from spark_jobs.source import Topics

JOBS: Final[dict[str, Job]] = {job.name: job for job in (Changelog(), Current())}

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_SIGNAL_CHECK_SECONDS: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        session = build_session(
            f"tarantool-cdc {options.job}",
            master=options.master,
            jars_directory=options.jars_dir,
            settings=dict(options.spark_conf),
        )
        query = start(session, JOBS[options.job], _topics(options), options)
        _await(query)
    except (JobError, PySparkException) as error:
        print(f"{options.job}: {sentence(error)}", file=sys.stderr)
        return 1
    return 0


def start(session: SparkSession, job: Job, topics: Topics, options: argparse.Namespace) -> StreamingQuery:
    """Start a job's query. Raises JobError."""
    options.path = tables.qualified(session, options.path)
    sink = job.sink(session, topics, options)
    writer = topics.stream(session, job.control_topics).writeStream.foreachBatch(_feeder(session, sink))
    writer = writer.queryName(f"tarantool-cdc {job.name}").option("checkpointLocation", options.checkpoint)
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    elif options.trigger_interval:
        writer = writer.trigger(processingTime=options.trigger_interval)
    return writer.start()


def parse_options(job: str, arguments: Sequence[str]) -> argparse.Namespace:
    """A job's options, as `main` would read them."""
    return _parser().parse_args([job, *arguments])


def _feeder(session: SparkSession, sink: Sink) -> Callable[[DataFrame, int], None]:
    def feed(records: DataFrame, batch: int) -> None:
        # Java's thread of the query carries its id, which lives in the checkpoint: another checkpoint is another query.
        query = session.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        if query is None:
            raise JobError("Spark gives no id of the query.")
        sink.write(records, batch, query)

    return feed


def _await(query: StreamingQuery) -> None:
    """Until the query ends by itself, or a signal ends it between two steps of a batch."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signal calls it
        # No more than this: the thread that is interrupted may be in the middle of a call to Java.
        nonlocal stopping
        stopping = True

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not query.awaitTermination(_SIGNAL_CHECK_SECONDS):
            if stopping:
                query.stop()
    except (Py4JError, Py4JNetworkError, PySparkException, ConnectionError):
        # Sent to all processes of a service, the signal ends Java at the same time, and with it the query.
        if not stopping:
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _topics(options: argparse.Namespace) -> Topics:
    return Topics(
        bootstrap_servers=options.bootstrap_servers,
        prefix=options.prefix,
        spaces=options.spaces,
        starting_offsets=options.starting_offsets,
        max_offsets_per_trigger=options.max_offsets_per_trigger,
        kafka_options=dict(options.kafka_option),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark_jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    for job in JOBS.values():
        command = commands.add_parser(job.name, help=job.summary, description=job.summary)
        _add_common_options(command)
        job.add_options(command)
    return parser


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,…", help="the Kafka cluster")
    add("--prefix", required=True, help="the daemon's kafka.topic_prefix")
    add("--path", required=True, help="where the table is (changelog), or the tables are, one folder per space (current)")
    add("--checkpoint", required=True, metavar="PATH", help="where this job remembers how far it is; one per job and --path")
    add(
        "--spaces",
        default=".*",
        type=_regular_expression,
        metavar="REGEX",
        help="of all spaces, those whose name, as it is in the topic, matches as a whole (default: %(default)s)",
    )
    add(
        "--starting-offsets",
        default="earliest",
        metavar="earliest|latest|JSON",
        help="where a new checkpoint begins (default: %(default)s)",
    )
    add("--max-offsets-per-trigger", type=int, metavar="N", help="bound a batch to about this many records")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--available-now", action="store_true", help="process what is there, then stop")
    when.add_argument("--trigger-interval", metavar="TEXT", help='start a batch this often ("10 seconds"); default: at once')
    add(
        "--kafka-option",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help='an option of Spark\'s Kafka source ("minPartitions=8", "kafka.security.protocol=SSL"); repeatable',
    )
    add("--master", help="Spark's master; alone local[*], under spark-submit that command's")
    add("--jars-dir", metavar="PATH", help=f"a folder with the connectors' jars (or ${JARS_DIRECTORY_VARIABLE})")
    add(
        "--spark-conf",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a Spark setting; repeatable",
    )


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} isn't NAME=VALUE")
    return name, value


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


if __name__ == "__main__":
    sys.exit(main())
