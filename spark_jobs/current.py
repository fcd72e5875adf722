"""Job `current`: one Delta table per space with one row per key, as the space is now (space_table.py says how it looks).

A batch is first boiled down to one row per key, in one pass over all spaces, and then merged space by space. Changes with
the whole row never leave Spark's own functions; patches are applied by a Python function, to the row that the batch or the
table has. All is decided by `seq`, so a batch that comes again, or late, changes nothing that is newer.

What a form changes for rows already there is done before rows of that form are merged: new columns, renamed fields, a new
primary key, a new name of the space. The last two move events to other partitions and topics, where nothing keeps them
behind the older ones; so all older events, which Kafka must have by then, are read from the topic and applied first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Literal

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import control_topics, tables
from spark_jobs.envelope import parse
from spark_jobs.errors import JobError
from spark_jobs.folders import folder
from spark_jobs.forms import Form, Forms
from spark_jobs.job import Job, Sink
from spark_jobs.source import Topics, topic_suffix
from spark_jobs.space_table import SpaceTable, made_for
from spark_jobs.transforms import SOURCE_FIELDS_OF_CURRENT, above, folded_rows, latest, whole_rows

_FORGET_EVERY_SECONDS: Final = 3600


class Current(Job):
    """See the module."""

    name = "current"
    summary = "keep one Delta table per space with one row per key"
    control_topics = ("schema", "snapshot")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As `Job.add_options`."""
        parser.add_argument(
            "--missing-row",
            choices=("fail", "skip"),
            default="fail",
            help="what an UPDATE does whose row isn't in the table because the job began too late (default: %(default)s)",
        )
        parser.add_argument(
            "--forget-deleted-after-hours",
            type=float,
            metavar="N",
            help="take rows out of the tables for good this long after they were deleted; by default they stay, marked",
        )

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> CurrentSink:
        """As `Job.sink`."""
        hours = options.forget_deleted_after_hours
        return CurrentSink(
            session,
            topics,
            options.path,
            skip_missing=options.missing_row == "skip",
            forget_after=None if hours is None else timedelta(hours=hours),
        )


@dataclass(frozen=True)
class _Batch:
    """What a boiled down batch has of one space."""

    rows: DataFrame
    truncated: int
    has_patches: bool
    image_versions: frozenset[tuple[int, int]]
    versions: frozenset[tuple[int, int]]


