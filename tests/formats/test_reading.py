"""The source of events is found whatever the rows hold."""

from __future__ import annotations

import pytest

from cdc.formats.options import Format
from cdc.formats.reading import source_of
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published

FIELDS = [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "varbinary", "is_nullable": True}]


def test_rows_that_look_like_a_source_are_not_taken_for_one() -> None:
    master = Master("2.11")
    master.create_space("tarantool", FIELDS)
    ids = Ids()
    first = published(master, lambda m: m.insert("tarantool", 1, b"x"), ids, images=True, key="avro", value="avro")[-1][2]
    whole = first[first.index(b"\x12tarantool") :]

    def more(changed: Master) -> None:
        changed.insert("tarantool", 2, whole)
        changed.insert("tarantool", 3, b"\x12tarantool" * 3)

    found = published(master, more, ids, images=True, key="avro", value="avro")
    assert [source["seq"] for _, _, value in found if (source := source_of(value))] == [1, 2, 3]


@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_rows_with_the_names_of_a_schema_block(value: Format) -> None:
    """A flat event has the row's names beside its own."""
    master = Master("2.11")
    fields = [{"name": "id", "type": "unsigned"}, *({"name": name, "type": "any"} for name in ("schema", "payload", "source"))]
    master.create_space("users", fields)
    found = published(
        master, lambda m: m.insert("users", 1, {}, {}, {}), Ids(), images=True, key="json", value=value, envelope="flat"
    )
    assert [source_of(one) for _, _, one in found] == [{"seq": 1}]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x00\x01\x12tarantool",
        b"\x00\x00\x00\x00\x01\x12tarantool\x08shop\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"[]",
        b"{}",
        b'{"source":1}',
        b'{"schema":{},"payload":null}',
        b"\xff",
    ],
)
def test_what_is_no_event_has_no_source(value: bytes) -> None:
    assert source_of(value) is None
