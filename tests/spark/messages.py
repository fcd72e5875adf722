"""Messages as the daemon writes them, and topics that hold them without Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.lake.watermark import Ends

GOLDEN = Path(__file__).parent.parent / "golden" / "published"
PREFIX = "shop"
SPACE_ID = 512

RECORD_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}

Place = tuple[str, int, int]
"""Where a record is: topic, partition and offset."""

COLUMNS = (("id", "unsigned"), ("name", "string"), ("balance", "number"))


@dataclass(frozen=True)
class Message:
    """A Kafka record before it has a place."""

    topic: str
    key: str | None
    value: str | None


@dataclass
class FakeTopics:
    """Topics in memory, with two partitions each; stands in for Kafka where a job reads a topic as a whole."""

    session: SparkSession
    messages: dict[tuple[str, int], list[Message]] = field(default_factory=dict)
    taken: set[Place] = field(default_factory=set)
    shards: tuple[str, ...] = ()
    """Of a fleet; each has control topics of its own."""

    def append(self, *messages: Message) -> list[Place]:
        """Append messages, each key to its partition and one without key to all; the places of what was appended."""
        places = []
        for message in messages:
            for partition in self._partitions(message):
                log = self.messages.setdefault((message.topic, partition), [])
                log.append(message)
                places.append((message.topic, partition, len(log) - 1))
        return places

    def send(self, *messages: Message) -> DataFrame:
        """Append messages; the frame of what was appended."""
        return self.at(self.append(*messages))

    def at(self, places: Iterable[Place]) -> DataFrame:
        """The records at these places."""
        return self._frame(
            [_row(self.messages[topic, partition][offset], partition, offset) for topic, partition, offset in places]
        )

    def read(self, topic: str) -> DataFrame:
        """All that a topic holds."""
        return self.slice({place: (0, len(log)) for place, log in self.messages.items() if place[0] == topic})

    def slice(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> DataFrame:
        """Ranges of offsets of partitions, as a micro-batch has them."""
        return self.at((*place, offset) for place, (start, end) in ranges.items() for offset in range(start, end))

    def ends(self, kinds: Sequence[str] = ()) -> Ends:
        """As `Positions.ends`."""
        control, wanted = (
            {f"{of_shard}.{kind}" for of_shard in self._owners() for kind in named} for named in (("schema", "snapshot"), kinds)
        )
        return {
            place: len(log) for place, log in self.messages.items() if (place[0] in wanted if kinds else place[0] not in control)
        }

    def last_batch(self) -> int | None:
        """As `Positions.last_batch`: the batch's number doesn't matter to `read_up_to`."""
        return 0 if self.taken else None

    def read_up_to(self, batch: int) -> Ends:  # noqa: ARG002 - as the protocol has it
        """As `Positions.read_up_to`: up to the first record of each partition that `took` hasn't been told of."""
        ends = {}
        for place, log in self.messages.items():
            missing = (offset for offset in range(len(log)) if (*place, offset) not in self.taken)
            ends[place] = next(missing, len(log))
        return ends

    def took(self, records: DataFrame) -> None:
        """Tell that these have been given to a job."""
        self.taken.update((row["topic"], row["partition"], row["offset"]) for row in records.collect())

    def _owners(self) -> list[str]:
        return [f"{PREFIX}.{shard}" for shard in self.shards] or [PREFIX]

    def control_records(self, shard: str | None = None) -> list[tuple[str, int, str]]:
        """As `Positions.control_records`."""
        owner = PREFIX if shard is None else f"{PREFIX}.{shard}"
        return [
            (kind, position, message.value)
            for kind in ("schema", "snapshot")
            for position, message in enumerate(self.messages.get((f"{owner}.{kind}", 0), []))
            if message.value is not None
        ]

    def _frame(self, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
        # Rows of a query's text are at hand without a Spark job; those of createDataFrame come from a Python worker each time.
        values = ",".join(f"({','.join(map(_literal, row))})" for row in rows)
        empty = f"SELECT {','.join(['null'] * len(RECORD_COLUMNS))} WHERE false"
        frame = self.session.sql(f"SELECT * FROM VALUES {values}" if rows else empty)  # noqa: S608 - quoted
        named = frame.toDF(*RECORD_COLUMNS)
        return named.select(*(named[name].cast(kind).alias(name) for name, kind in RECORD_COLUMNS.items()))

    @staticmethod
    def _partitions(message: Message) -> Iterable[int]:
        if message.topic.endswith((".schema", ".snapshot")):
            return (0,)
        if message.key is None:
            return (0, 1)
        return (sum(message.key.encode()) % 2,)


def _row(message: Message, partition: int, offset: int) -> tuple[Any, ...]:
    key = None if message.key is None else bytearray(message.key.encode())
    value = None if message.value is None else bytearray(message.value.encode())
    return key, value, message.topic, partition, offset, None, 0


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytearray):
        return f"X'{value.hex()}'"
    return str(value) if isinstance(value, int) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def golden(name: str) -> list[Message]:
    """The messages of a golden file, to the byte."""
    found = []
    decoder = json.JSONDecoder()
    for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines():
        head = '{"topic":'
        assert line.startswith(head)
        topic, end = decoder.raw_decode(line, len(head))
        key_start = end + len(',"key":')
        _, key_end = decoder.raw_decode(line, key_start)
        value = line[key_end + len(',"value":') : -1]
        key = line[key_start:key_end]
        found.append(Message(topic, None if key == "null" else key, None if value == "null" else value))
    return found


