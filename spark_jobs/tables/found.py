"""Where jobs keep their tables in a schema of a catalog, for commands that are told only the schema.

A job keeps one table there whose name doesn't depend on a space. Its properties have the prefix and the template with which the
job was started, and by these all of its tables have their names.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.contract.sql_text import quoted
from spark_jobs.errors import JobError
from spark_jobs.tables import iceberg
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, check_schema

PREFIX: Final = "tarantool_cdc.prefix"
"""Table property with the prefix of the daemon whose events a table has."""
TEMPLATE: Final = "tarantool_cdc.template"
"""Table property with the job's --table-template."""


def locations(session: SparkSession, schema: tuple[str, ...], inner: str) -> list[Location]:
    """Return the locations in a schema that have the table `inner` (`Location.inner`). Raises JobError without the schema."""
    check_schema(session, schema)
    found = []
    for row in session.sql(f"SHOW TABLES IN {'.'.join(map(quoted, schema))}").orderBy("tableName").collect():
        table = CatalogTable((*schema, row["tableName"]))
        state = iceberg.state(session, table) if inner in row["tableName"] else None
        if state is not None and TEMPLATE in state.properties:
            prefix, template = state.properties.get(PREFIX, ""), state.properties[TEMPLATE]
            location = Location(schema=schema, prefix=prefix, template=template, format=iceberg)
            if location.inner(inner) == table:
                found.append(location)
    return found


def location(session: SparkSession, schema: tuple[str, ...], inner: str, prefix: str | None = None) -> Location:
    """Return the only such location, or the one of a prefix. Raises JobError if there is none, or more than one."""
    found = [one for one in locations(session, schema, inner) if prefix is None or one.prefix == prefix]
    if len(found) == 1:
        return found[0]
    name = ".".join(schema)
    if found:
        prefixes = ", ".join(one.prefix for one in found)
        raise JobError(f"The schema {name} has tables of several daemons. Name the prefix of one of them: {prefixes}.")
    of_prefix = "" if prefix is None else f" of the prefix {prefix!r}"
    raise JobError(f"The schema {name} has no such table{of_prefix} yet: a job makes {inner[1:]} there with its first batch.")
