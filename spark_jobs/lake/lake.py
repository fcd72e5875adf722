"""The lake of one daemon: the table of events, and beside it the merged rows of each space.

    <path>/_changes      all events (change_rows.py), unless another job's table has them; in it `_control` (control.py) and
                         `_forgotten` (forgotten.py)
    <path>/_watermark    in its properties: the seq up to which reads are consistent, and the place of the events
    <path>/<folder>      the merged rows of a space (base_table.py, folders.py)

A space's rows are the merged rows combined with the later events. If a space gets another name or another primary key, the job
changes the merged rows accordingly. Until then readers see nothing after that point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs.contract.forms import Form, Forms
from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.errors import JobError
from spark_jobs.lake import few_events
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.lake.control import Control, ControlTable
from spark_jobs.lake.current_rows import Base, Unmerged, above, current_rows
from spark_jobs.lake.event_table import SHARDS
from spark_jobs.lake.forgotten import ForgottenTable
from spark_jobs.lake.fresh_view import FreshView
from spark_jobs.lake.late_topics import LateTopics
from spark_jobs.lake.seqs import check_read, forgettable
from spark_jobs.lake.summaries import Summaries, Summary, summary_columns
from spark_jobs.tables import delta
from spark_jobs.tables.codegen import interpreting
from spark_jobs.tables.formats import check_iceberg, format_at
from spark_jobs.tables.found import PREFIX, TEMPLATE, location, locations
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, Table, names_in_catalog, table_at

CHANGES: Final = "_changes"
_WATERMARK: Final = "_watermark"
_SEQ: Final = "tarantool_cdc.watermark"
_EVENTS: Final = "tarantool_cdc.changes"
_TOPICS: Final = "tarantool_cdc.topics"
_SHOWN_MAX: Final = 10
LAST: Final = 2**63 - 1
"""A seq after all others."""


@dataclass(frozen=True)
class SpaceRows:
    """The parts from which a space's rows as of some event are made. `is_truncated` if a truncation is among the events."""

    base: Base | None
    unmerged: Unmerged | None
    form: Form
    is_truncated: bool

    def rows(self, *, fails_without_row: bool = False, unfit: UnfitValues | None = None) -> DataFrame:
        """Return the rows: META_COLUMNS and the form's columns. `unfit` is as in `typed`."""
        return current_rows(self.base, self.unmerged, self.form, fails_without_row=fails_without_row, unfit=unfit)


