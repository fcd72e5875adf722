"""Job `audit`: check that the topics contain each event once, in order, complete, and consistent with the others (sink.py)."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.audit.fleet import ShardSource, ShardTopics, make
from spark_jobs.audit.sink import AuditSink
from spark_jobs.audit.sources import CONTROL_TOPICS, Places, Source, TableSource, TopicSource, first_offsets_in
from spark_jobs.contract.source import Topics
from spark_jobs.runner.checkpoint import query_id
from spark_jobs.runner.job import Job, Sink
from spark_jobs.tables.places import table_at
from spark_jobs.tables.state_files import state_folder


class Audit(Job):
    """The job `audit`."""

    name = "audit"
    summary = "look for events that are missing, doubled, out of order or altered"
    control_topics = CONTROL_TOPICS
    reads_tables = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        parser.add_argument(
            "--delivery",
            choices=("exactly_once", "at_least_once"),
            default="exactly_once",
            help="the daemon's kafka.delivery: with at_least_once events may come again (default: %(default)s)",
        )
        parser.add_argument(
            "--grace-seconds",
            type=float,
            default=60,
            metavar="N",
            help="how long a seq may be missing before Kafka is asked for it again (default: %(default)s)",
        )
        parser.add_argument(
            "--changes",
            metavar="PATH|NAME",
            help="check the table that a job `changes` writes, instead of Kafka: then omit --bootstrap-servers and --prefix",
        )

    def prepare(self, session: SparkSession, options: argparse.Namespace) -> None:
        """See `Job.prepare`."""
        if options.changes is not None:
            options.changes = table_at(session, options.changes)
            options.bootstrap_servers, options.prefix = "", TableSource(session, options.changes).prefix()

    def takes_fleet(self, options: argparse.Namespace) -> bool:  # noqa: ARG002 - with any options
        """See `Job.takes_fleet`."""
        return True

    def place(self, options: argparse.Namespace) -> str:
        """See `Job.place`."""
        return str(options.location) if options.changes is None else f"{options.location} --changes {options.changes}"

    def stream(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> DataFrame:
        """See `Job.stream`."""
        if options.changes is not None:
            return TableSource(session, options.changes).stream(topics, options.checkpoint)
        return super().stream(session, topics, options)

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> Sink:
        """See `Job.sink`."""

        def first_offsets() -> Places:
            return first_offsets_in(session, options.checkpoint)

        def audit(kind: type[AuditSink], of: Topics, source: Source, state: str) -> AuditSink:
            return kind(
                session,
                of,
                options.location,
                source,
                lambda: query_id(session, options.checkpoint),
                repeats=options.delivery == "at_least_once",
                grace_seconds=options.grace_seconds,
                state_path=state_folder(options.location, options.checkpoint, state),
            )

        if options.changes is not None:
            return audit(AuditSink, topics, TableSource(session, options.changes), "state")
        if topics.shards:

            def source(of: ShardTopics) -> Source:
                return ShardSource(session, of, first_offsets)

            return make(topics, audit, source, lambda names: topics.read(session, *names))
        return audit(AuditSink, topics, TopicSource(session, topics, first_offsets=first_offsets), "state")
