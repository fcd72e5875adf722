"""Job `history`: every version of every row, with the events and times between which it held (store.py describes the tables).

A batch is appended without looking at stored rows or rewriting them, so late and repeated batches are
harmless, and their cost doesn't grow with the table. The end of a version is computed from the events after it when it is read.
After `--publish-every` batches, and at the end with --available-now, the job also writes the intervals to one table per space.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.control_topics import with_value_as_key
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.errors import JobError
from spark_jobs.history.intervals import SOURCE_FIELDS, as_of, control_versions, versions, versions_of
from spark_jobs.history.store import History
from spark_jobs.lake.event_table import AppendRules, EventTable
from spark_jobs.runner.checkpoint import claim
from spark_jobs.runner.job import Job, Sink, Task, query_of_batch
from spark_jobs.runner.options import add_decimal_scale, add_table_options, add_unfit_values
from spark_jobs.tables import delta
from spark_jobs.tables.formats import check_format, format_of
from spark_jobs.tables.found import PREFIX
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import beside, table_at

_PUBLISH_EVERY: Final = 100


class HistoryJob(Job):
    """The job `history`."""

    name = "history"
    summary = "keep every version of every row, with the events and times between which it held"
    control_topics = ("schema", "snapshot")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_decimal_scale(parser)
        add_unfit_values(parser)
        parser.add_argument(
            "--publish-every",
            type=int,
            default=_PUBLISH_EVERY,
            metavar="N",
            help="update the tables of intervals after N batches, and at the end with --available-now;"
            " 0: never (default: %(default)s)",
        )

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> HistorySink:
        """See `Job.sink`."""
        fails = options.unfit_values == "fail"
        return HistorySink(session, topics, options.location, publish_every=options.publish_every, fails_at_unfit=fails)


class HistorySink(Sink):
    """Sink that appends batches, each once."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        place: str | Location,
        *,
        publish_every: int = _PUBLISH_EVERY,
        fails_at_unfit: bool = False,
    ) -> None:
        """If `publish_every` is 0, no tables of intervals are written.

        With `fails_at_unfit` a value that no column can hold is an error when they are.
        """
        self._history = History(session, place)
        # A control record's `seq` is its offset, at which a topic that was created again has another record.
        identity = ("seq", "row")
        self._table = EventTable(
            session,
            self._history.versions_table,
            topics.prefix,
            ("space",),
            spaces=topics.spaces,
            rules=AppendRules(identity=identity),
            table_format=self._history.format,
        )
        self._topics = topics
        self._control = [topics.control(name) for name in HistoryJob.control_topics]
        self._publish_every = publish_every
        self._fails_at_unfit = fails_at_unfit
        self._unpublished = 0
        self._is_prepared = False
        self._published: dict[str, str] = {}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        told, names = with_value_as_key(records, self._control), self._topics.names
        changes = parse(told, source_fields=SOURCE_FIELDS, control=self._control, names=names)
        self._table.append(versions(changes), batch, query)
        if not self._is_prepared:
            self._history.prepare(self._topics.scales)
            self._is_prepared = True
        self._unpublished += 1
        if self._publish_every and self._unpublished >= self._publish_every:
            self._publish()

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return self._published

    def finish(self) -> int:
        """See `Sink.finish`."""
        # Without a batch too: an earlier run may have been killed after its last batch, before it published that.
        if self._publish_every and self._history.exists():
            self._publish()
        return 0

    def _publish(self) -> None:
        for name in self._history.spaces():
            table = self._history.bring_up_to_date(name, UnfitValues(fails=True) if self._fails_at_unfit else None)
            if isinstance(table, str):
                self._published[name] = table
        self._history.empty_former()
        self._unpublished = 0


