"""Job `audit` over a fleet whose shards share their topics.

    a batch ──▶ each shard's events ──▶ a ShardAudit each   what counts by shard: gap, duplicate, order, transaction, snapshot
            └─▶ all of them ──────────▶ KeysAudit           what counts by key: image, owner (fleet_chains.py); at the end, bucket

Each of them is an audit of its own, with its state, and all write to one table `findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit import buckets, fleet_chains
from spark_jobs.audit.facts import SOURCE_FIELDS, slim
from spark_jobs.audit.sink import COMPACT_EVERY, FINDINGS_MAX, AuditSink
from spark_jobs.audit.sources import CONTROL_TOPICS, Places, Source, TopicSource
from spark_jobs.audit.state import Finding, Part, State
from spark_jobs.contract import control_topics
from spark_jobs.contract.envelope import CONTROL, parse
from spark_jobs.contract.source import Topics
from spark_jobs.runner.job import Sink
from spark_jobs.runner.output import tell
from spark_jobs.tables.codegen import varying

ReadTopics = Callable[[Sequence[str]], DataFrame]


@dataclass(frozen=True)
class ShardTopics(Topics):
    """The topics of a fleet as one shard's audit sees them: the control topics are the shard's."""

    shard: str = ""

    def control(self, name: str) -> str:
        """See `Topics.control`."""
        return self.control_of(self.shard, name)

    @classmethod
    def of_shard(cls, topics: Topics, shard: str) -> ShardTopics:
        """Return the topics of a fleet for one of its shards."""
        return cls(**{name: getattr(topics, name) for name in Topics.__dataclass_fields__}, shard=shard)


class ShardSource(TopicSource):
    """Source of one shard's changes, which have been read already."""

    def __init__(
        self,
        session: SparkSession,
        topics: ShardTopics,
        first_offsets: Callable[[], Places],
        read_behind: Callable[[Places], DataFrame] | None = None,
        read_topic: Callable[[str], DataFrame] | None = None,
    ) -> None:
        """As `TopicSource`. Topics of other shards alone have none of this one's events."""
        others = tuple(f"{topics.prefix}.{other}." for other in topics.shards if other != topics.shard)

        def of_shard() -> Places:
            return {topic: places for topic, places in first_offsets().items() if not topic.startswith(others)}

        super().__init__(
            session, topics, first_offsets=of_shard if others else first_offsets, read_behind=read_behind, read_topic=read_topic
        )
        self._shard = topics.shard
        self._names = topics.names

    def changes(self, records: DataFrame) -> DataFrame:
        """See `Source.changes`."""
        return records

    def numbers(self, offsets: Places) -> DataFrame:
        """See `Source.numbers`."""
        events = parse(self._read_behind(offsets), source_fields=("shard",), names=self._names)
        return events.where(F.col("source.shard") == self._shard).select(F.col("source.seq").alias("seq"))


class ShardAudit(AuditSink):
    """What counts by shard. Findings say which one."""

    _orders_lsns: ClassVar[bool] = False
    """Rows of a bucket that has come wait for its former owner, and others don't."""

    def _chains(self, changes: DataFrame, state: State, batch: int, query: str) -> list[Finding]:  # noqa: ARG002 - see KeysAudit
        return []

    def _publish(self, found: Sequence[Finding], batch: int, application: str) -> None:
        assert isinstance(self._topics, ShardTopics)
        shard = self._topics.shard
        told = [replace(finding, sentence=f"Shard {shard}: {finding.sentence}") for finding in found]
        super()._publish(told, batch, f"{application}/{shard}")


