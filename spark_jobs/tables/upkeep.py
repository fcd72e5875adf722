"""What task `maintain` needs of a table format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from pyspark.sql import SparkSession

from spark_jobs.tables import delta, delta_upkeep, iceberg, iceberg_upkeep
from spark_jobs.tables.places import Table


class Upkeep(Protocol):
    """Maintenance of tables of one format."""

    def size(self, session: SparkSession, table: Table) -> tuple[int, int, bool]:
        """Return the files and bytes of the present version, and whether its rows are partitioned or clustered."""

    def cluster(self, session: SparkSession, table: Table, columns: Sequence[str]) -> None:
        """Have `compact` put rows together that are alike in these columns, and readers skip files by them.

        Without columns no rows are put together. Nothing changes if the table is so already.
        """

    def compact(self, session: SparkSession, table: Table) -> Iterator[str]:
        """Compact small files, and yield what was done."""

    def check_hours(self, session: SparkSession, table: Table, hours: float) -> None:
        """Raise JobError if versions may not be removed after `hours`, as the table must keep them for longer."""

    def clean(self, session: SparkSession, table: Table, hours: float, *, is_dry: bool) -> str:
        """Remove the versions older than `hours`, and files that no other version needs; return what was done."""


UNORDERED: Final = delta.UNORDERED
"""Types of columns by which rows can't be put together."""
UPKEEP: Final[Mapping[str, Upkeep]] = {delta.NAME: delta_upkeep, iceberg.NAME: iceberg_upkeep}
"""By the name of the format."""
