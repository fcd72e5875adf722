"""Reads of the tables that the job `current` keeps, for programs and for `spark_jobs.show`."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.tables.places import check_java_side

AsOf = int | Literal["watermark"] | None


def read_current(session: SparkSession, path: str, as_of: AsOf = None) -> DataFrame:
    """Return the present rows of a space, including all appended events. Raises JobError.

    `path` is the path of the space's table, `<--path>/<folder>` (folders.py), or the table's name in a catalog. With
    a watermark as `as_of`, return the rows as they were after the source transaction that ends at this seq; all spaces read with
    the same watermark show the same moment. `as_of="watermark"` stands for the newest published watermark.
    """
    check_java_side(session, "read_current", f"{path}_fresh" if "/" not in path else "<table>_fresh")
    lake, space = Lake.of_table(session, path)
    up_to = lake.watermark() if as_of == "watermark" else as_of
    return lake.space_rows(space, up_to).rows()


def watermark(session: SparkSession, path: str, prefix: str | None = None) -> int:
    """Return the published watermark of the spaces under a path, for `as_of` of several reads. Raises JobError without one.

    `path` may be a schema of a catalog; `prefix` is needed if the schema has the tables of several daemons.
    """
    check_java_side(session, "watermark")
    return Lake.at(session, path, prefix).watermark()
