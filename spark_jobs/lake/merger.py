"""Merges of events into the tables of the spaces, rarely and many events at once; also publishes the watermark.

The merger only merges events up to the watermark. These are complete, so no event can arrive late. That is why the tables need no
marks of deleted rows.

A space is merged when its unmerged events have reached a share of its rows, or when some time has passed. Because of the share,
the cost per change stays the same as a table grows. If the share is large, the merger rewrites the table. If it is small, the
merger uses MERGE, which marks replaced rows in deletion vectors and leaves their files. A space whose rows have got other columns
is merged earlier, because a view in SQL can't show such rows before (fresh_view.py).

If a space gets another name or another primary key, the merger moves its rows before it merges any later event.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.forms import META_COLUMNS, Form
from spark_jobs.contract.row_texts import rekey, typed
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError, job_error_from_worker
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.lake.clustering import Clustering
from spark_jobs.lake.control import Control
from spark_jobs.lake.current_rows import Base, in_form, newest_rows
from spark_jobs.lake.event_table import table_is_gone
from spark_jobs.lake.lake import LAST, Lake
from spark_jobs.lake.late_topics import LateTopics, Place
from spark_jobs.lake.positions import Positions
from spark_jobs.lake.seqs import LakeSeqs
from spark_jobs.lake.several import count_unmerged, each
from spark_jobs.lake.summaries import Summaries, Summary, summary_columns
from spark_jobs.lake.watermark import Ends, EventsAfterMark, advance, bitmaps, covers, distance, ends_without_records, last_end
from spark_jobs.runner.output import tell
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables.codegen import interpreting

SHARE: Final = 0.5
"""Share of a table's rows: with so many unmerged changes, a space is merged before the interval has passed."""
SHARE_OF_BACKLOG: Final = 2.0
"""The same share with --available-now. Nobody waits for intermediate states of a backlog, and each merge delays its batches."""
MIN_UNMERGED: Final = 100_000
"""Number of unmerged changes below which a space isn't merged before the interval has passed, however small its table is."""
_REWRITTEN: Final = 0.2
"""Share of a table's rows: with so many changes, the table is rewritten instead of merged."""

_COMPILED_FROM: Final = 250_000
"""Number of new records from which the query that examines them is compiled. It then takes half of the CPU for each."""

_RECORDS_LOST: Final = (
    "current: the topic {prefix}.snapshot no longer has the records of a snapshot whose rows end at seq {seq}: they were "
    "deleted, or expired. The rows are used, as later events show that the snapshot was complete. If the daemon has state.images "
    '= "none", rows that the snapshot would have removed may stay: have another snapshot taken.'
)

_PAUSE: Final = 4
"""Lower limit for the interval, as a multiple of the duration of the space's last merge.

Even if enough changes have gathered, a space isn't merged again before that duration has passed once more.
"""


@dataclass(frozen=True)
class Evidence:
    """Evidence that a version of the table of events has all batches up to one, and thus all events up to the offsets `read`.

    `ends` are the ends of the topics, read afterwards. `control` has the contents of the control topics, read before `ends`.
    """

    batch: int
    version: int
    read: Ends
    ends: Ends
    control: Control
    before: Ends = field(default_factory=dict)
    """The offsets at which the batch began. Needed if a watermark was published without notes of the topics (late_topics.py):
    a run that is started again merges what it finds before its first batch."""

    @property
    def is_all(self) -> bool:
        """Whether the job had nothing left to read."""
        return covers(self.read, self.ends)


@dataclass
class _Space:
    """State of a space's table between two steps. `swept` has the seq of the last applied sweep, by the space's id.

    `unmerged` is the number of unmerged events. `merged_at` (monotonic clock) and `took_seconds` describe the last merge.
    `counted` caches the number of rows. `has_old_form` if newer rows don't fit the table's columns.
    """

    table: BaseTable
    unmerged: int
    merged_at: float
    took_seconds: float = 0.0
    swept: dict[int, int] = field(default_factory=dict)
    counted: int | None = None
    has_old_form: bool = False

    @property
    def rows(self) -> int:
        """The number of rows in the table."""
        if self.counted is None:
            self.counted = self.table.count()
        return self.counted


