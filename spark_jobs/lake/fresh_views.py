"""Views in a catalog with the newest rows of each space, for readers that know only SQL (lake/fresh_view.py).

A view is made as soon as the space's table exists, and made again when the table has a new version, or when the forms change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.lake.base_table import BaseTable
from spark_jobs.lake.control import Control
from spark_jobs.lake.lake import Lake
from spark_jobs.runner.output import tell
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable
from spark_jobs.tables.views import EXTENSIONS, NoViewsError, Views, views_at

_SUFFIX: Final = "_fresh"
_REFRESH_SECONDS: Final = 3600.0
"""Time after which the tables' versions are read again: `maintain` makes new ones, too, and removes old ones after days."""


class FreshViews:
    """The views of one job's spaces."""

    def __init__(self, location: Location, views: Views) -> None:
        """Name the views in the location's schema: as the tables, with `_fresh` at the end."""
        self._location = location
        self._views = views
        self._is_refused = False
        self._made_from: dict[str, tuple[int, Control]] = {}
        self._texts: dict[str, str] = {}
        self._refreshed_at = time.monotonic()

    @classmethod
    def at(cls, session: SparkSession, location: Location) -> FreshViews | None:
        """Return the views in a location's schema; None, with a line on stderr, if Spark can't create views in that catalog."""
        views = views_at(session, location)
        if views is not None:
            return cls(location, views)
        _tell_of_none(location, f"Spark creates them in spark_catalog and, with the extensions {EXTENSIONS}, in Iceberg's")
        return None

    def renew(self, lake: Lake, spaces: Mapping[str, BaseTable]) -> None:
        """Make the views of these tables that are missing or no longer the best. Raises JobError if a name is taken.

        A view that isn't renewed stays right. If nothing has changed, this costs almost nothing.
        """
        if self._is_refused:
            return
        if time.monotonic() - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = time.monotonic()
            for table in spaces.values():
                table.refresh()
        control = lake.control_table.read()
        for space, table in spaces.items():
            if table.exists and self._made_from.get(space) != (table.version, control):
                self._renew(space, lake, table)
                self._made_from[space] = table.version, control

    def _renew(self, space: str, lake: Lake, table: BaseTable) -> None:
        view = lake.fresh_view(table)
        if view is None or self._texts.get(space) == (text := view.query()):
            return
        if lake.forgotten_table is not None:
            lake.forgotten_table.create()
        base = table.path if isinstance(table.path, CatalogTable) else self._location.named(space)
        name = CatalogTable((*base.parts[:-1], f"{base.parts[-1]}{_SUFFIX}"))
        known = self._views.text(name)
        if known is not None and view.base not in known:
            raise JobError(
                f"The name {name}, of the view with the newest rows of the space {space!r}, is taken by something else. Choose "
                "another --table-template, or start with --no-fresh-views."
            )
        comment = f"The newest rows of the space {space}. The job `current` of tarantool-cdc keeps this view."
        if known is None:
            try:
                self._views.create(name, text, comment)
            except NoViewsError as error:
                self._is_refused = True
                _tell_of_none(self._location, str(error))
        elif known != text:
            self._views.replace(name, text, comment, table.path)
        self._texts[space] = text


def _tell_of_none(location: Location, reason: str) -> None:
    tell(
        f"current: no views in --catalog {location}: {reason}. The tables have the rows up to the last merge; read_current has"
        " the newest ones."
    )
