"""Which rows are moves', and which users', in the logs of real clusters: the answer was written down when they were made."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.events.moves import Move
from cdc.formats.options import FormatOptions
from cdc.images.overlay import Images
from cdc.positions.vclock import VClock
from cdc.protocol.codec import Frames
from cdc.protocol.constants import Key, Type
from cdc.protocol.log_file import LogFileDecoder, parse_meta
from cdc.schema.tracker import published_forms
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.moves import Buckets
from cdc.stream.moves.records import Step
from cdc.stream.pipeline import Pipeline
from tests.fakes.pipelines import NOW_US, Store, frames_of, pipeline
from tests.fakes.tuples import MemoryTuples

CAPTURES: Final = Path(__file__).parents[2] / "captures" / "vshard"
VERSION: Final = (2, 6)
ROWS: Final = 23
"""Between two starts."""
SPACES: Final = ("orders", "customers")
PAST_THE_ROUTER: Final = {1330: "gc", 1990: "in", 1420: "in", 1962: "in"}
"""Users' rows that nothing tells from a move's: an INSERT into a bucket that arrives, a DELETE from one that is collected."""


@cache
def pieces(folder: Path) -> tuple[VClock, bytes, list[tuple[int, bytes]]]:
    """The first snapshot's vclock and rows, and the rows after it with their lsns, as a master would send them."""
    snapshot, logs = min(folder.glob("*.snap.gz")), sorted(folder.glob("*.xlog.gz"))
    meta = parse_meta(gzip.decompress(snapshot.read_bytes()))
    assert meta is not None
    rows = b"".join(raw for header, raw in _rows(snapshot) if header[Key.REQUEST_TYPE] == Type.INSERT)
    stream = [(header[Key.LSN], raw) for log in logs for header, raw in _rows(log) if header.get(Key.REPLICA_ID)]
    return meta[0].vclock, rows, stream


def _rows(path: Path) -> Iterator[tuple[Any, bytes]]:
    for frames in LogFileDecoder().feed(gzip.decompress(path.read_bytes())):
        yield from zip(frames.headers, map(bytes, frames.raws()), strict=True)


class Reader:
    """A daemon of a fleet with per-shard topics, and its store."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._tuples, self._kept = MemoryTuples(), Store()
        self._pipeline = self._new()

    def _new(self) -> Pipeline:
        stored = list(self._kept.spaces.values())
        return pipeline(
            self._kept.position,
            stored,
            version=VERSION,
            images=Images(self._tuples, published_forms(stored), VERSION),
            formats=FormatOptions(shard="s1", marks_moves=True),
        )

    def start_again(self) -> int:
        """All that was read is durable; returns the lsn up to which the master needn't send."""
        self._pipeline = self._new()
        return self._kept.position.vclock.get(1, 0)

    def read_snapshot(self, vclock: VClock, rows: bytes) -> None:
        self._take(iter([self._pipeline.begin_snapshot(vclock, NOW_US)]))
        self._take(self._pipeline.feed_snapshot(frames_of(rows), NOW_US))
        self._take(self._pipeline.end_snapshot(NOW_US))

    def read(self, frames: Frames) -> None:
        self._take(self._pipeline.feed(frames, NOW_US))

    def _take(self, batches: Iterator[Batch]) -> None:
        for batch in batches:
            self._tuples.write(batch.changes, ())
            self._kept.take(batch)
            for message in batch.messages:
                if isinstance(message, tuple) and message[0].rpartition(".")[2] in SPACES and message[2] is not None:
                    self.events.append(json.loads(message[2]))


def wrong(capture: str, reader: Reader, instance: str) -> dict[Any, str | None]:
    """The keys of rows that are marked otherwise than they should be, with their mark."""
    found = {(event["source"]["replica_id"], event["source"]["lsn"]): event["source"] for event in reader.events}
    lines = gzip.decompress((CAPTURES / capture / "rows.jsonl.gz").read_bytes()).splitlines()
    rows = [row for row in map(json.loads, lines) if row["instance"] == instance]
    assert len(rows) > 50
    bad: dict[Any, str | None] = {}
    for row in rows:
        source = found.get((1, row["lsn"]))
        move = row["truth"] if row["truth"] in ("in", "gc") else None
        if source is None:
            assert move is None, row
        elif source.get("move") != move:
            bad[row["key"]] = source.get("move")
        elif move is None:
            assert not {"bucket_id", "generation"} & source.keys()
        else:
            assert (source["bucket_id"], source.get("generation")) == (row["bucket"], row["generation"] or None)
    return bad


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("capture", sorted(folder.name for folder in CAPTURES.iterdir() if folder.is_dir()))
def test_every_row_of_real_clusters(capture: str) -> None:
    """Read in one piece, and by daemons that are started again all the time."""
    allowed = PAST_THE_ROUTER if capture == "g" else {}
    for folder in sorted(folder for folder in (CAPTURES / capture).iterdir() if folder.is_dir()):
        vclock, rows, stream = pieces(folder)
        whole, again = Reader(), Reader()
        for reader in (whole, again):
            reader.read_snapshot(vclock, rows)
        whole.read(frames_of(b"".join(raw for _, raw in stream)))
        size, reached = ROWS, -1
        while (begin := again.start_again()) < stream[-1][0]:
            size = 2 * size if begin == reached else ROWS  # a transaction of more rows
            reached = begin
            rest = [raw for lsn, raw in stream if lsn > begin]
            again.read(frames_of(b"".join(rest[:size])))
        for reader in (whole, again):
            assert wrong(capture, reader, folder.name).items() <= allowed.items()
        assert [event["source"].get("move") for event in again.events] == [event["source"].get("move") for event in whole.events]


def test_states() -> None:
    buckets = Buckets()
    buckets.set(1, Step.of([1, "receiving", "a", {"generation": 3}]))
    buckets.set(2, Step.of([2, "garbage", "b"]))
    buckets.set(3, Step.of([3, "sending", "b", {"generation": 1}]))
    buckets.set(4, Step.of([4]))
    assert buckets.are_moving
    assert buckets.move(Type.INSERT, 1) == Move("in", 1, 3)
    assert buckets.move(Type.DELETE, 2) == Move("gc", 2, None)
    users = [(Type.DELETE, 1), (Type.REPLACE, 1), (Type.UPDATE, 2), (Type.INSERT, 2), (Type.DELETE, 3), (Type.INSERT, 9)]
    assert [buckets.move(kind, bucket) for kind, bucket in users] == [None] * len(users)
    assert buckets.move(Type.INSERT, [1]) is None
    buckets.set(1, Step.of([1, "active"]))
    buckets.set(2, Step.of(None))
    assert not buckets.are_moving
