"""Delta tables by path: what the sinks need, each step safe to repeat.

A micro-batch that fails half-way is given to the sink again. An append therefore carries the query's id and the batch's
number, which Delta refuses to take twice; a merge is guarded by `_seq`, so that a second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def qualified(session: SparkSession, path: str) -> str:
    """The path with its file system's scheme, a relative one from the working directory: in SQL, `delta` takes no other."""
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    if hadoop.toUri().getScheme() is not None:
        return path
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    return str(hadoop.getFileSystem(configuration).makeQualified(hadoop).toString())


def exists(session: SparkSession, path: str) -> bool:
    """Whether there is a Delta table at the path."""
    return bool(DeltaTable.isDeltaTable(session, path))


def read(session: SparkSession, path: str, version: int | None = None) -> DataFrame:
    """The table as it is now, or was in a version of it."""
    reader = session.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(path)


def version(session: SparkSession, path: str) -> int:
    """The number of the table's last commit."""
    return int(DeltaTable.forPath(session, path).history(1).select("version").collect()[0][0])


def create(session: SparkSession, path: str, schema: StructType, properties: Mapping[str, str]) -> None:
    """An empty table."""
    builder = DeltaTable.createIfNotExists(session).location(path).addColumns(schema)
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()


def describe(session: SparkSession, path: str) -> tuple[dict[str, str], bool]:
    """The table's properties, and whether it may have rows."""
    row = DeltaTable.forPath(session, path).detail().select("properties", "numFiles").collect()[0]
    return dict(row["properties"]), row["numFiles"] > 0


def set_properties(session: SparkSession, path: str, changed: Mapping[str, str]) -> None:
    """Change some of the table's properties, in one commit."""
    settings = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in changed.items())
    session.sql(f"ALTER TABLE {_identifier(path)} SET TBLPROPERTIES ({settings})")


def add_columns(session: SparkSession, path: str, columns: Mapping[str, str]) -> None:
    """New columns (name → type) at the end; null in the rows that are there."""
    definitions = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns.items())
    session.sql(f"ALTER TABLE {_identifier(path)} ADD COLUMNS ({definitions})")


def append_once(frame: DataFrame, path: str, *, partition_by: Sequence[str], application: str, batch: int) -> None:
    """Append a micro-batch; nothing happens if this application has appended this batch, or a later one, before."""
    writer = frame.write.format("delta").mode("append").partitionBy(*partition_by)
    writer.option("txnAppId", application).option("txnVersion", batch).save(path)


def append(frame: DataFrame, path: str) -> None:
    """Append rows to a table that is empty."""
    frame.write.format("delta").mode("append").save(path)


def overwrite(frame: DataFrame, path: str) -> None:
    """Put these rows and columns in the place of all that are there, in one commit; `frame` may read the table itself."""
    frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)


def merge_newer(session: SparkSession, path: str, rows: DataFrame) -> None:
    """Insert rows with new `_key`s and replace those whose `_seq` is smaller; the others are left as they are."""
    merge = DeltaTable.forPath(session, path).alias("stored").merge(rows.alias("new"), "stored._key = new._key")
    merge.whenMatchedUpdateAll("new._seq > stored._seq").whenNotMatchedInsertAll().execute()


def update(session: SparkSession, path: str, condition: str, changes: Mapping[str, str]) -> None:
    """Set columns (name → SQL expression) of the rows that meet the condition."""
    DeltaTable.forPath(session, path).update(condition, dict(changes))


def delete(session: SparkSession, path: str, condition: str) -> None:
    """Take the rows out that meet the condition."""
    DeltaTable.forPath(session, path).delete(condition)


def _identifier(path: str) -> str:
    return f"delta.`{path.replace('`', '``')}`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
