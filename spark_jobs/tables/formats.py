"""The table formats by their names, and which of them a table at a path has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables import delta, iceberg
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import Table, has_file

FORMATS: Final[Mapping[str, TableFormat]] = {delta.NAME: delta, iceberg.NAME: iceberg}
"""All formats. The first one is the default."""

_MARKS: Final[Mapping[str, str]] = {delta.NAME: "_delta_log", iceberg.NAME: "metadata/version-hint.text"}
"""What each format has in the folder of a table, for a search that needs neither format's jars."""


def format_at(session: SparkSession, paths: Sequence[str]) -> TableFormat | None:
    """Return the format of the first of these paths that is a table; None if there is none."""
    for path in paths:
        for name, known in FORMATS.items():
            if has_file(session, f"{path}/{_MARKS[name]}"):
                return known
    return None


def format_of(session: SparkSession, table: Table) -> TableFormat | None:
    """Return the format of a table; None if there is none. Raises JobError if Spark can't read it."""
    if not isinstance(table, str):
        return iceberg if iceberg.exists(session, table) else None
    found = format_at(session, [table])
    if found is iceberg:
        check_iceberg(session)
    return found


def check_format(session: SparkSession, tables: Sequence[Table], wanted: TableFormat) -> None:
    """Raise JobError if one of these tables has another format."""
    for path in tables:
        found = format_at(session, [path]) if isinstance(path, str) else format_of(session, path)
        if found is not None and found is not wanted:
            raise JobError(
                f"The table at {path} has the format {found.NAME}, and this command was started for {wanted.NAME}. Start it with"
                f" --table-format {found.NAME}, or with another --path and another --checkpoint."
            )


def check_iceberg(session: SparkSession) -> None:
    """Raise JobError unless Spark has Iceberg's jar."""
    jvm: Any = session.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("org.apache.iceberg.Table")
    except Py4JError as error:
        raise JobError(
            "There are Iceberg tables, and Spark has no jar for them. Start the command with --table-format iceberg."
        ) from error