class CurrentSink(Sink):
    """Merges batches into the tables of the spaces."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: str,
        *,
        skip_missing: bool = False,
        forget_after: timedelta | None = None,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """`read_topic` gives all records of a topic, instead of Kafka."""
        self._session = session
        self._topics = topics
        self._path = path.rstrip("/")
        self._skip_missing = skip_missing
        self._forget_after = forget_after
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._forms = Forms(topics.control("schema"), ())
        self._spaces: dict[str, SpaceTable] = {}
        self._forgotten_at: float | None = None

    def write(self, records: DataFrame, batch: int, query: str) -> None:  # noqa: ARG002 - `_seq` guards what others count
        """As `Sink.write`."""
        control = [self._topics.control(name) for name in Current.control_topics]
        changes = parse(records, source_fields=SOURCE_FIELDS_OF_CURRENT, control=control)
        boiled = latest(changes).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            batches, has_control = _by_space(boiled)
            # A space whose batch has truncations alone names no version.
            known = all(
                self._forms.latest(space) and all(self._forms.has(space, *version) for version in found.versions)
                for space, found in batches.items()
            )
            if has_control or not known:
                self._learn_forms()
            sweeps = self._sweeps("space") if has_control else {}
            wanted = {*batches, *self._topics.chosen(self._session, {*sweeps, *(self._forms.alive() if has_control else ())})}
            for space in sorted(wanted):
                self._apply(space, batches.get(space), sweeps.get(space, -1))
        finally:
            boiled.unpersist()
        self._forget_deleted()

    def _learn_forms(self) -> None:
        """Read the schema topic, and settle what its changes of names and primary keys mean for rows that are stored."""
        topic = self._topics.control("schema")
        self._forms = Forms(topic, self._values(topic))
        changes = [
            (former, form)
            for history in self._forms.histories()
            for former, form in pairwise(history)
            if former.space != form.space or former.key_writing != form.key_writing
        ]
        chosen = self._topics.chosen(self._session, {form.space for _, form in changes})
        for together in _rounds([change for change in changes if change[1].space in chosen]):
            self._settle([(former, form) for former, form in together if not self._table(form).has_settled(form)])

    def _settle(self, changes: Sequence[tuple[Form, Form]]) -> None:
        """Bring the rows of forms over to the ones that followed them, with another name or another primary key.

        Of different spaces, at one time: they may have swapped their names. Each step may be repeated, and what a table has
        been told to take over is kept in its properties until it has it.
        """
        moves = [(former, form) for former, form in changes if former.space != form.space]
        for former, form in changes:
            source, table = self._table(former), self._table(form)
            if table.awaits(form) is None:
                self._catch_up(source, former, form.schema_version)
                if source is not table:
                    table.await_rows(form, source.version())
        for former, form in moves:
            self._table(former).move_out(form.seq)
        for former, form in moves:
            table = self._table(form)
            rows = self._table(former).rows(table.awaits(form))
            table.move_in(rows.where(f"_seq <= {form.seq}"), form)
        for former, form in changes:
            table = self._table(form)
            if former.key_writing != form.key_writing:
                table.rekey(form, self._void_up_to(form))
            table.settle(form)

    def _table(self, form: Form) -> SpaceTable:
        """The table of the form's space, made with this form if there is none."""
        table = self._spaces.get(form.space)
        if table is None:
            path = f"{self._path}/{folder(form.space)}"
            self._look_for_former(form.space, path)
            table = self._spaces[form.space] = SpaceTable(self._session, path, self._topics.prefix)
        table.create(form)
        return table

    def _look_for_former(self, space: str, path: str) -> None:
        """Raises JobError if an earlier version has made the table in a folder that other spaces might share."""
        former = topic_suffix(space)
        if former in (folder(space), ".", "..") or tables.exists(self._session, path):
            return
        former_path = f"{self._path}/{former}"
        if tables.exists(self._session, former_path) and made_for(self._session, former_path) == space:
            raise JobError(
                f"The table of space {space!r} is in {former_path}, where an earlier version of this job has made it; its folder "
                f"is called {path} now. Rename the folder and start the job again."
            )

    def _sweeps(self, member: Literal["space", "space_id"]) -> dict[Any, int]:
        """Per space, by its name (`space`) or its number (`space_id`): up to which seq rows are gone that a completed snapshot
        didn't repeat.
        """
        topic = self._topics.control("snapshot")
        return control_topics.swept(self._values(topic), topic, member)

    def _apply(self, space: str, batch: _Batch | None, sweep: int) -> None:
        table = self._ready(space)
        floor = max(table.floor, sweep, batch.truncated if batch is not None else -1)
        table.raise_floor(floor)
        if batch is not None:
            self._merge(table, batch)

    def _merge(self, table: SpaceTable, batch: _Batch) -> None:
        form = table.form
        rows = above(batch.rows, table.floor, table.keyed_since)
        stale = [version for version in batch.image_versions if self._forms.of(*version).fields != form.fields]
        source = whole_rows(rows, form, stale)
        if batch.has_patches:
            forms = {version: self._forms.of(*version) for version in batch.versions}
            folded = folded_rows(rows, table.rows(), form, forms, skip_missing=self._skip_missing)
            source = source.unionByName(folded)
        table.merge(source)

    def _ready(self, space: str) -> SpaceTable:
        """The space's table in the latest form."""
        form = self._forms.latest(space)
        if form is None:
            topic = self._topics.control("schema")
            raise JobError(
                f"The topic {topic} has no form of space {space!r}, which the columns of its table are made from. It must be "
                "compacted, never deleted: let the daemon take a new snapshot, which writes it anew."
            )
        table = self._table(form)
        table.evolve(form)
        return table

    def _catch_up(self, table: SpaceTable, form: Form, below_version: int) -> None:
        """Apply all events of a space that its topic has from before a version of its form."""
        source = F.col("source")
        changes = parse(self._read_topic(self._topics.of_space(form.space)), source_fields=SOURCE_FIELDS_OF_CURRENT)
        is_older = (source["space_id"] == form.space_id) & (source["schema_version"] < below_version)
        boiled = latest(changes.where(is_older & (source["table"] == form.space))).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            batches, _ = _by_space(boiled)
            for batch in batches.values():
                table.raise_floor(batch.truncated)
                self._merge(table, batch)
        finally:
            boiled.unpersist()

    def _void_up_to(self, form: Form) -> int:
        """The seq up to which a space's rows from before this form are gone, as far as topics tell it.

        With images, a truncation follows the form and all rows come again: then there is nothing to bring over, nor need it be
        possible.
        """
        records = self._read_topic(self._topics.of_space(form.space)).where("key is null and partition = 0")
        source = F.col("source")
        is_later = (source["space_id"] == form.space_id) & (source["schema_version"] >= form.schema_version)
        truncations = parse(records, source_fields=SOURCE_FIELDS_OF_CURRENT).where((F.col("op") == "t") & is_later)
        truncated = truncations.agg(F.max(source["seq"])).collect()[0][0]
        return max(-1 if truncated is None else truncated, self._sweeps("space_id").get(form.space_id, -1))

    def _values(self, topic: str) -> list[str]:
        return control_topics.values(self._read_topic(topic))

    def _forget_deleted(self) -> None:
        if self._forget_after is None:
            return
        now = time.monotonic()
        if self._forgotten_at is None or now - self._forgotten_at >= _FORGET_EVERY_SECONDS:
            for table in self._spaces.values():
                table.forget_deleted(datetime.now(UTC) - self._forget_after)
            self._forgotten_at = now


