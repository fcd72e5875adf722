"""The place and the format of a job's tables, as its options say.

A job gets its tables from its `Location` (`options.location`) instead of building paths: `location.of(space)` for one of several
tables, `location.only(name)` for its only table. Both kinds print as an operator would write them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from spark_jobs.tables import delta
from spark_jobs.tables.folders import catalog_name, folder
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import OWN_CATALOG, CatalogTable, Table

DEFAULT_TEMPLATE: Final = "{prefix}_{table}"


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
    format: TableFormat = delta

    def __str__(self) -> str:
        """Return the path, or the schema as people write it."""
        return self.path if self.path is not None else ".".join(self.schema)

    def of(self, name: str, own: Collection[str] = ()) -> Table:
        """Return one table of several, by the name of its space. `own` names other tables in the same place (`inner`)."""
        return self.named(name, own=own) if self.path is None else f"{self.path.rstrip('/')}/{folder(name, own)}"

    def inner(self, name: str) -> Table:
        """Return a table that the job keeps for itself beside those of spaces. Its name, in lower case, begins with `_`."""
        return self.named(name) if self.path is None else f"{self.path.rstrip('/')}/{name}"

    def only(self, name: str) -> Table:
        """Return the only table of a job: the path itself, or the table with this name in the catalog."""
        return self.named(name) if self.path is None else self.path

    def named(self, name: str, own: Collection[str] = ()) -> CatalogTable:
        """Return the catalog's table for this name, by the template."""
        called = self.template.replace("{prefix}", catalog_name(self.prefix)).replace("{table}", catalog_name(name, own))
        return CatalogTable((*self.schema, called))

    @property
    def is_in_own_catalog(self) -> bool:
        """Whether the catalog is Spark's own, the only one in which Spark itself creates views."""
        return self.schema[:1] == (OWN_CATALOG,)
