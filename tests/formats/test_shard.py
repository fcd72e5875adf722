"""Events of a fleet's daemon say in their source which shard they are from, and otherwise what those of any daemon say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.formats.options import Format, Source
from cdc.formats.reading import source_of
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
