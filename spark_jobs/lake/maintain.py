"""Task `maintain`: periodic maintenance of the tables. It may run while the jobs write them.

Micro-batches leave small files, and merges leave files that no version needs any more. For each table the task does this:

* Small files are compacted. If a merge changes the same files at that moment, the later commit fails, and its writer repeats it.
* Files go that only versions older than --vacuum-hours use. A reader that takes longer than that to read a version, or that reads
  an older version, would miss them; so would a table whose writer takes longer than that until its commit. So the time can't be
  shorter than the one for which the table keeps files by its properties.
* Events older than --forget-events-after-days are removed from a changelog, complete days at a time.
* Events that `current` has merged are removed from its own table of events, once no version that --vacuum-hours keeps needs them.
"""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.contract.forms import Form
from spark_jobs.contract.sql_text import literal, quoted
from spark_jobs.errors import JobError
from spark_jobs.lake.base_table import FORM
from spark_jobs.lake.lake import CHANGES, Lake, lakes_in
from spark_jobs.runner.job import Task
from spark_jobs.runner.options import add_table_options
from spark_jobs.runner.registered import all_jobs_folder
from spark_jobs.tables import delta, iceberg
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.formats import check_iceberg, format_at
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import HELD, CatalogTable, Table
from spark_jobs.tables.upkeep import UPKEEP

_WEEK_HOURS: Final = 168
_DEPTH: Final = 3
_FOLDERS_OF_TABLES: Final[Mapping[str, tuple[str, ...]]] = {delta.NAME: ("_delta_log",), iceberg.NAME: ("data", "metadata")}
"""Folders in a table's folder that can't contain other tables, by the name of the format."""
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
        for table, known in _tables(session, options.location):
            if known is iceberg:
                check_iceberg(session)
            found = True
            done = list(_maintain(session, table, known, options))
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


def _maintain(session: SparkSession, table: Table, known: TableFormat, options: argparse.Namespace) -> Iterator[str]:
    """Maintain one table, and yield what was done, or with --dry-run what would be done."""
    upkeep = UPKEEP[known.NAME]
    files, size, has_layout = upkeep.size(session, table)
    if options.vacuum:
        upkeep.check_hours(session, table, options.vacuum_hours)
    days = options.forget_events_after_days
    if days is not None and set(known.read(session, table).columns) >= _OF_A_CHANGELOG:
        yield _forget(session, table, known, days, is_dry=options.dry_run)
    if options.forget_merged and (lake := _lake_of_events(session, table, known)) is not None:
        yield from _forget_merged(lake, options.vacuum_hours, is_dry=options.dry_run)
    if options.optimize and files > 1:
        if options.dry_run:
            yield f"would optimize {files} files of {size} bytes"
        else:
            yield from upkeep.compact(session, table)
    if options.vacuum:
        yield upkeep.clean(session, table, options.vacuum_hours, is_dry=options.dry_run)
    if size >= _LARGE_BYTES and not has_layout and (advice := _advice(session, table, known)):
        yield f"{size >> 30} GiB without partitions or clustering: to make reads by a column faster, {advice}"


def _advice(session: SparkSession, table: Table, known: TableFormat) -> str:
    """Return how to put rows of a table together; empty if nothing is advised."""
    found = known.state(session, table)
    properties: Mapping[str, str] = {} if found is None else found.properties
    if (form := properties.get(FORM)) is not None:
        return f"start `current` with --cluster-by {shlex.quote(f'{Form.from_json(form).space}=FIELD')}"
    if known is not delta:
        return ""
    # Delta refuses a column of which it keeps no statistics.
    summed_up = properties.get(delta.SKIPS_BY)
    allowed = f", which must be one of {summed_up.replace(',', ', ')}" if summed_up else ""
    command = f"ALTER TABLE {delta.identifier(table)} CLUSTER BY (that column){allowed}"
    return f"stop the job that writes the table and run {command}"


