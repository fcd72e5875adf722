"""The tables of `changes --typed`, also called `changelog --typed`: events with typed rows, one table per space.

Each table has the changelog's columns. Beside the texts `before` and `after` it has the same rows as typed structs, `old` and
`new` (field_columns.py). The write that adds the first row of a form also adds the form's new columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import or_
from typing import Final

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.forms import Form, Forms, Version
from spark_jobs.contract.scales import with_scales
from spark_jobs.contract.source import Topics
from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.errors import JobError
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, event_rows
from spark_jobs.lake.control import without_control
from spark_jobs.lake.event_table import AppendRules, EventTable, table_is_gone
from spark_jobs.lake.field_columns import FieldColumns
from spark_jobs.runner.checkpoint import MadeTables
from spark_jobs.runner.job import REFUSED_SCHEMA, Sink
from spark_jobs.runner.unfit_counts import UnfitCounts
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import Table

_COLUMNS: Final = "tarantool_cdc.columns"
_PARTITIONS: Final = ("date",)
_PARALLEL: Final = 4
_REMEDY_FOR_LOST: Final = (
    "Start the job with --on-error dead-letter, which keeps these events as they are in the table of dead letters, or without"
    " --typed and with another --path and --checkpoint, as rows that are texts need no forms."
)


class TypedEventsSink(Sink):
    """Sink that appends each batch to the tables of its spaces once."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        location: Location,
        made: MadeTables,
        *,
        always: bool = False,
        unfit: UnfitCounts | None = None,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """Set the sink up. Raises JobError if the location's path is itself a table.

        `made` has the tables that earlier batches have made. With `always` the sink looks up each event in its table before
        writing it. `unfit` says what becomes of values that no column can hold. `read_topic` returns all records of a topic; by
        default they come from Kafka.
        """
        self._session = session
        self._topics = topics
        self._location = location
        self._made = made
        self._always = always
        self._unfit = unfit or UnfitCounts("after")
        self._schema_topic = topics.control("schema")
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._forms = Forms(self._schema_topic, ())
        self._tables: dict[str, TypedEventTable] = {}
        if location.path is not None and location.format.state(session, location.path) is not None:
            raise JobError(
                f"{location.path} is a table itself, maybe one of events without --typed, and can't contain other tables. "
                "Choose another --path and another --checkpoint."
            )

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`. The tables of a catalog have their names already."""
        if self._location.path is None:
            return {}
        return {space: str(self._location.of(space)) for space in self._made.numbers}

    def counts(self) -> Mapping[str, int]:
        """See `Sink.counts`."""
        return self._unfit.metrics()

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        records = without_control(records, self._topics)
        rows = event_rows(parse(records, names=self._topics.names), CHANGELOG_COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            forms, lost = self._forms_of(rows)
            kept = rows
            if lost:
                is_lost = _names_one_of(lost)
                self._give_up(records, rows.where(is_lost), lost)
                kept = rows.where(~is_lost)

            def append(space: str) -> int:
                own, unfit = kept.where(F.col("space") == space), self._unfit.for_write()
                noted = self._made.numbers.get(space)
                number = self._table(space).append(own, forms[space], batch, query, noted=noted, unfit=unfit)
                self._unfit.add(space, unfit)
                return number

            if forms:
                with ThreadPoolExecutor(min(_PARALLEL, len(forms))) as threads:
                    # The threads inherit the query's properties, by which Spark cancels its jobs.
                    numbers = list(threads.map(inheritable_thread_target(self._session)(append), forms))
                # Noted once they are there: a repeated batch then finds them, and they may be missing without a mistake before.
                self._made.add(dict(zip(forms, numbers, strict=True)))
        finally:
            rows.unpersist()

    def _table(self, space: str) -> TypedEventTable:
        if space not in self._tables:
            table = self._location.of(space)
            self._tables[space] = TypedEventTable(self._session, table, self._topics, self._location.format, always=self._always)
        return self._tables[space]

    def _forms_of(self, rows: DataFrame) -> tuple[dict[str, dict[Version, Form]], set[Version]]:
        """Return, by space, the forms of a batch's rows, and the forms that the schema topic lacks."""
        has_row = F.max(_has_row()).alias("has_row")
        found = rows.groupBy("space", "space_id", "schema_version").agg(has_row).collect()
        needed = [(row["space"], row["space_id"], row["schema_version"]) for row in found if row["has_row"]]
        if not all(self._forms.has(*one) for one in needed):
            texts = control_topics.values(self._read_topic(self._schema_topic))
            self._forms = Forms(self._schema_topic, (with_scales(text, self._topics.scales) for text in texts))
        forms: dict[str, dict[Version, Form]] = {row["space"]: {} for row in found}
        lost: set[Version] = set()
        for space, *version in sorted(needed):
            form = self._forms.get(version[0], version[1])
            if form is None:
                lost.add((version[0], version[1]))
            else:
                forms[space][version[0], version[1]] = form
        return forms, lost

    def _give_up(self, records: DataFrame, rows: DataFrame, lost: Collection[Version]) -> None:
        """Pass the events of lost forms to the dead letters: no one knows the types of their rows. Raises JobError."""
        told = [
            (*version, f"{self._forms.lost(*version)}, whose types this table needs. {_REMEDY_FOR_LOST}")
            for version in sorted(lost)
        ]
        sentences = self._session.createDataFrame(told, "space_id bigint, schema_version bigint, what string")
        place = {"topic": "kafka_topic", "partition": "kafka_partition", "offset": "kafka_offset"}
        refused = rows.join(F.broadcast(sentences), ["space_id", "schema_version"])
        refused = refused.select(
            *(F.col(column).alias(name) for name, column in place.items()),
            F.format_string("topic %s, partition %d, offset %d: %s", *place.values(), "what").alias("sentence"),
        )
        self.dead_letters.take(records.join(refused, [*place]).select(*REFUSED_SCHEMA.names))


def _has_row() -> Column:
    return F.col("before").isNotNull() | F.col("after").isNotNull()


def _names_one_of(versions: Collection[Version]) -> Column:
    """Return the condition that an event has a row of one of these forms."""
    is_one = (F.col("space_id").eqNullSafe(space) & F.col("schema_version").eqNullSafe(one) for space, one in sorted(versions))
    return _has_row() & reduce(or_, is_one)


class TypedEventTable:
    """Table of one space's events, with typed rows."""

    def __init__(
        self, session: SparkSession, table: Table, topics: Topics, table_format: TableFormat, *, always: bool = False
    ) -> None:
        """Name the table, and create nothing yet. With `always` each event is looked up before it is written."""
        self._session = session
        self._table = table
        self._format = table_format
        self._events = EventTable(
            session,
            table,
            topics.prefix,
            _PARTITIONS,
            spaces=topics.spaces,
            rules=AppendRules(looks_for_all=always, gets_columns=True),
            table_format=table_format,
        )
        self._columns: FieldColumns | None = None

    def append(
        self,
        rows: DataFrame,
        forms: Mapping[Version, Form],
        batch: int,
        query: str,
        *,
        noted: int | None,
        unfit: UnfitValues | None = None,
    ) -> int:
        """Append a batch like `EventTable.append`, and return the write's number. Raises JobError.

        `forms` are the forms that the rows name. `noted` is the number that the checkpoint has of the last write; None if the
        table may be missing, as no earlier batch has made it. `unfit` is as in `FieldColumns.add_to`.
        """
        known = self._columns if self._columns is not None else self._known()
        columns = (known or FieldColumns()).with_forms(forms.values())
        typed = columns.add_to(rows, forms, unfit)
        # The property with the columns is written before the columns. If the process stops in between, the next write adds them.
        properties = {_COLUMNS: columns.to_json()}
        if known is None:
            if noted is not None:
                raise table_is_gone(self._table)
            self._format.create(self._session, self._table, typed.schema, properties, partition_by=_PARTITIONS)
        elif columns != known:
            self._format.set_properties(self._session, self._table, properties)
        self._columns = columns
        return self._events.append(typed, batch, query, noted=noted or 0)

    def _known(self) -> FieldColumns | None:
        """Return the columns of the existing table; None if there is none. Raises JobError for another job's table."""
        if not self._format.exists(self._session, self._table):
            return None
        state = self._format.state(self._session, self._table)
        properties = {} if state is None else state.properties
        if _COLUMNS not in properties:
            raise JobError(
                f"The table {self._table} isn't one of events with --typed. Choose another --path, or another --table-template."
            )
        return FieldColumns.from_json(properties[_COLUMNS])