@dataclass(frozen=True)
class MergeRules:
    """When spaces are merged, and what a merge does with events that it can't apply."""

    interval_seconds: float = 60.0
    """Time after which a space is merged again, however few its unmerged events are."""
    share: float = SHARE
    min_unmerged: int = MIN_UNMERGED
    skips_missing_rows: bool = False
    """Whether an UPDATE whose row isn't known is skipped. Otherwise it is an error."""
    takes_collated: bool = False
    """Whether a space whose key has a collation is merged. Otherwise it is an error."""
    clustering: Clustering = field(default_factory=Clustering)


@dataclass
class Merger:
    """Watermark of a lake, and the state of its spaces' tables, with the steps that advance and merge them."""

    lake: Lake
    topics: Topics
    rules: MergeRules = MergeRules()
    unfit: UnfitCounts = field(default_factory=UnfitCounts)
    _spaces: dict[str, _Space] = field(default_factory=dict)
    _seqs: LakeSeqs | None = None
    """None until the first step has found events."""
    _behind: EventsAfterMark = field(default_factory=EventsAfterMark)
    _summaries: Summaries = field(default_factory=Summaries)
    _batch: int = -1
    _marks_before: dict[int, int] = field(default_factory=dict)
    """The last watermark before each change of name or primary key that this step has reached, by the change's seq.

    It isn't the change's own seq: while the rows move, a reader as of that seq would find them under both names.
    """
    _candidate: tuple[int, Ends] | None = None
    _looked_at: Evidence | None = None
    _warned_of: int = -1
    _topics: LateTopics | None = None
    _blocked: set[str] = field(default_factory=set)
    """Spaces that aren't merged: those of late topics, and those whose changes of name or key wait for these."""

    @property
    def _known_seqs(self) -> LakeSeqs:
        assert self._seqs is not None
        return self._seqs

    @property
    def _mark(self) -> int:
        return self._known_seqs.mark

    def tables(self) -> Mapping[str, BaseTable]:
        """Return the tables of the spaces, by space."""
        return {space: known.table for space, known in self._spaces.items()}

    def step(self, evidence: Evidence | None = None, *, merges_all: bool = False) -> int | None:
        """Advance the watermark and merge the spaces that are due, or with `merges_all` all unmerged events. Raises JobError.

        With `merges_all` it returns the watermark if later events have been seen, which wait for the rest of their transactions.
        """
        try:
            self._step(evidence, merges_all=merges_all)
        except (PySparkException, Py4JError) as error:
            # Which of the two errors is raised depends on the step in which Spark was.
            known = job_error_from_worker(error) or self._gone()
            if known is None:
                raise
            raise known from error
        is_behind = merges_all and self._seqs is not None and self._behind.seqs(self._mark).last > self._mark
        return self._mark if is_behind else None

    def _gone(self) -> JobError | None:
        """Return the error if the table of a space has been removed while the job ran."""
        for space, known in self._spaces.items():
            if known.table.exists and not known.table.is_there():
                return JobError(
                    f"The table of the space {space!r}, {known.table.path}, was removed while the job ran. Put it back, or start"
                    " the job again: it makes the table again from the space's events, if `maintain` has left all of them."
                )
        return None

    def _step(self, evidence: Evidence | None, *, merges_all: bool) -> None:
        if evidence is None or evidence is not self._looked_at:
            found = self._read_new_events(evidence)
            if found is None:
                return
            control, is_quiet = found
            self._blocked = self._held(control) | self._settle(control, is_quiet=is_quiet)
            self._publish(self._mark)
        self._looked_at = evidence
        now = time.monotonic()
        unmerged = {space: known for space, known in self._spaces.items() if known.unmerged and space not in self._blocked}
        due = [space for space, known in unmerged.items() if merges_all or self._is_due(known, now)]
        self._merge_all(due, self._mark)

    def _read_new_events(self, evidence: Evidence | None) -> tuple[Control, bool] | None:
        """Read the new events, raise the watermark over them, and count by space how many there are to merge.

        Returns the contents of the control topics, and whether all topics have been read to their ends; None without any events.
        """
        # After a batch that has been examined already, only the events of later batches are read.
        is_next = evidence is not None and 0 <= self._batch < evidence.batch
        version = None if evidence is None or is_next else evidence.version
        session = self.lake.session if _is_large(evidence, self._looked_at) else interpreting(self.lake.session)
        events = self.lake.changes(version, session)
        if events is None:
            return None
        # Control records that arrived after the evidence don't count, because their events may be missing.
        control = self.lake.control_table.read() if evidence is None else evidence.control
        if self._seqs is None:
            self._seqs = LakeSeqs(self.lake.watermark() if self.lake.has_watermark() else -1)
        complete = set() if evidence is None else self._note_topics(evidence)
        fresh = events.where(F.col("seq") > self._mark)
        if evidence is not None and is_next:
            fresh = fresh.where((F.col("batch") > self._batch) & (F.col("batch") <= evidence.batch))
        else:
            self._behind, self._summaries = EventsAfterMark(), Summaries(self._mark)
        for space, bucket, space_id, version, present, begins, snapshot, *more in bitmaps(fresh, *summary_columns()).collect():
            self._behind.add(space, bucket, present, begins, snapshot)
            self._summaries.add(space, bucket, Summary(space_id, version, *more))
        self._batch = -1 if evidence is None else evidence.batch
        since, is_quiet = self._mark, self._advance(control, evidence)
        self._count_unmerged(events, control, since, self._complete_spaces(events, control, complete))
        return control, is_quiet

    def _note_topics(self, evidence: Evidence) -> set[Place]:
        """Note topics that are read for the first time, and return the partitions of such topics that have been read now."""
        former = self._topics or self.lake.late_topics()
        if former is None:
            # The topics of the batch before this run's first one are the known ones.
            read = (evidence.before if self._known_seqs.published >= 0 else {}) or evidence.read
            former = LateTopics.first(self.topics.prefix, read)
        noted, complete = former.after(evidence.read, evidence.ends)
        if noted != self._topics and self._known_seqs.published >= 0:
            self.lake.note_topics(noted)
        self._topics = noted
        return complete

    def _complete_spaces(self, events: DataFrame, control: Control, complete: Collection[Place]) -> set[str]:
        """Return the spaces of late topics that have been read now. Raises JobError if a table was merged without them."""
        found = {space for space in control.forms.names() if any(self.topics.of_space(space) == topic for topic, _ in complete)}
        found -= self._held(control)
        for space in found:
            merged = self.lake.table(space, self.topics.prefix).merged
            own = {partition for topic, partition in complete if topic == self.topics.of_space(space)}
            late = events.where((F.col("space") == space) & (F.col("seq") <= merged) & F.col("kafka_partition").isin(*own))
            if merged >= 0 and not late.isEmpty():
                raise JobError(
                    f"The topic {self.topics.of_space(space)} became visible to this job after the space's table had been merged"
                    f" up to seq {merged}, and has earlier events, which would never be in the table. Start the job with a new"
                    " --path and an empty --checkpoint."
                )
        return found

    def _held(self, control: Control) -> set[str]:
        """Return the spaces of late topics that haven't been read far enough."""
        return set() if self._topics is None else {space for space in control.forms.names() if self._topics.holds(space)}

    def _publish(self, mark: int) -> None:
        """Publish a watermark, unless a later one is published."""
        if self._known_seqs.publish(mark):
            self.lake.publish(mark, self._topics)

    def _advance(self, control: Control, evidence: Evidence | None) -> bool:
        """Raise the watermark, and return whether all topics have been read to their ends."""
        found = self._behind.seqs(self._mark)
        is_quiet = evidence is not None and evidence.is_all
        complete_up_to = -1
        if evidence is not None and is_quiet:
            # Control records also contain seqs of events in topics that the job doesn't read.
            complete_up_to = max(found.last, evidence.control.last_seq)
        if evidence is not None and not is_quiet:
            if self._candidate is not None and covers(evidence.read, self._candidate[1]):
                complete_up_to, self._candidate = self._candidate[0], None
            self._candidate = self._candidate or (found.last, evidence.ends)
        completed = [ended.seq for ended in control.completed]
        lost = ends_without_records(found, completed, control.started, complete_up_to)
        if lost and lost[0] > self._warned_of:
            self._warned_of = lost[-1]
            tell(_RECORDS_LOST.format(prefix=self.topics.prefix, seq=lost[-1]))
        completed += lost
        if found.after == self._mark or complete_up_to >= found.after:
            mark = advance(found, completed, complete_up_to, is_all=is_quiet or self.lake.has_whole_batches)
            self._known_seqs.advance(mark, max(found.last, complete_up_to))
        passed = {changes[0][1].seq for changes in control.forms.identity_changes()}
        self._marks_before = {seq: last_end(found, completed, seq - 1) for seq in passed if found.after < seq <= self._mark}
        return is_quiet

    def _count_unmerged(self, events: DataFrame, control: Control, since: int, complete: Collection[str]) -> None:
        """Count the events to merge, and create missing tables. Of the spaces `complete` all events count, whenever they came."""
        wanted = {space for space in control.forms.alive() if self._is_chosen(space)}
        if not self._spaces:
            # An earlier run may have left work in the tables of spaces that no longer exist.
            names = control.forms.names() - wanted
            wanted |= {space for space in names if self._is_chosen(space) and self.lake.table(space).exists}
            self.rules.clustering.check(control.forms.names())
        counts = {
            space: count for space, count in self._behind.count_and_drop(since, self._mark).items() if self._is_chosen(space)
        }
        for space in complete:
            self._spaces.pop(space, None)
            self._summaries.lack(space, self._mark)
        spaces = {*wanted, *counts, *filter(self._is_chosen, complete)} - self._held(control)
        forms = {space: control.forms.at(space, self._mark) for space in spaces}
        for form in forms.values():
            if form is not None and form.collated and not self.rules.takes_collated:
                raise _collated(form)
        new = [space for space in spaces if space not in self._spaces]
        opened = dict(zip(new, each(lambda space: self._open_table(space, control), new), strict=True))
        # Tables that were merged when the watermark was another one may lack events that haven't been counted.
        behind = {space: table.merged for space, table in opened.items() if max(table.merged, 0) != since or space in complete}
        counted = {**counts, **count_unmerged(events, behind, self._mark)}
        for space, table in opened.items():
            self._spaces[space] = _Space(table, counted.get(space, 0), time.monotonic())
        for space in spaces:
            known, form = self._spaces[space], forms[space]
            if space not in opened:
                known.unmerged += counts.get(space, 0)
            known.has_old_form = form is not None and known.table.form != form and not known.table.form.covers(form)
            if form is not None and control.swept(form.space_id, self._mark) > known.swept.get(form.space_id, -1):
                known.unmerged = max(known.unmerged, 1)

    def _open_table(self, space: str, control: Control) -> BaseTable:
        """Return a space's table with its present state, and create it if the space has a form. Raises JobError."""
        table = self.lake.table(space, self.topics.prefix)
        form = control.forms.at(space, self._mark)
        if form is not None:
            if not table.exists:
                self.lake.check_complete(space)
            table.create(form)
            self.rules.clustering.apply(space, table)
        return table

    def _is_chosen(self, space: str) -> bool:
        return bool(self.topics.chosen(self.lake.session, [space]))

    def _is_due(self, known: _Space, now: float) -> bool:
        waited = now - known.merged_at
        if waited >= max(self.rules.interval_seconds, _PAUSE * known.took_seconds):
            return True
        has_enough = known.unmerged >= self.rules.min_unmerged and known.unmerged >= self.rules.share * known.rows
        # Nobody waits for the new form in a backlog, where time is no reason for a merge either.
        lacks_form = known.has_old_form and self.rules.interval_seconds < math.inf
        return (has_enough or lacks_form) and waited >= known.took_seconds

    def _merge_all(self, spaces: Collection[str], up_to: int, forms: Mapping[str, Form] | None = None) -> None:
        """Merge spaces up to an event, several at a time; each has its own table.

        `forms` has the forms of spaces that aren't merged in their latest form.
        """
        each(lambda space: self._merge(space, up_to, (forms or {}).get(space)), spaces)

    def _merge(self, space: str, up_to: int, form: Form | None) -> None:
        """Merge a space up to an event. All events up to it must be complete."""
        self._known_seqs.check_merge(up_to)
        self.lake.session.sparkContext.setLocalProperty("spark.scheduler.pool", "merge")
        known = self._spaces[space]
        started = time.monotonic()
        form = form or self.lake.form_at(space, up_to, known.table)[0]
        control = self.lake.control_table.read()
        swept = control.swept(form.space_id, up_to)
        if known.table.merged < up_to:
            # The sweep is in one commit with the events around it, so a reader of the table by its path sees no half snapshot.
            is_swept = swept > control.swept(form.space_id, known.table.merged)
            self._take_in(space, up_to, form, is_swept=is_swept)
        if swept > known.swept.get(form.space_id, -1):
            known.table.sweep(swept)
            known.swept[form.space_id] = swept
        self.rules.clustering.apply(space, known.table)  # a rewritten table may have lost it, or have other columns
        known.counted = None
        known.unmerged = 0 if up_to == self._mark else 1
        known.merged_at = time.monotonic()
        known.took_seconds = known.merged_at - started

    def _take_in(self, space: str, up_to: int, form: Form, *, is_swept: bool) -> None:
        """Put the events up to `up_to` into a space's table. `is_swept` if a sweep has removed rows without events."""
        known, unfit = self._spaces[space], self.unfit.for_write()
        found = self.lake.space_rows(space, up_to, known.table, form, self._summaries)
        fails = not self.rules.skips_missing_rows
        base, unmerged = found.base, found.unmerged
        is_in_form = base is not None and base.form == form and known.table.has_columns_of_form
        may_merge = is_in_form and not (found.is_truncated or is_swept or known.table.merged < 0)
        if unmerged is None and is_in_form and not is_swept:
            known.table.advance(up_to)
            return
        is_small = may_merge and known.unmerged < _REWRITTEN * known.rows
        if base is not None and unmerged is not None and is_small:
            newest = newest_rows(base.rows, unmerged, form, fails_without_row=fails, unfit=unfit)
            if not unfit.fails and unfit.is_wanted:
                unfit.look(newest)
                newest = newest_rows(base.rows, unmerged, form, fails_without_row=fails)
            if known.table.merge(newest, up_to):
                self.unfit.add(space, unfit)
                return
            unfit = self.unfit.for_write()
        known.table.replace(found.rows(fails_without_row=fails, unfit=unfit), form, up_to)
        self.unfit.add(space, unfit)

    # Other names and other primary keys.

    def _settle(self, control: Control, *, is_quiet: bool) -> set[str]:
        """Move rows for all changes of names and keys up to the watermark.

        A change of a space that is held has to wait, and so have all later ones. Returns the spaces of the waiting changes.
        """
        waiting: set[str] = set()
        held = self._held(control)
        for changes in control.forms.identity_changes():
            seq = changes[0][1].seq
            spaces = {form.space for change in changes for form in change}
            if seq <= self._mark and (waiting or spaces & held):
                waiting |= spaces
                continue
            if all(self._is_settled(former, form, control) for former, form in changes):
                continue
            # The truncation that belongs to a new primary key comes directly after the change.
            if seq > self._mark or (seq == self._mark and not is_quiet):
                break
            # Such a change can take many seconds. What precedes it is consistent already.
            self._publish(self._marks_before.get(seq, -1))
            # All changes of this moment together, even if an earlier run has applied one of them: only together they show which
            # rows went to which table.
            self._carry_out(changes, control)
        return waiting

    def _is_settled(self, former: Form, form: Form, control: Control) -> bool:
        chosen = {space for space in (former.space, form.space) if self._is_chosen(space)}
        return all(self._table(space, control).is_settled(form) for space in chosen)

    def _table(self, space: str, control: Control) -> BaseTable:
        """Return the table of a space, from here on one of those that the steps merge."""
        if space not in self._spaces:
            self._spaces[space] = _Space(self._open_table(space, control), 0, time.monotonic())
        return self._spaces[space].table

    def _carry_out(self, changes: Sequence[tuple[Form, Form]], control: Control) -> None:
        """Move the rows of forms to the forms that followed them, for several spaces at once, as these may swap their names.

        Each step may be repeated: before any table is changed, each one records which version of the other table it takes over.
        """
        spaces = {form.space for change in changes for form in change if self._is_chosen(form.space)}
        before = {former.space: former for former, _ in changes}
        sources = [(former, form) for former, form in changes if former.space in spaces]
        targets = [(former, form) for former, form in changes if form.space in spaces]
        for form in (*(former for former, _ in sources), *(form for _, form in targets)):
            self._table(form.space, control).create(form)
        for space in spaces:
            known = self._spaces[space]
            known.unmerged = max(known.unmerged, 1)
        if not any(self._table(space, control).is_settled(form) for space in spaces for _, form in changes):
            self._merge_all(spaces, changes[0][1].seq, before)
        for former, form in targets:
            table = self._table(form.space, control)
            if former.space in spaces and table.pending_source_version(form) is None and not table.is_settled(form):
                table.await_rows(form, self._table(former.space, control).version)
        taken = {}
        for former, form in targets:
            table = self._table(form.space, control)
            if not table.is_settled(form):
                is_known = former.space in spaces
                base = self._table(former.space, control).base(table.pending_source_version(form)) if is_known else table.base()
                assert base is not None
                # The rows of a space that the job doesn't read are unknown.
                rows = base if is_known else Base(base.rows.limit(0), base.form)
                taken[form.point] = self._brought_over(rows, former, form)
        for _, form in targets:
            if form.point in taken:
                self._table(form.space, control).apply_form_change(taken[form.point], form, form)
        filled = {form.space for _, form in targets}
        for former, form in sources:
            source = self._table(former.space, control)
            if former.space in filled:
                source.apply_form_change(None, source.form, form)
            else:
                base = source.base()
                assert base is not None
                source.apply_form_change(base.rows.limit(0), source.form, form)
        for space in spaces:
            self._spaces[space].counted = None

    def _brought_over(self, base: Base, former: Form, form: Form) -> DataFrame:
        """Return a space's rows under its next name or primary key."""
        rows = in_form(base, form).where(F.col("_seq") <= form.seq).select(*META_COLUMNS)
        if former.key_writing != form.key_writing:
            void, doomed = self._void_up_to(form)
            kept = rows.where(F.col("_seq") > void)
            # A row that a later event removes needs no key. Until then it keeps one where possible, as patches may refer to it.
            keyed = kept.withColumn("_key", rekey(form, doomed)("_key", "_row", "_seq")).where("_key is not null")
            # If the stream has a gap, rows deleted in it may still be here, beside newer rows with the same key values.
            rows = keyed.groupBy("_key").agg(F.max_by(F.struct(*META_COLUMNS), "_seq").alias("newest")).select("newest.*")
        return typed(rows, form)

    def _void_up_to(self, form: Form) -> tuple[int, int]:
        """Return two seqs: up to which rows from before this form are gone with the form, and up to which they are gone later.

        The latter covers only removals that are known already. With images, a truncation follows the form and all rows are sent
        again. Then no rows need to be moved, and it doesn't matter whether they could be.
        """
        events = self.lake.changes()
        assert events is not None
        later = events.where((F.col("space") == form.space) & (F.col("space_id") == form.space_id) & (F.col("seq") > form.seq))
        truncated = F.max(F.when(F.col("op") == "t", F.col("seq")))
        first, last = later.agg(F.min(F.struct("seq", "op")), truncated).collect()[0]
        swept = self.lake.control_table.read().swept(form.space_id, LAST)
        void = first["seq"] if first is not None and first["op"] == "t" else -1
        return void, max(-1 if last is None else last, swept)


def _collated(form: Form) -> JobError:
    columns = ", ".join(form.collated)
    return JobError(
        f"The primary key of space {form.space!r} has a collation ({columns}), so the server may treat different texts as the"
        " same key. This job doesn't know which ones, so its table may have several rows where the space has one. Leave the"
        " space out with --spaces, or start with --collated-keys apart to keep a row for each way in which a key is written."
    )


def _is_large(evidence: Evidence | None, former: Evidence | None) -> bool:
    """Return whether the batches since the former evidence have so many records that their query is compiled."""
    if evidence is None:
        return False
    return distance(evidence.before if former is None else former.read, evidence.read) >= _COMPILED_FROM


def evidence(lake: Lake, positions: Positions, batch: int, *, has_before: bool = False) -> Evidence:
    """Return the evidence for the present table of events, after a batch. With `has_before` its `before` is complete."""
    read = positions.read_up_to(batch)
    before = positions.read_up_to(batch - 1) if has_before and batch else {}
    state = lake.format.state(lake.session, lake.changes_table)
    if state is None:
        raise table_is_gone(lake.changes_table)
    control = lake.control_table.read()
    # The ends of the topics are read last, so that everything read above comes before them.
    return Evidence(batch, state.version, read, positions.ends(), control, before)
