"""Publishing of complete events to topics with another prefix.

The events are like the daemon's own (docs/events.md) of spaces with images. An event goes to the partition that it came from,
and each partition is written by one task in the order of `seq`. Therefore these topics have the same order as the daemon's. A
repeated batch publishes its events again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.envelope import SOURCE
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError

TAIL: Final = "tail"
"""Name of the column with the text that follows the rows in an event."""

RECORD_SCHEMA: Final = "topic string, partition int, key string, value string"
"""Columns of the records to send."""

_ORIGIN: Final = "tarantool_cdc.origin"
"""Header of the records of the schema topic, with the prefix of the source's topics."""

_SNAPSHOT_ID: Final = "snapshot_id"
_OF_PATCHES: Final = "server_version"
_NULLS: Final = {"ignoreNullFields": "false"}


class Publisher(Protocol):
    """Destination of records."""

    prefix: str

    def prepare(self, used: Mapping[str, int]) -> None:
        """Prepare topics for records from these source topics, each with the minimum number of partitions that it needs."""

    def send(self, records: DataFrame) -> None:
        """Send records (RECORD_SCHEMA), those of a task in order. Return once Kafka has all of them."""

    def send_forms(self, records: DataFrame) -> None:
        """Send records of the schema topic, as `send` does, and note in them whose events these topics have."""


class Publication:
    """Publishing of one daemon's events and control records."""

    def __init__(self, publisher: Publisher, topics: Topics, read_topic: Callable[[str], DataFrame]) -> None:
        """`read_topic` returns all records of a topic."""
        self._publisher = publisher
        self._topics = topics
        self._read_topic = read_topic
        self._told: set[str] = set()

    def tail(self) -> Column:
        """Return the text after an event's rows, as published, from the result of `parse`."""
        return tail(self._publisher.prefix)

    def publish(self, whole: DataFrame, records: DataFrame, *, has_control: bool) -> None:
        """Send a batch: events with both rows and a TAIL, and the control records among Kafka's `records`.

        `has_control` tells that `records` may contain control records, or that the schema topic has forms that the batch needs.
        """
        if has_control:
            self._tell_forms()
        found = whole.groupBy("kafka_topic").agg(F.max("kafka_partition").alias("last")).collect()
        used = {row["kafka_topic"]: row["last"] + 1 for row in found}
        if used:
            self._publisher.prepare(used)
            self._publisher.send(event_records(whole, self._topics.prefix, self._publisher.prefix))
        if has_control:
            of_snapshots = records.where((F.col("topic") == self._topics.control("snapshot")) & F.col("value").isNotNull())
            self._publisher.send(self._copied(of_snapshots, "snapshot"))

    def _tell_forms(self) -> None:
        """Send those records of the schema topic that this run hasn't sent, before the events that refer to them."""
        records = self._read_topic(self._topics.control("schema")).where(F.col("value").isNotNull())
        copied = self._copied(records, "schema").collect()
        fresh = [(*tuple(row)[:3], self._renamed(row["value"])) for row in copied if row["value"] not in self._told]
        if fresh:
            self._publisher.send_forms(records.sparkSession.createDataFrame(fresh, RECORD_SCHEMA).coalesce(1))
            self._told.update(str(row["value"]) for row in copied)

    def _renamed(self, value: str) -> str:
        """Return a schema record with the new prefix as `source.name`, which tells consumers whose topics these are."""
        names = self._topics.names
        for name in {self._topics.prefix} if names is None else sorted(names.own):
            former, present = (f'"name":{json.dumps(one, ensure_ascii=False)}' for one in (name, self._publisher.prefix))
            # The first one is the member of `source`; those of columns come after `tableChanges`.
            head, found, rest = value.partition(former)
            if found and '"tableChanges"' not in head:
                return f"{head}{present}{rest}"
        return value

    def _copied(self, records: DataFrame, kind: str) -> DataFrame:
        copies = records.select(
            F.lit(f"{self._publisher.prefix}.{kind}").alias("topic"),
            F.lit(0).alias("partition"),
            F.col("key").cast("string").alias("key"),
            F.col("value").cast("string").alias("value"),
            "offset",
        )
        return copies.coalesce(1).sortWithinPartitions("offset").drop("offset")


