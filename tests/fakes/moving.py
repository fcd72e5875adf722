"""Daemons of a fleet whose shards share topics, without sockets, clocks and Kafka, fed with the logs of real clusters."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from cdc.events.json_values import encode
from cdc.events.topics import BUCKETS, SNAPSHOT, TRANSACTION
from cdc.formats.options import FormatOptions
from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from cdc.protocol.codec import tuple_values
from cdc.protocol.constants import Key, Type
from cdc.protocol.log_file import LogFileDecoder, parse_meta
from cdc.schema.tracker import published_forms
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.batches.options import Surroundings
from cdc.stream.moved_buckets import MovedBuckets
from cdc.stream.moves.records import Shards
from cdc.stream.pipeline import Pipeline
from tests.fakes.master import SERVER
from tests.fakes.pipelines import NOW_US, MemorySpool, Store, frames_of, options
from tests.fakes.tuples import MemoryTuples

CAPTURES: Final = Path(__file__).parents[1] / "captures" / "vshard"
PREFIX: Final = "shop"
VERSION: Final = (2, 6)
SPACES: Final = ("orders", "customers")
SPACE_IDS: Final = (513, 514)


def rows_in(path: Path) -> Iterator[tuple[Any, bytes]]:
    """The headers and frames of a log file or a snapshot."""
    for frames in LogFileDecoder().feed(gzip.decompress(path.read_bytes())):
        yield from zip(frames.headers, map(bytes, frames.raws()), strict=True)


Log = tuple[VClock, bytes, list[tuple[int, int, bytes]]]
"""A snapshot's vclock and rows, and the rows after it with origins and lsns, as a master would send them."""


@cache
def pieces(folder: Path, number: int = 0) -> Log:
    """The log of a captured server, from the checkpoint with this number on."""
    snapshot, logs = sorted(folder.glob("*.snap.gz"))[number], sorted(folder.glob("*.xlog.gz"))
    meta = parse_meta(gzip.decompress(snapshot.read_bytes()))
    assert meta is not None
    vclock = meta[0].vclock
    rows = b"".join(raw for header, raw in rows_in(snapshot) if header[Key.REQUEST_TYPE] == Type.INSERT)
    stream = [
        (header[Key.REPLICA_ID], header[Key.LSN], raw)
        for log in logs
        for header, raw in rows_in(log)
        if header.get(Key.REPLICA_ID) and header[Key.LSN] > vclock.get(header[Key.REPLICA_ID], 0)
    ]
    return vclock, rows, stream


