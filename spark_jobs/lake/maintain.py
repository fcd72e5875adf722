"""Task `maintain`: periodic maintenance of the tables. It may run while the jobs write them.

Micro-batches leave small files, and merges leave files that no version needs any more. For each table the task does this:

* OPTIMIZE compacts small files. Delta prevents OPTIMIZE and a merge from undoing each other: the later commit fails with a
  conflict, and its writer repeats the step (`tables.retried`).
* VACUUM removes files that only versions older than --vacuum-hours use. A reader that takes longer than that to read a version,
  or that reads an older version, would miss them; so would a table whose writer takes longer than that until its commit.
  Delta therefore refuses a shorter time than the table's own
  `delta.deletedFileRetentionDuration`, which is a week by default.
* Events older than --forget-events-after-days are removed from a changelog, complete days at a time.
* Events that `current` has merged are removed from its own table of events, once no version that --vacuum-hours keeps needs them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.contract.sql_text import literal
from spark_jobs.errors import JobError
from spark_jobs.lake.lake import CHANGES, Lake
from spark_jobs.runner.job import Task
from spark_jobs.runner.options import add_table_options
from spark_jobs.runner.registered import all_jobs_folder
from spark_jobs.tables import delta as tables
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import CatalogTable, Table

_WEEK_HOURS: Final = 168
_DEPTH: Final = 3
_LOG: Final = "_delta_log"
_OF_A_CHANGELOG: Final = frozenset({"date", "seq", "op", "vclock"})
"""Columns that identify a changelog. A table of `changes`, from which other tables may still be made, lacks some of them."""
_LARGE_BYTES: Final = 10 << 30


class Maintain(Task):
    """The task `maintain`: its options and its run."""

    name = "maintain"
    summary = "compact the tables, remove files that no version needs, remove old events"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Task.add_options`."""
        add_table_options(parser)
        parser.add_argument("--dry-run", action="store_true", help="print what would be done, and change nothing")
        parser.add_argument(
            "--optimize", action=argparse.BooleanOptionalAction, default=True, help="compact small files (default: yes)"
        )
        parser.add_argument(
            "--vacuum", action=argparse.BooleanOptionalAction, default=True, help="remove old files (default: yes)"
        )
        parser.add_argument(
            "--vacuum-hours",
            type=_hours,
            default=_WEEK_HOURS,
            metavar="N",
            help="keep the files of all versions that were current in the last N hours. N must be longer than any read, batch or"
            " merge takes (default: %(default)s)",
        )
        parser.add_argument(
            "--forget-events-after-days",
            type=_count,
            metavar="N",
            help="remove events older than N days from a changelog; by default they stay",
        )
        parser.add_argument(
            "--forget-merged",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="remove events from the table that `current` keeps for itself, once all versions of the last --vacuum-hours"
            " have merged them (default: yes)",
        )

    def run(self, session: SparkSession, options: argparse.Namespace) -> int:
        """See `Task.run`."""
        found = False
        for table in _tables(session, options.location):
            found = True
            done = list(_maintain(session, table, options))
            print(f"{table}: {'; '.join(done) or 'nothing to do'}", flush=True)
        if not found:
            raise JobError(f"There are no tables in {options.location}. Name the --path or the --catalog that the jobs write to.")
        return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number of days, 0 or more")
    return int(text)


