"""The offsets up to which a query has read, and the ends of its topics, from Kafka and the checkpoint without a Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.kafka_client import KafkaClient
from spark_jobs.contract.source import Topics
from spark_jobs.lake.control import KINDS
from spark_jobs.lake.watermark import Ends
from spark_jobs.runner.checkpoint import last_done_batch, offsets_of_batch


class Positions(Protocol):
    """Information that a sink needs from its source beside the records."""

    def ends(self, kinds: Sequence[str] = ()) -> Ends:
        """Return the ends of the partitions of the spaces' topics, or of the control topics `kinds`.

        The ends include records of open transactions.
        """

    def last_batch(self) -> int | None:
        """Return the number of the last batch that is done; None if there is none."""

    def read_up_to(self, batch: int) -> Ends:
        """Return the offsets at which a batch's records end."""

    def control_records(self, shard: str | None = None) -> Iterable[tuple[str, int, str]]:
        """Return all values of the control topics, of a fleet those of one shard: kind, position, value."""


@dataclass
class KafkaPositions:
    """Positions of a query that reads from Kafka."""

    session: SparkSession
    topics: Topics
    checkpoint: str
    _client: KafkaClient | None = None

    def ends(self, kinds: Sequence[str] = ()) -> Ends:
        """See `Positions.ends`. Topics of others under the prefix don't count: nothing waits for their events."""
        self._client = self._client or KafkaClient(self.session, self.topics)
        if kinds:
            return self._client.ends(self.topics.controls(kinds))
        return self._client.ends([topic for topic in self._client.of_spaces() if topic not in self.topics.known.foreign])

    def last_batch(self) -> int | None:
        """See `Positions.last_batch`."""
        return last_done_batch(self.session, self.checkpoint)

    def read_up_to(self, batch: int) -> Ends:
        """See `Positions.read_up_to`. The offsets come from the checkpoint, where Spark wrote them before the batch began."""
        return offsets_of_batch(self.session, self.checkpoint, batch)

    def control_records(self, shard: str | None = None) -> list[tuple[str, int, str]]:
        """See `Positions.control_records`."""
        found = []
        for kind in KINDS:
            topic = self.topics.control(kind) if shard is None else self.topics.control_of(shard, kind)
            records = self.topics.read(self.session, topic).where(F.col("value").isNotNull())
            rows = records.select("offset", F.col("value").cast("string").alias("value")).collect()
            found += [(kind, int(row["offset"]), str(row["value"])) for row in rows]
        return found
