"""Views in catalogs: Spark's own catalog, and Iceberg's catalogs that keep views (REST, JDBC with schema version V1, Hive, …).

Spark itself creates views only in its own catalog, `spark_catalog`. With Iceberg's extensions of the session it also creates them
in Iceberg's catalogs. Such a view has a text for Spark alone.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.contract.sql_text import literal
from spark_jobs.tables import delta
from spark_jobs.tables.iceberg_tables import identifier, java_names, load
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, Table

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_DETAILS: Final = "# Detailed Table Information"
"""Row of DESCRIBE EXTENDED after the columns."""
_KEPT_SECONDS: Final = 3600.0
"""Time for which the former metadata of a view are kept: a reader may be about to open them."""


class NoViewsError(Exception):
    """The catalog has no views, or the session can't create them."""


class Views(Protocol):
    """The views of one catalog."""

    def text(self, name: CatalogTable) -> str | None:
        """Return a view's query; None if nothing has the name. An empty text means something else than a view."""

    def create(self, name: CatalogTable, text: str, comment: str) -> None:
        """Create a view. Raises NoViewsError."""

    def replace(self, name: CatalogTable, text: str, comment: str, base: Table) -> None:
        """Replace a view's query in one step. `base` is a table that it reads."""


class SparkViews:
    """Views in Spark's own catalog."""

    def __init__(self, session: SparkSession) -> None:
        """Use the session's catalog."""
        self._session = session

    def text(self, name: CatalogTable) -> str | None:
        """See `Views.text`."""
        called = delta.identifier(name)
        if not self._session.catalog.tableExists(called):
            return None
        rows = [(row["col_name"], row["data_type"]) for row in self._session.sql(f"DESCRIBE EXTENDED {called}").collect()]
        found = dict(rows[rows.index((_DETAILS, "")) :])
        return found["View Text"] if found.get("Type") == "VIEW" else ""

    def create(self, name: CatalogTable, text: str, comment: str) -> None:
        """See `Views.create`."""
        self._session.sql(f"CREATE VIEW {delta.identifier(name)} COMMENT {literal(comment)} AS {text}")

    def replace(self, name: CatalogTable, text: str, comment: str, base: Table) -> None:  # noqa: ARG002 - see IcebergViews
        """See `Views.replace`."""
        # Readers find either the former text or this one. CREATE OR REPLACE would leave a moment without a view.
        self._session.sql(f"ALTER VIEW {delta.identifier(name)} AS {text}")


class IcebergViews:
    """Views in one of Iceberg's catalogs."""

    def __init__(self, session: SparkSession) -> None:
        """Remember nothing yet."""
        self._session = session
        self._former: list[tuple[float, str]] = []

    def text(self, name: CatalogTable) -> str | None:
        """See `Views.text`."""
        view = self._view(name)
        if view is not None:
            return str(view.query())
        return "" if self._session.catalog.tableExists(identifier(self._session, name)) else None

    def create(self, name: CatalogTable, text: str, comment: str) -> None:
        """See `Views.create`."""
        try:
            self._put(name, text, comment)
        except (PySparkException, Py4JError) as error:
            raise NoViewsError(str(error).splitlines()[0]) from error

    def replace(self, name: CatalogTable, text: str, comment: str, base: Table) -> None:
        """See `Views.replace`. Iceberg never deletes a view's former metadata, so this does."""
        former = self._view(name)
        self._put(name, text, comment)
        if former is not None:
            place = str(former.view().operations().current().metadataFileLocation())
            self._former.append((time.monotonic(), place))
        due = [place for since, place in self._former if time.monotonic() - since >= _KEPT_SECONDS]
        if due:
            files = load(self._session, base).io()
            for place in due:
                files.deleteFile(place)
            self._former = [(since, place) for since, place in self._former if place not in due]

    def _put(self, name: CatalogTable, text: str, comment: str) -> None:
        called = identifier(self._session, name)
        self._session.sql(f"CREATE OR REPLACE VIEW {called} COMMENT {literal(comment)} AS {text}")

    def _view(self, name: CatalogTable) -> Any:
        """Return Spark's object for a view of Iceberg; None if there is none."""
        jvm: Any = self._session.sparkContext._jvm
        catalog, *schema, own = name.parts
        known = self._session._jsparkSession.sessionState().catalogManager().catalog(catalog)
        try:
            called = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(java_names(self._session, schema), own)
            return known.loadView(called)
        except (PySparkException, Py4JError) as error:
            if any(sign in str(error) for sign in ("VIEW_NOT_FOUND", "NoSuchViewException", "UnsupportedOperationException")):
                return None
            raise


def views_at(session: SparkSession, location: Location) -> Views | None:
    """Return the views of a location's catalog; None if the session can't create any there."""
    if location.is_in_own_catalog:
        return SparkViews(session)
    has_extensions = EXTENSIONS in (session.conf.get("spark.sql.extensions", None) or "")
    return IcebergViews(session) if location.format is not delta and has_extensions else None
