"""What docs/events.md shows is what comes out: the same fields in the same order, for every kind of record.

The examples of the contract itself are the expectation here: their names, in their order.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.stream.batches.batch import Broadcast
from tests.fakes.golden import ROOT
from tests.fakes.pipelines import NOW_US
from tests.fakes.profiles import SOME
from tests.fakes.shop import Sent, Shop

CONTRACT = (ROOT.parent / "docs" / "events.md").read_text()
TIMES = ["ts_ms", "ts_us", "ts_ns"]


def names(text: str) -> list[str]:
    """All names of an object in the order in which they stand."""
    return re.findall(r'"(\w+)":', text)


def example(heading: str, number: int = 0) -> str:
    """A JSON block of the contract."""
    section = CONTRACT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks: list[str] = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    return blocks[number]


def without_images(order: list[str]) -> list[str]:
    """The names of an event that has no images, of those of one that has them: it tells the master's version too."""
    place = order.index("vclock")
    return [*order[:place], "server_version", *order[place:]]


def values(shop: Shop) -> list[str]:
    """The values of what the master has new, as they are on the wire."""
    shop.follow()
    texts = [message.value if isinstance(message, Broadcast) else message[2] for message in shop.replica.topics.committed]
    return [text.decode() for text in texts if text is not None]


def test_event_of_a_stream() -> None:
    shop = Shop()
    shop.master.create_space("things", [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}])
    shop.master.insert("things", 1, "x")
    assert names(values(shop)[-1]) == without_images(names(example("Value")))


def test_the_same_from_a_longer_transaction() -> None:
    shop = Shop(transaction_topic="none")
    shop.master.create_space("things", [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}])
    shop.follow()
    shop.master.begin()
    shop.master.insert("things", 1, "x")
    shop.master.insert("things", 2, "x")
    shop.master.commit()
    assert names(values(shop)[-1]) == without_images(names(example("Value")))


def test_event_of_a_snapshot() -> None:
    (row, _) = [sent for sent in Shop().snapshot if sent.op == "r"]
    order = without_images(names(example("Value")))
    start, end = order.index("transaction"), order.index("ts_ms", order.index("transaction"))
    expected = [*order[: start - 1], "1", "snapshot_id", "transaction", *order[end:]]
    found = names(json.dumps(row.value))
    assert [name for name in found if name != "balance"] == expected
    source = row.source
    assert [source[name] for name in ("snapshot", "replica_id", "lsn", "tsn", "row", "sequence")] == ["true", *[None] * 5]
    assert source["snapshot_id"] == "1"
    assert row.value["transaction"] is None


def test_schema_record() -> None:
    (record, *_) = [text for text in values(Shop()) if '"tableChanges"' in text]
    found = json.loads(record)
    shown = example("Schema records")
    outer = ["source", *TIMES[:1], "databaseName", "schemaName", "ddl", "tableChanges"]
    assert list(found) == outer
    assert [name for name in names(shown) if name in outer and name != "source"] == outer[1:]
    (change,) = found["tableChanges"]
    assert list(change) == ["type", "id", "table"]
    column = re.search(r'\{"name":"id".*?\}', shown, re.DOTALL)
    assert column is not None
    expected = json.loads(column[0])
    assert change["table"]["columns"][0] == expected
    assert list(change["table"]["columns"][0]) == list(expected)
    assert list(change["table"]) == ["defaultCharsetName", "primaryKeyColumnNames", "columns", "comment"]
    order = names(example("Value"))
    source = order[order.index("source") + 1 : order.index("transaction") - 1]
    assert list(found["source"]) == source


@pytest.mark.parametrize(
    ("index", "collation", "told"),
    [
        ("tree", 0, {}),
        ("hash", 3, {"primaryKeyColumnsAsWritten": ["n"]}),
        ("hash", 2, {"primaryKeyColumnsAsWritten": ["n"], "primaryKeyColumnsCollated": ["s"]}),
    ],
)
def test_what_the_schema_record_tells_of_the_key(index: str, collation: int, told: dict[str, Any]) -> None:
    shop = Shop()
    fields = [{"name": "n", "type": "number"}, {"name": "s", "type": "string"}]
    shop.master.create_space(
        "numbers", fields, [{"field": 1, "type": "string", "collation": collation}, (0, "number")], index=index
    )
    (record,) = [sent.value for sent in shop.follow() if sent.topic == "shop.schema"]
    table = record["tableChanges"][0]["table"]
    assert table["primaryKeyColumnNames"] == ["s", "n"]
    assert {
        name: table[name] for name in table if name not in ("defaultCharsetName", "primaryKeyColumnNames", "columns", "comment")
    } == told


def test_snapshot_records() -> None:
    section = CONTRACT.split("\n## Snapshot records\n")[1]
    started, completed = re.findall(r'`(\{"snapshot_id".*?\})`', section)[:2]
    records = [text for text in values(Shop()) if '"status"' in text]
    assert [names(text) for text in records] == [names(started), names(completed)]
    parsed = [json.loads(text) for text in records]
    assert [record["status"] for record in parsed] == ["STARTED", "COMPLETED"]
    assert parsed[1]["spaces"] == [{"space": "users", "space_id": 512, "rows": 2, "sweep_seq": 0}]
    assert parsed[1]["seq"] == 2


