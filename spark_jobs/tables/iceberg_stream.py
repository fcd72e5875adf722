"""Streams of Iceberg tables that begin with all rows of the table, and go on where their query has stopped.

Iceberg's own streams begin with the oldest snapshot, and read only the files that this one and the later ones have added: where
`maintain` has let the first snapshots expire, they would leave out most of the table without a word. Spark's checkpoint has a
file with the offset at which a query begins, in Iceberg's own form, and this form can say "all files of a snapshot". So this
module writes that file before Spark does.

A query that is started again reads that file once more, although it goes on elsewhere. With `availableNow` it computes from it
what there is to read: it fails if the snapshot has expired meanwhile, and also if there is nothing. So each start replaces the
file by all files of the snapshot with which the last batch has ended.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.errors import JobError
from spark_jobs.tables.places import Table, has_file
from spark_jobs.tables.spark_checkpoint import BEGUN, DONE, end_of_batch, last_batch
from spark_jobs.tables.state_files import write_whole

_FIRST: Final = "sources/0/offsets/0"
"""Iceberg's file in a checkpoint with the first offset."""


def begin(session: SparkSession, table: Table, found: Any, checkpoint: str) -> None:
    """Write the offset with which a query of this checkpoint begins. `found` is Iceberg's object for the table.

    Raises JobError if the snapshot with which the last batch ended has expired, or if the table has no rows yet.
    """
    jvm: Any = session.sparkContext._jvm
    first = jvm.org.apache.hadoop.fs.Path(checkpoint, _FIRST)
    done = last_batch(session, checkpoint, DONE)
    if done is None and last_batch(session, checkpoint, BEGUN) is not None and has_file(session, str(first)):
        return  # the first batch has begun, and is repeated from there
    offset = None if done is None else end_of_batch(session, checkpoint, done)
    current = found.currentSnapshot()
    snapshot = current.snapshotId() if offset is None else offset["snapshot_id"]
    if offset is None and not int(current.summary().get("total-data-files") or 0):
        raise JobError(f"The table {table} has no rows yet. Start this command when the job that writes it has read some.")
    if found.snapshot(snapshot) is None:
        raise JobError(
            f"What was appended to {table} since this command has last read it can't be told any more: `maintain` has let the"
            f" snapshot {snapshot} expire. Start the command with an empty --checkpoint, which reads the complete"
            " table again, and from then on more often than --vacuum-hours of `maintain` says."
        )
    begun = {"version": 1, "snapshot_id": snapshot, "position": 0, "scan_all_files": True}
    write_whole(session, first, json.dumps(begun))
