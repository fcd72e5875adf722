"""What jobs read: the topics of one daemon, as a stream or as they are now.

Always with `read_committed`: the daemon writes in Kafka transactions, and what one of them leaves behind when it is aborted
must not be seen.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.envelope import CONTROL_TOPICS, sorted_out

_FOREIGN_TO_TOPICS: Final = re.compile(r"[^A-Za-z0-9._-]")

_CONSUMER: Final = {
    # When a task has read its last record, its consumer asks for the next ones in advance, and the broker answers nothing else on
    # that connection until it has some or this time is over. Spark then asks where the partition ends, and so each task, however
    # few records it had, would take half a second (Kafka's default) in which nobody does anything.
    "kafka.fetch.max.wait.ms": "5",
    # Spark asks for both ends of a partition whenever it has taken so many records; 500 by default.
    "kafka.max.poll.records": "2000",
}
"""What Kafka's consumers get unless `--kafka-option` says otherwise: they only ever ask for records that are there."""


@dataclass(frozen=True)
class Topics:
    """The topics under one prefix on one Kafka cluster.

    `spaces` is a (Java) regular expression over the whole of what follows the prefix. `kafka_options` go to Spark's Kafka
    source as they are, `kafka.…` ones on to Kafka's clients.
    """

    bootstrap_servers: str
    prefix: str
    spaces: str = ".*"
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int | None = None
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    skip_unreadable: bool = False
    """Whether `read` leaves out what isn't a change event, because the stream puts it among the dead letters."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Topics:
        """The topics that a command's options name (options.add_kafka_options, and what only jobs have)."""
        given = vars(options)
        return cls(
            bootstrap_servers=options.bootstrap_servers,
            prefix=options.prefix,
            spaces=options.spaces,
            starting_offsets=given.get("starting_offsets", "earliest"),
            max_offsets_per_trigger=given.get("max_offsets_per_trigger") or None,
            kafka_options={**options.kafka_options_file, **dict(options.kafka_option)},
            skip_unreadable=given.get("on_error") == "dead-letter",
        )

    def control(self, name: str) -> str:
        """The topic `<prefix>.<name>`."""
        assert name in CONTROL_TOPICS
        return f"{self.prefix}.{name}"

    def of_space(self, space: str) -> str:
        """The topic of a space."""
        return f"{self.prefix}.{topic_suffix(space)}"

    def pattern(self, control: tuple[str, ...] = ()) -> str:
        """A regular expression over the topics of the chosen spaces, and the control topics named."""
        prefix = re.escape(self.prefix)
        spaces = rf"(?!(?:{'|'.join(CONTROL_TOPICS)})$)(?:{self.spaces})"
        return rf"{prefix}\.(?:{'|'.join([spaces, *control])})"

    def chosen(self, session: SparkSession, spaces: Iterable[str]) -> list[str]:
        """Those of the spaces that the job was asked for."""
        # By Java, as Kafka's consumer matches them.
        matches = getattr(session.sparkContext._jvm, "java.util.regex.Pattern").matches
        return [space for space in spaces if matches(self.pattern(), self.of_space(space))]

    def stream(self, session: SparkSession, control: tuple[str, ...] = ()) -> DataFrame:
        """Records of all chosen spaces, also of ones that are created later, and of the control topics named."""
        reader = session.readStream.format("kafka").options(**self.options())
        reader = reader.option("startingOffsets", self.starting_offsets)
        if self.max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.max_offsets_per_trigger)
        return reader.option("subscribePattern", self.pattern(control)).load()

    def read(self, session: SparkSession, topic: str) -> DataFrame:
        """All that one topic holds now; nothing if there is no such topic."""
        reader = session.read.format("kafka").options(**self.options())
        # By pattern: naming a topic that doesn't exist would be an error, or create it.
        records = reader.option("startingOffsets", "earliest").option("subscribePattern", re.escape(topic)).load()
        if not self.skip_unreadable or topic in map(self.control, CONTROL_TOPICS):
            return records
        return sorted_out(records).where("sentence is null").drop("sentence")

    def read_behind(self, session: SparkSession, offsets: Mapping[str, Mapping[str, int]]) -> DataFrame:
        """What the chosen spaces' topics hold from these offsets on (topic → partition → offset), and all of other topics."""
        known = "|".join(map(re.escape, offsets))
        others = session.read.format("kafka").options(**self.options()).option("startingOffsets", "earliest")
        found = others.option("subscribePattern", rf"(?!(?:{known})$){self.pattern()}").load()
        if not offsets:
            return found
        reader = session.read.format("kafka").options(**self.options()).option("startingOffsets", json.dumps(offsets))
        partitions = {topic: [int(partition) for partition in numbers] for topic, numbers in offsets.items()}
        return found.unionByName(reader.option("assign", json.dumps(partitions)).load())

    def options(self) -> dict[str, str]:
        """What Spark's Kafka source is given for every read."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            **_CONSUMER,
            **self.kafka_options,
            "kafka.isolation.level": "read_committed",
        }


def topic_suffix(space: str) -> str:
    """A space's name as topics have it."""
    return _FOREIGN_TO_TOPICS.sub("_", space)