def test_keys_of_control_topics() -> None:
    shop = Shop()
    shop.master.begin()
    shop.master.insert("users", 3)
    shop.master.insert("users", 4)
    shop.master.commit()
    keys = {sent.topic: sent.key for sent in [*shop.snapshot, *shop.follow()]}
    table = dict(re.findall(r"^\| `<prefix>\.(\w+)` \|[^|]*\|[^|]*\| `(\{[^`]*\})`", CONTRACT, re.MULTILINE))
    assert list(keys["shop.transaction"]) == names(table["transaction"])
    assert list(keys["shop.schema"]) == names(table["schema"])
    assert list(keys["shop.snapshot"]) == names(table["snapshot"])
    assert keys["shop.users"] == {"id": 4}


def test_values_of_source() -> None:
    shop = Shop("3.3")
    shop.master.origin = 3
    shop.master.insert("users", 3, "three", 30)
    event = shop.event()
    lsn, own = 1, shop.master.vclock[1]
    timestamp = shop.master.log[-1].timestamp
    assert event.value == {
        "op": "c",
        "before": None,
        "after": {"id": 3, "name": "three", "balance": 30},
        "source": {
            "version": "0.1.0",
            "connector": "tarantool",
            "name": "shop",
            "ts_ms": round(timestamp * 1e6) // 1000,
            "ts_us": round(timestamp * 1e6),
            "ts_ns": round(timestamp * 1e6) * 1000,
            "snapshot": "false",
            "db": "",
            "sequence": '["0","1"]',
            "table": "users",
            "space_id": 512,
            "replica_id": 3,
            "lsn": lsn,
            "tsn": lsn,
            "row": 0,
            "seq": 3,
            "schema_version": 1,
            "server_uuid": str(shop.master.uuid),
            "server_version": "3.3.0",
            "vclock": {"1": own, "3": 1},
        },
        "transaction": {"id": "3:1", "total_order": 1, "data_collection_order": 1},
        "ts_ms": NOW_US // 1000,
        "ts_us": NOW_US,
        "ts_ns": NOW_US * 1000,
    }
    assert event.key == {"id": 3}


# Hostile texts, everywhere that a text can stand.

TEXTS = st.text(min_size=1, max_size=8) | st.sampled_from(
    ['"', "\\", '\\"]","x":"', "\x00\x1f", "\u2028\u2029", "\U0001f600", "'"]
)
NAMES = TEXTS.filter(lambda text: text.encode("utf-8", "replace").decode() == text)


@SOME
@given(space=NAMES, fields=st.lists(NAMES, min_size=2, max_size=2, unique=True), text=TEXTS, data=st.binary(max_size=5))
def test_any_text_leaves_valid_json(space: str, fields: list[str], text: str, data: bytes) -> None:
    shop = Shop(include=[".*"], exclude=["(?s)transaction|schema|snapshot|checkpoint|heartbeat|dlq|users"])
    broken = data.decode("utf-8", "surrogateescape")
    shop.master.create_space(space, [{"name": name, "type": "any"} for name in fields], [(0, "any")])
    shop.master.insert(space, text, broken)
    shop.master.begin()
    shop.master.update(space, [text], ["=", 2, {text: [data]}], ["!", 2, broken])
    shop.master.upsert(space, [broken, text], ["=", 2, text])
    shop.master.delete(space, text)
    shop.master.commit()
    shop.master.truncate(space)
    shop.master.rename(space, space + "2")
    found: list[Sent] = shop.follow()  # parses each
    events = [sent for sent in found if sent.op is not None]
    if not events:
        return  # the name is one that isn't published
    assert [event.op for event in events] == ["c", "u", "u", "d", "t"]
    assert all(event.source["table"] == space for event in events)
    assert events[0].value["after"][fields[0]] == text
    assert events[0].key == {fields[0]: text}
    renamed = [sent.value["tableChanges"][0] for sent in found if sent.topic == "shop.schema"][-1]
    assert (renamed["id"], renamed["previousId"]) == (f'"{space}2"', f'"{space}"')


@pytest.mark.parametrize("prefix", ["shop", "a.b-c_d", "1"])
def test_prefix(prefix: str) -> None:
    shop = Shop(prefix=prefix)
    assert {sent.topic.removeprefix(prefix) for sent in shop.snapshot} == {".snapshot", ".schema", ".users"}
    assert [sent.source["name"] for sent in shop.snapshot if sent.op] == [prefix] * 2


def test_every_record_is_one_line() -> None:
    shop = Shop()
    shop.master.insert("users", 3, "two\nlines")
    assert all("\n" not in text for text in values(shop))


def test_times_of_one_moment() -> None:
    shop = Shop()
    shop.master.insert("users", 3)
    value: dict[str, Any] = shop.event().value
    for holder in (value, value["source"]):
        assert holder["ts_ms"] == holder["ts_us"] // 1000
        assert holder["ts_ns"] == holder["ts_us"] * 1000
