"""Catalog names for the tables of a job that keeps several things in one folder.

Such a job works with paths only. Its folder is in the location where the catalog keeps the schema. The tables for readers are
registered in the catalog, as tables with a LOCATION, as soon as they exist. If another table has a name, it keeps that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables import delta
from spark_jobs.tables.folders import folder
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import schema_location

_FOLDER: Final = "tarantool-cdc"
"""Folder of all jobs in a schema's location. No table can have this name, because catalogs accept no hyphen."""


def job_folder(session: SparkSession, location: Location, job: str) -> str:
    """Return the folder in which a job keeps everything, if its tables have names in the location's schema. Raises JobError."""
    parent = all_jobs_folder(session, location.schema)
    if parent is None:
        raise JobError(
            f"The catalog reports no location for the schema {'.'.join(location.schema)}, so this job can't keep its tables "
            "there. Create a schema with CREATE SCHEMA … LOCATION '…', or start with --path."
        )
    return f"{parent}/{folder(location.prefix)}/{job}"


def all_jobs_folder(session: SparkSession, schema: Sequence[str]) -> str | None:
    """Return the folder with the folders of all jobs whose tables have names in a schema; None if the schema has no location."""
    location = schema_location(session, schema)
    return None if location is None else f"{location}/{_FOLDER}"


class Names:
    """Catalog names of one job's tables."""

    def __init__(self, session: SparkSession, location: Location) -> None:
        """Name the tables in the location's schema, by the location's template."""
        self._session = session
        self.location = location
        self._done: dict[str, str] = {}

    def give(self, paths: Mapping[str, str]) -> None:
        """Register tables in the catalog: `paths` are their paths by name. Raises JobError.

        Tables that don't exist yet are skipped. For tables that are already registered, this costs nothing.
        """
        for name, path in paths.items():
            if self._done.get(name) != path and delta.is_delta(self._session, path):
                delta.register(self._session, path, self.location.named(name))
                self._done[name] = path
