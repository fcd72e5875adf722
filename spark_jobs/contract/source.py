"""The source of the jobs: the topics of one daemon, as a stream or with their present contents.

The jobs always read with `read_committed`: the daemon writes in Kafka transactions, and records of an aborted transaction must
not be visible.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.avro_records import with_json, with_schemas
from spark_jobs.contract.avro_schemas import Schemas
from spark_jobs.contract.envelope import CONTROL_TOPICS, OF_SHARDS, OPTIONAL_TOPICS, Names, with_fault_column
from spark_jobs.contract.owner import Owner, topic_suffix
from spark_jobs.contract.registry import Registry
from spark_jobs.contract.scales import Scales
from spark_jobs.errors import JobError

_CONSUMER: Final = {
    # After a task's last record, its consumer requests the next records in advance. Until the broker has some, or this time is
    # over, it answers no other request on that connection. Spark then asks where the partition ends, and has to wait. With
    # Kafka's default each task, however few records it had, would be idle for half a second.
    "kafka.fetch.max.wait.ms": "5",
    # After each poll of so many records, Spark asks for both ends of the partition; 500 by default.
    "kafka.max.poll.records": "2000",
}
"""Settings of Kafka's consumers, unless `--kafka-option` changes them. The consumers only request records that exist already."""


@dataclass(frozen=True)
class Contents:
    """The values of a topic's records, read when its partitions, with their numbers, had these ends."""

    ends: tuple[tuple[int, int], ...]
    values: Sequence[str] = ()


