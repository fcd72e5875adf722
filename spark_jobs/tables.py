"""Delta tables, by path or by their name in a catalog: what the sinks need, each step safe to repeat.

A micro-batch that fails half-way is given to the sink again. An append therefore carries the query's id and the batch's
number, which Delta refuses to take twice; a merge is guarded by `_seq`, so that a second time changes nothing.

Every function here takes a `Table`: a path as a text, as ever, or a `CatalogTable`. A job that is to work with both asks its
`Location` for tables (`options.location` of a `Job` with `takes_catalog`) instead of putting paths together: `location.of(space)`
for one of several, `location.only(name)` for the only one that it has. Both kinds print as what an operator would call them,
and `identifier(table)` is what SQL calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

# From where they are raised: without this module PySpark raises Java's error in their place.
from delta.exceptions.captured import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import DataType, StructType

from spark_jobs.errors import JobError
from spark_jobs.folders import catalog_name, folder

DEFAULT_TEMPLATE: Final = "{prefix}_{table}"

_OWN_CATALOG: Final = "spark_catalog"

_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
_TRIES: Final = 10

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class CatalogTable:
    """A table of a catalog; `parts` are the catalog, its schema (one name or several), and the table's own name."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        """As people write it."""
        return ".".join(self.parts)


Table = str | CatalogTable
"""A path, or a table of a catalog."""


@dataclass(frozen=True)
class Location:
    """Where a job's tables are: under a path, or in a schema of a catalog, called by a template.

    In a path each table is a folder (folders.py); in a catalog `{prefix}` of the template is the daemon's prefix and `{table}`
    the table's name, both written so that every catalog takes them.
    """

    path: str | None = None
    schema: tuple[str, ...] = ()
    prefix: str = ""
    template: str = DEFAULT_TEMPLATE

    def __str__(self) -> str:
        """As people write it."""
        return self.path if self.path is not None else ".".join(self.schema)

    def of(self, name: str) -> Table:
        """One table of several, by the name of its space."""
        return self.named(name) if self.path is None else f"{self.path.rstrip('/')}/{folder(name)}"

    def only(self, name: str) -> Table:
        """The only table that a job has: the path itself, or the one that has this name in the catalog."""
        return self.named(name) if self.path is None else self.path

    def named(self, name: str) -> CatalogTable:
        """The table that has this name in the catalog."""
        called = self.template.replace("{prefix}", catalog_name(self.prefix)).replace("{table}", catalog_name(name))
        return CatalogTable((*self.schema, called))


def qualified(session: SparkSession, path: str) -> str:
    """The path with its file system's scheme, a relative one from the working directory: in SQL, `delta` takes no other."""
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    if hadoop.toUri().getScheme() is not None:
        return path
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    return str(hadoop.getFileSystem(configuration).makeQualified(hadoop).toString())


def check_schema(session: SparkSession, schema: Sequence[str]) -> None:
    """Raises JobError unless the schema of a catalog is there."""
    name = ".".join(map(_quoted, schema))
    try:
        session.sql(f"DESCRIBE SCHEMA {name}").collect()
    except AnalysisException as error:
        raise JobError(
            f"The session has no schema {'.'.join(schema)} (--catalog CATALOG.SCHEMA): {str(error).splitlines()[0]} Make it with "
            f"CREATE SCHEMA {name}, or set the catalog up with --spark-conf spark.sql.catalog.{schema[0]}=…"
        ) from error


def schema_location(session: SparkSession, schema: Sequence[str]) -> str:
    """Where the catalog keeps a schema's tables. Raises JobError if it doesn't say."""
    name = ".".join(map(_quoted, schema))
    for row in session.sql(f"DESCRIBE SCHEMA {name}").collect():
        if row["info_name"] == "Location" and row["info_value"]:
            return qualified(session, str(row["info_value"]).rstrip("/"))
    raise JobError(
        f"The catalog doesn't say where the schema {'.'.join(schema)} is, so this job can't have its tables there. Make one with "
        "CREATE SCHEMA … LOCATION '…', or start with --path."
    )


def register(session: SparkSession, path: str, table: CatalogTable) -> None:
    """Give the table at a path a name in a catalog; nothing happens if it has it. Raises JobError if another table has."""
    session.sql(f"CREATE TABLE IF NOT EXISTS {identifier(table)} USING delta LOCATION {_literal(path)}")
    found = delta(session, table).detail().select("location").collect()[0][0] if is_delta(session, table) else "elsewhere"
    if qualified(session, found) != path:
        raise JobError(
            f"The table {table} is there already, {found}, and isn't the one in {path}. Choose another --table-template."
        )


def identifier(table: Table) -> str:
    """What SQL calls the table."""
    if isinstance(table, str):
        return f"delta.{_quoted(table)}"
    # Delta's own functions take no catalog before the schema, which for Spark's own catalog can be left out.
    parts = table.parts[1:] if table.parts[0] == _OWN_CATALOG else table.parts
    return ".".join(map(_quoted, parts))


