"""The lake of one daemon: the table of events, and beside it the merged rows of each space.

    <path>/_changes      all events (change_rows.py), unless they are elsewhere
    <path>/_watermark    in its properties: the seq up to which everything can be read consistently, and where the events are
    <path>/<folder>      the merged rows of a space (base_table.py, folders.py)

A space's rows are what is merged, with the events behind it on top. What another name or another primary key of a space means
for its merged rows is done by the job; until then nobody looks behind that point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import LongType, StructField, StructType

from spark_jobs import tables
from spark_jobs.codegen import interpreting
from spark_jobs.errors import JobError
from spark_jobs.folders import folder
from spark_jobs.forms import Form, Forms
from spark_jobs.lake import delta_log, few_events
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.lake.control import Control, ControlTable
from spark_jobs.lake.current_rows import Base, Unmerged, above, current_rows
from spark_jobs.source import topic_suffix

CHANGES: Final = "_changes"
_WATERMARK: Final = "_watermark"
_SEQ: Final = "tarantool_cdc.watermark"
_EVENTS: Final = "tarantool_cdc.changes"
LAST: Final = 2**63 - 1
"""Behind every seq."""


@dataclass(frozen=True)
class SpaceRows:
    """What a space's rows after some event are made of. `is_truncated` if a truncation is among the events."""

    base: Base | None
    unmerged: Unmerged | None
    form: Form
    is_truncated: bool

    def rows(self, *, fails_without_row: bool = False) -> DataFrame:
        """The rows: META_COLUMNS and the form's columns."""
        return current_rows(self.base, self.unmerged, self.form, fails_without_row=fails_without_row)


class Lake:
    """See the module."""

    def __init__(self, session: SparkSession, path: str, changes_path: str | None = None) -> None:
        """`changes_path` where the events are elsewhere; else what the watermark says of them, or the usual place."""
        self.session = session
        self.path = path.rstrip("/")
        self._published = f"{self.path}/{_WATERMARK}"
        state = delta_log.state(session, self._published)
        self._told = None if state is None else state.properties.get(_EVENTS)
        self._elsewhere = changes_path or self._told
        self.changes_path = self._elsewhere or f"{self.path}/{CHANGES}"
        self.control_table = ControlTable(session, self.changes_path)

    def table(self, space: str, prefix: str | None = None) -> BaseTable:
        """The table of a space's merged rows."""
        return BaseTable(self.session, self.table_path(space), prefix)

    def table_path(self, space: str) -> str:
        """Where that is."""
        return f"{self.path}/{lake_folder(space)}"

    def check_changes(self, chosen: str | None) -> None:
        """Raises JobError if the tables have been made from other events than those at the path; None is the usual place."""
        if self._told != chosen and self.has_watermark():
            before, now = (f"--changes {found}" if found else "a table of its own" for found in (self._told, chosen))
            raise JobError(
                f"The tables in {self.path} have been made from {before}, and now they would be from {now}, which may lack "
                "events. Start the job as it was, or with a new --path and a new --checkpoint."
            )

    def changes(self, version: int | None = None, session: SparkSession | None = None) -> DataFrame | None:
        """All events, now or as they were; None before the first one."""
        version = self._changes_version() if version is None else version
        return None if version is None else tables.read(session or self.session, self.changes_path, version)

    def _changes_version(self) -> int | None:
        found = delta_log.state(self.session, self.changes_path)
        return None if found is None else found.version

    def forgettable(self, seconds: float) -> dict[str, int]:
        """By space: up to which seq no version of its table needs the events that was current at a time or later."""
        mark = self.watermark()
        names = self.control_table.read().forms.names()
        return {space: seq for space in names if (seq := min(mark, self.table(space).merged_at(seconds))) >= 0}

    def has_watermark(self) -> bool:
        """Whether one is published."""
        return delta_log.state(self.session, self._published) is not None

    def is_former(self) -> bool:
        """Whether all tables here are of an earlier version of the job, which has kept no events."""
        if self.has_watermark():
            return False
        jvm: Any = self.session.sparkContext._jvm
        place = jvm.org.apache.hadoop.fs.Path(self.path)
        files = place.getFileSystem(self.session.sparkContext._jsc.hadoopConfiguration())
        found = files.listStatus(place) if files.exists(place) else ()
        return any(files.exists(jvm.org.apache.hadoop.fs.Path(one.getPath(), "_delta_log")) for one in found)

    def watermark(self) -> int:
        """The published watermark. Raises JobError if none is."""
        published = delta_log.state(self.session, self._published)
        if published is None:
            raise JobError(
                f"There is no watermark in {self.path} yet: the job `current` publishes it with its first batch. "
                "Start it, or read without --as-of."
            )
        return int(published.properties[_SEQ])

    def publish(self, seq: int) -> None:
        """Publish a watermark."""
        if self.has_watermark():
            tables.set_properties(self.session, self._published, {_SEQ: str(seq)})
            return
        # The usual place isn't said, so that the whole folder can be moved.
        elsewhere = {} if self._elsewhere is None else {_EVENTS: self._elsewhere}
        columns = StructType([StructField("unused", LongType())])
        tables.create(self.session, self._published, columns, {_SEQ: str(seq), **elsewhere})

    def space_of(self, name: str) -> str:
        """The space whose folder has this name. Raises JobError."""
        for space in self.control_table.read().forms.names():
            if lake_folder(space) == name:
                return space
        if self._changes_version() is None:
            raise JobError(
                f"There is no table {self.path}/{name}, nor any other of the job `current` in {self.path}. Name one as"
                " <--path>/<space>, and --path as that job was given it, once it has processed a batch."
            )
        raise JobError(f"No space has its table in {self.path}/{name}: the events in {self.changes_path} know no such one.")

    def check_folder(self, space: str) -> None:
        """Raises JobError if an earlier version has made the table in a folder that other spaces might share."""
        former, path = topic_suffix(space), f"{self.path}/{lake_folder(space)}"
        former_path = f"{self.path}/{former}"
        if former in (folder(space), ".", "..") or delta_log.state(self.session, path) is not None:
            return
        if delta_log.state(self.session, former_path) is not None and BaseTable(self.session, former_path).form.space == space:
            raise JobError(
                f"The table of space {space!r} is in {former_path}, where an earlier version of this job has made it; its folder "
                f"is called {path} now. Rename the folder and start the job again."
            )

    def space_rows(
        self, space: str, up_to: int | None = None, table: BaseTable | None = None, form: Form | None = None
    ) -> SpaceRows:
        """The rows of a space after an event, or after all that are there; in a form, or in its form then. Raises JobError."""
        # In this order: whatever is written meanwhile, what the events lack is in the table, and both have their forms.
        version = self._changes_version()
        newest = table or self.table(space)
        table = newest if up_to is None else newest.as_of(up_to)
        control = self.control_table.read()
        # Also for rows as they were it is the newest version that tells what is done of other names and keys.
        known, bound = self.form_at(space, LAST if up_to is None else up_to, newest)
        form = form or known
        base = table.base()
        swept = control.swept(form.space_id, bound)
        if base is not None and swept >= 0:
            base = Base(base.rows.where(F.col("_seq") > swept), base.form)
        unmerged = None
        if version is not None:
            is_unmerged = (F.col("space") == space) & (F.col("seq") > table.merged) & (F.col("seq") <= bound)
            asked, read = (
                tables.read(session, self.changes_path, version).where(is_unmerged)
                for session in (interpreting(self.session), self.session)
            )
            unmerged = _unmerged(asked, read, swept, control)
        if unmerged is None and base is None:
            unmerged = Unmerged(_none_of(self.session), -1, {}, has_patches=False, count=0)
        return SpaceRows(base, unmerged, form, is_truncated=unmerged is not None and unmerged.floor > swept)

    def form_at(self, space: str, up_to: int, table: BaseTable) -> tuple[Form, int]:
        """The space's form after an event, and the event up to which its rows can be told by this table. Raises JobError."""
        forms = self.control_table.read().forms
        settled = _settled_up_to(space, forms, table)
        bound = min(up_to, settled)
        form = forms.at(space, bound - 1 if bound == settled else bound)
        if form is None:
            raise JobError(
                f"The topic <prefix>.schema has no form of space {space!r}, which the columns of its table are made from. It "
                "must be compacted, never deleted: let the daemon take a new snapshot, which writes it anew."
            )
        return form, bound


