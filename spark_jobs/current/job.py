"""Job `current`: one table per space, with one row per key and the present state of each row (layout: lake.py).

Append first, merge rarely. Each batch is appended to the table of events, which doesn't depend on the size of any table. A
separate thread (steps.py) merges the events into the tables of the spaces when enough events have gathered (merger.py).
`read_current` (reading.py) combines a table with the unmerged events, so a reader sees appended events at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.contract.source import Topics
from spark_jobs.current.steps import Steps
from spark_jobs.errors import JobError
from spark_jobs.lake.changes import CHANGES_OF_READERS, ChangesSink, add_deduplicate
from spark_jobs.lake.clustering import Clustering, cluster_by
from spark_jobs.lake.control import KINDS
from spark_jobs.lake.event_table import AppendRules
from spark_jobs.lake.fresh_views import FreshViews
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.merger import SHARE, SHARE_OF_BACKLOG, Evidence, Merger, MergeRules, evidence
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.lake.seconds import seconds
from spark_jobs.runner.job import Job, Sink
from spark_jobs.runner.options import add_decimal_scale, add_unfit_values
from spark_jobs.runner.output import tell
from spark_jobs.runner.registered import Names
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables.formats import check_format
from spark_jobs.tables.places import table_at

_INTERVAL: Final = 60.0
_NOT_ALL_MERGED: Final = (
    "current: the tables are as of seq {seq}. Later events are kept, and the next run merges them: their transactions may go on"
    " in records that came after this run had begun."
)


class Current(Job):
    """The job `current`: its options and its sink."""

    name = "current"
    summary = "keep one table per space with one row per key"
    control_topics = KINDS

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        add_deduplicate(parser)
        add_decimal_scale(parser)
        add_unfit_values(parser)
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
            "--cluster-by",
            action="append",
            default=[],
            type=cluster_by,
            metavar="SPACE=FIELD,…",
            help="have `maintain` put rows together that are alike in these fields, so that reads by their values skip files; the"
            " first field counts most. SPACE= alone ends it; repeatable",
        )
        parser.add_argument(
            "--changes",
            metavar="PATH|NAME",
            help="read the table that a job `changes` writes, instead of writing a table of events of this job's own",
        )
        parser.add_argument(
            "--fresh-views",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="with --catalog, keep a view per space with its newest rows, named as its table with _fresh at the end"
            " (default: yes)",
        )

    def takes_fleet(self, options: argparse.Namespace) -> bool:
        """See `Job.takes_fleet`. The table of a job `changes` has the events of all shards in one order."""
        return options.changes is not None

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> CurrentSink:
        """See `Job.sink`."""
        if options.changes is not None and options.decimal_scale:
            raise JobError("Give --decimal-scale to the job `changes` whose table --changes names: it keeps the rows' forms.")
        elsewhere = None if options.changes is None else table_at(session, options.changes)
        if elsewhere is not None:
            check_format(session, [elsewhere], options.location.format)
        lake = Lake(session, options.location, elsewhere)
        lake.check_changes(elsewhere)
        positions, changes = KafkaPositions(session, topics, options.checkpoint), None
        if elsewhere is None:
            rules = AppendRules(looks_for_all=options.deduplicate == "always")
            changes = ChangesSink(
                session,
                topics,
                lake.changes_table,
                positions,
                layout=CHANGES_OF_READERS,
                rules=rules,
                table_format=lake.format,
            )
        # Batches wait during a merge of a backlog, so time alone is no reason for one.
        is_backlog = options.available_now
        rules_of_merges = MergeRules(
            interval_seconds=math.inf if is_backlog else options.merge_interval,
            share=SHARE_OF_BACKLOG if is_backlog else SHARE,
            skips_missing_rows=options.missing_row == "skip",
            takes_collated=options.collated_keys == "apart",
            clustering=Clustering(options.cluster_by),
        )
        names: Names | None = getattr(options, "names", None)
        shown = names.location if names is not None else options.location
        return CurrentSink(
            lake,
            topics,
            positions,
            rules_of_merges,
            changes=changes,
            is_background=not is_backlog,
            views=FreshViews.at(session, shown) if shown.path is None and options.fresh_views else None,
            unfit=UnfitCounts(fails=options.unfit_values == "fail"),
        )


class CurrentSink(Sink):
    """Sink that appends batches to the table of events, and runs the merges."""

    reads_avro = True

    def __init__(
        self,
        lake: Lake,
        topics: Topics,
        positions: Positions,
        rules: MergeRules,
        *,
        changes: ChangesSink | None,
        is_background: bool = False,
        views: FreshViews | None = None,
        unfit: UnfitCounts | None = None,
    ) -> None:
        """Set the sink up.

        `changes` writes the lake's own table of events; it is None if the events are those of another job's table. With
        `is_background` a separate thread merges; otherwise `write` does. `views` are renewed after each step of the merger.
        `unfit` says what becomes of values that no column can hold.
        """
        self._lake = lake
        self._positions = positions
        self._changes = changes
        self._merger = Merger(lake, topics, rules, unfit or UnfitCounts())
        self._views = views
        self._steps = Steps(self._step, rules.interval_seconds) if is_background else None
        self._seen: Evidence | None = None
        self._is_merged = False
        self._has_evidence = False

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        seen = None
        if self._changes is not None:
            self._changes.write(records, batch, query)
            seen = evidence(self._lake, self._positions, batch, has_before=not self._has_evidence)
            self._has_evidence = True
        if self._steps is not None:
            self._steps.wake(seen)
        else:
            self._seen = seen
            self._is_merged = seen is not None and seen.is_all
            self._step(seen, merges_all=self._is_merged)

    @property
    def knows_seq(self) -> bool:
        """See `Sink.knows_seq`."""
        return self._changes is not None

    def newest_seq(self) -> int | None:
        """See `Sink.newest_seq`."""
        return None if self._changes is None else self._changes.newest_seq()

    def counts(self) -> Mapping[str, int]:
        """See `Sink.counts`."""
        return self._merger.unfit.metrics()

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`: the merged rows of each space."""
        tables = {space: self._lake.space_table(space) for space in self._lake.control_table.read().forms.names()}
        return {space: table for space, table in tables.items() if isinstance(table, str)}

    def finish(self) -> int:
        """See `Sink.finish`. Merges all events that have been appended, even if Kafka has received more since."""
        if self._seen is None and self._changes is not None and (batch := self._positions.last_batch()) is not None:
            # An earlier run may have been killed after this batch, before it merged all events.
            self._seen = evidence(self._lake, self._positions, batch, has_before=True)
        if not self._is_merged and (seq := self._step(self._seen, merges_all=True)) is not None:
            tell(_NOT_ALL_MERGED.format(seq=seq))
        return 0

    def _step(self, seen: Evidence | None, *, merges_all: bool = False) -> int | None:
        waiting_after = self._merger.step(seen, merges_all=merges_all)
        if self._views is not None:
            self._views.renew(self._lake, self._merger.tables())
        return waiting_after

    def check(self) -> None:
        """See `Sink.check`. Without any batch, too, an earlier run may have left events to merge and views to renew."""
        if self._steps is not None:
            self._steps.check()
            self._steps.start()

    def close(self) -> None:
        """See `Sink.close`. Completes the running merges."""
        if self._steps is not None:
            self._steps.close()
