"""Maintenance of Delta tables (upkeep.py): OPTIMIZE and VACUUM.

Delta prevents OPTIMIZE and a merge from undoing each other: the later commit fails with a conflict, and its writer repeats the
step. It refuses to remove files sooner than the table's own `delta.deletedFileRetentionDuration`, which is a week by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables import delta
from spark_jobs.tables.places import Table

_KEPT: Final = "delta.deletedFileRetentionDuration"
_WEEK: Final = "interval 168 hours"


def size(session: SparkSession, table: Table) -> tuple[int, int, bool]:
    """See `Upkeep.size`."""
    detail = delta.delta(session, table).detail().select("numFiles", "sizeInBytes", "clusteringColumns", "partitionColumns")
    files, size_bytes, *layout = detail.collect()[0]
    return files, size_bytes, any(layout)


def cluster(session: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """See `Upkeep.cluster`."""
    delta.cluster(session, table, columns)


def compact(session: SparkSession, table: Table) -> Iterator[str]:
    """See `Upkeep.compact`."""
    metrics = delta.retried(lambda: delta.delta(session, table).optimize().executeCompaction().select("metrics.*").collect()[0])
    if metrics["numFilesRemoved"]:
        yield f"optimized {metrics['numFilesRemoved']} files into {metrics['numFilesAdded']}"


def check_hours(session: SparkSession, table: Table, hours: float) -> None:
    """See `Upkeep.check_hours`."""
    kept = delta.describe(session, table)[0].get(_KEPT, _WEEK)
    allowed = session.sql(f"SELECT {hours} * interval '1' hour >= {kept} AS is_enough").collect()[0]["is_enough"]
    if not allowed:
        raise JobError(
            f"--vacuum-hours {hours:g} is less than {kept}, for which {table} keeps files: a longer read would miss them. If no "
            f"read takes longer, run ALTER TABLE {delta.identifier(table)} SET TBLPROPERTIES "
            f"('{_KEPT}' = 'interval {hours:g} hours')."
        )


def clean(session: SparkSession, table: Table, hours: float, *, is_dry: bool) -> str:
    """See `Upkeep.clean`."""
    identifier = delta.identifier(table)
    if is_dry:
        count = session.sql(f"VACUUM {identifier} RETAIN {hours} HOURS DRY RUN").count()
        return f"would vacuum {count} files"
    session.sql(f"VACUUM {identifier} RETAIN {hours} HOURS")
    return f"vacuumed files older than {hours:g} hours"
