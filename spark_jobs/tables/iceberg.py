"""Iceberg tables (format version 3, merge-on-read), by path or in any catalog: the steps that sinks need (format.py).

Under a path, the parent folder is the warehouse of a `hadoop` catalog without schemas, which this module sets up in the session,
and a table is the folder with its name. In a catalog, tables have the names that the catalog gives.

Iceberg knows no applications and numbers, and it repeats a failed commit on top of whatever was committed meanwhile. Two rules
make up for both:

1. *Numbers are committed with the rows.* The snapshot of a write has the numbers of all applications in its summary. A snapshot
   of someone else (a compaction) has none: then those of its nearest ancestor hold. The tag `tarantool_cdc` stays on the last
   snapshot with numbers, so that it never expires.
2. *A commit is on top of what was checked, or isn't at all.* A write has three steps. It *reads* the table's metadata and checks
   the number. It *stages*: Spark writes data files that no metadata names yet. It *publishes* in one transaction: the snapshot,
   the properties, and the tag moved to the snapshot. Iceberg computes a moved tag from the metadata that were read, and refuses
   to move it if the catalog has others by then. So any commit in between, even of properties, makes the transaction fail. The
   write then reads and checks again; a number of the same application that has changed means that another writer took over.

So two writers can't both commit on top of the same metadata. A claim (lake/lanes.py) is a snapshot without files. If it is
committed first, the other writer's transaction fails, and its second check finds the claim. If the other writer is first, the
claim is repeated on top of its rows, and the new writer reads them afterwards. If a process ends between the steps, the table is
unchanged, and `maintain` removes the staged files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.contract.sql_text import quoted
from spark_jobs.tables.format import NameTakenError, Once, OvertakenError
from spark_jobs.tables.iceberg_log import NUMBERS, OWN, TAG, TableState, numbers_of
from spark_jobs.tables.iceberg_stream import begin
from spark_jobs.tables.iceberg_tables import columns_of, comments_of, find, identifier, java_schema, load, made, staged
from spark_jobs.tables.places import CatalogTable, Table, own_session

NAME: Final = "iceberg"

_PROPERTIES: Final[Mapping[str, str]] = {
    "format-version": "3",
    # The version of how numbers are kept; also, by this a table of a job is known in a catalog.
    "tarantool_cdc.numbers": "1",
    **{f"write.{step}.mode": "merge-on-read" for step in ("delete", "update", "merge")},
    # The rows of a batch belong to few partitions. So the files are written at the same time, without sorting or shuffling rows.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # Each commit writes the metadata to a new file. Without this the old ones would stay for good.
    "write.metadata.delete-after-commit.enabled": "true",
    # Number of bytes of different values after which a column's dictionary is abandoned (session.py); two megabytes by default.
    "write.parquet.dict-size-bytes": "65536",
    # Number of rows that Spark reads at a time; 5000 by default, which is too much memory for rows of 600 KB.
    "read.parquet.vectorization.batch-size": "256",
}
_BRANCH: Final = "tarantool_cdc_merge"
"""Branch on which a MERGE is staged."""
_WRITER: Final = "tarantool_cdc.writer"
"""Name in a summary by which a MERGE finds its own snapshot on the branch."""
_OF_SNAPSHOTS: Final = "spark.sql.iceberg.snapshot-property."
"""Beginning of the settings of a session that go into the summaries of its snapshots."""
_CONFLICTS: Final = ("CommitFailedException", "ValidationException")
_NAME_TAKEN: Final = "AMBIGUOUS_REFERENCE"
_OF_MERGES: Final = ("__row_", "__original_row_id_")
"""Beginnings of the names of columns that Spark's MERGE adds to rows. Their values would get into fields with such names."""
_EXPIRED: Final = ("is not a parent ancestor of end snapshot", "Cannot find the starting snapshot", "NotFoundException")
"""Errors of Iceberg where `maintain` has removed the snapshots that tell what was appended."""
_TRIES: Final = 10


class _ConflictError(Exception):
    """Someone else has committed since the table was read."""


def name_in_sql(session: SparkSession, table: Table) -> str:
    """See `TableFormat.name_in_sql`."""
    return identifier(session, table)


def exists(session: SparkSession, table: Table) -> bool:
    """See `TableFormat.exists`."""
    return find(session, table) is not None


def state(session: SparkSession, table: Table, version: int | None = None) -> TableState | None:
    """See `TableFormat.state`."""
    found = find(session, table)
    if found is None or (version is not None and found.snapshot(version) is None):
        return None
    return TableState(found, version)


