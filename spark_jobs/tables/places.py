"""Where tables are: under a path, or in a schema of a catalog. Nothing here depends on the tables' format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from spark_jobs.contract.sql_text import quoted
from spark_jobs.errors import JobError

OWN_CATALOG: Final = "spark_catalog"
_OF_CATALOGS: Final = "spark.sql.catalog."


@dataclass(frozen=True)
class CatalogTable:
    """Table of a catalog. `parts` are the catalog, its schema (one name or several), and the table's own name."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the name as people write it."""
        return ".".join(self.parts)


Table = str | CatalogTable
"""A path, or a table of a catalog."""


HELD: Final = "_held"
"""Name of the table of events that wait, beside the one that they are for."""


def beside(table: Table, name: str) -> Table:
    """Return the table that belongs to another one under this name: in its folder, or beside it in its catalog's schema."""
    if isinstance(table, str):
        return f"{table}/{name}"
    return CatalogTable((*table.parts[:-1], f"{table.parts[-1]}{name}"))


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


def own_session(session: SparkSession) -> SparkSession:
    """Return a new session that knows the same catalogs, also those that were configured after the start."""
    own = session.newSession()
    for name, value in session.conf.getAll.items():
        if name.startswith(_OF_CATALOGS) and own.conf.get(name, None) != value:
            own.conf.set(name, value)
    return own


def table_at(session: SparkSession, text: str) -> Table:
    """Return the table that a text means: a name in a catalog that the session knows, or else a path."""
    parts = names_in_catalog(session, text)
    return qualified(session, text) if parts is None else CatalogTable(parts)


def check_java_side(session: object, function: str, view: str = "<table>_fresh") -> None:
    """Raise JobError if a session is one of Spark Connect, which has no Java side for a function that reads tables."""
    if not isinstance(session, SparkSession):
        raise JobError(
            f"{function} can't read tables through Spark Connect: only the driver's Java side knows up to which seq a version of"
            f" a table is merged. Read the view {view}, which the job `current` keeps with --catalog, or start a session with a"
            " driver of its own."
        )


def names_in_catalog(session: SparkSession, text: str) -> tuple[str, ...] | None:
    """Return the parts of a name that begins with a catalog of the session's configuration; None for a path."""
    parts = tuple(text.split("."))
    is_name = "/" not in text and len(parts) > 1 and all(parts) and session.conf.get(f"{_OF_CATALOGS}{parts[0]}", None)
    return parts if is_name and parts[0] != OWN_CATALOG else None


def has_file(session: SparkSession, path: str) -> bool:
    """Return whether there is a file or folder."""
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    return bool(hadoop.getFileSystem(session.sparkContext._jsc.hadoopConfiguration()).exists(hadoop))


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


def type_in_sql(kind: DataType) -> str:
    """Return a type as written in SQL. Spark's own text of a struct doesn't quote the names."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {type_in_sql(field.dataType)}' for field in kind.fields)}>"
    return kind.simpleString()
