"""Delta tables, by path or by their name in a catalog: the steps that sinks need (format.py), each safe to repeat.

An application and its number are Delta's own transaction identifiers: Delta stores the number in the commit, skips a commit whose
number isn't higher, and refuses one if the application has committed another number meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

# Imported from the module that raises them: without it PySpark raises Java's error instead.
from delta.exceptions.captured import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructField, StructType

from spark_jobs.contract.sql_text import literal, quoted
from spark_jobs.errors import FILES_GONE, JobError
from spark_jobs.tables import delta_log
from spark_jobs.tables.delta_log import TableState
from spark_jobs.tables.format import NameTakenError, Once, OvertakenError
from spark_jobs.tables.places import OWN_CATALOG, CatalogTable, Table, qualified, type_in_sql

NAME: Final = "delta"

_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
_TRIES: Final = 10

_Result = TypeVar("_Result")

_TRANSACTION_NAME: Final = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_NUMBER: Final = "spark.databricks.delta.write.txnVersion"
_TOLD: Final = "spark.databricks.delta.commitInfo.userMetadata"
SKIPS_BY: Final = "delta.dataSkippingStatsColumns"
"""Property with the columns whose values are summed up for each file; all, if it isn't there."""
UNORDERED: Final = ("boolean", "binary")
"""Types of columns of which Delta sums nothing up, so that it can't put rows together by them either."""
_FEED: Final = "delta.enableChangeDataFeed"
_VACUUMED: Final = re.compile(f"{FILES_GONE}|DELTA_VERSION_NOT_FOUND|DELTA_LOG_FILE")
"""Errors of Delta and Spark where VACUUM has removed what tells the rows of a version."""
_ALL: Final = str(2**31 - 1)
_NAME_TAKEN: Final = "AMBIGUOUS_REFERENCE"
"""Error of a MERGE or DELETE: both add columns to the table's (`path`, `rowIndexCol`, …), and the table has such a name."""

_LOCATIONS: Final[WeakKeyDictionary[SparkSession, dict[CatalogTable, str]]] = WeakKeyDictionary()
"""Folders of the tables of catalogs, once they are known."""


def register(session: SparkSession, path: str, table: CatalogTable) -> None:
    """Register the table at a path in a catalog, unless it has the name already. Raises JobError if another table has it."""
    session.sql(f"CREATE TABLE IF NOT EXISTS {identifier(table)} USING delta LOCATION {literal(path)}")
    found = table_location(session, table) if is_delta(session, table) else "elsewhere"
    if found != path:
        raise JobError(
            f"The table {table} is there already, {found}, and isn't the one in {path}. Choose another --table-template."
        )


def table_location(session: SparkSession, table: Table) -> str:
    """Return the path of a Delta table's folder."""
    return qualified(session, str(delta(session, table).detail().select("location").collect()[0][0]))


def identifier(table: Table) -> str:
    """Return the table's name in SQL."""
    if isinstance(table, str):
        return f"delta.{quoted(table)}"
    # Delta's own functions accept no catalog before the schema. For Spark's own catalog it can be left out.
    parts = table.parts[1:] if table.parts[0] == OWN_CATALOG else table.parts
    return ".".join(map(quoted, parts))


def name_in_sql(session: SparkSession, table: Table) -> str:  # noqa: ARG001 - Delta finds tables by their paths
    """See `TableFormat.name_in_sql`."""
    return identifier(table)


def exists(session: SparkSession, table: Table) -> bool:
    """Return whether there is a Delta table. Raises JobError if a catalog's table isn't a Delta table."""
    if isinstance(table, CatalogTable) and session.catalog.tableExists(identifier(table)) and not is_delta(session, table):
        raise JobError(f"The table {table} isn't a Delta table. Choose another --table-template.")
    return is_delta(session, table)


def is_delta(session: SparkSession, table: Table) -> bool:
    """Return whether there is a table and it is a Delta table."""
    if isinstance(table, str):
        # Delta's own function treats every folder inside a table as that table.
        return delta_log.state(session, table) is not None
    if not session.catalog.tableExists(identifier(table)):
        return False
    provider = session.sql(f"DESCRIBE EXTENDED {identifier(table)}").where("col_name = 'Provider'").collect()
    return bool(provider) and provider[0]["data_type"].lower() == "delta"


def state(session: SparkSession, table: Table, version: int | None = None) -> TableState | None:
    """See `TableFormat.state`."""
    path = _folder(session, table)
    return None if path is None else delta_log.state(session, path, version)


def state_at(session: SparkSession, table: Table, seconds: float) -> TableState | None:
    """See `TableFormat.state_at`."""
    path = _folder(session, table)
    return None if path is None else delta_log.state_at(session, path, seconds)


