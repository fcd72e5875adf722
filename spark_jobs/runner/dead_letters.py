"""The Delta table of records that a job couldn't process, with `--on-error dead-letter`.

| column | |
|---|---|
| `job` | the name of the job |
| `topic`, `partition`, `offset`, `timestamp` | the record's place and time in Kafka |
| `key`, `value` | the record's bytes |
| `sentence` | what is wrong with the record |
| `taken_at` | when the record was written to this table |

A record is identified by its place and its content. A repeated batch therefore adds no record twice, and if a topic is created
again under the same name, no record is lost.
"""

from __future__ import annotations

from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from spark_jobs.runner.job import REFUSED_SCHEMA, DeadLetters
from spark_jobs.tables import delta
from spark_jobs.tables.places import Table

_SCHEMA: Final = StructType([StructField("job", StringType()), *REFUSED_SCHEMA.fields, StructField("taken_at", TimestampType())])
_TOLD_BY: Final = ("job", "topic", "partition", "offset", "timestamp", "key", "value")


class DeadLetterTable(DeadLetters):
    """Dead letters in a Delta table, of one job or several."""

    def __init__(self, session: SparkSession, table: Table, job: str) -> None:
        """Name the table. The first dead letter creates it."""
        self._session = session
        self._table = table
        self._job = job

    def take(self, records: DataFrame) -> int:
        """See `DeadLetters.take`."""
        letters = records.dropDuplicates(["topic", "partition", "offset"]).select(
            F.lit(self._job).alias("job"), *REFUSED_SCHEMA.names, F.current_timestamp().alias("taken_at")
        )
        letters = letters.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = letters.count()
            if count:
                delta.create(self._session, self._table, _SCHEMA, {})
                delta.retried(lambda: self._insert(letters))
        finally:
            letters.unpersist()
        self.count += count
        return count

    def _insert(self, letters: DataFrame) -> None:
        is_same = " and ".join(f"stored.`{name}` <=> new.`{name}`" for name in _TOLD_BY)
        merge = delta.delta(self._session, self._table).alias("stored").merge(letters.alias("new"), is_same)
        merge.whenNotMatchedInsertAll().execute()