class KeysAudit(AuditSink):
    """What counts by key, over all shards."""

    read_topics: ReadTopics

    def _judge(self, cached: DataFrame, state: State, batch: int, query: str) -> list[Finding]:  # noqa: ARG002 - no state
        changes = cached.where(F.col("op") != CONTROL)
        known = self._session.createDataFrame([], fleet_chains.LAST_SCHEMA)
        if self._format.exists(self._session, self._images):
            stored = self._format.read(self._session, self._images).where(F.col("query") == query)
            known = fleet_chains.newest(stored.where(F.col("batch") < batch).drop("query", "batch"))
            if batch % COMPACT_EVERY == 0:
                alive = known.where("op <> 'd'").withColumns({"query": F.lit(query), "batch": varying(batch - 1)})
                self._format.overwrite(alive.unionByName(stored.where(F.col("batch") >= batch)), self._images)
        rows = fleet_chains.broken(changes, known, self._sweeps()).orderBy("topic", "partition", "offset")
        found = fleet_chains.findings(rows.limit(FINDINGS_MAX).collect())
        images = fleet_chains.last(changes).withColumns({"query": F.lit(query), "batch": varying(batch)})
        self._format.append_once(images, self._images, partition_by=(), application=query, batch=batch)
        return found

    def _sweeps(self) -> DataFrame:
        topics = {shard: self._topics.control_of(shard, "snapshot") for shard in self._topics.shards}
        rows = []
        for shard, topic in topics.items():
            for ended in control_topics.completed(control_topics.values(self.read_topics([topic])), topic):
                rows += [(shard, sweep.space, sweep.up_to, ended.seq) for sweep in ended.sweeps]
        return self._session.createDataFrame(rows, fleet_chains.SWEEP_SCHEMA)

    def _judge_counts(self, state: State, parts: Sequence[Part]) -> list[Finding]:  # noqa: ARG002 - of buckets
        """Return what the buckets' topics say, at the end of a run."""
        return buckets.judge(self._buckets(), self._buckets())

    def _buckets(self) -> buckets.States:
        topics = {self._topics.control_of(shard, "buckets"): shard for shard in self._topics.shards}
        texts = [F.col(name).cast("string").alias(name) for name in ("key", "value")]
        rows = self.read_topics([*topics]).select("topic", "partition", "offset", *texts).collect()
        records: dict[str, list[tuple[str, str | None]]] = {shard: [] for shard in topics.values()}
        for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"])):
            records[topics[row["topic"]]].append((row["key"], row["value"]))
        return buckets.states(records)

    def _publish(self, found: Sequence[Finding], batch: int, application: str) -> None:
        super()._publish(found, batch, f"{application}/keys")


class FleetAudit(Sink):
    """Sink that gives each audit its part of a batch."""

    def __init__(self, topics: Topics, shards: Mapping[str, AuditSink], keys: AuditSink) -> None:
        """`shards` has the audit of each shard."""
        self._topics = topics
        self._shards = shards
        self._keys = keys
        self._control = topics.controls(CONTROL_TOPICS)

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        told = control_topics.with_value_as_key(records, self._control)
        fields = (*SOURCE_FIELDS, "shard")
        read = parse(told, source_fields=fields, control=self._control, names=self._topics.names)
        of_control = F.col("op") == CONTROL
        shard = F.element_at(F.split(F.substring("topic", len(self._topics.prefix) + 2, 1 << 15), "[.]"), 1)
        changes = slim(read, F.when(of_control, shard).otherwise(F.col("source.shard")).alias("shard"))
        changes = changes.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for name, audit in self._shards.items():
                audit.write(changes.where(F.col("shard") == name), batch, query)
            self._keys.write(changes, batch, query)
        finally:
            changes.unpersist()

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return self._keys.tables()

    def counts(self) -> Mapping[str, int]:
        """See `Sink.counts`."""
        return {"findings": sum(audit.counts()["findings"] for audit in self._audits.values())}

    @property
    def _audits(self) -> dict[str, AuditSink]:
        return {**{f"the shard {name}": audit for name, audit in self._shards.items()}, "keys and buckets": self._keys}

    def finish(self) -> int:
        """See `Sink.finish`."""
        status = 0
        for what, audit in self._audits.items():
            tell(f"audit: {what}:")
            status = max(status, audit.finish())
        return status


def make(
    topics: Topics,
    audit: Callable[[type[AuditSink], Topics, Source, str], AuditSink],
    source: Callable[[ShardTopics], Source],
    read_topics: ReadTopics,
) -> FleetAudit:
    """Return the sink.

    `audit` makes an audit of a class, from topics, a source and a name for its state, `source` the source of a shard.
    `read_topics` returns all records of some topics.
    """
    each = {shard: ShardTopics.of_shard(topics, shard) for shard in topics.shards}
    shards = {shard: audit(ShardAudit, own, source(own), f"state/{shard}") for shard, own in each.items()}
    first = each[topics.shards[0]]
    keys = audit(KeysAudit, first, source(first), "state/keys")
    assert isinstance(keys, KeysAudit)
    keys.read_topics = read_topics
    return FleetAudit(topics, shards, keys)
