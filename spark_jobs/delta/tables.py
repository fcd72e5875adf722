"""Delta tables, by path or by their name in a catalog: the steps that sinks need, each safe to repeat.

After a failure in the middle of a micro-batch, the sink gets the batch again. An append therefore carries the query's id and the
batch's number, and Delta appends each such pair only once. A merge compares `_seq`, so a repetition changes nothing.

Every function here accepts a `Table`: either a path or a `CatalogTable`. A job that supports both gets its tables from its
`Location` (`options.location` of a `Job` with `takes_catalog`) instead of building paths: `location.of(space)` for one of several
tables, `location.only(name)` for its only table. Both kinds print as an operator would write them, and `identifier(table)` is the
name in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

# Imported from the module that raises them: without it PySpark raises Java's error instead.
from delta.exceptions.captured import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import DataType, StructType

from spark_jobs.contract.sql_text import literal, quoted
from spark_jobs.delta import delta_log
from spark_jobs.delta.folders import catalog_name, folder
from spark_jobs.errors import JobError

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
    """Table of a catalog. `parts` are the catalog, its schema (one name or several), and the table's own name."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the name as people write it."""
        return ".".join(self.parts)


Table = str | CatalogTable
"""A path, or a table of a catalog."""


@dataclass(frozen=True)
class Location:
    """Place of a job's tables: under a path, or in a schema of a catalog, with names by a template.

    Under a path each table is a folder (folders.py). In a catalog, `{prefix}` in the template is the daemon's prefix and
    `{table}` the table's name, both written so that every catalog accepts them.
    """

    path: str | None = None
    schema: tuple[str, ...] = ()
    prefix: str = ""
    template: str = DEFAULT_TEMPLATE

    def __str__(self) -> str:
        """Return the path, or the schema as people write it."""
        return self.path if self.path is not None else ".".join(self.schema)

    def of(self, name: str) -> Table:
        """Return one table of several, by the name of its space."""
        return self.named(name) if self.path is None else f"{self.path.rstrip('/')}/{folder(name)}"

    def only(self, name: str) -> Table:
        """Return the only table of a job: the path itself, or the table with this name in the catalog."""
        return self.named(name) if self.path is None else self.path

    def named(self, name: str, suffix: str = "") -> CatalogTable:
        """Return the catalog's table for this name, by the template. The `suffix` comes after what the template says."""
        called = self.template.replace("{prefix}", catalog_name(self.prefix)).replace("{table}", catalog_name(name))
        return CatalogTable((*self.schema, f"{called}{suffix}"))

    @property
    def is_in_own_catalog(self) -> bool:
        """Whether the catalog is Spark's own, the only one in which Spark itself creates views."""
        return self.schema[:1] == (_OWN_CATALOG,)


def qualified(session: SparkSession, path: str) -> str:
    """Return an absolute path with its file system's scheme, the only form that `delta` accepts in SQL.

    A relative path starts from the working directory.
    """
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    if hadoop.toUri().getScheme() is not None:
        return path
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    return str(hadoop.getFileSystem(configuration).makeQualified(hadoop).toString())


def check_schema(session: SparkSession, schema: Sequence[str]) -> None:
    """Raise JobError unless the schema exists in the catalog."""
    name = ".".join(map(quoted, schema))
    try:
        session.sql(f"DESCRIBE SCHEMA {name}").collect()
    except AnalysisException as error:
        raise JobError(
            f"The session has no schema {'.'.join(schema)} (--catalog CATALOG.SCHEMA): {str(error).splitlines()[0]} Create it "
            f"with CREATE SCHEMA {name}, or configure the catalog with --spark-conf spark.sql.catalog.{schema[0]}=…"
        ) from error


def schema_location(session: SparkSession, schema: Sequence[str]) -> str | None:
    """Return the location in which the catalog keeps a schema's tables; None if the catalog reports none."""
    name = ".".join(map(quoted, schema))
    for row in session.sql(f"DESCRIBE SCHEMA {name}").collect():
        if row["info_name"] == "Location" and row["info_value"]:
            return qualified(session, _path_of(session, str(row["info_value"])).rstrip("/"))
    return None