def compact(value: Any) -> str:
    """JSON as the daemon writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def event(
    op: str,
    key: Mapping[str, Any] | None,
    seq: int,
    rows: Mapping[str, Any],
    *,
    space: str = "users",
    space_id: int = SPACE_ID,
    version: int = 1,
    place: tuple[int, int] | None = None,
) -> Message:
    """A change; `rows` are the members that differ from null, in order: before, after, patch, upsert. Texts are JSON.

    `place` is the first seq of its source transaction, and its place in it from 1.
    """
    first, order = place or (seq, 1)
    members = {"before": None, "after": None, **rows}
    shown = ",".join(f'"{name}":{value if isinstance(value, str) else compact(value)}' for name, value in members.items())
    source = {
        "version": "0.1.0",
        "connector": "tarantool",
        "name": PREFIX,
        "ts_ms": 1700000000015 + seq,
        "ts_us": 1700000000015000 + seq * 1000,
        "ts_ns": 1700000000015000000 + seq * 1000000,
        "snapshot": "true" if op == "r" else "false",
        "db": "",
        "sequence": None if op == "r" else f'["{seq - 1}","{seq}"]',
        "table": space,
        "space_id": space_id,
        "replica_id": None if op == "r" else 1,
        "lsn": None if op == "r" else seq,
        "tsn": None if op == "r" else seq,
        "row": None if op == "r" else 0,
        "seq": seq,
        "schema_version": version,
        "server_uuid": "aaaaaaaa-0000-4000-8000-000000000001",
        "vclock": {"1": seq},
    }
    if op == "r":
        source["snapshot_id"] = "1"
    transaction = None if op == "r" else {"id": f"1:{first}", "total_order": order, "data_collection_order": 1}
    tail = compact({"source": source, "transaction": transaction, "ts_ms": 1, "ts_us": 1000, "ts_ns": 1000000})
    return Message(f"{PREFIX}.{space}", None if key is None else compact(key), f'{{"op":"{op}",{shown},{tail[1:]}')


def put(op: str, row: Mapping[str, Any], seq: int, **options: Any) -> Message:
    """A change with the whole row, whose key is its field `id`."""
    return event(op, {"id": row["id"]}, seq, {"after": dict(row)}, **options)


def by(shard: str, message: Message, *, is_apart: bool = False) -> Message:
    """The same message of a shard whose fleet shares its topics; `is_apart` if the space's topic is the shard's own."""
    kind = message.topic.removeprefix(f"{PREFIX}.")
    is_own = is_apart or kind in ("schema", "snapshot")
    value = message.value
    if value is not None:
        value = value.replace(f'"name":"{PREFIX}",', f'"name":"{PREFIX}","shard":"{shard}",', 1)
        if is_apart and kind == "schema":
            table = value.partition('"id":"\\"')[2].partition("\\")[0]
            value = value.replace('"type":"ALTER",', f'"type":"ALTER","topic":"{shard}.{table}",', 1)
    return Message(f"{PREFIX}.{shard}.{kind}" if is_own else message.topic, message.key, value)


def update(identity: int, patch: Sequence[Mapping[str, Any]], seq: int, **options: Any) -> Message:
    """An UPDATE without images."""
    return event("u", {"id": identity}, seq, {"patch": list(patch)}, **options)


def upsert(row: Mapping[str, Any], patch: Sequence[Mapping[str, Any]], seq: int, **options: Any) -> Message:
    """An UPSERT without images."""
    return event("u", {"id": row["id"]}, seq, {"patch": list(patch), "upsert": dict(row)}, **options)


def delete(identity: int, seq: int, **options: Any) -> Message:
    """A DELETE without images."""
    return event("d", {"id": identity}, seq, {}, **options)


def truncate(seq: int, **options: Any) -> Message:
    """A TRUNCATE."""
    return event("t", None, seq, {}, **options)


def schema(
    seq: int,
    *,
    space: str = "users",
    space_id: int = SPACE_ID,
    version: int = 1,
    columns: Sequence[tuple[str, str]] = COLUMNS,
    key: Sequence[str] = ("id",),
    in_snapshot: bool = False,
    as_written: Sequence[str] = (),
    collated: Sequence[str] = (),
) -> Message:
    """A form of a space."""
    table: dict[str, Any] = {
        "primaryKeyColumnNames": list(key),
        "columns": [{"name": name, "typeName": kind, "position": place} for place, (name, kind) in enumerate(columns, 1)],
    }
    if as_written:
        table["primaryKeyColumnsAsWritten"] = list(as_written)
    if collated:
        table["primaryKeyColumnsCollated"] = list(collated)
    value = {
        "source": {
            "name": PREFIX,
            "snapshot": "true" if in_snapshot else "false",
            "table": space,
            "space_id": space_id,
            "schema_version": version,
            "seq": seq,
        },
        "tableChanges": [{"type": "ALTER", "id": f'"{space}"', "table": table}],
    }
    return Message(f"{PREFIX}.schema", compact({"space_id": space_id, "schema_version": version}), compact(value))


def snapshot(
    status: str,
    seq: int,
    *,
    snapshot_id: str = "2",
    spaces: Sequence[str] = ("users",),
    space_id: int = SPACE_ID,
    sweep_seq: int = 0,
) -> Message:
    """The start or the end of a snapshot."""
    value: dict[str, Any] = {"snapshot_id": snapshot_id, "status": status, "vclock": {"1": 9}, "seq": seq}
    if status == "COMPLETED":
        value["spaces"] = [{"space": space, "space_id": space_id, "rows": 1, "sweep_seq": sweep_seq} for space in spaces]
    return Message(f"{PREFIX}.snapshot", compact({"snapshot_id": snapshot_id}), compact({**value, "ts_ms": 1}))