def _folder(session: SparkSession, table: Table) -> str | None:
    """Return the table's folder; None if a catalog has no such table."""
    if isinstance(table, str):
        return table
    if not is_delta(session, table):
        return None
    known = _LOCATIONS.setdefault(session, {})
    if table not in known:
        known[table] = table_location(session, table)
    return known[table]


def delta(session: SparkSession, table: Table) -> DeltaTable:
    """Return Delta's handle of the table."""
    return DeltaTable.forPath(session, table) if isinstance(table, str) else DeltaTable.forName(session, identifier(table))


def read(session: SparkSession, table: Table, version: int | None = None) -> DataFrame:
    """Return the table's rows, now or in an earlier version."""
    reader = session.read.format("delta")
    reader = reader if version is None else reader.option("versionAsOf", version)
    return reader.load(table) if isinstance(table, str) else reader.table(identifier(table))


def version(session: SparkSession, table: Table) -> int:
    """Return the number of the table's last commit."""
    return int(delta(session, table).history(1).select("version").collect()[0][0])


def create(
    session: SparkSession,
    table: Table,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
    skips_by: Sequence[str] = (),
    has_others_inside: bool = False,
) -> None:
    """See `TableFormat.create`."""
    settings = {**properties, **({SKIPS_BY: ",".join(skips_by)} if skips_by else {})}
    if has_others_inside and isinstance(table, str):
        # Delta's own function to create a table would fail.
        if state(session, table) is None:
            writer = session.createDataFrame([], schema).write.format("delta").partitionBy(*partition_by)
            writer.options(**settings).mode("append").save(table)
        return
    about = f" COMMENT {literal(settings.pop('comment'))}" if "comment" in settings else ""
    columns = ", ".join(map(_column, schema.fields))
    partitions = f" PARTITIONED BY ({', '.join(map(quoted, partition_by))})" if partition_by else ""
    texts = f" TBLPROPERTIES ({_settings(settings)})" if settings else ""
    session.sql(f"CREATE TABLE IF NOT EXISTS {identifier(table)} ({columns}) USING delta{partitions}{about}{texts}")


def describe(session: SparkSession, table: Table) -> tuple[dict[str, str], bool]:
    """Return the table's properties, and whether the table may have rows."""
    row = delta(session, table).detail().select("properties", "numFiles").collect()[0]
    return dict(row["properties"]), row["numFiles"] > 0


