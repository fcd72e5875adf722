"""An audit over topics in memory, and messages for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.audit.sink import AuditSink
from spark_jobs.audit.sources import TopicSource
from spark_jobs.contract.source import Topics
from spark_jobs.tables import delta
from spark_jobs.tables.format import TableFormat
from tests.spark.formats import load, under
from tests.spark.messages import FakeTopics, Message, compact, event, put, schema, snapshot, truncate

ORDERS: dict[str, Any] = {"space": "orders", "space_id": 513}


class Auditor:
    """A sink over topics in memory, whose batches are what was sent since the last one."""

    def __init__(self, spark: SparkSession, path: Path, known: TableFormat = delta, **options: Any) -> None:
        self.topics = FakeTopics(spark)
        self.place = under(path, known)
        self.path = path
        self.batch = -1
        self._places = {name: options.pop(name) for name in ("first_offsets",) if name in options}
        self._spaces = options.pop("spaces", ".*")
        self._options = {**options, "state_path": f"{path}/state"}
        self._spark = spark
        self._taken: dict[tuple[str, int], int] = {}
        self.records: DataFrame | None = None
        self.restart()

    def restart(self) -> None:
        """As in another process."""
        topics = Topics("k", "shop", self._spaces)
        read = {"read_behind": self._behind, "read_topic": self.topics.read, **self._places}
        source = TopicSource(self._spark, topics, **read)
        self.sink = AuditSink(self._spark, topics, self.place, source, lambda: "query", **self._options)

    def take(self, *messages: Message, only: Sequence[int] = (0, 1)) -> None:
        """Send messages, and give what is new in these partitions to the sink."""
        self.topics.append(*messages)
        ranges = {}
        for place, log in self.topics.messages.items():
            if place[1] in only and not place[0].endswith((".schema", ".buckets")):
                ranges[place] = (self._taken.get(place, 0), len(log))
                self._taken[place] = len(log)
        self.records = self.topics.slice(ranges)
        self.batch += 1
        self.sink.write(self.records, self.batch, "query")

    def repeat(self) -> None:
        """Give the last batch again."""
        assert self.records is not None
        self.sink.write(self.records, self.batch, "query")

    def findings(self) -> list[Row]:
        """All that there are."""
        path = self.path / "findings"
        if not path.exists():
            return []
        return load(self._spark, self.place.format, path).orderBy("kind", "seq").collect()

    def kinds(self) -> list[tuple[str, int]]:
        return [(row["kind"], row["seq"]) for row in self.findings()]

    def _behind(self, offsets: Mapping[str, Mapping[str, int]]) -> DataFrame:
        return self.topics.slice(
            {
                (topic, partition): (offsets.get(topic, {}).get(str(partition), 0), len(log))
                for (topic, partition), log in self.topics.messages.items()
                if topic.rpartition(".")[2] not in ("schema", "snapshot", "transaction", "buckets")
            }
        )


def row(identity: int, text: str = "a") -> dict[str, Any]:
    return {"id": identity, "name": text}


def change(before: Mapping[str, Any], after: Mapping[str, Any], seq: int, **options: Any) -> Message:
    """A change with both images."""
    return event("u", {"id": after["id"]}, seq, {"before": dict(before), "after": dict(after)}, **options)


def removal(before: Mapping[str, Any], seq: int, **options: Any) -> Message:
    return event("d", {"id": before["id"]}, seq, {"before": dict(before)}, **options)


def together(identity: str, *messages: Message) -> list[Message]:
    """Messages as events of one source transaction, with its BEGIN and END."""
    found, counts = [], dict[str, int]()
    for order, message in enumerate(messages, 1):
        assert message.value is not None
        value = json.loads(message.value)
        space = value["source"]["table"]
        counts[space] = counts.get(space, 0) + 1
        value["transaction"] = {"id": identity, "total_order": order, "data_collection_order": counts[space]}
        found.append(replace(message, value=compact(value)))
    collections = [{"data_collection": space, "event_count": count} for space, count in counts.items()]
    end = {"status": "END", "id": identity, "event_count": len(found), "data_collections": collections, "ts_ms": 1}
    begin = {**end, "status": "BEGIN", "event_count": None, "data_collections": None}
    return [*found, *(Message("shop.transaction", compact({"id": identity}), compact(value)) for value in (begin, end))]


def tombstone(message: Message) -> Message:
    return replace(message, value=None)


def altered(message: Message, old: str, new: str) -> Message:
    assert message.value is not None
    assert old in message.value
    return replace(message, value=message.value.replace(old, new))


def with_rows(message: Message, rows: int) -> Message:
    assert message.value is not None
    return replace(message, value=message.value.replace('"rows":1', f'"rows":{rows}'))


def a_day() -> list[list[Message]]:
    """Batches: a snapshot, changes of two spaces, another format, a truncation, another primary key."""
    first = removal(row(2), 9)
    return [
        [
            schema(0, in_snapshot=True),
            snapshot("STARTED", 0, snapshot_id="1"),
            put("r", row(1), 1),
            put("r", row(2), 2),
            put("r", {"id": 3, "name": None}, 3),
        ],
        [
            # COMPLETED comes later than what it counts.
            with_rows(snapshot("COMPLETED", 3, snapshot_id="1"), 3),
            *together(
                "1:4", change(row(1), row(1, "x"), 4), put("c", row(1), 5, **ORDERS), change({"id": 3, "name": None}, row(3), 6)
            ),
            *together("1:7", put("c", row(8), 7), put("c", row(9), 8)),
            first,
            tombstone(first),
        ],
        [
            put("c", row(2, "new"), 10),
            # Another name of a field: the row before has it too, though the one after it hadn't. And a new field, which Avro has
            # in both.
            change({"id": 1, "title": "x", "more": None}, {"id": 1, "title": "y", "more": None}, 11, version=2),
            truncate(12),
            put("c", {"id": 1, "title": "z"}, 13, version=2),
            # In Avro, once another row had more fields than the format.
            change({**row(1), "field_3": None, "field_4": None}, row(1, "o"), 14, **ORDERS),
        ],
        [
            truncate(15),
            altered(
                event("r", {"title": "z"}, 16, {"after": {"id": 1, "title": "z"}}, version=3),
                '"snapshot_id":"1"',
                '"snapshot_id":"9"',
            ),
            event("u", {"title": "z"}, 17, {"before": {"id": 1, "title": "z"}, "after": {"id": 2, "title": "z"}}, version=3),
        ],
    ]
