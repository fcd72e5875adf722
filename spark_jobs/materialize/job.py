"""Job `materialize`: events with both rows, from topics whose UPDATEs and UPSERTs contain only operations.

The job writes a table of events like that of `changes`, and `_control` beside it, so consumers of such a table can
use this one. Events are processed in the order of `seq` (order.py). `_rows` beside them has the last row of each key. A batch is
computed from the rows that earlier batches left, so a repeated batch makes the same events, which the table then has already.

With --to the job also publishes the events (publishing.py), before it writes them to the table: every event in the table is on
the topics.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics
from spark_jobs.contract.envelope import SOURCE, parse
from spark_jobs.contract.forms import Form, Forms
from spark_jobs.contract.source import Topics
from spark_jobs.lake.change_rows import CHANGES_COLUMNS, ONCE, SOURCE_FIELDS_OF_CHANGES, record_rows
from spark_jobs.lake.control import ControlTable
from spark_jobs.lake.event_table import EventTable
from spark_jobs.lake.positions import KafkaPositions, Positions
from spark_jobs.materialize.held import HeldEvents, check_order
from spark_jobs.materialize.images import ENDING_SCHEMA, STORED_SCHEMA, last_rows, newest, with_images
from spark_jobs.materialize.keys import key_changes, rekeyed
from spark_jobs.materialize.publishing import TAIL, KafkaPublisher, Publication, Publisher, destination
from spark_jobs.runner.job import Job, Sink
from spark_jobs.tables.codegen import varying
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import HELD, beside
from spark_jobs.tables.state_files import state_folder

_COMPACT_EVERY: Final = 20


class Materialize(Job):
    """The job `materialize`."""

    name = "materialize"
    summary = "make events with complete rows, before and after, from topics of images = none"
    control_topics = ("schema", "snapshot")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Job.add_options`."""
        parser.add_argument(
            "--missing-row",
            choices=("fail", "skip"),
            default="fail",
            help="what to do with an UPDATE whose row isn't known because the job started too late (default: %(default)s)",
        )
        parser.add_argument(
            "--to",
            metavar="URL",
            help="kafka://HOST:PORT,…/PREFIX: also publish the complete events, to topics with this other prefix, at least once",
        )

    def place(self, options: argparse.Namespace) -> str:
        """See `Job.place`. A prefix that is added later would lack the events that were read before."""
        return str(options.location) if options.to is None else f"{options.location} --to {options.to}"

    def sink(self, session: SparkSession, topics: Topics, options: argparse.Namespace) -> MaterializeSink:
        """See `Job.sink`."""
        publisher = None
        if options.to is not None:
            publisher = KafkaPublisher(session, topics, *destination(options.to, topics.prefix))
        skips = options.missing_row == "skip"
        positions = KafkaPositions(session, topics, options.checkpoint)
        return MaterializeSink(
            session,
            topics,
            options.location,
            state_path=state_folder(options.location, options.checkpoint, "_order"),
            skip_missing=skips,
            publisher=publisher,
            positions=positions,
        )


