"""Stories that hold for each format of tables: a run tries one of the formats (tests/chosen.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.tables import delta, iceberg
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import Table

FORMATS: Final = {"delta": delta, "iceberg": iceberg}

in_either_format: Final = pytest.mark.parametrize(
    "known", [pytest.param(known, id=name, marks=pytest.mark.one_of_these) for name, known in FORMATS.items()]
)
"""Mark of a story with the argument `known`, a format."""

_KEPT: Final = {
    "delta": ("delta.deletedFileRetentionDuration", "interval 0 hours"),
    "iceberg": ("history.expire.max-snapshot-age-ms", "0"),
}


def under(path: Path | str, known: TableFormat = delta) -> Location:
    """The place of a job's tables under a path."""
    return Location(path=str(path), format=known)


def load(spark: SparkSession, known: TableFormat, path: Path | str) -> DataFrame:
    """The rows of a table."""
    return known.read(spark, str(path))


def forget_at_once(spark: SparkSession, known: TableFormat, table: Table) -> list[str]:
    """Let `maintain` remove all versions of a table but the present one; return its options."""
    known.set_properties(spark, table, dict([_KEPT[known.NAME]]))
    return ["--vacuum-hours", "0", "--table-format", known.NAME]