def state_at(session: SparkSession, table: Table, seconds: float) -> TableState | None:
    """See `TableFormat.state_at`."""
    found = find(session, table)
    if found is None:
        return None
    was_current = [entry.snapshotId() for entry in found.history() if entry.timestampMillis() <= seconds * 1000]
    return TableState(found, was_current[-1]) if was_current and found.snapshot(was_current[-1]) is not None else None


def read(session: SparkSession, table: Table, version: int | None = None) -> DataFrame:
    """See `TableFormat.read`."""
    name = identifier(session, table)
    if version is not None and isinstance(table, CatalogTable):
        find(session, table)  # each session caches the tables of a catalog, and may not know this version yet
    # Not `snapshot-id`, which reads an earlier snapshot with the present columns.
    return session.table(name) if version is None else session.sql(f"SELECT * FROM {name} VERSION AS OF {version}")  # noqa: S608


def create(
    session: SparkSession,
    table: Table,
    schema: StructType,
    properties: Mapping[str, str],
    *,
    partition_by: Sequence[str] = (),
    skips_by: Sequence[str] = (),
    has_others_inside: bool = False,  # noqa: ARG001 - makes no difference to Iceberg
) -> None:
    """See `TableFormat.create`."""
    if find(session, table) is not None:
        return
    summed_up = {f"write.metadata.metrics.column.{name}": "full" for name in skips_by}
    default = {"write.metadata.metrics.default": "none"} if skips_by else {}
    transaction = made(session, table, schema, partition_by, {**_PROPERTIES, **default, **summed_up, **properties})
    if transaction is None:
        return  # another writer was first
    first = transaction.newAppend()
    first.set(NUMBERS, "{}")
    first.set(OWN, json.dumps(_own(properties)))
    first.commit()
    _publish_tag(transaction)
    try:
        transaction.commitTransaction()
    except (PySparkException, Py4JError) as error:
        if "AlreadyExistsException" not in str(error):
            raise


def append_once(
    frame: DataFrame,
    table: Table,
    *,
    partition_by: Sequence[str],
    application: str,
    batch: int,
    gets_columns: bool = False,
    told: Mapping[str, str] | None = None,
) -> None:
    """See `TableFormat.append_once`."""
    session = frame.sparkSession
    create(session, table, frame.schema, {}, partition_by=partition_by)
    is_empty = _is_empty(frame)
    files: list[Any] = []
    staged_for: Any = None
    first: int | None = None

    def step() -> None:
        nonlocal files, staged_for, first
        found = load(session, table)
        if first is None:
            first = numbers_of(found).get(application, -1)
        if not is_empty and batch > first and staged_for != found.schema().schemaId():
            files, staged_for = _stage(found, frame, gets_columns=gets_columns), found.schema().schemaId()
        transaction, base = _begin(found)
        numbers = numbers_of(base)
        if numbers.get(application, -1) != first:
            raise OvertakenError(application)
        if batch <= first:
            return
        if not is_empty and staged_for != base.schema().schemaId():
            raise _ConflictError("columns")
        if gets_columns:
            _add_columns(transaction, frame)
        append = transaction.newAppend()
        for file in files:
            append.appendFile(file)
        _sum_up(append, base, {**numbers, application: batch}, told)
        append.commit()
        _publish(transaction)

    retried(step)


def overwrite(frame: DataFrame, table: Table, *, once: Once | None = None, properties: Mapping[str, str] | None = None) -> None:
    """See `TableFormat.overwrite`."""
    session = frame.sparkSession
    jvm: Any = session.sparkContext._jvm
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    changed = dict(properties or {})
    # Without the properties, which would otherwise be there before the rows.
    create(session, table, frame.schema, {})

    def step() -> None:
        transaction, base = _begin(load(session, table))
        numbers = _numbers_with(base, once)
        if numbers is None:
            return
        _replace_columns(transaction, frame)
        files = staged(frame, base)
        replacement = transaction.newOverwrite()
        replacement.overwriteByRowFilter(expressions.alwaysTrue())
        for file in files:
            replacement.addFile(file)
        for key, value in _summary(base, numbers, changed, once.told if once else None).items():
            replacement.set(key, value)
        replacement.commit()
        _set(transaction, changed)
        _publish(transaction)

    retried(step)


def merge_rows(session: SparkSession, table: Table, newest: DataFrame, once: Once | None = None) -> None:
    """See `TableFormat.merge_rows`. Iceberg can't scan a table within a transaction, so a MERGE is staged on a branch."""
    columns = [quoted(name) for name in newest.columns if name != "_deleted"]
    values = ", ".join(f"{name} = new.{name}" for name in columns)
    clauses = (
        " ON xxhash64(stored._key) = xxhash64(new._key) AND stored._key = new._key"  # noqa: S608 - the jobs' own names
        " WHEN MATCHED AND new._deleted AND new._seq > stored._seq THEN DELETE"
        f" WHEN MATCHED AND new._seq > stored._seq THEN UPDATE SET {values}"
        f" WHEN NOT MATCHED AND NOT new._deleted THEN INSERT ({', '.join(columns)})"
        f" VALUES ({', '.join(f'new.{name}' for name in columns)})"
    )
    _merge(session, table, newest, clauses, once)


