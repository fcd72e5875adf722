"""The statements of docs/clickhouse.md, run by ClickHouse over what the daemon publishes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.formats.options import FormatOptions, Registration
from cdc.protocol.extensions import Datetime
from cdc.stream.batches.batch import Broadcast
from tests.clickhouse import engine
from tests.fakes.marked import DOCS
from tests.fakes.master import Master
from tests.fakes.registry import FakeRegistry
from tests.fakes.replica import Replica

pytestmark = pytest.mark.skipif(not engine.IS_THERE, reason="chDB isn't installed (`make test` installs it)")

PAGE: Final = (DOCS / "clickhouse.md").read_text()
PARTITIONS: Final = 3
FORMAT: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string"},
    {"name": "balance", "type": "number", "is_nullable": True},
    {"name": "price", "type": "decimal", "is_nullable": True},
    {"name": "at", "type": "datetime", "is_nullable": True},
    {"name": "tags", "type": "array", "is_nullable": True},
]
MOMENT: Final = Datetime(1709240398, 123456789, 180)
READ: Final = "SELECT * FROM shop.users ORDER BY id"
NOTHING: Final[dict[str, Any]] = {"balance": None, "price": None, "at": None}
Record = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""


def statements(section: str) -> list[str]:
    """Those of a section of the page, in their order."""
    text = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (found,) = (one for one in text if one.startswith(f"{section}\n"))
    blocks = re.findall(r"^```sql\n(.*?)^```", found, re.MULTILINE | re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";\n")]


def without_kafka(statement: str) -> str:
    """A table that views read from as from a topic's, and that takes inserts: with the Kafka engine's own column."""
    return re.sub(r"\n?\)\nENGINE = Kafka\nSETTINGS .*", ", _key String) ENGINE = Null", statement, flags=re.DOTALL)


def tables(section: str = "Tables") -> list[str]:
    made = [without_kafka(statement) for statement in statements(section)]
    assert any("ENGINE = Null" in statement for statement in made)
    return made


def insert(table: str, records: Iterable[Record]) -> str:
    """What the Kafka engine does with records in JSON: it leaves out those without a value."""
    lines = [
        json.dumps({"message": value.decode(), "_key": (key or b"").decode()}) for _, key, value in records if value is not None
    ]
    assert lines
    return f"INSERT INTO {table} FORMAT JSONEachRow " + "\n".join(lines)


def records(replica: Replica, *topics: str) -> Iterator[Record]:
    """What a replica has published, a record for all partitions in each of them."""
    for one in replica.news():
        topic, key, value = (one.topic, None, one.value) if isinstance(one, Broadcast) else one
        if topic in topics:
            yield from [(topic, key, value)] * (PARTITIONS if isinstance(one, Broadcast) else 1)


def follow(master: Master, work: Callable[[Master], None], **options: Any) -> Replica:
    """A daemon that has published a snapshot, and what the work did then."""
    replica = Replica(master, **options)
    replica.connect()
    work(master)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return replica


def master_with_users() -> Master:
    master = Master("2.11")
    master.create_space("users", FORMAT)
    master.insert("users", 1, "one", 10)
    master.insert("users", 2, "two", 2)
    return master


def before_truncation(master: Master) -> None:
    master.insert("users", 3, "three")
    master.insert("users", 90, "is truncated", 1)
    master.truncate("users")


def work(master: Master, largest: int = 2**64 - 1) -> None:
    """Each kind of event; after it the master has the rows of `rows`."""
    before_truncation(master)
    master.insert("users", 1, "uno", 5, Decimal("-1.50"), MOMENT, ["a", {"b": [1, None]}])
    master.update("users", [1], ["+", 3, 1])
    master.insert("users", 4, "four", 4)
    master.delete("users", 4)
    master.insert("users", 5, "five")
    master.delete("users", 5)
    master.insert("users", 5, "five again")
    master.insert("users", 6, "six", 1.5)
    master.replace("users", 6, "a null that is newest", None)
    master.upsert("users", [largest, "quote \" and \\ 'n\n Ж", 2**53], ["=", 2, "x"])
    master.upsert("users", [7, "seven"], ["=", 2, "x"])
    master.upsert("users", [7, "seven"], ["=", 2, "upserted"])


def rows(largest: int = 2**64 - 1) -> list[dict[str, Any]]:
    """The master's contents after `work`, as ClickHouse shows them."""
    tags = '["a",{"b":[1,null]}]'
    return [
        {"id": 1, "name": "uno", "balance": 6, "price": "-1.5", "at": "2024-02-29 20:59:58.123456789", "tags": tags},
        {"id": 5, "name": "five again", "tags": "", **NOTHING},
        {"id": 6, "name": "a null that is newest", "tags": "", **NOTHING},
        {"id": 7, "name": "upserted", "tags": "", **NOTHING},
        {"id": largest, "name": "quote \" and \\ 'n\n Ж", "tags": "", **NOTHING, "balance": 2**53},
    ]