class HistoryOf(Task):
    """Task that makes a history from a table of events; for streams of patches, from the table that job `materialize` writes."""

    name = "history_of"
    summary = "append new events of a table (of changes or materialize) to a history"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Task.add_options`."""
        parser.add_argument("--changes", required=True, metavar="PATH|NAME", help="the table of events")
        add_table_options(parser)
        parser.add_argument("--checkpoint", required=True, metavar="PATH", help="where this task stores its progress")

    def run(self, session: SparkSession, options: argparse.Namespace) -> int:
        """See `Task.run`."""
        source = table_at(session, options.changes)
        known = format_of(session, source)
        state = None if known is None else known.state(session, source)
        prefix = None if state is None else state.properties.get(PREFIX)
        if known is None or prefix is None:
            raise JobError(
                f"There is no table of events in {source}: --changes is the --path of a job `changes` or `materialize`."
            )
        claim(session, options.checkpoint, {"job": self.name, "prefix": prefix, "place": f"{source} {options.location}"})
        if options.path is None:
            _schema(options, self.name)
        check_format(session, [f"{options.path}/_versions"] if options.path else [], options.location.format)
        history = History(session, replace(options.location, prefix=prefix))
        table = EventTable(session, history.versions_table, prefix, ("space",), table_format=history.format)

        def append(rows: DataFrame, batch: int) -> None:
            table.append(versions_of(rows), batch, query_of_batch(session))

        # Old events that `maintain` removes are in the history already.
        writer = (
            known.stream(session, source, options.checkpoint)
            .writeStream.foreachBatch(append)
            .option("checkpointLocation", options.checkpoint)
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        history.add_control(control_versions(known.read(session, beside(source, "_control"))))
        history.prepare({})  # the records of forms have the scales that the table of events was made with
        for name in history.spaces():
            history.bring_up_to_date(name)
        history.empty_former()
        return 0


class ShowHistory(Task):
    """Task that prints rows as they were."""

    name = "show_history"
    summary = "print a space's rows as they were after an event or at a time, or all their intervals, as JSON lines"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Task.add_options`."""
        add_table_options(parser)
        parser.add_argument("--prefix", help="the daemon's prefix, if the schema of --catalog has histories of several")
        parser.add_argument("--space", required=True, help="the space's name")
        when = parser.add_mutually_exclusive_group()
        when.add_argument("--as-of-seq", type=int, metavar="N", help="right after this event (`source.seq`)")
        when.add_argument(
            "--as-of-time",
            type=_moment,
            metavar="TIME",
            help='after all changes that the master had made by then ("2026-01-31T12:00:00+03:00"; without an offset in UTC)',
        )

    def run(self, session: SparkSession, options: argparse.Namespace) -> int:
        """See `Task.run`."""
        place = options.path or _schema(options, self.name)
        history = History(session, place, options.prefix)
        found = history.intervals(options.space)
        if options.as_of_time is not None:
            options.as_of_seq = history.seq_at(options.as_of_time)
        if options.as_of_seq is not None:
            found = as_of(found, options.as_of_seq)
        # Only what is printed: Python can't hold the columns' times outside of the years 1 to 9999.
        shown = found.orderBy("_begin_seq", "_key").select("_key", "_row", "_begin_seq", "_end_seq")
        for row in shown.toLocalIterator():
            end = "null" if row["_end_seq"] is None else row["_end_seq"]
            print(f'{{"key":{row["_key"]},"row":{row["_row"]},"begin_seq":{row["_begin_seq"]},"end_seq":{end}}}')
        return 0


def rows_as_of(
    session: SparkSession,
    path: str,
    space: str,
    *,
    seq: int | None = None,
    time: datetime | None = None,
    prefix: str | None = None,
) -> DataFrame:
    """Return a space's rows as they were right after an event, or at a time of the master's clock. Raises JobError."""
    if (seq is None) == (time is None):
        raise JobError("Name either the seq of an event or a time.")
    history = History(session, path, prefix)
    return as_of(history.intervals(space), history.seq_at(time) if seq is None else seq)


def _schema(options: argparse.Namespace, task: str) -> str:
    """Return the schema of --catalog. Raises JobError for Delta's tables, which job `history` keeps in a folder."""
    if options.location.format is delta:
        raise JobError(
            f"{task} finds a history of the format delta only by its --path: tarantool-cdc/<prefix>/history in the location of"
            " the schema. --catalog is for --table-format iceberg."
        )
    return ".".join(options.catalog)


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-01-31T12:00:00Z") from error
    return moment.isoformat() if moment.tzinfo is not None else f"{moment.isoformat()}+00:00"