def upsert(session: SparkSession, table: Table, new: DataFrame, by: Sequence[str], condition: str = "false") -> None:
    """See `TableFormat.upsert`."""
    is_same = " AND ".join(f"stored.{quoted(name)} <=> new.{quoted(name)}" for name in by)
    replaces = "" if condition == "false" else f" WHEN MATCHED AND {condition} THEN UPDATE SET *"
    # What a MERGE commits beside its rows is in settings of the session.
    _merge(own_session(session), table, new, f" ON {is_same}{replaces} WHEN NOT MATCHED THEN INSERT *", None)


def _merge(session: SparkSession, table: Table, new: DataFrame, clauses: str, once: Once | None) -> None:
    """Merge a frame, `new`, into the table, `stored`. The session must be this table's own. Raises NameTakenError."""
    taken = [name for name in new.columns if name.lower().startswith(_OF_MERGES)]
    if taken:
        raise NameTakenError(f"Spark's MERGE has columns of its own called as {', '.join(taken)}.")
    target = f"{identifier(session, table)}.`branch_{_BRANCH}`"
    view = f"tarantool_cdc_{uuid4().hex}"
    # The frame is one of another session.
    new.createGlobalTempView(view)
    text = f"MERGE INTO {target} AS stored USING global_temp.{view} AS new{clauses}"

    def step() -> None:
        found = load(session, table)
        numbers = _numbers_with(found, once)
        if numbers is None:
            return
        base = found.currentSnapshot().snapshotId()
        branch = found.manageSnapshots()
        (branch.replaceBranch if found.refs().containsKey(_BRANCH) else branch.createBranch)(_BRANCH, base).commit()
        writer = uuid4().hex
        told = {
            f"{_OF_SNAPSHOTS}{key}": value for key, value in _summary(found, numbers, {}, once.told if once else None).items()
        }
        for key, value in {**told, f"{_OF_SNAPSHOTS}{_WRITER}": writer}.items():
            session.conf.set(key, value)
        try:
            session.sql(text)
        finally:
            for key in told:
                session.conf.unset(key)  # the session's next MERGE may have less to tell
        _publish_branch(load(session, table), base, writer)

    try:
        retried(step)
    except AnalysisException as error:
        if _NAME_TAKEN not in str(error):
            raise
        raise NameTakenError(str(error)) from error
    finally:
        session.catalog.dropGlobalTempView(view)


def delete(session: SparkSession, table: Table, condition: str) -> None:
    """See `TableFormat.delete`."""

    def step() -> None:
        session.sql(f"DELETE FROM {identifier(session, table)} WHERE {condition}")  # noqa: S608 - the jobs' own names

    retried(step)


def keep_appended(session: SparkSession, table: Table) -> None:
    """See `TableFormat.keep_appended`. Each snapshot tells its files."""


def appended(session: SparkSession, table: Table, after: int, up_to: int) -> DataFrame:
    """See `TableFormat.appended`."""
    reader = session.read.option("start-snapshot-id", after).option("end-snapshot-id", up_to)
    return reader.table(identifier(session, table))


def are_gone(error: Exception) -> bool:
    """See `TableFormat.are_gone`."""
    return any(sign in str(error) for sign in _EXPIRED)


def stream(session: SparkSession, table: Table, checkpoint: str) -> DataFrame:
    """See `TableFormat.stream`."""
    begin(session, table, load(session, table), checkpoint)
    reader = session.readStream.option("streaming-skip-delete-snapshots", "true")
    return reader.option("streaming-skip-overwrite-snapshots", "true").table(identifier(session, table))


def set_properties(session: SparkSession, table: Table, changed: Mapping[str, str]) -> None:
    """See `TableFormat.set_properties`."""

    def step() -> None:
        update = load(session, table).updateProperties()
        for key, value in changed.items():
            update.set(key, value)
        update.commit()

    retried(step)


def renew(session: SparkSession, table: Table) -> None:
    """Move the tag to the present version, if others have made it. Otherwise the tag would keep the files before a compaction."""

    def step() -> None:
        transaction, base = _begin(load(session, table))
        if base.refs().containsKey(TAG) and base.snapshot(TAG).snapshotId() != base.currentSnapshot().snapshotId():
            append = transaction.newAppend()
            _sum_up(append, base, numbers_of(base))
            append.commit()
            _publish(transaction)

    retried(step)