class Lake:
    """The tables under one path, and the table of events from which they are made."""

    def __init__(self, session: SparkSession, place: Location, changes: Table | None = None) -> None:
        """Find the table of events. `changes` is that table if it is another job's.

        Otherwise it comes from the watermark's properties, or is the usual one.
        """
        self.session = session
        self.format = place.format
        self.place = place
        self._watermark_table = place.inner(_WATERMARK)
        state = self.format.state(session, self._watermark_table)
        recorded = None if state is None else state.properties.get(_EVENTS)
        self._recorded = None if recorded is None else table_at(session, recorded)
        self._elsewhere = changes or self._recorded
        self.changes_table: Table = self._elsewhere or place.inner(CHANGES)
        self.control_table = ControlTable(session, self.changes_table, self.format)
        # Events of another job's table are never removed.
        self.forgotten_table = ForgottenTable(session, self.changes_table, self.format) if self._elsewhere is None else None

    @classmethod
    def at(cls, session: SparkSession, place: str, prefix: str | None = None) -> Lake:
        """Return the lake under a path, with the format of its tables, or in a schema of a catalog.

        `prefix` is needed if the schema has the tables of several daemons. Raises JobError if it has none.
        """
        schema = names_in_catalog(session, place)
        if schema is not None:
            return cls(session, location(session, schema, _WATERMARK, prefix))
        path = place.rstrip("/")
        found = format_at(session, [f"{path}/{name}" for name in (_WATERMARK, CHANGES)]) or delta
        if found is not delta:
            check_iceberg(session)
        return cls(session, Location(path=path, format=found))

    @classmethod
    def of_table(cls, session: SparkSession, table: str) -> tuple[Lake, str]:
        """Return the lake with the table of a space, given by its path or its name in a catalog, and the space.

        Raises JobError if there is none.
        """
        names = names_in_catalog(session, table)
        if names is None:
            parent, _, name = table.rstrip("/").rpartition("/")
            lake = cls.at(session, parent)
            return lake, lake.space_of(f"{lake.place.path}/{name}")
        wanted = CatalogTable(names)
        for found in lakes_in(session, names[:-1]):
            lake = cls(session, found)
            for space in lake.control_table.read().forms.names():
                if lake.space_table(space) == wanted:
                    return lake, space
        raise JobError(f"{table} isn't the table of a space that a job `current` keeps in {'.'.join(names[:-1])}.")

    def table(self, space: str, prefix: str | None = None) -> BaseTable:
        """Return the table of a space's merged rows."""
        return BaseTable(self.session, self.space_table(space), prefix, self.format)

    def space_table(self, space: str) -> Table:
        """Return the place of that table."""
        return self.place.of(space, (CHANGES, _WATERMARK))

    def check_changes(self, chosen: Table | None) -> None:
        """Raise JobError if the tables were made from other events than those in the table `chosen` (None: the usual one)."""
        if self._recorded != chosen and self.has_watermark():
            before, now = (f"--changes {found}" if found else "a table of its own" for found in (self._recorded, chosen))
            raise JobError(
                f"The tables in {self.place} have been made from {before}, and now they would be from {now}, which may lack "
                "events. Start the job with the former option, or with a new --path and a new --checkpoint."
            )

    def changes(self, version: int | None = None, session: SparkSession | None = None) -> DataFrame | None:
        """Return all events, now or in a version of their table; None if there is no such table yet."""
        version = self._changes_version() if version is None else version
        return None if version is None else self.format.read(session or self.session, self.changes_table, version)

    @cached_property
    def has_whole_batches(self) -> bool:
        """Whether a source transaction ends with each batch of the table of events, as in that of a fleet."""
        found = self.format.state(self.session, self.changes_table)
        return found is not None and SHARDS in found.properties

    def _changes_version(self) -> int | None:
        found = self.format.state(self.session, self.changes_table)
        return None if found is None else found.version

    def forgettable(self, seconds: float) -> dict[str, int]:
        """Return, by space, the seq up to which events may be deleted.

        No version of the space's table that was current at the time `seconds` (since 1970) or later needs these events.
        """
        mark = self.watermark()
        names = self.control_table.read().forms.names()
        return {space: seq for space in names if (seq := forgettable(self.table(space).merged_at(seconds), mark)) >= 0}

    def has_watermark(self) -> bool:
        """Return whether a watermark is published."""
        return self.format.state(self.session, self._watermark_table) is not None

    def watermark(self) -> int:
        """Return the published watermark. Raises JobError if there is none."""
        published = self.format.state(self.session, self._watermark_table)
        if published is None:
            raise JobError(
                f"There is no watermark in {self.place} yet: the job `current` publishes it with its first batch. "
                "Start it, or read without --as-of."
            )
        return int(published.properties[_SEQ])

    def late_topics(self) -> LateTopics | None:
        """Return what is noted about the topics; None if nothing is."""
        published = self.format.state(self.session, self._watermark_table)
        kept = None if published is None else published.properties.get(_TOPICS)
        return None if kept is None else LateTopics.from_json(kept)

    def note_topics(self, topics: LateTopics) -> None:
        """Note topics. A watermark must be published."""
        self.format.set_properties(self.session, self._watermark_table, {_TOPICS: topics.to_json()})

    def publish(self, seq: int, topics: LateTopics | None = None) -> None:
        """Publish a watermark. The first one is published together with what is noted about the topics."""
        if self.has_watermark():
            self.format.set_properties(self.session, self._watermark_table, {_SEQ: str(seq)})
            return
        noted = {} if topics is None else {_TOPICS: topics.to_json()}
        # The usual place of the events isn't recorded, so that the complete folder can be moved.
        elsewhere = {} if self._elsewhere is None else {_EVENTS: str(self._elsewhere)}
        names = {} if self.place.path is not None else {PREFIX: self.place.prefix, TEMPLATE: self.place.template}
        columns = StructType([StructField("unused", LongType())])
        self.format.create(self.session, self._watermark_table, columns, {_SEQ: str(seq), **elsewhere, **names, **noted})

    def space_of(self, path: str) -> str:
        """Return the space whose table has this path. Raises JobError if there is none."""
        forms = self.control_table.read().forms
        for space in forms.names():
            if self.space_table(space) == path:
                return space
        if self._changes_version() is None:
            raise JobError(
                f"There is no table {path}, nor any other of the job `current` in {self.place}. Name one as"
                " <--path>/<space>, with the --path of that job, after the job has processed a batch."
            )
        there = sorted(str(self.space_table(space)).rpartition("/")[2] for space in forms.alive())
        shown = ", ".join(there[:_SHOWN_MAX]) or "none"
        which = f"The first {_SHOWN_MAX} of the {len(there)} folders" if len(there) > _SHOWN_MAX else "The folders"
        raise JobError(
            f"No space has its table in {path}: the events in {self.changes_table} have no such space. {which} of "
            f"spaces there are: {shown}."
        )

    def check_complete(self, space: str) -> None:
        """Raise JobError if a space's table can't be made from the events that are still there."""
        removed = self._forgotten(space)
        if removed >= 0:
            raise JobError(
                f"The table of the space {space!r}, {self.space_table(space)}, is gone, and can't be made again: `maintain` has"
                f" removed its merged events up to seq {removed} from {self.changes_table}. Put the table back where it was, or"
                " start with a new --path and an empty --checkpoint."
            )

    def _forgotten(self, space: str) -> int:
        """Return the seq up to which `maintain` has removed a space's events; -1 if it has removed none."""
        return -1 if self.forgotten_table is None else self.forgotten_table.seqs().get(space, -1)

    def _check_unmerged(self, space: str, up_to: int | None, removed: int, merged: int, newest: int) -> None:
        """Raise JobError if events after the seq `merged`, up to which a version of a space's table has them, were removed.

        `newest` is that seq of the table's newest version, `removed` the one up to which events were removed.
        """
        if removed > newest:
            raise JobError(
                f"The table of the space {space!r}, {self.space_table(space)}, lacks events up to seq {removed}, which `maintain`"
                f" has removed from {self.changes_table} because they were in the table: it is an older copy, or gone. Put the"
                " newest one back, or start with a new --path and an empty --checkpoint."
            )
        if removed > merged:
            raise JobError(
                f"The rows of the space {space!r} as of seq {up_to} can't be read any more: `maintain` has removed the events up"
                f" to seq {removed} from {self.changes_table}. Read them as of seq {removed} or later."
            )

    def space_rows(
        self,
        space: str,
        up_to: int | None = None,
        table: BaseTable | None = None,
        form: Form | None = None,
        summaries: Summaries | None = None,
    ) -> SpaceRows:
        """Return the rows of a space as of the event `up_to`, or with all events, in `form` or the form of that event.

        What is known of the events from `summaries` isn't read again. Raises JobError.
        """
        if up_to is not None and table is None and (noted := self.late_topics()) is not None and noted.holds(space):
            raise JobError(
                f"The job has begun to read the space {space!r} after others, and hasn't read all of its events up to the"
                " watermark yet. Read it without --as-of, or later."
            )
        # The order of these reads matters. Whatever is written meanwhile, the space's table has the events that this version of
        # the table of events lacks, and the control table has the forms of both. What `maintain` has removed from that version is
        # recorded before; what it removes later is no matter.
        version = self._changes_version()
        removed = self._forgotten(space)
        newest = table or self.table(space)
        newest.check_not_put_back()
        table = newest if up_to is None else newest.as_of(up_to)
        self._check_unmerged(space, up_to, removed, table.merged, newest.merged)
        control = self.control_table.read()
        # Also for earlier rows, the table's newest version shows which changes of names and keys have been applied.
        known, bound = self.form_at(space, LAST if up_to is None else up_to, newest)
        check_read(removed, table.merged, bound)
        form = form or known
        base = table.base()
        swept = control.swept(form.space_id, bound)
        if base is not None and swept >= 0:
            base = Base(base.rows.where(F.col("_seq") > swept), base.form)
        unmerged = None
        if version is not None:
            is_unmerged = (F.col("space") == space) & (F.col("seq") > table.merged) & (F.col("seq") <= bound)
            asked, read = (
                self.format.read(session, self.changes_table, version).where(is_unmerged)
                for session in (interpreting(self.session), self.session)
            )
            known_events = None if summaries is None else summaries.between(space, max(table.merged, 0), bound)
            unmerged = _unmerged(asked, read, swept, control, known_events)
        if unmerged is None and base is None:
            unmerged = Unmerged(_none_of(self.session), -1, {}, has_patches=False, count=0)
        return SpaceRows(base, unmerged, form, is_truncated=unmerged is not None and unmerged.floor > swept)

    def fresh_view(self, table: BaseTable) -> FreshView | None:
        """Return the view of a space's newest rows for a version of its table.

        It is None for a table that can't be read in SQL until the next merge, as a process stopped while it rewrote it.
        """
        if not table.has_columns_of_form:
            return None
        form = table.form
        forms = self.control_table.read().forms
        covered = {other.schema_version for other in chain.from_iterable(forms.histories()) if form.covers(other)}
        return FreshView(
            base=self._in_sql(table.path),
            version=table.version,
            merged=table.merged,
            form=form,
            schema_versions=tuple(sorted({form.schema_version, *covered})),
            changes=self._in_sql(self.changes_table),
            control=self._in_sql(self.control_table.path),
            forgotten=None if self.forgotten_table is None else self._in_sql(self.forgotten_table.path),
            up_to=_first_unapplied(form.space, forms, table),
        )

    def _in_sql(self, table: Table) -> str:
        return self.format.name_in_sql(self.session, table)

    def form_at(self, space: str, up_to: int, table: BaseTable) -> tuple[Form, int]:
        """Return the space's form as of an event, and the seq up to which this table can show its rows. Raises JobError."""
        forms = self.control_table.read().forms
        unapplied = _first_unapplied(space, forms, table)
        bound = min(up_to, unapplied)
        form = forms.at(space, bound - 1 if bound == unapplied else bound)
        if form is None:
            raise JobError(
                f"The topic <prefix>.schema has no form of space {space!r}, from which the columns of its table are made. This "
                "topic must be compacted; its records must not be deleted by retention. Let the daemon take a new snapshot, "
                "which writes the form again."
            )
        return form, bound