def test_the_table_is_the_masters_contents_in_whichever_order_events_are_read(seed: int) -> None:
    published = list(records(follow(master_with_users(), work, images=True), "shop.users"))
    operations = {json.loads(value)["op"] for _, _, value in published if value is not None}
    assert operations == {"r", "c", "u", "d", "t"}
    mixed = published * 2
    random.Random(seed).shuffle(mixed)
    count, total = statements("Reading")[0], sum(row["balance"] or 0 for row in rows())
    for given in (published, published[::-1], mixed):
        parts = [given[:5], given[5:]]
        inserts = [insert("shop.users_topic", part) for part in parts]
        *_, found, counted = engine.run([*tables(), *inserts, READ, count])
        assert found == rows()
        assert list(counted[0].values()) == [len(found), total]


def test_a_new_field_is_in_all_rows_once_it_has_a_column() -> None:
    def grow(master: Master) -> None:
        master.format("users", [*FORMAT, {"name": "city", "type": "string", "is_nullable": True}])
        master.replace("users", 2, "two", 2, None, None, None, "Oslo")
        master.insert("users", 3, "three")

    published = insert("shop.users_topic", records(follow(master_with_users(), grow, images=True), "shop.users"))
    *_, found = engine.run([*tables(), published, *statements("When the space changes"), READ])
    assert [(row["id"], row["city"]) for row in found] == [(1, None), (2, "Oslo"), (3, None)]


def test_what_a_snapshot_sweeps_is_gone() -> None:
    master = master_with_users()
    replica = follow(master, lambda master: master.insert("users", 3, "three"), mode="always")
    master.delete("users", 1)
    replica.forced_snapshot = "for this test"
    replica.connect()
    published = [one for one in records(replica, "shop.users", "shop.snapshot") if one[2] is not None]
    completed = [json.loads(value or b"") for topic, _, value in published if topic == "shop.snapshot"]
    assert [space["sweep_seq"] for one in completed for space in one.get("spaces", [])] == [0, 3]
    inserts = [
        insert(f"shop.{suffix}_topic", (one for one in published if one[0] == f"shop.{suffix}"))
        for suffix in ("users", "snapshot")
    ]
    sweeps = [without_kafka(statement) for statement in statements("What each event does")]
    *_, found = engine.run([*tables(), *sweeps, *inserts, READ])
    assert [row["id"] for row in found] == [2, 3]


def test_an_event_without_its_row_is_an_error() -> None:
    published = records(follow(master_with_users(), lambda master: master.update("users", [1], ["+", 3, 1])), "shop.users")
    with pytest.raises(engine.ClickHouseError, match="An event without its row: run the daemon"):
        engine.run([*tables(), insert("shop.users_topic", published), READ])


