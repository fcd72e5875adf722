"""The table of what jobs could not take: `--on-error dead-letter`.

| column | |
|---|---|
| `job` | which job it was |
| `topic`, `partition`, `offset`, `timestamp` | where the record stands in Kafka |
| `key`, `value` | its bytes |
| `sentence` | what is wrong with it |
| `taken_at` | when it was put here |

A record is told by where it stands and what it holds, so a batch that comes again puts nothing here twice, and a topic that was
made anew under an old name loses nothing.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from spark_jobs import tables
from spark_jobs.job import REFUSED_SCHEMA, DeadLetters

_SCHEMA: Final = StructType([StructField("job", StringType()), *REFUSED_SCHEMA.fields, StructField("taken_at", TimestampType())])
_TOLD_BY: Final = ("job", "topic", "partition", "offset", "timestamp", "key", "value")


class DeadLetterTable(DeadLetters):
    """A table for one job or several."""

    def __init__(self, session: SparkSession, table: tables.Table, job: str) -> None:
        """The table is made when there is something to put into it."""
        self._session = session
        self._table = table
        self._job = job

    def take(self, records: DataFrame) -> int:
        """As `DeadLetters.take`."""
        letters = records.dropDuplicates(["topic", "partition", "offset"]).select(
            F.lit(self._job).alias("job"), *REFUSED_SCHEMA.names, F.current_timestamp().alias("taken_at")
        )
        letters = letters.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = letters.count()
            if count:
                tables.create(self._session, self._table, _SCHEMA, {})
                tables.retried(lambda: self._insert(letters))
        finally:
            letters.unpersist()
        self.count += count
        return count

    def _insert(self, letters: DataFrame) -> None:
        is_same = " and ".join(f"stored.`{name}` <=> new.`{name}`" for name in _TOLD_BY)
        merge = tables.delta(self._session, self._table).alias("stored").merge(letters.alias("new"), is_same)
        merge.whenNotMatchedInsertAll().execute()