def lakes_in(session: SparkSession, schema: tuple[str, ...]) -> list[Location]:
    """Return the places of the lakes in a schema of a catalog."""
    return locations(session, schema, _WATERMARK)


def _first_unapplied(space: str, forms: Forms, table: BaseTable) -> int:
    """Return the seq of the space's first change of name or key that its table hasn't applied; LAST if there is none.

    The space's rows can't be shown after that seq yet.
    """
    for changes in forms.identity_changes():
        for former, form in changes:
            if space in (former.space, form.space) and form.seq >= table.merged and not table.is_settled(form):
                return form.seq
    return LAST


def _unmerged(
    asked: DataFrame, events: DataFrame, swept: int, control: Control, summaries: Sequence[Summary] | None
) -> Unmerged | None:
    """Return these events of a space with their floor and forms; None if there are none.

    `asked` is the same frame in a session that doesn't compile queries, for small queries. `summaries` is None if it isn't known.
    """
    if summaries is not None and not summaries:
        return None
    if summaries is None or sum(found.events for found in summaries) <= few_events.FEW:
        few = few_events.fetch(asked)
        if few is not None:
            return few_events.unmerged(events.sparkSession, few, swept, control)
    if summaries is None:
        groups = asked.groupBy("space_id", "schema_version").agg(*summary_columns())
        summaries = [Summary(*row) for row in groups.collect()]
    floor = max([swept, *(found.truncated for found in summaries if found.truncated is not None)])
    # As in few_events, the forms of events up to the floor may be lost.
    needed = {(found.space_id, found.schema_version) for found in summaries if found.last > floor}
    forms = {version: control.forms.of(*version) for version in needed}
    has_patches, count = any(found.patches for found in summaries), sum(found.events for found in summaries)
    return Unmerged(above(events, floor), floor, forms, has_patches=has_patches, count=count)


def _none_of(session: SparkSession) -> DataFrame:
    columns = "key string, seq bigint, op string, after string, source_ts timestamp, space_id bigint, schema_version bigint"
    return session.createDataFrame([], columns)
