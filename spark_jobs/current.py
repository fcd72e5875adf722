"""Job `current`: one Delta table per space, with one row per key and the present state of each row (layout: lake.py).

Append first, merge rarely. Each batch is appended to the table of events, which doesn't depend on the size of any table. A
separate thread merges the events into the tables of the spaces when enough events have gathered (merger.py). `read_current`
combines a table with the unmerged events, so a reader sees appended events at once.
"""

from __future__ import annotations

import argparse
import math
import threading
from collections.abc import Callable, Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.delta import tables
from spark_jobs.errors import JobError
from spark_jobs.lake.changelog import add_deduplicate
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.lake.control import KINDS
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.merger import MIN_UNMERGED, SHARE, SHARE_OF_BACKLOG, Evidence, Merger, evidence
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.seconds import seconds
from spark_jobs.runner.job import Job, Sink
from spark_jobs.runner.registered import Names

AsOf = int | Literal["watermark"] | None

_INTERVAL: Final = 60.0


class Current(Job):
    """The job `current`: its options and its sink."""

    name = "current"
    summary = "keep one Delta table per space with one row per key"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument(
            "--missing-row",
            choices=("fail", "skip"),
            default="fail",
            help="what to do with an UPDATE whose row isn't in the table because the job began too late: end the job, or skip"
            " the UPDATE (default: %(default)s)",
        )
        parser.add_argument(
            "--collated-keys",
            choices=("fail", "apart"),
            default="fail",
            help="what to do with a space whose primary key has a collation, so that the server may treat different texts as the"
            " same key: end the job (fail), or keep a row for each text (apart); default: %(default)s",
        )
        parser.add_argument(
            "--merge-interval",
            type=seconds,
            default=_INTERVAL,
            metavar="TEXT",
            help="merge changes into a space's table this long after its last merge, unless enough changes have gathered before "
            '("90 seconds"). Readers see the changes at once anyway (default: 1 minute)',
        )
        parser.add_argument(
            "--changes",
            metavar="PATH",
            help="read the table that a job `changes` writes, instead of writing a table of events of this job's own",
        )

        parser.add_argument(
            "--fresh-views",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="with --catalog, keep a view per space with its newest rows, named as its table with _fresh at the end"
            " (default: yes)",
        )

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> CurrentSink:
        """See `Job.sink`."""
        names: Names | None = getattr(options, "names", None)
        return CurrentSink(
            session,
            topics,
            options.path,
            KafkaPositions(session, topics, options.checkpoint),
            changes_path=None if options.changes is None else tables.qualified(session, options.changes),
            skips_missing_rows=options.missing_row == "skip",
            always=options.deduplicate == "always",
            interval_seconds=options.merge_interval,
            takes_collated=options.collated_keys == "apart",
            is_background=not options.available_now,
            views=FreshViews.at(session, names.location) if names is not None and options.fresh_views else None,
        )


