"""Audit of topics that the shards of a fleet share: by shard what counts by shard, by key what counts by key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.audit.fleet import FleetAudit, ShardSource, ShardTopics, make
from spark_jobs.audit.sink import AuditSink
from spark_jobs.audit.sources import Source
from spark_jobs.contract.source import Topics
from tests.spark.audit.auditor import Auditor
from tests.spark.messages import Message, by, event, snapshot, truncate

pytestmark = pytest.mark.spark

SHARDS = ("s1", "s2")


class FleetAuditor(Auditor):
    """The same over topics that two shards share."""

    fleet: FleetAudit

    def restart(self) -> None:
        """See `Auditor.restart`."""
        self.topics.shards = SHARDS
        topics = Topics("k", "shop", shards=SHARDS)

        def audit(kind: type[AuditSink], of: Topics, source: Source, state: str) -> AuditSink:
            return kind(self._spark, of, self.place, source, lambda: "query", state_path=f"{self.path}/{state}")

        def source(of: ShardTopics) -> Source:
            return ShardSource(self._spark, of, dict, self._behind, self.topics.read)

        self.sink = self.fleet = make(topics, audit, source, self._read)  # type: ignore[assignment]

    def _read(self, names: Sequence[str]) -> DataFrame:
        return reduce(DataFrame.unionByName, map(self.topics.read, names))


def change(shard: str, op: str, key: int, seq: int, before: int | None, after: int | None) -> Message:
    """A change by a shard, with both rows."""
    rows = {name: None if n is None else {"id": key, "n": n} for name, n in (("before", before), ("after", after))}
    return by(shard, event(op, {"id": key}, seq, rows))


def bucket(shard: str, number: int, status: str) -> Message:
    """A record of a shard's bucket."""
    return Message(f"shop.{shard}.buckets", f'{{"bucket":{number}}}', f'{{"status":"{status}"}}')


@pytest.mark.one_of_these("fleets in Spark")
def test_moves_are_clean_and_each_fault_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    auditor = FleetAuditor(spark, tmp_path)
    # The key 1 goes to the other shard and back, the key 2 goes there and is truncated with the rest.
    auditor.take(
        *(change("s1", "c", key, key, None, 10) for key in (1, 2)),
        change("s2", "u", 1, 1, 10, 11),
        change("s1", "u", 1, 3, 11, 12),
        by("s2", truncate(2)),
        change("s2", "c", 2, 3, None, 20),
        bucket("s1", 7, "active"),
        bucket("s2", 7, "sent"),
    )
    auditor.take(change("s2", "u", 2, 4, 20, 21), change("s1", "d", 1, 4, 12, None), change("s1", "c", 3, 5, None, 10))
    auditor.repeat()
    assert (auditor.fleet.finish(), auditor.findings()) == (0, [])
    auditor.restart()
    auditor.take(
        change("s2", "c", 3, 5, None, 30),  # s1 has it
        change("s1", "u", 2, 6, 99, 22),  # the change before was lost
        change("s1", "c", 4, 9, None, 40),  # 7 and 8 are on no topic
        change("s2", "c", 5, 6, None, 50),
        change("s2", "c", 5, 6, None, 50),
        bucket("s2", 7, "active"),
    )
    assert auditor.fleet.finish() == 1
    found = [(row["kind"], row["key"], row["seq"], row["sentence"][:29]) for row in auditor.findings()]
    assert found == [
        ("bucket", "7", None, "The bucket 7 belongs to several shards"[:29]),
        ("duplicate", '{"id":5}', 6, 'Shard s2: Seq 6 (users {"id":5}'[:29]),
        ("gap", None, 7, "Shard s1: Seq 7 to 8, 2 events"[:29]),
        ("image", '{"id":2}', 6, found[3][3]),
        ("owner", '{"id":3}', 5, 'Two shards have the key {"id":3}'[:29]),
    ]
    assert auditor.fleet.counts() == {"findings": len(found)}


@pytest.mark.one_of_these("fleets in Spark")
def test_what_removes_rows_excuses_only_links_over_it(spark: SparkSession, tmp_path: Path) -> None:
    auditor = FleetAuditor(spark, tmp_path)
    auditor.take(*(change("s1", "c", key, key, None, 10) for key in (1, 2, 3, 4)))
    # The keys 1 and 3 have gone to s2 unseen, and after its TRUNCATE the bucket of 3 has gone back.
    auditor.take(by("s2", truncate(1)))
    auditor.take(change("s2", "c", 1, 2, None, 20), change("s1", "c", 3, 5, None, 30))
    auditor.take(
        by("s1", snapshot("STARTED", 5, snapshot_id="1")),
        change("s1", "r", 4, 6, None, 10),
        by("s1", snapshot("COMPLETED", 6, snapshot_id="1", sweep_seq=4)),
    )
    auditor.take(change("s1", "c", 2, 7, None, 20), change("s1", "u", 3, 8, 30, 31))
    assert (auditor.fleet.finish(), auditor.findings()) == (0, [])
    auditor.take(change("s1", "u", 2, 9, 99, 21))  # after the sweep, and a change is lost
    assert [(row["kind"], row["key"]) for row in auditor.findings()] == [("image", '{"id":2}')]
