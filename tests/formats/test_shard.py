"""Events of a fleet's daemon say in their source which shard they are from, and otherwise what those of any daemon say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.formats.options import Format, Source
from cdc.formats.reading import source_of
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published
from tests.formats.test_events import master_with_users, work

TIMES = ("ts_ms", "ts_us", "ts_ns")


def decoded(value: Format, ids: Ids, data: bytes | None) -> Any:
    if data is None:
        return None
    if value == "json":
        return json.loads(data)
    return json.loads(data)["payload"] if value == "json_schema" else ids.read(data)


def events(value: Format, source: Source, **options: Any) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """The events, and what is read of their sources without their schemas."""
    ids = Ids()
    found = published(master_with_users(), work, ids, images=True, key="json", value=value, source=source, **options)
    values = [data for _, _, data in found if data is not None]
    return [decoded(value, ids, data) for data in values], [source_of(data) for data in values]


@pytest.mark.parametrize("source", ["full", "lean"])
@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_in_all_formats(value: Format, source: Source) -> None:
    alone, _ = events(value, source)
    of_shard, sources = events(value, source, shard="s1")
    assert len(of_shard) > 5
    assert {event["source"].pop("shard") for event in of_shard} == {"s1"}
    assert {found["shard"] for found in sources if found is not None} == {"s1"}
    assert [found["seq"] for found in sources if found is not None] == [event["source"]["seq"] for event in of_shard]
    for event in (*alone, *of_shard):
        for name in TIMES:
            event.pop(name, None)
            event["source"].pop(name, None)
    assert of_shard == alone


def test_a_shards_name_that_looks_like_something_else() -> None:
    """An Avro source is found by what it can be: the name's length could be read as a time."""
    for shard in ("a", "tarantool", "-", "_" * 63, "0" * 32):
        _, sources = events("avro", "full", shard=shard)
        assert {found and found["shard"] for found in sources} == {shard}
        _, sources = events("avro", "lean", shard=shard)
        assert {found and found["shard"] for found in sources} == {shard}


BUCKETS = [
    {"name": "id", "type": "unsigned"},
    {"name": "status", "type": "string"},
    {"name": "destination", "type": "string", "is_nullable": True},
    {"name": "opts", "type": "map", "is_nullable": True},
]
ROWS = [{"name": "id", "type": "unsigned"}, {"name": "bucket_id", "type": "unsigned"}]


def master_with_buckets() -> Master:
    master = Master("2.11")
    master.create_space("_bucket", BUCKETS)
    master.create_space("orders", ROWS)
    master.create_index("orders", [{"field": 1, "type": "unsigned"}], index_id=1, name="bucket_id")
    master.insert("orders", 1, 7)
    master.insert("orders", 2, 8)
    return master


def move(master: Master) -> None:
    """The bucket 7 leaves, 9 arrives, and users go on; before vshard 0.1.41 there is no generation."""
    master.insert("_bucket", 7, "active")
    master.insert("orders", 3, 8)
    master.replace("_bucket", 7, "sent", "b", {"generation": 2})
    master.update("_bucket", [7], ["=", 2, "garbage"])
    master.delete("orders", 1)
    master.insert("_bucket", 9, "receiving", "c")
    master.begin()
    master.insert("orders", 4, 9)
    master.insert("orders", 5, 8)
    master.delete("orders", 2)
    master.commit()
    master.delete("_bucket", 7)
    master.update("_bucket", [9], ["=", 2, "active"])
    master.insert("orders", 6, 9)


@pytest.mark.parametrize("source", ["full", "lean"])
@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_moves_in_all_formats(value: Format, source: Source) -> None:
    ids = Ids()
    found = published(
        *(master_with_buckets(), move, ids),
        images=True,
        key="json",
        value=value,
        source=source,
        shard="s1",
        marks_moves=True,
    )
    values = [data for topic, _, data in found if data is not None and topic == "shop.orders"]
    sources = [decoded(value, ids, data)["source"] for data in values]
    marks = [tuple(one.get(name) for name in ("move", "bucket_id", "generation")) for one in sources]
    users = (None, None, None)
    assert marks == [users, users, users, ("gc", 7, 2), ("in", 9, None), users, users, users]
    for one, data in zip(sources, values, strict=True):
        read = source_of(data)
        assert read is not None
        assert (read["shard"], read["seq"]) == ("s1", one["seq"])