class MaterializeSink(Sink):
    """Sink that computes events with both rows."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        location: Location,
        *,
        state_path: str,
        skip_missing: bool = False,
        read_topic: Callable[[str], DataFrame] | None = None,
        publisher: Publisher | None = None,
        positions: Positions | None = None,
    ) -> None:
        """`read_topic` returns all records of a topic; the default reads Kafka. `state_path` is the folder for the state.

        With a `publisher` the events are also published. Without `positions` events are processed as they are read.
        """
        self._session = session
        self._format = location.format
        self._events = location.only(Materialize.name)
        self._rows = beside(self._events, "_rows")
        self._skip_missing = skip_missing
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._topics = topics
        self._control = {kind: topics.control(kind) for kind in Materialize.control_topics}
        self._table = EventTable(
            session, self._events, topics.prefix, ("space",), spaces=topics.spaces, table_format=self._format
        )
        self._held = HeldEvents(session, beside(self._events, HELD), self._format, state_path, positions)
        self._forms: Forms | None = None
        self._has_learned = False
        self._applied: set[str] = set()
        self._settled: set[str] = set()
        self._publication = None if publisher is None else Publication(publisher, topics, self._read_topic)

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return {Materialize.name: self._events} if isinstance(self._events, str) else {}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        self._has_learned = False
        if self._forms is None or not records.where(F.col("topic").isin(*self._control.values())).isEmpty():
            self._learn()
        fields = SOURCE_FIELDS_OF_CHANGES if self._publication is None else SOURCE.names
        more = [] if self._publication is None else [self._publication.tail()]
        of_spaces = records.where(~F.col("topic").isin(*self._control.values()))
        events = parse(of_spaces, source_fields=fields, names=self._topics.names)
        read = record_rows(events, CHANGES_COLUMNS, *more).persist(StorageLevel.MEMORY_AND_DISK)
        rows = whole = None
        try:
            ready, late = self._held.divide(read, batch, query)
            stored = self._stored(batch, query)
            rows = self._without_repeated(ready, late, stored, batch).persist(StorageLevel.MEMORY_AND_DISK)
            changed, moved = self._changed(rows, stored)
            whole = changed.unionByName(rows.where("key is null")).persist(StorageLevel.MEMORY_AND_DISK)
            numbered = whole.where(ONCE).drop(TAIL).withColumn("batch", varying(batch))
            if self._publication is not None:
                # A job that another one has replaced may lack rows by now.
                self._table.take(numbered, batch, query)
                self._publication.publish(whole, records, has_control=self._has_learned)
            self._table.append(numbered, batch, query)
            left = last_rows(whole) if moved is None else last_rows(whole).unionByName(moved)
            left = left.withColumns({"query": F.lit(query), "batch": varying(batch)})
            left = left.unionByName(self._emptied(rows, batch, query))
            if self._has_learned:
                left = left.unionByName(self._swept(records, batch, query))
            self._format.append_once(left, self._rows, partition_by=(), application=query, batch=batch)
            self._settled |= self._applied
        finally:
            for frame in (read, rows, whole):
                if frame is not None:
                    frame.unpersist()

    def _without_repeated(self, ready: DataFrame, late: DataFrame, stored: DataFrame, batch: int) -> DataFrame:
        """Return the events without those that earlier batches have processed. Raises JobError for a late one (`check_order`).

        If the row of such an event was deleted, nothing else tells: the stored rows are without it.
        """
        if not self._format.exists(self._session, self._events) or late.isEmpty():
            return ready
        table = self._format.read(self._session, self._events)
        check_order(late, stored, table)
        place = ["seq", "kafka_topic", "kafka_partition"]
        return ready.join(table.where(F.col("batch") < batch).select(*place), place, "left_anti").select(*ready.columns)

    def _changed(self, rows: DataFrame, stored: DataFrame) -> tuple[DataFrame, DataFrame | None]:
        """Return the events of keys with both rows, and the stored rows that have got other keys meanwhile."""
        forms, endings = self._needed(rows), self._endings(rows)
        of_spaces = {space_id for space_id, _ in forms}
        histories = [history for history in self._known_forms().histories() if history[-1].space_id in of_spaces]
        pending = key_changes(histories, self._settled)
        if not pending:
            return with_images(rows, stored, endings, forms, skip_missing=self._skip_missing), None
        # Events up to such a change name the rows by the former keys, later ones by the new keys.
        last = rows.agg(F.max("seq")).collect()[0][0]
        changes = {seq: found for seq, found in pending.items() if seq < last}
        self._applied = {form.point for found in changes.values() for form, _ in found}
        bounds = [-1, *changes, last]
        whole: DataFrame | None = None
        moved: DataFrame | None = None
        for after, up_to in pairwise(bounds):
            if after in changes:
                added = rekeyed(stored, endings, changes[after])
                stored = newest(stored.unionByName(added))
                moved = added if moved is None else moved.unionByName(added)
            own = rows.where((F.col("seq") > after) & (F.col("seq") <= up_to))
            # Computed at once: each part is needed for the next one, and such plans would grow.
            changed = with_images(own, stored, endings, forms, skip_missing=self._skip_missing).localCheckpoint()
            stored = newest(stored.unionByName(last_rows(changed)))
            whole = changed if whole is None else whole.unionByName(changed)
        assert whole is not None
        return whole, moved

    def _known_forms(self) -> Forms:
        return self._forms or self._learn()

    def _learn(self) -> Forms:
        """Read the control topics, store their records beside the events, and return the forms."""
        self._has_learned = True
        records = {kind: control_topics.values(self._read_topic(topic)) for kind, topic in self._control.items()}
        self._forms = Forms(self._control["schema"], records["schema"])
        told = [(kind, place, text) for kind, texts in records.items() for place, text in enumerate(texts)]
        ControlTable(self._session, self._events, self._format).write(told)
        return self._forms

    def _needed(self, rows: DataFrame) -> dict[tuple[int, int], Form]:
        """Return the forms that events refer to, if they are known."""
        found = rows.select("space_id", "space", "schema_version").distinct().collect()
        forms = self._known_forms()
        if not all(forms.has(row["space"], row["space_id"], row["schema_version"]) for row in found):
            forms = self._learn()
        known = {(form.space_id, form.schema_version): form for history in forms.histories() for form in history}
        return {version: form for row in found if (form := known.get(version := (row["space_id"], row["schema_version"])))}

    def _stored(self, batch: int, query: str) -> DataFrame:
        """Return the last row of each key before this batch."""
        if not self._format.exists(self._session, self._rows):
            return self._session.createDataFrame([], STORED_SCHEMA)
        before = (F.col("query") != query) | (F.col("batch") < batch)
        found = self._format.read(self._session, self._rows)
        stored = newest(found.where(before & F.col("key").isNotNull()).drop("query", "batch"))
        if batch > 0 and batch % _COMPACT_EVERY == 0:
            # The batches before this one are final, so no batch needs older rows. If this batch is repeated, the rows that it
            # appended the first time stay: Delta doesn't append them again.
            kept = stored.withColumns({"query": F.lit(query), "batch": varying(batch - 1)})
            others = found.where(~before | F.col("key").isNull())
            self._format.overwrite(kept.where("row is not null").unionByName(others), self._rows)
            self._held.clean(batch, query)
        return stored

    def _endings(self, rows: DataFrame) -> DataFrame:
        """Return removals of rows without events of their own: truncations and completed snapshots, also of earlier batches.

        A snapshot's end may be read later than the events after it, so the topic is read too. Retention may have deleted it
        there.
        """
        found = rows.where("op = 't'").select("space_id", F.col("seq").alias("up_to"), F.col("seq").alias("at"))
        if self._format.exists(self._session, self._rows):
            earlier = self._format.read(self._session, self._rows).where("key is null")
            at = F.expr("coalesce(cast(row AS bigint), seq)")
            found = found.unionByName(earlier.select("space_id", F.col("seq").alias("up_to"), at.alias("at")))
        swept = self._sweeps(self._read_topic(self._control["snapshot"]))
        return found.unionByName(self._session.createDataFrame(swept, ENDING_SCHEMA)).distinct()

    def _sweeps(self, records: DataFrame) -> list[tuple[int, int, int]]:
        """Return the removals that records of the snapshot topic report, as ENDING_SCHEMA."""
        ends = control_topics.completed(control_topics.values(records), self._control["snapshot"])
        return [(sweep.space_id, sweep.up_to, ended.seq) for ended in ends for sweep in ended.sweeps]

    def _swept(self, records: DataFrame, batch: int, query: str) -> DataFrame:
        """Return the snapshot ends of a batch as rows without a key; `row` is the seq after which they hold."""
        sweeps = self._sweeps(records.where(F.col("topic") == self._control["snapshot"]))
        kept = [(space_id, None, up_to, str(at), None, query) for space_id, up_to, at in sweeps]
        return self._session.createDataFrame(kept, f"{STORED_SCHEMA}, query string").withColumn("batch", varying(batch))

    @staticmethod
    def _emptied(rows: DataFrame, batch: int, query: str) -> DataFrame:
        """Return the truncations of a batch as rows without a key."""
        nothing = F.lit(None)
        return (
            rows.where("op = 't'")
            .dropDuplicates(["space_id", "seq"])
            .select(
                "space_id",
                nothing.cast("string").alias("key"),
                "seq",
                nothing.cast("string").alias("row"),
                "schema_version",
                F.lit(query).alias("query"),
                varying(batch).alias("batch"),
            )
        )