def read_current(session: SparkSession, path: str) -> DataFrame:
    """A space's table without the rows that are deleted; `path` is that of the table, `<--path>/<folder>` (folders.py)."""
    return tables.read(session, path).where("not _deleted").drop("_deleted")


def _by_space(boiled: DataFrame) -> tuple[dict[str, _Batch], bool]:
    """What a boiled down batch has of each space, and whether it has control records."""
    version = "struct({0}.space_id as space_id, {0}.schema_version as schema_version)"
    patch_versions = f"flatten(collect_set(transform(patches, patch -> {version.format('patch')})))"
    summary = boiled.groupBy("space").agg(
        F.coalesce(F.max("truncated"), F.lit(-1)).alias("truncated"),
        F.expr("coalesce(bool_or(size(patches) > 0), false)").alias("has_patches"),
        F.expr(f"collect_set(if(image is null, null, {version.format('image')}))").alias("image_versions"),
        F.expr(f"array_distinct({patch_versions})").alias("patch_versions"),
    )
    found = summary.collect()
    batches = {
        row["space"]: _Batch(
            rows=boiled.where(F.col("space") == row["space"]),
            truncated=row["truncated"],
            has_patches=row["has_patches"],
            image_versions=_versions(row["image_versions"]),
            versions=_versions(row["image_versions"]) | _versions(row["patch_versions"]),
        )
        for row in found
        if row["space"] is not None
    }
    return batches, any(row["space"] is None for row in found)


def _versions(structs: Iterable[Row]) -> frozenset[tuple[int, int]]:
    return frozenset((struct["space_id"], struct["schema_version"]) for struct in structs)


def _rounds(changes: Sequence[tuple[Form, Form]]) -> list[list[tuple[Form, Form]]]:
    """Changes in the order in which they were made, those together that may have been made at once."""
    rounds: list[list[tuple[Form, Form]]] = []
    for change in sorted(changes, key=lambda change: (change[1].seq, change[1].schema_version)):
        last = rounds[-1] if rounds else []
        same_time = last and last[0][1].seq == change[1].seq
        if same_time and all(form.space_id != change[1].space_id for _, form in last):
            last.append(change)
        else:
            rounds.append([change])
    return rounds