def retried(step: Callable[[], None]) -> None:
    """Run a step. Repeat it if someone else has committed meanwhile."""
    for last in (*[False] * (_TRIES - 1), True):
        try:
            return step()
        except (_ConflictError, PySparkException, Py4JError) as error:
            is_conflict = isinstance(error, _ConflictError) or any(name in str(error) for name in _CONFLICTS)
            if last or not is_conflict:
                raise
    return None


def _stage(found: Any, frame: DataFrame, *, gets_columns: bool) -> list[Any]:
    """Have Spark write the rows, and return the files. The transaction that adds their columns is never committed."""
    transaction = found.newTransaction()
    if gets_columns:
        _add_columns(transaction, frame)
    return staged(frame, transaction.table())


def _begin(found: Any) -> tuple[Any, Any]:
    """Begin a transaction, and return it with its table, which so far is the one that the transaction must be committed on.

    Iceberg reads the metadata again when a transaction begins, so numbers that were read before may be out of date.
    """
    transaction = found.newTransaction()
    return transaction, transaction.table()


def _publish(transaction: Any) -> None:
    """Commit a transaction, provided that nothing has been committed since it was begun."""
    _publish_tag(transaction)
    transaction.commitTransaction()


def _publish_tag(transaction: Any) -> None:
    """Move the tag to the transaction's snapshot. This binds the transaction to the metadata that were read."""
    table = transaction.table()
    refs = transaction.manageSnapshots()
    (refs.replaceTag if table.refs().containsKey(TAG) else refs.createTag)(TAG, table.currentSnapshot().snapshotId()).commit()


def _publish_branch(found: Any, base: int, writer: str) -> None:
    """Make the snapshot that this writer has staged on the branch, directly after `base`, the table's present one."""
    transaction, known = _begin(found)
    head = known.snapshot(_BRANCH)
    is_own = head is not None and head.parentId() == base and head.summary().get(_WRITER) == writer
    if not is_own or known.currentSnapshot().snapshotId() != base:
        raise _ConflictError(_BRANCH)
    transaction.manageSnapshots().fastForwardBranch("main", _BRANCH).removeBranch(_BRANCH).commit()
    _publish(transaction)


def _numbers_with(found: Any, once: Once | None) -> dict[str, int] | None:
    """Return the table's numbers with that of `once`; None if the table has this one, or a higher one."""
    numbers = numbers_of(found)
    if once is None:
        return numbers
    return None if once.number <= numbers.get(once.application, -1) else {**numbers, once.application: once.number}


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith("tarantool_cdc.")}


def _summary(
    found: Any, numbers: Mapping[str, int], changed: Mapping[str, str], told: Mapping[str, str] | None = None
) -> dict[str, str]:
    return {**(told or {}), NUMBERS: json.dumps(numbers), OWN: json.dumps(_own({**found.properties(), **changed}))}


def _sum_up(update: Any, found: Any, numbers: Mapping[str, int], told: Mapping[str, str] | None = None) -> None:
    for key, value in _summary(found, numbers, {}, told).items():
        update.set(key, value)


def _set(transaction: Any, changed: Mapping[str, str]) -> None:
    if changed:
        update = transaction.updateProperties()
        for key, value in changed.items():
            update.set(key, value)
        update.commit()


def _add_columns(transaction: Any, frame: DataFrame) -> None:
    """Add the columns, and the members of structs, that the table lacks."""
    update = transaction.updateSchema()
    update.unionByNameWith(java_schema(frame.sparkSession, frame.schema))
    update.commit()


def _replace_columns(transaction: Any, frame: DataFrame) -> None:
    """Give the table the columns of a frame, in its order."""
    schema = java_schema(frame.sparkSession, frame.schema)
    wanted, comments = columns_of(schema), comments_of(schema)
    known = columns_of(transaction.table().schema())
    if list(known.items()) == list(wanted.items()):
        return
    update = transaction.updateSchema()
    for name, kind in known.items():
        if wanted.get(name) != kind:
            update.deleteColumn(name)
    for name, kind in wanted.items():
        if known.get(name) != kind:
            update.addColumn(None, name, kind, comments[name])
    names = list(wanted)
    update.moveFirst(names[0])
    for before, name in pairwise(names):
        update.moveAfter(name, before)
    update.commit()


def _is_empty(frame: DataFrame) -> bool:
    """Return whether the frame's plan shows that it has no rows. Claims have none, and need no Spark job."""
    most = frame._jdf.queryExecution().optimizedPlan().maxRows()
    return bool(most.isDefined() and int(most.get()) == 0)