def set_properties(session: SparkSession, table: Table, changed: Mapping[str, str]) -> None:
    """Change some of the table's properties, in one commit."""
    retried(lambda: session.sql(f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ({_settings(changed)})"))


def append_once(
    frame: DataFrame,
    table: Table,
    *,
    partition_by: Sequence[str],
    application: str,
    batch: int,
    gets_columns: bool = False,
    told: Mapping[str, str] | None = None,
) -> None:
    """See `TableFormat.append_once`."""
    writer = frame.write.format("delta").mode("append").partitionBy(*partition_by)
    if gets_columns:
        writer = writer.option("mergeSchema", "true")
    try:
        _save(_with_once(writer, Once(application, batch, told or {})), table)
    except ConcurrentTransactionException as error:
        raise OvertakenError(application) from error


def overwrite(frame: DataFrame, table: Table, *, once: Once | None = None, properties: Mapping[str, str] | None = None) -> None:
    """See `TableFormat.overwrite`. The properties are changed in a commit of their own, after the rows."""
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    if once is not None:
        writer = _with_once(writer, once)
    _keep_skipping(frame, table)
    retried(lambda: _save(writer, table))
    if properties:
        found = state(frame.sparkSession, table)
        if found is None or any(found.properties.get(name) != value for name, value in properties.items()):
            set_properties(frame.sparkSession, table, properties)


def _keep_skipping(frame: DataFrame, table: Table) -> None:
    """Sum nothing up of columns that the table won't have any more, or not of that kind, nor cluster by them.

    Delta wouldn't replace the rows.
    """
    found = state(frame.sparkSession, table)
    summed_up = "" if found is None else found.properties.get(SKIPS_BY, "")
    named = summed_up.split(",") if summed_up else []
    ordered = {quoted(field.name) for field in frame.schema.fields if field.dataType.simpleString() not in UNORDERED}
    kept = [name for name in named if quoted(name) in ordered or name in ordered]
    if len(kept) < len(named):
        cluster(frame.sparkSession, table, ())
        set_properties(frame.sparkSession, table, {SKIPS_BY: ",".join(kept)})


def cluster(session: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """Have OPTIMIZE put rows together that are alike in these columns (liquid clustering); with none of them, no rows."""
    detail = delta(session, table).detail().select("clusteringColumns", "properties").collect()[0]
    if [name.strip("`") for name in detail["clusteringColumns"] or ()] == list(columns):
        return
    summed_up = detail["properties"].get(SKIPS_BY)
    if summed_up is not None:
        # Delta takes only columns that are summed up for each file.
        wanted = dict.fromkeys([*summed_up.split(","), *map(quoted, columns)])
        set_properties(session, table, {SKIPS_BY: ",".join(wanted)})
    by = f"({', '.join(map(quoted, columns))})" if columns else "NONE"
    retried(lambda: session.sql(f"ALTER TABLE {identifier(table)} CLUSTER BY {by}"))


def merge_rows(session: SparkSession, table: Table, newest: DataFrame, once: Once | None = None) -> None:
    """See `TableFormat.merge_rows`."""
    # The transaction number of a MERGE is a setting of the session.
    if once is not None:
        session.conf.set(_TRANSACTION_NAME, once.application)
        session.conf.set(_TRANSACTION_NUMBER, str(once.number))
        session.conf.set(_TOLD, json.dumps(dict(once.told))) if once.told else session.conf.unset(_TOLD)
    # Spark sorts both sides by their keys. The hash comes first, as it is quicker to compare than texts that begin alike.
    same_key = "xxhash64(stored._key) = xxhash64(new._key) and stored._key = new._key"
    values: dict[str, str | Column] = {quoted(name): f"new.{quoted(name)}" for name in newest.columns if name != "_deleted"}

    def merge() -> None:
        builder = delta(session, table).alias("stored").merge(newest.alias("new"), same_key)
        builder = builder.whenMatchedDelete("new._deleted and new._seq > stored._seq")
        builder = builder.whenMatchedUpdate("new._seq > stored._seq", values)
        builder.whenNotMatchedInsert("not new._deleted", values).execute()

    _with_names(merge)


def upsert(session: SparkSession, table: Table, new: DataFrame, by: Sequence[str], condition: str = "false") -> None:
    """See `TableFormat.upsert`."""
    is_same = " and ".join(f"stored.{quoted(name)} <=> new.{quoted(name)}" for name in by)

    def merge() -> None:
        builder = delta(session, table).alias("stored").merge(new.alias("new"), is_same)
        if condition != "false":
            builder = builder.whenMatchedUpdateAll(condition)
        builder.whenNotMatchedInsertAll().execute()

    _with_names(merge)


def keep_appended(session: SparkSession, table: Table) -> None:
    """See `TableFormat.keep_appended`. The change data feed costs nothing if rows are only appended."""
    found = state(session, table)
    if found is not None and found.properties.get(_FEED) != "true":
        set_properties(session, table, {_FEED: "true"})


def appended(session: SparkSession, table: Table, after: int, up_to: int) -> DataFrame:
    """See `TableFormat.appended`."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", after + 1).option("endingVersion", up_to)
    found = reader.load(table) if isinstance(table, str) else reader.table(identifier(table))
    return found.drop("_change_type", "_commit_version", "_commit_timestamp")


def are_gone(error: Exception) -> bool:
    """See `TableFormat.are_gone`."""
    return bool(_VACUUMED.search(str(error)))


def stream(session: SparkSession, table: Table, checkpoint: str) -> DataFrame:  # noqa: ARG001 - Delta needs no help to resume
    """See `TableFormat.stream`."""
    # The first batch is the complete table, whatever its size, because its files don't show the order in which they were written.
    reader = session.readStream.format("delta").option("skipChangeCommits", "true").option("maxFilesPerTrigger", _ALL)
    return reader.load(table) if isinstance(table, str) else reader.table(identifier(table))


def delete(session: SparkSession, table: Table, condition: str) -> None:
    """See `TableFormat.delete`."""
    _with_names(lambda: delta(session, table).delete(condition))


def _with_names(step: Callable[[], None]) -> None:
    try:
        retried(step)
    except AnalysisException as error:
        if _NAME_TAKEN not in str(error):
            raise
        raise NameTakenError(str(error)) from error


def retried(step: Callable[[], _Result]) -> _Result:
    """Run a step that changes a table. Repeat it if another writer (task `maintain`, another job) changed the table meanwhile.

    The step must read the table again each time.
    """
    for _ in range(_TRIES - 1):
        try:
            return step()
        except _CONFLICTS:
            continue
    return step()


def _with_once(writer: DataFrameWriter, once: Once) -> DataFrameWriter:
    writer = writer.option("txnAppId", once.application).option("txnVersion", once.number)
    return writer.option("userMetadata", json.dumps(dict(once.told))) if once.told else writer


def _save(writer: DataFrameWriter, table: Table) -> None:
    if isinstance(table, str):
        writer.save(table)
    else:
        writer.saveAsTable(identifier(table))


def _settings(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def _column(field: StructField) -> str:
    comment = field.metadata.get("comment")
    return f"{quoted(field.name)} {type_in_sql(field.dataType)}{f' COMMENT {literal(comment)}' if comment else ''}"
