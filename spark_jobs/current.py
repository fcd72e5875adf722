"""Job `current`: one Delta table per space with one row per key, as the space is now (lake.py tells how it looks).

Append first, merge rarely: a batch is appended to the table of events, whatever the size of any table; merging it into the
tables of the spaces is done beside that, when enough has gathered (merger.py). Who reads puts the events that aren't merged on
top (`read_current`), so what has been appended is seen at once.
"""

from __future__ import annotations

import argparse
import math
import threading
from collections.abc import Mapping
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import tables
from spark_jobs.changelog import add_deduplicate
from spark_jobs.errors import JobError
from spark_jobs.job import Job, Sink
from spark_jobs.lake.changes import ChangesSink
from spark_jobs.lake.control import KINDS
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.merger import LEAST, SHARE, SHARE_OF_BACKLOG, Evidence, Merger, evidence
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.seconds import seconds
from spark_jobs.source import Topics

AsOf = int | Literal["watermark"] | None

_INTERVAL: Final = 60.0


class Current(Job):
    """See the module."""

    name = "current"
    summary = "keep one Delta table per space with one row per key"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As `Job.add_options`."""
        add_deduplicate(parser)
        parser.add_argument(
            "--missing-row",
            choices=("fail", "skip"),
            default="fail",
            help="what an UPDATE does whose row isn't in the table because the job began too late (default: %(default)s)",
        )
        parser.add_argument(
            "--collated-keys",
            choices=("fail", "apart"),
            default="fail",
            help="what to do with a space whose primary key has a collation, by which different texts may be one key of the"
            " server: end the job, or have a row for each text (default: %(default)s)",
        )
        parser.add_argument(
            "--merge-interval",
            type=seconds,
            default=_INTERVAL,
            metavar="TEXT",
            help="merge changes into a space's table this long after the last merge, if not enough has gathered before (\"90 "
            'seconds"); who reads has them at once anyway (default: 1 minute)',
        )
        parser.add_argument(
            "--changes",
            metavar="PATH",
            help="the table that a job `changes` writes, to be read instead of a table of events of this job's own",
        )

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> CurrentSink:
        """As `Job.sink`."""
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
        )


class CurrentSink(Sink):
    """Appends batches to the table of events, and has them merged."""

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
        least: int = LEAST,
    ) -> None:
        """`changes_path` is that of another job's table of events; with `is_background` a thread merges. Raises JobError.

        `share` and `least` tell when enough has gathered to be merged (merger.py).
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
            interval_seconds = math.inf  # a merge would keep the batches waiting
        merger = Merger(self._lake, topics, interval_seconds, skips_missing_rows, share, least, takes_collated)
        self._steps = _Steps(merger, interval_seconds) if is_background else None
        self._merger = merger
        self._seen: Evidence | None = None
        self._is_merged = False

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """As `Sink.write`."""
        if self._changes is not None:
            self._changes.write(records, batch, query)
        seen = None if self._changes is None else evidence(self._lake, self._positions, batch)
        if self._steps is not None:
            self._steps.wake(seen)
        else:
            self._seen = seen
            self._is_merged = seen is not None and seen.is_all
            self._merger.step(seen, merges_all=self._is_merged)

    def tables(self) -> Mapping[str, str]:
        """As `Sink.tables`: the merged rows of each space."""
        return {space: self._lake.table_path(space) for space in self._lake.control_table.read().forms.names()}

    def finish(self) -> int:
        """As `Sink.finish`; what more has come meanwhile doesn't keep from being merged what is there."""
        if not self._is_merged:
            self._merger.step(self._seen, merges_all=True)
        return 0

    def check(self) -> None:
        """As `Sink.check`."""
        if self._steps is not None:
            self._steps.check()

    def close(self) -> None:
        """As `Sink.close`; merges that are under way are completed."""
        if self._steps is not None:
            self._steps.close()


class _Steps:
    """A thread that takes the merger's steps: whenever there is something new, and every so often."""

    def __init__(self, merger: Merger, interval_seconds: float) -> None:
        self._merger = merger
        self._interval_seconds = interval_seconds
        self._seen: Evidence | None = None
        self._is_new = threading.Event()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def wake(self, seen: Evidence | None) -> None:
        """Have a step taken; raises what one before has failed with."""
        self.check()
        self._seen = seen
        self._is_new.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="merges", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the end of the step that is being taken, and take no other; raises a JobError that one has failed with.

        Whatever else it was, Java's end by the same signal for one, the next start does it again.
        """
        self._is_stopped = True
        self._is_new.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._failure, JobError):
            raise self._failure

    def check(self) -> None:
        """Raises what a step has failed with; no other is taken after that."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                self._merger.step(self._seen)
                if not self._is_stopped:
                    self._is_new.wait(self._interval_seconds)
                    self._is_new.clear()
                if self._is_stopped:
                    return
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failure = error


def read_current(session: SparkSession, path: str, as_of: AsOf = None) -> DataFrame:
    """A space's rows as they are now; `path` is that of its table, `<--path>/<folder>` (folders.py). Raises JobError.

    With `as_of="watermark"`, or a watermark, as they were after the last source transaction up to which everything has been
    read: the same for all spaces that are read with one watermark.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    lake = Lake(session, parent)
    up_to = lake.watermark() if as_of == "watermark" else as_of
    return lake.space_rows(lake.space_of(name), up_to).rows()


def watermark(session: SparkSession, path: str) -> int:
    """The watermark of the spaces under a path, for `as_of` of several reads. Raises JobError."""
    return Lake(session, path).watermark()
