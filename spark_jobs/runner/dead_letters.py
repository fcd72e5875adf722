"""The table of records that a job couldn't process, with `--on-error dead-letter`.

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
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.formats import format_of

_SCHEMA: Final = StructType([StructField("job", StringType()), *REFUSED_SCHEMA.fields, StructField("taken_at", TimestampType())])
_TOLD_BY: Final = ("job", "topic", "partition", "offset", "timestamp", "key", "value")


class DeadLetterTable(DeadLetters):
    """Dead letters in a table, of one job or several."""

    def __init__(self, session: SparkSession, table: str, job: str, table_format: TableFormat = delta) -> None:
        """Name the table. The first dead letter creates it; `table_format` is the format that it then gets."""
        self._session = session
        self._table = table
        self._job = job
        self._format: TableFormat = format_of(session, table) or table_format

    def take(self, records: DataFrame) -> int:
        """See `DeadLetters.take`."""
        letters = records.dropDuplicates(["topic", "partition", "offset"]).select(
            F.lit(self._job).alias("job"), *REFUSED_SCHEMA.names, F.current_timestamp().alias("taken_at")
        )
        letters = letters.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            count = letters.count()
            if count:
                self._format.create(self._session, self._table, _SCHEMA, {})
                self._format.upsert(self._session, self._table, letters, _TOLD_BY)
        finally:
            letters.unpersist()
        self.count += count
        return count
