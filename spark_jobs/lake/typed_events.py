"""Tables of events with typed rows, one per space: what `changelog --typed` writes.

Each has the changelog's columns as they are, and beside the texts `before` and `after` the same rows typed, as `old` and `new`
(field_columns.py). Its columns grow with the forms of its space, in the very write that brings the first row of a form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark import StorageLevel, inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import control_topics, tables
from spark_jobs.envelope import parse
from spark_jobs.errors import JobError
from spark_jobs.forms import Form, Forms, Version
from spark_jobs.job import Sink
from spark_jobs.lake.change_rows import CHANGELOG_COLUMNS, event_rows
from spark_jobs.lake.event_table import EventTable
from spark_jobs.lake.field_columns import FieldColumns
from spark_jobs.source import Topics

_COLUMNS: Final = "tarantool_cdc.columns"
_PARTITIONS: Final = ("date",)
_PARALLEL: Final = 4


class TypedEventsSink(Sink):
    """Appends batches to the tables of their spaces, each once."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        location: tables.Location,
        *,
        always: bool = False,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """`always` looks for each event in its table first; `read_topic` gives all records of a topic, instead of Kafka.

        Raises JobError.
        """
        self._session = session
        self._topics = topics
        self._location = location
        self._always = always
        self._schema_topic = topics.control("schema")
        self._read_topic = read_topic or (lambda topic: topics.read(session, topic))
        self._forms = Forms(self._schema_topic, ())
        self._tables: dict[str, TypedEventTable] = {}
        if location.path is not None and tables.is_delta(session, location.path):
            raise JobError(
                f"{location.path} is a table itself, maybe of a changelog without --typed, and tables can't be inside of it. "
                "Choose another --path and another --checkpoint."
            )

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """As `Sink.write`."""
        rows = event_rows(parse(records), CHANGELOG_COLUMNS).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            forms = self._forms_of(rows)

            def append(space: str) -> None:
                self._table(space).append(rows.where(F.col("space") == space), forms[space], batch, query)

            if forms:
                with ThreadPoolExecutor(min(_PARALLEL, len(forms))) as threads:
                    # With the query's properties, by which Spark's jobs are told to stop.
                    list(threads.map(inheritable_thread_target(self._session)(append), forms))
        finally:
            rows.unpersist()

    def _table(self, space: str) -> TypedEventTable:
        if space not in self._tables:
            table = self._location.of(space)
            self._tables[space] = TypedEventTable(self._session, table, self._topics, always=self._always)
        return self._tables[space]

    def _forms_of(self, rows: DataFrame) -> dict[str, dict[Version, Form]]:
        """By space, the forms that rows of a batch have. Raises JobError where the schema topic lacks one."""
        has_row = F.max(F.col("before").isNotNull() | F.col("after").isNotNull()).alias("has_row")
        found = rows.groupBy("space", "space_id", "schema_version").agg(has_row).collect()
        needed = [(row["space"], row["space_id"], row["schema_version"]) for row in found if row["has_row"]]
        if not all(self._forms.has(*one) for one in needed):
            self._forms = Forms(self._schema_topic, control_topics.values(self._read_topic(self._schema_topic)))
        forms: dict[str, dict[Version, Form]] = {row["space"]: {} for row in found}
        for space, *version in sorted(needed):
            forms[space][version[0], version[1]] = self._forms.of(*version)
        return forms


class TypedEventTable:
    """The table of one space."""

    def __init__(self, session: SparkSession, table: tables.Table, topics: Topics, *, always: bool = False) -> None:
        """Nothing is made yet."""
        self._session = session
        self._table = table
        self._events = EventTable(
            session, table, topics.prefix, _PARTITIONS, spaces=topics.spaces, looks_for_all=always, gets_columns=True
        )
        self._columns: FieldColumns | None = None

    def append(self, rows: DataFrame, forms: Mapping[Version, Form], batch: int, query: str) -> None:
        """As `EventTable.append`; `forms` are those that rows name. Raises JobError."""
        known = self._columns if self._columns is not None else self._known()
        columns = (known or FieldColumns()).with_forms(forms.values())
        typed = columns.add_to(rows, forms)
        # What columns mean is said before they are there: if it stops in between, the next write makes them.
        properties = {_COLUMNS: columns.to_json()}
        if known is None:
            tables.create(self._session, self._table, typed.schema, properties, partition_by=_PARTITIONS)
        elif columns != known:
            tables.retried(lambda: tables.set_properties(self._session, self._table, properties))
        self._columns = columns
        self._events.append(typed, batch, query)

    def _known(self) -> FieldColumns | None:
        """The columns of the table that is there; None if none is. Raises JobError for another job's table."""
        if not tables.exists(self._session, self._table):
            return None
        properties, _ = tables.describe(self._session, self._table)
        if _COLUMNS not in properties:
            raise JobError(
                f"The table {self._table} isn't one of `changelog --typed`. Choose another --path, or another --table-template."
            )
        return FieldColumns.from_json(properties[_COLUMNS])
