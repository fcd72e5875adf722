"""Maintenance of Iceberg tables (upkeep.py): rewrite_data_files, expire_snapshots and remove_orphan_files.

The files that no snapshot names are looked for in the table's own folders `data` and `metadata` only: other tables may be in its
folder. None is removed before the age at which snapshots may expire, as the files of a running write are named by none, either.
Iceberg repeats a compaction's commit on top of what the jobs have committed meanwhile, unless they have changed the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables import iceberg
from spark_jobs.tables.iceberg_tables import identifier, load
from spark_jobs.tables.places import Table, has_file

_CLUSTERED_BY: Final = "tarantool_cdc.clustered_by"
"""Property with the columns by which rows are put together, as JSON."""
_KEPT: Final = "history.expire.max-snapshot-age-ms"
_FIVE_DAYS_MS: Final = 5 * 24 * 3600 * 1000
_HOUR_MS: Final = 3600 * 1000
_OF_HADOOP: Final = "org.apache.iceberg.hadoop.HadoopFileIO"
"""Class of Hadoop's access to files, which can't list a folder that isn't there."""
_RESOLVING: Final = "org.apache.iceberg.io.ResolvingFileIO"
"""Class of an access to files that chooses another one by the scheme, as REST catalogs have it by default."""
_LISTS: Final = "org.apache.iceberg.io.SupportsPrefixOperations"
"""Interface of accesses to files that can list what is under a prefix."""
_MANIFESTS_MAX: Final = 100
"""Number of manifests from which they are rewritten, too."""


def size(session: SparkSession, table: Table) -> tuple[int, int, bool]:
    """See `Upkeep.size`."""
    found = load(session, table)
    summary = found.currentSnapshot().summary()
    return (
        int(summary.get("total-data-files") or 0),
        int(summary.get("total-files-size") or 0),
        bool(found.spec().isPartitioned() or _clustered_by(found)),
    )


def cluster(session: SparkSession, table: Table, columns: Sequence[str]) -> None:
    """See `Upkeep.cluster`. The columns are in a property of the jobs' own.

    The table's own sort order would do, but Iceberg 1.11 keeps each one for good, and Spark can't write a table any more that has
    had one with a column that is gone.
    """
    found = load(session, table)
    # Iceberg removes what is summed up of a column together with the column, also if another one with its name takes its place.
    summed_up = {f"write.metadata.metrics.column.{name}": "full" for name in columns}
    known = found.properties()
    if _clustered_by(found) == list(columns) and all(known.get(name) == value for name, value in summed_up.items()):
        return
    iceberg.set_properties(session, table, {_CLUSTERED_BY: json.dumps(list(columns)), **summed_up})


def _clustered_by(found: Any) -> list[str]:
    """Return the columns by which a table's rows are put together."""
    named: list[str] = json.loads(found.properties().get(_CLUSTERED_BY) or "[]")
    return named


def compact(session: SparkSession, table: Table) -> Iterator[str]:
    """See `Upkeep.compact`."""
    done: list[str] = []

    def step() -> None:
        found = load(session, table)
        rewriting = _actions(session).rewriteDataFiles(found).option("min-input-files", "2")
        by = [name for name in _clustered_by(found) if found.schema().findField(name) is not None]
        result = (rewriting.sort(_order(session, found, by)) if by else rewriting).execute()
        if result.rewrittenDataFilesCount():
            done.append(f"rewrote {result.rewrittenDataFilesCount()} files into {result.addedDataFilesCount()}")
        found.refresh()
        if found.currentSnapshot().allManifests(found.io()).size() >= _MANIFESTS_MAX:
            _actions(session).rewriteManifests(found).execute()

    iceberg.retried(step)
    yield from done


def _order(session: SparkSession, found: Any, columns: Sequence[str]) -> Any:
    jvm: Any = session.sparkContext._jvm
    order = jvm.org.apache.iceberg.SortOrder.builderFor(found.schema())
    for name in columns:
        order = order.asc(jvm.org.apache.iceberg.expressions.Expressions.ref(name), jvm.org.apache.iceberg.NullOrder.NULLS_FIRST)
    return order.build()


def check_hours(session: SparkSession, table: Table, hours: float) -> None:
    """See `Upkeep.check_hours`."""
    kept_ms = int(load(session, table).properties().get(_KEPT) or _FIVE_DAYS_MS)
    if hours * _HOUR_MS < kept_ms:
        raise JobError(
            f"--vacuum-hours {hours:g} is less than {kept_ms / _HOUR_MS:g} hours, for which {table} keeps snapshots: a longer"
            f" read or batch would miss its files. If none takes longer, run ALTER TABLE {identifier(session, table)} SET"
            f" TBLPROPERTIES ('{_KEPT}' = '{int(hours * _HOUR_MS)}')."
        )


def clean(session: SparkSession, table: Table, hours: float, *, is_dry: bool) -> str:
    """See `Upkeep.clean`."""
    found = load(session, table)
    before_ms = int(time.time() * 1000 - hours * _HOUR_MS)
    if is_dry:
        current = found.currentSnapshot().snapshotId()
        old = [one for one in found.snapshots() if one.timestampMillis() < before_ms and one.snapshotId() != current]
        return f"would expire {len(old)} snapshots"
    iceberg.renew(session, table)
    found.refresh()
    _actions(session).expireSnapshots(found).expireOlderThan(before_ms).retainLast(1).execute()
    for folder in ("data", "metadata"):
        place = f"{found.location()}/{folder}"
        if not (lists_itself := _lists_itself(session, found)) and not has_file(session, place):
            continue
        search = _actions(session).deleteOrphanFiles(found).location(place).olderThan(before_ms)
        search.usePrefixListing(lists_itself).execute()
    return f"expired snapshots and removed files older than {hours:g} hours"


def _lists_itself(session: SparkSession, found: Any) -> bool:
    """Return whether Iceberg's own access to an object store lists the table's files: Hadoop may not know their scheme (s3)."""
    files = found.io()
    name = files.getClass().getName()
    if name == _RESOLVING:
        name = files.ioClass(found.location()).getName()
    return name != _OF_HADOOP and bool(is_instance_of(session.sparkContext._gateway, files, _LISTS))


def _actions(session: SparkSession) -> Any:
    jvm: Any = session.sparkContext._jvm
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)