def tail(prefix: str) -> Column:
    """Return the text for `Publication.tail`: with this prefix, and without the fields that only patches need."""
    source = F.col("source")
    names = [name for name in SOURCE.names if name not in (_SNAPSHOT_ID, _OF_PATCHES, "shard")]
    fields = [F.lit(prefix).alias(name) if name == "name" else source[name].alias(name) for name in names]
    # Only events of a snapshot have this member, and it is the last one.
    of_snapshot = F.to_json(F.struct(*fields, source[_SNAPSHOT_ID].alias(_SNAPSHOT_ID)), _NULLS)
    shown = F.when(source[_SNAPSHOT_ID].isNull(), F.to_json(F.struct(*fields), _NULLS)).otherwise(of_snapshot)
    times = (part for name in ("ts_ms", "ts_us", "ts_ns") for part in (F.lit(f',"{name}":'), _shown(F.col(name))))
    transaction = F.to_json("transaction", _NULLS)
    return F.concat(F.lit(',"source":'), shown, F.lit(',"transaction":'), _shown(transaction), *times, F.lit("}")).alias(TAIL)


def event_records(whole: DataFrame, source_prefix: str, prefix: str) -> DataFrame:
    """Convert events (CHANGES_COLUMNS and TAIL) to RECORD_SCHEMA, with a tombstone after each `d`.

    A `t` comes from each partition.

    All records of a partition are in one task, in the order of `seq`.
    """
    topic = F.concat(F.lit(prefix), F.substring("kafka_topic", len(source_prefix) + 1, 1000))
    value = F.concat(
        F.lit('{"op":"'), "op", F.lit('","before":'), _shown(F.col("before")), F.lit(',"after":'), _shown(F.col("after")), TAIL
    )

    tombstone = F.lit(None).cast("string")
    values = F.when(F.col("op") == "d", F.array(value, tombstone)).otherwise(F.array(value))
    partition = F.col("kafka_partition").cast("int").alias("partition")
    sent = whole.select(topic.alias("topic"), partition, "key", "seq", F.posexplode(values).alias("place", "value"))
    ordered = sent.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "seq", "place")
    return ordered.select("topic", "partition", "key", "value")


class KafkaPublisher:
    """Publisher to Kafka topics, which it creates when needed, with as many partitions as the source's."""

    def __init__(self, session: SparkSession, topics: Topics, servers: str, prefix: str) -> None:
        """`topics` are the source's; their options for Kafka's clients are also used here.

        Raises JobError if other events than those of the source are on the topics.
        """
        self.prefix = prefix
        self._session = session
        self._topics = topics
        self._servers = servers
        self._options = {name: value for name, value in topics.kafka_options.items() if name.startswith("kafka.")}
        self._counts: dict[str, int] = {}
        # Consumers that begin later need these records, so none of them may expire.
        control = {
            f"{prefix}.schema": {"cleanup.policy": "compact"},
            f"{prefix}.snapshot": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
        }
        with _Admin(session, servers, self._options) as admin:
            known = admin.counts([*control, f"{prefix}.checkpoint"])
            if f"{prefix}.checkpoint" in known:
                raise JobError(
                    f"A daemon publishes to the prefix {prefix!r} of --to, because there is a topic {prefix}.checkpoint. Choose "
                    "another prefix."
                )
            if f"{prefix}.schema" in known:
                self._check_origin()
            admin.create({name: (1, settings) for name, settings in control.items() if name not in known})

    def prepare(self, used: Mapping[str, int]) -> None:
        """See `Publisher.prepare`."""
        if any(self._counts.get(topic, 0) < count for topic, count in used.items()):
            with _Admin(self._session, self._topics.bootstrap_servers, self._options) as admin:
                # A source topic may have been deleted although its events were still read.
                wanted = {**used, **admin.counts(used)}
            names = {topic: f"{self.prefix}{topic.removeprefix(self._topics.prefix)}" for topic in used}
            with _Admin(self._session, self._servers, self._options) as admin:
                known = admin.counts(names.values())
                admin.create({name: (wanted[topic], {}) for topic, name in names.items() if name not in known})
                admin.add(
                    {name: wanted[topic] for topic, name in names.items() if known.get(name, wanted[topic]) < wanted[topic]}
                )
            self._counts |= {topic: max(known.get(name, 0), wanted[topic]) for topic, name in names.items()}

    def send_forms(self, records: DataFrame) -> None:
        """See `Publisher.send_forms`."""
        origin = F.struct(F.lit(_ORIGIN).alias("key"), F.lit(self._topics.prefix).cast("binary").alias("value"))
        self.send(records.withColumn("headers", F.array(origin)))

    def _check_origin(self) -> None:
        """Raise JobError if another job publishes the events of another prefix to these topics."""
        there = Topics(self._servers, self.prefix, kafka_options={**self._options, "includeHeaders": "true"})
        named = F.expr(f"filter(headers, one -> one.key = '{_ORIGIN}')[0].value").cast("string").alias("origin")
        for row in there.read(self._session, there.control("schema")).select(named).distinct().collect():
            if row["origin"] not in (None, self._topics.prefix):
                raise JobError(
                    f"The topics of the prefix {self.prefix!r} of --to have the events of {row['origin']!r}, whose seq is "
                    f"independent of that of {self._topics.prefix!r}. Choose another prefix."
                )

    def send(self, records: DataFrame) -> None:
        """See `Publisher.send`."""
        records.write.format("kafka").options(**self._options).option("kafka.bootstrap.servers", self._servers).save()