def _forget(session: SparkSession, table: Table, known: TableFormat, days: int, *, is_dry: bool) -> str:
    condition = f"date < date_sub(current_date(), {days})"
    rows = known.read(session, table).where(condition).count()
    if rows and not is_dry:
        known.delete(session, table, condition)
    return f"{'would forget' if is_dry else 'forgot'} {rows} events older than {days} days"


def _lake_of_events(session: SparkSession, table: Table, known: TableFormat) -> Lake | None:
    """Return the lake of a job `current` that keeps its own events in this table; None if there is none."""
    if isinstance(table, str):
        parent, _, name = table.rpartition("/")
        return Lake(session, Location(path=parent, format=known)) if name == CHANGES else None
    if CHANGES not in table.parts[-1]:
        return None
    found = (Lake(session, place) for place in lakes_in(session, table.parts[:-1]))
    return next((lake for lake in found if lake.changes_table == table), None)


def _forget_merged(lake: Lake, hours: float, *, is_dry: bool) -> Iterator[str]:
    if lake.forgotten_table is None or not lake.has_watermark():
        return
    forgettable = lake.forgettable(time.time() - hours * 3600)
    condition = " or ".join(f"(space = {literal(space)} and seq <= {seq})" for space, seq in forgettable.items()) or "false"
    rows = lake.format.read(lake.session, lake.changes_table).where(condition).count()
    if rows and not is_dry:
        lake.forgotten_table.record(forgettable)
        lake.format.delete(lake.session, lake.changes_table, condition)
    yield f"{'would forget' if is_dry else 'forgot'} {rows} events that have been merged for {hours:g} hours"


def _tables(session: SparkSession, location: Location) -> Iterator[tuple[Table, TableFormat]]:
    """Yield the tables that jobs have made at the location, with their formats; under a path also tables of dead letters."""
    if location.path is not None:
        yield from _under(session, location.path, _DEPTH)
        return
    schema = ".".join(map(quoted, location.schema))
    folder = all_jobs_folder(session, location.schema) if location.format is delta else None
    for row in session.sql(f"SHOW TABLES IN {schema}").where("not isTemporary").orderBy("tableName").collect():
        table = CatalogTable((*location.schema, row["tableName"]))
        if location.format is delta and not delta.is_delta(session, table):
            continue
        if _is_of_a_job(session, table, location.format, folder):
            yield table, location.format


def _is_of_a_job(session: SparkSession, table: CatalogTable, known: TableFormat, folder: str | None) -> bool:
    """Return whether a job has made a catalog's table. `folder` is the one that the jobs have in the schema's location."""
    state = known.state(session, table)
    if state is not None and any(name.startswith("tarantool_cdc.") for name in state.properties):
        return True
    # A table of events that wait has none, either: it is beside the one that they are for.
    *schema, name = table.parts
    owner = CatalogTable((*schema, name.removesuffix(HELD)))
    if owner != table and known.exists(session, owner) and _is_of_a_job(session, owner, known, folder):
        return True
    # Tables that the program only registers, such as the findings of `audit`, have no such property.
    return folder is not None and delta.table_location(session, table).startswith(f"{folder}/")


def _under(session: SparkSession, path: str, depth: int) -> Iterator[tuple[str, TableFormat]]:
    jvm: Any = session.sparkContext._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path(path)
    files = hadoop.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
    found = format_at(session, [path])
    if found is not None:
        yield path, found
    if depth and files.exists(hadoop):
        folders = [status.getPath() for status in files.listStatus(hadoop) if status.isDirectory()]
        own = () if found is None else _FOLDERS_OF_TABLES[found.NAME]
        inner = [folder for folder in folders if "=" not in folder.getName() and folder.getName() not in own]
        for folder in sorted(inner, key=lambda folder: str(folder.getName())):
            yield from _under(session, str(folder.toString()), depth - 1)