def exists(session: SparkSession, table: Table) -> bool:
    """Whether there is a Delta table. Raises JobError for one of a catalog that isn't Delta's."""
    if isinstance(table, CatalogTable) and session.catalog.tableExists(identifier(table)) and not is_delta(session, table):
        raise JobError(f"The table {table} isn't one of Delta. Choose another --table-template.")
    return is_delta(session, table)


def is_delta(session: SparkSession, table: Table) -> bool:
    """Whether there is a table, and it is one of Delta."""
    if isinstance(table, str):
        return bool(DeltaTable.isDeltaTable(session, table))
    if not session.catalog.tableExists(identifier(table)):
        return False
    provider = session.sql(f"DESCRIBE EXTENDED {identifier(table)}").where("col_name = 'Provider'").collect()
    return bool(provider) and provider[0]["data_type"].lower() == "delta"


def delta(session: SparkSession, table: Table) -> DeltaTable:
    """Delta's handle of the table."""
    return DeltaTable.forPath(session, table) if isinstance(table, str) else DeltaTable.forName(session, identifier(table))


def read(session: SparkSession, table: Table, version: int | None = None) -> DataFrame:
    """The table as it is now, or was in a version of it."""
    reader = session.read.format("delta")
    reader = reader if version is None else reader.option("versionAsOf", version)
    return reader.load(table) if isinstance(table, str) else reader.table(identifier(table))


def version(session: SparkSession, table: Table) -> int:
    """The number of the table's last commit."""
    return int(delta(session, table).history(1).select("version").collect()[0][0])


def create(
    session: SparkSession,
    table: Table,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
) -> None:
    """An empty table, if there is none."""
    columns = ", ".join(f"{_quoted(field.name)} {_type(field.dataType)}" for field in schema.fields)
    partitions = f" PARTITIONED BY ({', '.join(map(_quoted, partition_by))})" if partition_by else ""
    settings = f" TBLPROPERTIES ({_settings(properties)})" if properties else ""
    session.sql(f"CREATE TABLE IF NOT EXISTS {identifier(table)} ({columns}) USING delta{partitions}{settings}")


def describe(session: SparkSession, table: Table) -> tuple[dict[str, str], bool]:
    """The table's properties, and whether it may have rows."""
    row = delta(session, table).detail().select("properties", "numFiles").collect()[0]
    return dict(row["properties"]), row["numFiles"] > 0


def set_properties(session: SparkSession, table: Table, changed: Mapping[str, str]) -> None:
    """Change some of the table's properties, in one commit."""
    session.sql(f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ({_settings(changed)})")


def append_once(
    frame: DataFrame, table: Table, *, partition_by: Sequence[str], application: str, batch: int, gets_columns: bool = False
) -> None:
    """Append a micro-batch; nothing happens if this application has appended this batch, or a later one, before.

    With `gets_columns` the table gets the columns that it lacks, in the same commit.
    """
    writer = frame.write.format("delta").mode("append").partitionBy(*partition_by)
    if gets_columns:
        writer = writer.option("mergeSchema", "true")
    _save(writer.option("txnAppId", application).option("txnVersion", batch), table)


def overwrite(frame: DataFrame, table: Table) -> None:
    """Put these rows and columns in the place of all that are there, in one commit; `frame` may read the table itself."""
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    retried(lambda: _save(writer, table))


def merge_rows(session: SparkSession, table: Table, newest: DataFrame) -> None:
    """Take in rows by their `_key`: those marked `_deleted` go, the others are put in where they are newer by `_seq`."""
    values: dict[str, str | Column] = {_quoted(name): f"new.{_quoted(name)}" for name in newest.columns if name != "_deleted"}

    def merge() -> None:
        builder = delta(session, table).alias("stored").merge(newest.alias("new"), "stored._key = new._key")
        builder = builder.whenMatchedDelete("new._deleted and new._seq > stored._seq")
        builder = builder.whenMatchedUpdate("new._seq > stored._seq", values)
        builder.whenNotMatchedInsert("not new._deleted", values).execute()

    retried(merge)


def delete(session: SparkSession, table: Table, condition: str | Column) -> None:
    """Take the rows out that meet the condition."""
    retried(lambda: delta(session, table).delete(condition))


def retried(step: Callable[[], _Result]) -> _Result:
    """Do a step that changes a table, again if somebody else (job `maintain`, another job) has changed the table meanwhile.

    The step must read the table anew each time.
    """
    for _ in range(_TRIES - 1):
        try:
            return step()
        except _CONFLICTS:
            continue
    return step()


def _save(writer: DataFrameWriter, table: Table) -> None:
    if isinstance(table, str):
        writer.save(table)
    else:
        writer.saveAsTable(identifier(table))


def _settings(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())


def _type(kind: DataType) -> str:
    """As SQL writes it: Spark's own text of a struct leaves names as they are."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {_type(field.dataType)}' for field in kind.fields)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