def _path_of(session: SparkSession, location: str) -> str:
    """Return the path of a location: in a URI, as catalogs report it, a space is `%20`. Other texts are paths already."""
    jvm: Any = session.sparkContext._jvm
    try:
        return str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(location)).toString())
    except Py4JJavaError:
        return location


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
    parts = table.parts[1:] if table.parts[0] == _OWN_CATALOG else table.parts
    return ".".join(map(quoted, parts))


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
) -> None:
    """Create an empty table, unless there is one."""
    columns = ", ".join(f"{quoted(field.name)} {_type(field.dataType)}" for field in schema.fields)
    partitions = f" PARTITIONED BY ({', '.join(map(quoted, partition_by))})" if partition_by else ""
    settings = f" TBLPROPERTIES ({_settings(properties)})" if properties else ""
    session.sql(f"CREATE TABLE IF NOT EXISTS {identifier(table)} ({columns}) USING delta{partitions}{settings}")


def describe(session: SparkSession, table: Table) -> tuple[dict[str, str], bool]:
    """Return the table's properties, and whether the table may have rows."""
    row = delta(session, table).detail().select("properties", "numFiles").collect()[0]
    return dict(row["properties"]), row["numFiles"] > 0


def set_properties(session: SparkSession, table: Table, changed: Mapping[str, str]) -> None:
    """Change some of the table's properties, in one commit."""
    session.sql(f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ({_settings(changed)})")


def append_once(
    frame: DataFrame, table: Table, *, partition_by: Sequence[str], application: str, batch: int, gets_columns: bool = False
) -> None:
    """Append a micro-batch, unless this application has already appended this batch or a later one.

    With `gets_columns` the same commit adds the columns that the table lacks.
    """
    writer = frame.write.format("delta").mode("append").partitionBy(*partition_by)
    if gets_columns:
        writer = writer.option("mergeSchema", "true")
    _save(writer.option("txnAppId", application).option("txnVersion", batch), table)


def overwrite(frame: DataFrame, table: Table) -> None:
    """Replace all rows and columns of the table with these, in one commit. `frame` may read the table itself."""
    writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    retried(lambda: _save(writer, table))


def merge_rows(session: SparkSession, table: Table, newest: DataFrame) -> None:
    """Merge the newest rows of some keys into the table by `_key`, where their `_seq` is higher than the stored row's.

    A row marked `_deleted` deletes the stored row. Any other row replaces it, or is inserted if there is none.
    """
    # Spark sorts both sides by their keys. The hash comes first, as it is quicker to compare than texts that begin alike.
    same_key = "xxhash64(stored._key) = xxhash64(new._key) and stored._key = new._key"
    values: dict[str, str | Column] = {quoted(name): f"new.{quoted(name)}" for name in newest.columns if name != "_deleted"}

    def merge() -> None:
        builder = delta(session, table).alias("stored").merge(newest.alias("new"), same_key)
        builder = builder.whenMatchedDelete("new._deleted and new._seq > stored._seq")
        builder = builder.whenMatchedUpdate("new._seq > stored._seq", values)
        builder.whenNotMatchedInsert("not new._deleted", values).execute()

    retried(merge)


def delete(session: SparkSession, table: Table, condition: str | Column) -> None:
    """Delete the rows that meet the condition."""
    retried(lambda: delta(session, table).delete(condition))


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


def _save(writer: DataFrameWriter, table: Table) -> None:
    if isinstance(table, str):
        writer.save(table)
    else:
        writer.saveAsTable(identifier(table))


def _settings(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())


def _type(kind: DataType) -> str:
    """Return a type as written in SQL. Spark's own text of a struct doesn't quote the names."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {_type(field.dataType)}' for field in kind.fields)}>"
    return kind.simpleString()
