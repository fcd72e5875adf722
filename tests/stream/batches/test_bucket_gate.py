"""Rows of sharded spaces while buckets move, of kinds that the captured clusters don't have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cdc.events.topics import BUCKETS
from cdc.formats.options import FormatOptions
from cdc.images.overlay import Images
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Broadcast
from cdc.stream.batches.options import Surroundings
from cdc.stream.moves.records import ShardRecord, Shards, bucket_key
from cdc.stream.pipeline import Pipeline
from tests.fakes import wire
from tests.fakes.master import SERVER, Master
from tests.fakes.pipelines import NOW_US, MemorySpool, frames_of, messages, options
from tests.fakes.tuples import MemoryTuples

NAMES = ("s1", "s2")
VERSION = (2, 11)


def master_with_orders() -> Master:
    """Orders may be in no bucket. The buckets 7 and 8 are here."""
    master = Master("2.11")
    master.create_space("_bucket", [{"name": "id", "type": "unsigned"}, {"name": "status", "type": "string"}])
    bucket_id = {"type": "unsigned", "is_nullable": True}
    master.create_space("orders", [{"name": "id", "type": "unsigned"}, {"name": "bucket_id", **bucket_id}])
    master.create_index("orders", [{"field": 1, **bucket_id}], index_id=1, name="bucket_id")
    master.insert("_bucket", 7, "active")
    master.insert("_bucket", 8, "active")
    master.insert("orders", 1, 7)
    master.insert("orders", 2, 8)
    master.insert("orders", 3)
    return master


def begun(master: Master) -> Pipeline:
    """A shard's pipeline after the snapshot."""
    shards = Shards("s1", NAMES)
    for name, other in (("s1", "s2"), ("s2", "s1")):
        shards.fold(name, bucket_key(None), ShardRecord(f"{name} there", 1, {other: 1}, is_settled=True).to_json())
    changed: dict[str, Any] = {
        "formats": FormatOptions(shard="s1"),
        "shards": NAMES,
        "prefix": "shop",
        "control_prefix": "shop.s1",
    }
    pipeline = Pipeline(
        Surroundings(
            options(**changed, optional_topics=frozenset({BUCKETS})),
            SERVER,
            VERSION,
            lambda: MemorySpool(None, 1000),
            shards=shards,
        ),
        Position(),
        [],
        images=Images(MemoryTuples(), {}, VERSION),
    )
    rows = b"".join(wire.frame({0: 2}, body) for body in master.snapshot())
    pipeline.begin_snapshot(VClock(master.vclock), NOW_US)
    list(pipeline.feed_snapshot(frames_of(rows), NOW_US))
    list(pipeline.end_snapshot(NOW_US))
    return pipeline


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (lambda master: master.replace("orders", 2), ("u", {"id": 2, "bucket_id": 8}, {"id": 2})),
        (lambda master: master.update("orders", [2], ["#", 2, 1]), ("u", {"id": 2, "bucket_id": 8}, {"id": 2})),
        (lambda master: master.upsert("orders", [2], ["#", 2, 1]), ("u", {"id": 2, "bucket_id": 8}, {"id": 2})),
        (lambda master: master.replace("orders", 3, None), ("u", {"id": 3}, {"id": 3, "bucket_id": None})),
        (lambda master: master.replace("orders", 3), ("u", {"id": 3}, {"id": 3})),
        (lambda master: master.insert("orders", 4), ("c", None, {"id": 4})),
        (lambda master: master.replace("orders", 1), ("c", None, {"id": 1})),
        (lambda master: master.replace("orders", 2, 7), ("d", {"id": 2, "bucket_id": 8}, None)),
    ],
)
def test_rows_in_no_bucket_while_another_bucket_leaves(change: Callable[[Master], None], event: tuple[str, Any, Any]) -> None:
    """The field is nullable, and a row may end before it: such a row is this shard's."""

    def work(master: Master) -> None:
        master.replace("_bucket", 7, "sent")
        change(master)

    assert events_of(work) == [event]


def test_a_row_that_was_given_to_another_bucket_while_its_own_was_sent() -> None:
    """Past the router, and then as anybody may: the row isn't lost with the bucket that has left, as it is in it no more.

    It is new here: what the bucket had under its key is the next owner's.
    """

    def work(master: Master) -> None:
        master.replace("_bucket", 7, "sending")
        master.replace("orders", 1, 8)
        master.replace("orders", 1, 8, "x")
        master.replace("_bucket", 7, "sent")

    moved, changed = {"id": 1, "bucket_id": 8}, {"id": 1, "bucket_id": 8, "field_3": "x"}
    assert [(op, after) for op, _, after in events_of(work)] == [("c", moved), ("u", changed)]


def events_of(work: Callable[[Master], None]) -> list[tuple[str, Any, Any]]:
    """Operation and images of the events of the orders that work makes."""
    master = master_with_orders()
    pipeline = begun(master)
    since = master.vclock[1]
    work(master)
    rows = b"".join(row.packet(1) for row in master.log if row.lsn > since)
    found = []
    for message in messages(pipeline.feed(frames_of(rows), NOW_US)):
        assert not isinstance(message, Broadcast)
        topic, _, value = message
        if topic == "shop.orders" and value is not None:
            content = json.loads(value)
            found.append((content["op"], content["before"], content["after"]))
    return found