class _Admin:
    """Java's admin client."""

    def __init__(self, session: SparkSession, servers: str, options: Mapping[str, str]) -> None:
        jvm: Any = session.sparkContext._jvm
        self._jvm = jvm
        settings = jvm.java.util.HashMap()
        for name, value in {**options, "kafka.bootstrap.servers": servers}.items():
            settings.put(name.removeprefix("kafka."), value)
        self._admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)

    def __enter__(self) -> _Admin:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._admin.close()

    def counts(self, topics: Any) -> dict[str, int]:
        """Return the numbers of partitions of topics; missing topics are left out."""
        there = set(self._admin.listTopics().names().get())
        wanted = self._jvm.java.util.ArrayList()
        for topic in topics:
            if topic in there:
                wanted.add(topic)
        found = dict(self._admin.describeTopics(wanted).allTopicNames().get())
        return {str(topic): int(described.partitions().size()) for topic, described in found.items()}

    def create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Create topics, each with a number of partitions and settings of its own."""
        wanted = self._jvm.java.util.ArrayList()
        optional = self._jvm.java.util.Optional
        for name, (count, settings) in topics.items():
            topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, optional.of(count), optional.empty())
            configs = self._jvm.java.util.HashMap()
            for setting, value in settings.items():
                configs.put(setting, value)
            wanted.add(topic.configs(configs))
        self._admin.createTopics(wanted).all().get()

    def add(self, topics: Mapping[str, int]) -> None:
        """Increase the partitions of topics to the given totals."""
        wanted = self._jvm.java.util.HashMap()
        for name, count in topics.items():
            wanted.put(name, self._jvm.org.apache.kafka.clients.admin.NewPartitions.increaseTo(count))
        self._admin.createPartitions(wanted).all().get()


def destination(url: str, own_prefix: str) -> tuple[str, str]:
    """Return the servers and the prefix of kafka://HOST:PORT,…/PREFIX.

    Raises JobError for another URL, or if the job would read its own output.
    """
    parts = urlsplit(url)
    servers, prefix = parts.netloc, parts.path.removeprefix("/")
    if parts.scheme != "kafka" or not servers or not prefix:
        raise JobError(f"--to {url} names no prefix of topics: write kafka://HOST:PORT/PREFIX.")
    if f"{prefix}.".startswith(f"{own_prefix}.") or f"{own_prefix}.".startswith(f"{prefix}."):
        raise JobError(
            f"The prefix {prefix!r} of --to isn't apart from {own_prefix!r} of --prefix: the job would read its own output. "
            "Choose a prefix that doesn't begin with the other one, nor the other one with it."
        )
    return servers, prefix


def _shown(text: Column) -> Column:
    return F.coalesce(text.cast("string"), F.lit("null"))
