"""The offsets up to which a query has read, and the ends of its topics, from Kafka and the checkpoint without a Spark job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.checkpoint import last_done_batch
from spark_jobs.lake.control import KINDS
from spark_jobs.lake.watermark import Ends
from spark_jobs.source import Topics


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

    def control_records(self) -> Iterable[tuple[str, int, str]]:
        """Return all values of the control topics: kind, position, value."""


@dataclass
class KafkaPositions:
    """Positions of a query that reads from Kafka."""

    session: SparkSession
    topics: Topics
    checkpoint: str
    _consumer: Any = None

    def ends(self, kinds: Sequence[str] = ()) -> Ends:
        """See `Positions.ends`."""
        jvm: Any = self.session.sparkContext._jvm
        consumer = self._connected(jvm)
        pattern = jvm.java.util.regex.Pattern.compile(self.topics.pattern())
        control = {self.topics.control(kind) for kind in kinds}
        places = jvm.java.util.ArrayList()
        for topic, partitions in dict(consumer.listTopics()).items():
            if topic in control if kinds else pattern.matcher(topic).matches():
                for partition in partitions:
                    places.add(jvm.org.apache.kafka.common.TopicPartition(topic, partition.partition()))
        found = dict(consumer.endOffsets(places))
        return {(place.topic(), place.partition()): int(end) for place, end in found.items()}

    def last_batch(self) -> int | None:
        """See `Positions.last_batch`."""
        return last_done_batch(self.session, self.checkpoint)

    def read_up_to(self, batch: int) -> Ends:
        """See `Positions.read_up_to`. The offsets come from the checkpoint, where Spark wrote them before the batch began."""
        jvm: Any = self.session.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self.checkpoint}/offsets/{batch}")
        stream = path.getFileSystem(self.session.sparkContext._jsc.hadoopConfiguration()).open(path)
        try:
            lines = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8").splitlines()
        finally:
            stream.close()
        offsets: Mapping[str, Mapping[str, int]] = json.loads(lines[-1])
        return {(topic, int(partition)): end for topic, ends in offsets.items() for partition, end in ends.items()}

    def control_records(self) -> list[tuple[str, int, str]]:
        """See `Positions.control_records`."""
        found = []
        for kind in KINDS:
            records = self.topics.read(self.session, self.topics.control(kind)).where(F.col("value").isNotNull())
            rows = records.select("offset", F.col("value").cast("string").alias("value")).collect()
            found += [(kind, int(row["offset"]), str(row["value"])) for row in rows]
        return found

    def _connected(self, jvm: Any) -> Any:
        """Return a consumer that also sees uncommitted records: records that will be committed later belong to the ends."""
        if self._consumer is None:
            settings = jvm.java.util.HashMap()
            for name, value in self.topics.kafka_options.items():
                if name.startswith("kafka."):
                    settings.put(name.removeprefix("kafka."), value)
            settings.put("bootstrap.servers", self.topics.bootstrap_servers)
            bytes_ = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
            settings.put("key.deserializer", bytes_)
            settings.put("value.deserializer", bytes_)
            self._consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        return self._consumer