class CurrentSink(Sink):
    """Sink that appends batches to the table of events, and runs the merges."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: str,
        positions: Positions,
        *,
        changes_path: str | None = None,
        skips_missing_rows: bool = False,
        always: bool = False,
        interval_seconds: float = _INTERVAL,
        takes_collated: bool = False,
        is_background: bool = False,
        share: float | None = None,
        min_unmerged: int = MIN_UNMERGED,
        views: FreshViews | None = None,
    ) -> None:
        """Set the sink up. Raises JobError if the tables were made from another table of events.

        `changes_path` is the path of another job's table of events, None for a table of this job's own. With `is_background` a
        separate thread merges; otherwise `write` does. `share` and `min_unmerged` are the thresholds for a merge (merger.py).
        `views` are renewed after each step of the merger.
        """
        self._lake = Lake(session, path, changes_path)
        self._lake.check_changes(changes_path)
        self._positions = positions
        self._changes = None
        if changes_path is None:
            late = self._lake.is_former()
            place = self._lake.changes_path
            self._changes = ChangesSink(session, topics, place, positions, always=always, may_begin_late=late)
        if share is None:
            share = SHARE if is_background else SHARE_OF_BACKLOG
        if not is_background:
            interval_seconds = math.inf  # batches wait during a merge, so time alone is no reason for one
        merger = Merger(self._lake, topics, interval_seconds, skips_missing_rows, share, min_unmerged, takes_collated)
        self._merger = merger
        self._views = views
        self._steps = _Steps(self._step, interval_seconds) if is_background else None
        self._seen: Evidence | None = None
        self._is_merged = False
        self._has_evidence = False

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        if self._changes is not None:
            self._changes.write(records, batch, query)
        seen = None
        if self._changes is not None:
            seen = evidence(self._lake, self._positions, batch, has_before=not self._has_evidence)
            self._has_evidence = True
        if self._steps is not None:
            self._steps.wake(seen)
        else:
            self._seen = seen
            self._is_merged = seen is not None and seen.is_all
            self._step(seen, merges_all=self._is_merged)

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`: the merged rows of each space."""
        return {space: self._lake.table_path(space) for space in self._lake.control_table.read().forms.names()}

    def finish(self) -> int:
        """See `Sink.finish`. Merges all events that have been appended, even if Kafka has received more since."""
        if self._seen is None and self._changes is not None and (batch := self._positions.last_batch()) is not None:
            # An earlier run may have been killed after this batch, before it merged all events.
            self._seen = evidence(self._lake, self._positions, batch, has_before=True)
        if not self._is_merged:
            self._step(self._seen, merges_all=True)
        return 0

    def _step(self, seen: Evidence | None, *, merges_all: bool = False) -> None:
        self._merger.step(seen, merges_all=merges_all)
        if self._views is not None:
            self._views.renew(self._lake, self._merger.tables())

    def check(self) -> None:
        """See `Sink.check`. Without any batch, too, an earlier run may have left events to merge and views to renew."""
        if self._steps is not None:
            self._steps.check()
            self._steps.start()

    def close(self) -> None:
        """See `Sink.close`. Completes the running merges."""
        if self._steps is not None:
            self._steps.close()


class _Steps:
    """Thread that runs the merger's steps: at the start, after each new batch, and at regular intervals."""

    def __init__(self, step: Callable[[Evidence | None], None], interval_seconds: float) -> None:
        self._step = step
        self._interval_seconds = interval_seconds
        self._seen: Evidence | None = None
        self._is_new = threading.Event()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def wake(self, seen: Evidence | None) -> None:
        """Request a step, with the evidence of the newest batch. Raises the error of an earlier step that failed."""
        self.check()
        self._seen = seen
        self._is_new.set()
        self.start()

    def start(self) -> None:
        """Start the thread, unless it runs already or the steps have been closed."""
        with self._starting:
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(target=self._run, name="merges", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait until the running step has ended, and run no other. If a step failed with a JobError, raise it.

        Other errors are ignored, as the next start repeats the step. One cause is that the same signal ended Java.
        """
        with self._starting:
            self._is_stopped = True
        self._is_new.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._failure, JobError):
            raise self._failure

    def check(self) -> None:
        """Raise the error of a failed step, if there is one. After a failure the thread runs no other step."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                self._step(self._seen)
                if not self._is_stopped:
                    self._is_new.wait(self._interval_seconds)
                    self._is_new.clear()
                if self._is_stopped:
                    return
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failure = error


def read_current(session: SparkSession, path: str, as_of: AsOf = None) -> DataFrame:
    """Return the present rows of a space, including all appended events. Raises JobError.

    `path` is the path of the space's table, `<--path>/<folder>` (folders.py). With a watermark as `as_of`, return the rows as
    they were after the source transaction that ends at this seq; all spaces read with the same watermark show the same moment.
    `as_of="watermark"` stands for the newest published watermark.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    lake = Lake(session, parent)
    up_to = lake.watermark() if as_of == "watermark" else as_of
    return lake.space_rows(lake.space_of(name), up_to).rows()


def watermark(session: SparkSession, path: str) -> int:
    """Return the published watermark of the spaces under a path, for `as_of` of several reads. Raises JobError without one."""
    return Lake(session, path).watermark()
