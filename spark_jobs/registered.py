"""Tables of a job in a catalog, for a job that keeps several things in one folder.

Such a job works with paths alone: its folder lies where the catalog keeps its schema, and those of its tables that are for
readers get names there (tables of the catalog with a LOCATION), as soon as they are made. A name that another table has is not
taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs import tables
from spark_jobs.folders import folder
from spark_jobs.tables import Location

_FOLDER: Final = "tarantool-cdc"
"""No table is called so: catalogs take no hyphen."""


def job_folder(session: SparkSession, location: Location, job: str) -> str:
    """Where a job keeps everything whose tables have names in this schema. Raises JobError."""
    return f"{tables.schema_location(session, location.schema)}/{_FOLDER}/{folder(location.prefix)}/{job}"


class Names:
    """The names that tables of one job have."""

    def __init__(self, session: SparkSession, location: Location) -> None:
        """In this schema, by its template."""
        self._session = session
        self._location = location
        self._done: dict[str, str] = {}

    def give(self, paths: Mapping[str, str]) -> None:
        """Give names to tables, by what `Location` calls them; what is done already costs nothing. Raises JobError."""
        for name, path in paths.items():
            if self._done.get(name) != path and tables.is_delta(self._session, path):
                tables.register(self._session, path, self._location.named(name))
                self._done[name] = path