def _hours(text: str) -> float:
    if not (0 <= (hours := float(text)) < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number of hours, 0 or more")
    return hours


def _maintain(session: SparkSession, table: Table, options: argparse.Namespace) -> Iterator[str]:
    """Maintain one table, and yield what was done, or with --dry-run what would be done."""
    detail = tables.delta(session, table).detail().select("numFiles", "sizeInBytes", "clusteringColumns", "partitionColumns")
    files, size, *layout = detail.collect()[0]
    if options.vacuum:
        _check_hours(session, table, options.vacuum_hours)
    days = options.forget_events_after_days
    if days is not None and set(tables.read(session, table).columns) >= _OF_A_CHANGELOG:
        yield _forget(session, table, days, is_dry=options.dry_run)
    if options.forget_merged and isinstance(table, str) and table.rpartition("/")[2] == CHANGES:
        yield from _forget_merged(session, table, options.vacuum_hours, is_dry=options.dry_run)
    if options.optimize and files > 1:
        if options.dry_run:
            yield f"would optimize {files} files of {size} bytes"
        else:
            yield from _optimize(session, table)
    if options.vacuum:
        yield _vacuum(session, table, options.vacuum_hours, is_dry=options.dry_run)
    if size >= _LARGE_BYTES and not any(layout):
        yield (
            f"{size >> 30} GiB without partitions or clustering: to make reads by a column faster, stop the job that writes the "
            f"table and run ALTER TABLE {tables.identifier(table)} CLUSTER BY that column"
        )


def _optimize(session: SparkSession, table: Table) -> Iterator[str]:
    metrics = tables.retried(lambda: tables.delta(session, table).optimize().executeCompaction().select("metrics.*").collect()[0])
    if metrics["numFilesRemoved"]:
        yield f"optimized {metrics['numFilesRemoved']} files into {metrics['numFilesAdded']}"


def _check_hours(session: SparkSession, table: Table, hours: float) -> None:
    """Raise JobError if Delta would refuse to remove files older than `hours`."""
    kept = tables.describe(session, table)[0].get("delta.deletedFileRetentionDuration", f"interval {_WEEK_HOURS} hours")
    allowed = session.sql(f"SELECT {hours} * interval '1' hour >= {kept} AS is_enough").collect()[0]["is_enough"]
    if not allowed:
        raise JobError(
            f"--vacuum-hours {hours:g} is less than {kept}, for which {table} keeps files: a longer read would miss them. If no "
            f"read takes longer, run ALTER TABLE {tables.identifier(table)} SET TBLPROPERTIES "
            f"('delta.deletedFileRetentionDuration' = 'interval {hours:g} hours')."
        )


def _vacuum(session: SparkSession, table: Table, hours: float, *, is_dry: bool) -> str:
    identifier = tables.identifier(table)
    if is_dry:
        count = session.sql(f"VACUUM {identifier} RETAIN {hours} HOURS DRY RUN").count()
        return f"would vacuum {count} files"
    session.sql(f"VACUUM {identifier} RETAIN {hours} HOURS")
    return f"vacuumed files older than {hours:g} hours"


def _forget(session: SparkSession, table: Table, days: int, *, is_dry: bool) -> str:
    condition = f"date < date_sub(current_date(), {days})"
    rows = tables.read(session, table).where(condition).count()
    if rows and not is_dry:
        tables.delete(session, table, condition)
    return f"{'would forget' if is_dry else 'forgot'} {rows} events older than {days} days"


def _forget_merged(session: SparkSession, table: str, hours: float, *, is_dry: bool) -> Iterator[str]:
    lake = Lake(session, table.rpartition("/")[0])
    if lake.forgotten_table is None or not lake.has_watermark():
        return
    forgettable = lake.forgettable(time.time() - hours * 3600)
    condition = " or ".join(f"(space = {literal(space)} and seq <= {seq})" for space, seq in forgettable.items()) or "false"
    rows = tables.read(session, table).where(condition).count()
    if rows and not is_dry:
        lake.forgotten_table.record(forgettable)
        tables.delete(session, table, condition)
    yield f"{'would forget' if is_dry else 'forgot'} {rows} events that have been merged for {hours:g} hours"


def _tables(session: SparkSession, location: Location) -> Iterator[Table]:
    """Yield the tables that jobs have made at the location; under a path also tables of dead letters."""
    if location.path is not None:
        yield from _under(session, location.path, _DEPTH)
        return
    schema, folder = tables.identifier(CatalogTable(location.schema)), all_jobs_folder(session, location.schema)
    for row in session.sql(f"SHOW TABLES IN {schema}").where("not isTemporary").orderBy("tableName").collect():
        table = CatalogTable((*location.schema, row["tableName"]))
        if tables.is_delta(session, table) and _is_of_a_job(session, table, folder):
            yield table


def _is_of_a_job(session: SparkSession, table: Table, folder: str | None) -> bool:
    """Return whether a job has made a catalog's table. `folder` is the one that the jobs have in the schema's location."""
    if any(name.startswith("tarantool_cdc.") for name in tables.describe(session, table)[0]):
        return True
    # Tables that the program only registers, such as the findings of `audit`, have no such property.
    return folder is not None and tables.table_location(session, table).startswith(f"{folder}/")


def _under(session: SparkSession, path: str, depth: int) -> Iterator[str]:
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    files = hadoop.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    # Delta's own function would treat every folder inside a table as that table.
    if files.exists(jvm.org.apache.hadoop.fs.Path(path, _LOG)):
        yield path
    if depth and files.exists(hadoop):
        folders = [status.getPath() for status in files.listStatus(hadoop) if status.isDirectory()]
        inner = [folder for folder in folders if "=" not in folder.getName() and folder.getName() != _LOG]
        for folder in sorted(inner, key=lambda folder: str(folder.getName())):
            yield from _under(session, str(folder.toString()), depth - 1)