@dataclass
class Known:
    """What is known so far of the owner of a prefix. A running job learns more, for example when a space is created."""

    owner: Owner | None = None
    """None: nothing has been asked, so every topic counts, and every event in it."""
    foreign: frozenset[str] = frozenset()
    """Topics with names under the prefix that aren't the owner's."""
    chosen: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a pattern for topics matches a topic, as Java was asked."""
    schema_records: dict[str, Contents] = field(default_factory=dict)
    """What schema topics had when they were read last (schema_topics.py)."""


@dataclass(frozen=True)
class Topics:
    """The topics under one prefix on one Kafka cluster.

    `spaces` is a (Java) regular expression that the complete part of a topic's name after the prefix must match. Spark's Kafka
    source gets `kafka_options` unchanged, and passes `kafka.…` options to Kafka's clients.
    """

    bootstrap_servers: str
    prefix: str
    spaces: str = ".*"
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int | None = None
    kafka_options: Mapping[str, str] = field(default_factory=dict)
    skip_unreadable: bool = False
    """Whether `read` leaves out records that aren't change events, because the stream puts them among the dead letters."""
    registry: Registry | None = None
    """Where the schemas of keys and values in Avro are; None if all of them are JSON."""
    scales: Scales = field(default_factory=dict)
    """Scales of decimals whose format says none."""
    shards: tuple[str, ...] = ()
    """The shards of the fleet that writes these topics (fleet.py); empty for one daemon."""
    known: Known = field(default_factory=Known, compare=False, repr=False)
    """What the program that runs a job learns of the prefix's owner (own_topics.py)."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Topics:
        """Return the topics that a command's options name (`options.add_kafka_options`, and options that only jobs have)."""
        given = vars(options)
        return cls(
            bootstrap_servers=options.bootstrap_servers,
            prefix=options.prefix,
            spaces=options.spaces,
            starting_offsets=given.get("starting_offsets", "earliest"),
            max_offsets_per_trigger=given.get("max_offsets_per_trigger") or None,
            kafka_options={**options.kafka_options_file, **dict(options.kafka_option)},
            skip_unreadable=given.get("on_error") == "dead-letter",
            registry=_registry(given),
            scales=dict(given.get("decimal_scale", ())),
        )

    def control(self, name: str) -> str:
        """Return the control topic `<prefix>.<name>` of the only daemon."""
        assert name in CONTROL_TOPICS
        assert not self.shards, "each shard has control topics of its own"
        return f"{self.prefix}.{name}"

    def controls(self, names: Iterable[str]) -> list[str]:
        """Return the control topics with these names: `<prefix>.<name>`, or those of each shard."""
        return [topic for name in names for topic in self._controls(name)]

    def _controls(self, name: str) -> list[str]:
        if not self.shards:
            return [self.control(name)]
        return [self.control_of(shard, name) for shard in self.shards]

    @property
    def all_controls(self) -> list[str]:
        """The control topics, whose records aren't change events."""
        return self.controls((*CONTROL_TOPICS, *OF_SHARDS) if self.shards else CONTROL_TOPICS)

    def control_of(self, shard: str, name: str) -> str:
        """Return the control topic `<prefix>.<shard>.<name>`."""
        assert shard in self.shards
        return f"{self.prefix}.{shard}.{name}"

    def of_space(self, space: str) -> str:
        """Return the topic of a space."""
        return f"{self.prefix}.{topic_suffix(space)}"

    @property
    def names(self) -> Names | None:
        """Which events are the owner's, by their `source.name`; None if that isn't known. For `envelope.parse`."""
        return None if self.known.owner is None else self.known.owner.names

    def own(self, records: DataFrame) -> DataFrame:
        """Return records without those of topics that aren't the owner's."""
        foreign = self.known.foreign
        return records.where(~F.col("topic").isin(*foreign)) if foreign else records

    def as_json(self, records: DataFrame) -> DataFrame:
        """Return own records as JSON. The query ends at one in Avro whose schema the registry doesn't have."""
        # Without Kafka the stream reads a table, whose texts are JSON already.
        return with_schemas(self._as_json(records)) if self.registry is not None and self.bootstrap_servers else records

    def _as_json(self, records: DataFrame) -> DataFrame:
        return records if self.registry is None else with_json(records, self.registry)

    @property
    def schemas(self) -> Schemas | None:
        """The schemas of records in Avro; None if all records are JSON."""
        return None if self.registry is None else Schemas.of(self.registry)

    def pattern(self, control: Collection[str] = ()) -> str:
        """Return a regular expression for the complete names of the chosen spaces' topics, and of the named control topics.

        Spark would otherwise look for it anywhere in a name.
        """
        prefix = re.escape(self.prefix)
        no_spaces = [*CONTROL_TOPICS]
        if self.shards:
            no_spaces.append(rf"(?:{'|'.join(self.shards)})\.(?:{'|'.join((*CONTROL_TOPICS, *OPTIONAL_TOPICS, *OF_SHARDS))})")
        spaces = rf"(?!(?:{'|'.join(no_spaces)})$)(?:{self.spaces})"
        named = [re.escape(topic.removeprefix(f"{self.prefix}.")) for topic in self.controls(control)]
        return rf"^(?:{prefix}\.(?:{'|'.join([spaces, *named])}))$"

    def check_spaces(self, session: SparkSession) -> None:
        """Raise JobError if `spaces` isn't a regular expression of Java, whose rules differ from Python's."""
        compiled = getattr(session.sparkContext._jvm, "java.util.regex.Pattern").compile
        # Within the pattern for topics, too: there, a quotation (\Q) that isn't closed reaches past the end.
        for text in (self.spaces, self.pattern()):
            try:
                compiled(text)
            except IllegalArgumentException as error:
                reason = str(error).splitlines()[0]
                raise JobError(
                    f"--spaces {self.spaces!r} isn't a regular expression of Java: {reason}. To read some spaces by their names, "
                    "write --spaces 'users|orders'."
                ) from error

    def chosen(self, session: SparkSession, spaces: Iterable[str]) -> list[str]:
        """Return those of the spaces that --spaces selects."""
        return [space for space in spaces if self._is_chosen(session, space)]

    def _is_chosen(self, session: SparkSession, space: str) -> bool:
        asked = self.pattern(), self.of_space(space)
        if asked not in self.known.chosen:
            # Matched by Java, like the topics in Kafka's consumer. Asked once, as it is asked for every space in every batch.
            matches = getattr(session.sparkContext._jvm, "java.util.regex.Pattern").matches
            self.known.chosen[asked] = bool(matches(*asked))
        return self.known.chosen[asked]

    def stream(self, session: SparkSession, control: tuple[str, ...] = ()) -> DataFrame:
        """Return all records of the chosen spaces, including spaces created later, and of the named control topics."""
        reader = session.readStream.format("kafka").options(**self.options())
        reader = reader.option("startingOffsets", self.starting_offsets)
        if self.max_offsets_per_trigger is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.max_offsets_per_trigger)
        return reader.option("subscribePattern", self.pattern(control)).load()

    def read(self, session: SparkSession, *topics: str) -> DataFrame:
        """Return all records that topics hold now; none of those that don't exist. Control topics aren't read with others."""
        reader = session.read.format("kafka").options(**self.options())
        # Subscribed by pattern: naming a topic that doesn't exist would fail, or create it.
        pattern = f"^(?:{'|'.join(map(re.escape, topics))})$"
        records = self._as_json(reader.option("startingOffsets", "earliest").option("subscribePattern", pattern).load())
        if not self.skip_unreadable or {*topics} <= {*self.all_controls}:
            return records
        # A checkpoint: else Spark combines the condition with the steps of `with_fault_column`, each repeated in what follows it,
        # until Java's heap is full.
        return with_fault_column(records).localCheckpoint(eager=False).where("sentence is null").drop("sentence")

    def read_behind(self, session: SparkSession, offsets: Mapping[str, Mapping[str, int]]) -> DataFrame:
        """Return the records of the chosen spaces' topics from these offsets on (topic → partition → offset).

        A chosen topic that isn't among `offsets` is read completely.
        """
        known = "|".join(map(re.escape, offsets))
        others = session.read.format("kafka").options(**self.options()).option("startingOffsets", "earliest")
        found = others.option("subscribePattern", rf"^(?!(?:{known})$){self.pattern()}").load()
        if not offsets:
            return self.as_json(self.own(found))
        reader = session.read.format("kafka").options(**self.options()).option("startingOffsets", json.dumps(offsets))
        partitions = {topic: [int(partition) for partition in numbers] for topic, numbers in offsets.items()}
        found = found.unionByName(reader.option("assign", json.dumps(partitions)).load())
        return self.as_json(self.own(found))

    def options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source that all reads use."""
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            **_CONSUMER,
            **self.kafka_options,
            "kafka.isolation.level": "read_committed",
        }


def _registry(given: Mapping[str, Any]) -> Registry | None:
    if given.get("value_format") != "avro":
        return None
    user, password = given["registry_user"], given["registry_password"]
    return Registry(given["registry"], user, password, given["registry_ca"])