def test_the_table_from_flat_events_in_avro(tmp_path: Path) -> None:
    with FakeRegistry(first_id=7) as registry:

        def number(wanted: Registration) -> int:
            return registry.register(wanted.subject, wanted.text)

        formats = FormatOptions("avro", "avro", schema_ids=number, envelope="flat", decimal="string")
        largest = 2**63 - 1
        replica = follow(master_with_users(), lambda master: work(master, largest), images=True, formats=formats)
        published = list(records(replica, "shop.users"))
        path = tmp_path / "records"
        path.write_bytes(b"".join(value for _, _, value in published if value is not None))
        made = ["CREATE DATABASE shop", *tables("Avro")]
        (columns,) = re.findall(r"CREATE TABLE shop\.users_topic\n\(\n(.*?), _key String\)", made[1], re.DOTALL)
        names = ", ".join(line.split()[0] for line in columns.splitlines())
        insertion = (
            f"INSERT INTO shop.users_topic ({names}) SELECT {names} FROM file('{path}', AvroConfluent, '{columns}') "  # noqa: S608
            f"SETTINGS format_avro_schema_registry_url = '{registry.url}'"
        )
        *_, found = engine.run([*made, insertion, READ])
    assert found == rows(largest)


def types() -> dict[str, str]:
    """The page's table of types: the text of each row's second cell."""
    cells = re.findall(r"^\| (`[^|]*) \| (.*) \|$", PAGE.partition("## Types")[2].partition("\n## ")[0], re.MULTILINE)
    return {name: text for names, text in cells for name in re.findall(r"`(\w+)`", names)}


def column(name: str, kind: str) -> str:
    """A column as the page has it for a type of fields."""
    said = re.findall(r"`([^`]*)`", types()[kind])[0]
    if " DEFAULT " in said:
        return f"{name} {said}".replace("'f'", f"'{name}'")
    if kind == "datetime":
        return f"{name} Nullable({said}) DEFAULT parseDateTime64BestEffortOrNull(JSONExtractString(_row, '{name}'), 9, 'UTC')"
    return f"{name} Nullable({said}) DEFAULT JSONExtract(_row, '{name}', 'Nullable({said})')"


def test_types() -> None:
    """The values that `tests/golden/published/` has of each type."""
    line = (DOCS.parent / "tests" / "golden" / "published" / "values.jsonl").read_text()
    row = json.loads(line)["value"]["after"]
    wanted: dict[str, tuple[str, Any]] = {
        "field_4": ("unsigned", 2**64 - 1),
        "field_5": ("integer", -(2**63)),
        "field_7": ("double", 1.5),
        "field_8": ("double", 0),
        "field_9": ("double", 1e300),
        "field_12": ("string", 'quote " and \\ and \n'),
        "field_15": ("boolean", True),
        "field_17": ("decimal", "-12345678901234567890.123456789"),
        "field_19": ("uuid", "64d22e4d-ac92-4a23-899a-e59f34af5479"),
        "field_20": ("datetime", "2024-02-29 20:59:58.123456789"),
        "field_21": ("interval", "P1Y-2M3DT4H5M6.000000007S"),
        "field_22": ("array", '[1,[2,{"three":3}]]'),
        "field_23": ("map", '{"key":{"ключ":"значение"}}'),
    }
    assert row["field_14"] == "AP8="
    columns = [column(name, kind) for name, (kind, _) in wanted.items()]
    columns += [column("field_14", "varbinary"), column("field_10", "double"), column("field_11", "double")]
    assert "`Int128` if values past 2^63-1 occur" in types()["integer"]
    columns.append("large Int128 DEFAULT JSONExtract(_row, 'field_4', 'Int128')")
    texts = "hex(field_14) AS bytes, isNaN(field_10) AS nan, toString(field_11) AS infinity, toString(large) AS large"
    *_, found = engine.run(
        [
            f"CREATE TABLE things (_row String, {', '.join(columns)}) ENGINE = Memory",
            f"INSERT INTO things (_row) FORMAT JSONEachRow {json.dumps({'_row': json.dumps(row)})}",
            f"SELECT {', '.join(wanted)}, {texts} FROM things",  # noqa: S608
        ]
    )
    expected = {name: value for name, (_, value) in wanted.items()}
    assert found == [expected | {"bytes": "00FF", "nan": 1, "infinity": "-inf", "large": str(2**64 - 1)}]