def lake_folder(space: str) -> str:
    """The folder of a space's table (folders.py), but for spaces that are called as the lake's own."""
    return folder(space, (CHANGES, _WATERMARK))


def _settled_up_to(space: str, forms: Forms, table: BaseTable) -> int:
    """The seq behind which a space's rows can't be told yet: its name or key changes there, and that isn't done."""
    for changes in forms.bounds():
        for former, form in changes:
            if space in (former.space, form.space) and form.seq >= table.merged and not table.is_settled(form):
                return form.seq
    return LAST


def _unmerged(asked: DataFrame, events: DataFrame, swept: int, control: Control) -> Unmerged | None:
    """What these events of a space are; None if there are none. `asked` are the same, for questions about them."""
    few = few_events.fetch(asked)
    if few is not None:
        return few_events.unmerged(events.sparkSession, few, swept, control)
    summary = asked.groupBy("space_id", "schema_version").agg(
        F.max(F.when(F.col("op") == "t", F.col("seq"))).alias("truncated"),
        F.count("patch").alias("patches"),
        F.count("*").alias("events"),
    )
    found = summary.collect()
    floor = max([swept, *(row["truncated"] for row in found if row["truncated"] is not None)])
    forms = {(row["space_id"], row["schema_version"]): control.forms.of(row["space_id"], row["schema_version"]) for row in found}
    has_patches, count = any(row["patches"] for row in found), sum(row["events"] for row in found)
    return Unmerged(above(events, floor), floor, forms, has_patches=has_patches, count=count)


def _none_of(session: SparkSession) -> DataFrame:
    columns = "key string, seq bigint, op string, after string, source_ts timestamp, space_id bigint, schema_version bigint"
    return session.createDataFrame([], columns)