class Cluster:
    """What Kafka has: the events in the order of their commits, and each shard's records of its buckets."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.events: list[dict[str, Any]] = []
        """Values of the sharded spaces' topics, tombstones aside."""
        self.records: dict[str, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self.transactions: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """Each shard's records of its transactions."""
        self.snapshots: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """Each shard's records of its snapshots."""


class Daemon:
    """A shard's daemon. What is committed is what consumers see; the state store may be behind that."""

    def __init__(self, cluster: Cluster, name: str, log: Log, **changed: Any) -> None:
        """`log` is that of its master, whose stream may get longer. `changed` are options of the pipeline."""
        self.cluster, self.name, self._changed = cluster, name, changed
        self.vclock, self.snapshot_rows, self.stream = log
        self.kept, self._stored = Store(), Store()
        self.tuples = MemoryTuples()
        self._submitted: list[Batch] = []
        self._committed: list[Batch] = []
        self.at = 0
        """How many rows of the stream it has read."""
        self.start()

    def start(self) -> None:
        """Begin at the checkpoint, or at the store's position before it."""
        self._submitted.clear()
        self._committed.clear()
        self.shards = Shards(self.name, self.cluster.names)
        self._heard: dict[str, int] = {}
        list(self._news())
        position, begin = self.kept.position, self._stored
        is_behind = begin.position.vclock != position.vclock  # as cdc.upstream.start says
        spaces = list(begin.spaces.values())
        self.pipeline = Pipeline(
            Surroundings(
                options(
                    formats=FormatOptions(shard=self.name),
                    shards=self.cluster.names,
                    prefix=PREFIX,
                    control_prefix=f"{PREFIX}.{self.name}",
                    optional_topics=frozenset({BUCKETS}),
                    **self._changed,
                ),
                SERVER,
                VERSION,
                lambda: MemorySpool(None, 1000),
                shards=self.shards,
            ),
            begin.position if is_behind else position,
            spaces if is_behind else list(self.kept.spaces.values()),
            images=Images(self.tuples, published_forms(spaces), VERSION),
            catch_up_to=position if is_behind else None,
            published=list(self.kept.spaces.values()),
        )
        if position.snapshot is None:
            self._submit(iter([self.pipeline.begin_snapshot(self.vclock, NOW_US)]))
            self._submit(self.pipeline.feed_snapshot(frames_of(self.snapshot_rows), NOW_US))
            self._submit(self.pipeline.end_snapshot(NOW_US))
            self.commit()
            self.flush()
        self.at = next(
            (at for at, (origin, lsn, _) in enumerate(self.stream) if lsn > self.pipeline.position.vclock.get(origin, 0)),
            len(self.stream),
        )
        self._submit(self.pipeline.resume_unfinished_work(NOW_US))

    @property
    def moves(self) -> MovedBuckets:
        """What happens to its buckets."""
        assert self.pipeline.moves is not None
        return self.pipeline.moves

    @property
    def is_done(self) -> bool:
        """Whether all rows are read, and everything is committed."""
        return self.at == len(self.stream) and not self._submitted

    @property
    def waits(self) -> dict[int, str | None]:
        """The shards that its buckets wait for."""
        return {bucket: wait.waits_for for bucket, wait in self.moves.queues.waits.items()}

    def read(self, count: int) -> None:
        """Read some rows of the stream."""
        rows = self.stream[self.at : self.at + count]
        self.at += len(rows)
        if rows:
            self._submit(self.pipeline.feed(frames_of(b"".join(raw for _, _, raw in rows)), NOW_US))

    def hear(self) -> None:
        """Read what the others have committed."""
        self._submit(self.moves.heard(list(self._news()), NOW_US))

    def answer(self, *, is_caught_up: bool = False) -> None:
        """Its master's position was asked for after the questions were read."""
        is_caught_up = is_caught_up or self.at == len(self.stream)
        batch = self.moves.answer(self.moves.queues.questions()) if is_caught_up else None
        if batch is not None:
            self._submitted.append(batch)

    def _news(self) -> Iterator[int | None]:
        for name in self.cluster.names:
            records, begin = self.cluster.records[name], self._heard.get(name, 0)
            for key, value in records[begin:]:
                yield self.shards.fold(name, key, value)
            self._heard[name] = len(records)

    def _submit(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            if batch.is_catch_up:
                self._committed.append(batch)
            elif not batch.is_pause:
                self._submitted.append(batch)
        # Otherwise it would wait for the next row, which may be long in coming.
        assert not self.pipeline._context.builder.parts, "something was made, and not handed over"

    def commit(self, count: int | None = None) -> None:
        """Kafka commits what was submitted, or its first batches up to a boundary."""
        assert not self._submitted or self._submitted[-1].is_boundary, "a Kafka transaction that nothing ends"
        count = len(self._submitted) if count is None else min(count, len(self._submitted))
        while 0 < count < len(self._submitted) and not self._submitted[count - 1].is_boundary:
            count += 1
        done, self._submitted = self._submitted[:count], self._submitted[count:]
        for batch in done:
            for message in batch.messages:
                if isinstance(message, Broadcast):
                    self.cluster.events.append(json.loads(message.value))
                    continue
                topic, key, value = message
                if topic == f"{PREFIX}.{self.name}.{BUCKETS}":
                    assert key is not None
                    self.cluster.records[self.name].append((key, value))
                elif topic == f"{PREFIX}.{self.name}.{TRANSACTION}":
                    self.cluster.transactions[self.name].append(json.loads(value or b""))
                elif topic == f"{PREFIX}.{self.name}.{SNAPSHOT}":
                    self.cluster.snapshots[self.name].append(json.loads(value or b""))
                elif topic.rpartition(".")[2] in SPACES and value is not None:
                    self.cluster.events.append(json.loads(value))
            self.kept.take(batch)
            self._committed.append(batch)
        self.kept = Store(self.kept.position, self.kept.spaces)

    def flush(self) -> None:
        """The state store gets what is committed."""
        for batch in self._committed:
            self.tuples.write(batch.changes, ())
            self._stored.take(batch)
        if self._committed and not self._committed[-1].is_catch_up:
            self._stored = Store(self.kept.position, self.kept.spaces)
        if self.pipeline.images is not None:
            for batch in self._committed:
                self.pipeline.images.written(batch.changes)
        self._committed.clear()


def meet(daemons: Iterable[Daemon]) -> None:
    """All see each other begin: their masters have had nothing more since the snapshots."""
    daemons = list(daemons)
    for _ in range(3):
        for daemon in daemons:
            daemon.hear()
            daemon.answer(is_caught_up=True)
            daemon.commit()
    for daemon in daemons:
        daemon.hear()
        daemon.commit()
        daemon.flush()


def kept(daemons: Iterable[Daemon]) -> list[list[Any]]:
    """The rows of the sharded spaces in the stores of all."""
    for daemon in daemons:
        daemon.flush()
    found = (tuple_values(row) for daemon in daemons for space_id in SPACE_IDS for _, row in daemon.tuples.scan(space_id))
    return sorted((plain(json.loads(encode(row))) or [] for row in found), key=repr)


RowKey = tuple[str, Any]
"""Space and primary key."""
UserChange = tuple[str, Any, Any]
"""Operation, row before, row after."""


def expected(capture: str) -> dict[RowKey, list[UserChange]]:
    """The changes of users, in order."""
    return {
        (each["space"], each["key"]): [(one["op"], plain(one["before"]), plain(one["after"])) for one in each["changes"]]
        for each in _lines(capture)
    }


def outcome(capture: str) -> dict[RowKey, list[Any]]:
    """The rows that the cluster ended with."""
    return {
        (each["space"], each["key"]): [plain(one["row"]) for one in each["cluster"]]
        if "cluster" in each
        else [row for row in [plain(each["changes"][-1]["after"])] if row is not None]
        for each in _lines(capture)
    }


def _lines(capture: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((CAPTURES / capture / "expected.jsonl.gz").read_bytes()).splitlines()]


def plain(row: list[Any] | None) -> list[Any] | None:
    """A row as events have it."""
    return None if row is None else [one["$decimal"] if isinstance(one, dict) and "$decimal" in one else one for one in row]


def seen(events: Iterable[dict[str, Any]]) -> dict[RowKey, list[UserChange]]:
    """The changes that consumers see. A row of a snapshot counts as new."""
    found: dict[RowKey, list[UserChange]] = defaultdict(list)
    for event in events:
        row = event["after"] or event["before"]
        table = event["source"]["table"]
        key = row["id" if table == "orders" else "login"]
        before, after = (list(each.values()) if each is not None else None for each in (event["before"], event["after"]))
        found[table, key].append(("c" if event["op"] == "r" else event["op"], before, after))
    return dict(found)
