"""What `current` is compared with: each batch brought by MERGE into tables of Delta or Iceberg, as one writes that by hand.

A batch is read by Spark's own JSON reader with the columns of these very spaces, kept in memory, boiled down to the newest change
of each key, and merged into one table per space by its number. Both kinds of tables may mark rows instead of writing files anew
(deletion vectors, merge-on-read). There are no truncations, no other forms, no exact texts, no watermark and no deduplication by
`seq`: less than `current` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

_COLUMNS: Final[Mapping[str, str]] = {
    "id": "bigint",
    "name": "string",
    "email": "string",
    "balance": "decimal(38,18)",
    "city": "string",
    "created": "timestamp",
    "tags": "string",
    "active": "boolean",
}
_TYPED: Final = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
_ENVELOPE: Final = f"op string, before struct<id: bigint>, after struct<{_TYPED}>, source struct<seq: bigint>"
_KAFKA: Final = {
    "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.poll.records": "2000",
}


@dataclass(frozen=True)
class Peer:
    """A format of tables: where they are in SQL, and the end of CREATE TABLE."""

    schema: str
    kind: str

    def settings(self, directory: str) -> dict[str, str]:
        """What its session needs beside what the jobs' has."""
        if self.kind.startswith("delta"):
            return {"spark.sql.warehouse.dir": f"{directory}/warehouse"}
        extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        return {
            "spark.sql.extensions": f"io.delta.sql.DeltaSparkSessionExtension,{extensions}",
            "spark.sql.catalog.iceberg": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.iceberg.type": "hadoop",
            "spark.sql.catalog.iceberg.warehouse": f"{directory}/warehouse",
            # It needs a renaming that the quicker one hasn't got.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
        }

    def process(
        self, session: SparkSession, bootstrap_servers: str, prefix: str, spaces: Iterable[str], checkpoint: str, batch: int
    ) -> None:
        """Bring all that is in the topics of these spaces into tables."""
        tables = {f"{prefix}.{space}": f"{self.schema}.{space}" for space in spaces}
        for table in tables.values():
            session.sql(f"CREATE TABLE IF NOT EXISTS {table} ({_TYPED}) USING {self.kind}")
        reader = session.readStream.format("kafka").options(**_KAFKA).option("kafka.bootstrap.servers", bootstrap_servers)
        records = reader.option("subscribe", ",".join(tables)).option("maxOffsetsPerTrigger", batch).load()
        read = records.select("topic", F.from_json(F.col("value").cast("string"), _ENVELOPE).alias("event"))
        changes = read.select("topic", "event.op", F.col("event.source.seq").alias("seq"), "event.before", "event.after")

        def merge(changes: DataFrame, _: int) -> None:
            changes.persist()
            for topic, table in tables.items():
                self._merge(changes.where(F.col("topic") == topic), table)
            changes.unpersist()

        query = changes.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query.start().awaitTermination()

    @staticmethod
    def _merge(changes: DataFrame, table: str) -> None:
        key = F.coalesce(F.col("after.id"), F.col("before.id")).alias("key")
        newest = changes.groupBy(key).agg(F.max_by(F.struct("op", "after"), "seq").alias("last")).select("key", "last.*")
        newest.createOrReplaceTempView("newest")
        newest.sparkSession.sql(
            f"MERGE INTO {table} stored USING newest ON stored.id = newest.key"  # noqa: S608 - of names that stand above
            " WHEN MATCHED AND newest.op = 'd' THEN DELETE"
            f" WHEN MATCHED THEN UPDATE SET {', '.join(f'stored.{name} = newest.after.{name}' for name in _COLUMNS)}"
            f" WHEN NOT MATCHED AND newest.op <> 'd' THEN INSERT ({', '.join(_COLUMNS)})"
            f" VALUES ({', '.join(f'newest.after.{name}' for name in _COLUMNS)})"
        )


PEERS: Final[Mapping[str, Peer]] = {
    "merge-delta": Peer("default", "delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"),
    "merge-iceberg": Peer(
        "iceberg.peers", "iceberg TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' = 'merge-on-read')"
    ),
}
"""By the names that spark_load takes for a job."""
