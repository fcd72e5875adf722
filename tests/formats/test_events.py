"""Events in formats with a schema say the same as the events in JSON do."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import fastavro
import pytest

from cdc.errors import ConfigurationError
from cdc.formats.options import Format, FormatOptions
from cdc.formats.reading import source_of
from cdc.protocol.extensions import Datetime, Interval
from cdc.stream.batches.batch import Broadcast
from tests.fakes.master import Master
from tests.fakes.replica import Replica
from tests.formats.oracles import Ids, published

FORMAT: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string", "is_nullable": True},
    {"name": "balance", "type": "number", "is_nullable": True},
    {"name": "price", "type": "decimal", "is_nullable": True},
    {"name": "uuid", "type": "uuid", "is_nullable": True},
    {"name": "at", "type": "datetime", "is_nullable": True},
    {"name": "for", "type": "interval", "is_nullable": True},
    {"name": "more", "type": "map", "is_nullable": True},
    {"name": "ratio", "type": "double", "is_nullable": True},
    {"name": "data", "type": "varbinary", "is_nullable": True},
    {"name": "yes", "type": "boolean", "is_nullable": True},
    {"name": "count", "type": "integer", "is_nullable": True},
]
MOMENT: Final = Datetime(1709240398, 123456789, 180)
LENGTH: Final = Interval(1, -2, 0, 3, 4, 5, 6, 7)
ROW: Final = (2, "two", None, Decimal("-1.50"), UUID(int=5), MOMENT, LENGTH, {"a": [1, None]}, 1.5, b"a\xff", True, -(2**63))


def work(master: Master) -> None:
    master.insert("users", *ROW)
    master.replace("users", 2, "zwei", 2.5)
    master.update("users", [2], ["=", 2, "x"], ["+", 3, 1])
    master.upsert("users", [3, "three", 3], ["=", 2, "y"])
    master.upsert("users", [3, "three", 3], ["=", 2, "y"])
    master.begin()
    master.insert("users", 4, "four")
    master.delete("users", 3)
    master.commit()
    master.truncate("users")


def master_with_users() -> Master:
    master = Master("2.11")
    master.create_space("users", FORMAT)
    master.insert("users", 1, "one", 10)
    return master


def json_of(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def connect_payload(data: bytes | None) -> Any:
    """The payload, if it fits the schema beside it."""
    if data is None:
        return None
    found = json.loads(data)
    assert found.keys() == {"schema", "payload"}
    return fitting(found["schema"], found["payload"])


def fitting(schema: dict[str, Any], value: Any) -> Any:
    """The value with everything that the schema has and the value doesn't; it must have nothing else, and the schema's types."""
    if value is None:
        assert schema["optional"], schema
        return schema.get("default")
    match schema["type"]:
        case "struct":
            fields = {field["field"]: field for field in schema["fields"]}
            assert not value.keys() - fields.keys()
            return {name: fitting(field, value.get(name)) for name, field in fields.items()}
        case "bytes":
            return base64.b64decode(value, validate=True)
        case "map":
            return {key: fitting(schema["values"], one) for key, one in value.items()}
        case kind:
            assert type(value) is {"string": str, "boolean": bool, "double": float}.get(kind, int)
            return value


def reader(ids: Ids, chosen: Format) -> Callable[[bytes | None], Any]:
    return {
        "json": json_of,
        "json_schema": connect_payload,
        "avro": ids.read,
        "json_schema_registry": ids.read,
        "protobuf": ids.read,
    }[chosen]


def as_columns(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row of the format json as its columns are in a format with a schema."""
    if row is None:
        return None
    found: dict[str, Any] = {field["name"]: row.get(field["name"]) for field in FORMAT}
    for name in ("balance", "more"):
        if found[name] is not None:
            found[name] = json.dumps(found[name], separators=(",", ":"))
    if found["price"] is not None:
        number = Decimal(found["price"])
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        unscaled = int(number.scaleb(-exponent))
        found["price"] = {"scale": -exponent, "value": unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)}
    if found["data"] is not None:
        found["data"] = base64.b64decode(found["data"])
    return found


def as_event(event: dict[str, Any] | None) -> Any:
    """An event of the format json as it is in a format with a schema."""
    if event is None:
        return None
    found = dict(event)
    for name in ("before", "after", "upsert"):
        if name in found:
            found[name] = as_columns(found[name])
    if "patch" in found:
        found["patch"] = json.dumps(found["patch"], separators=(",", ":"))
    if found["op"] == "d" and "server_version" in found["source"]:
        found["before"] = {field["name"]: None for field in FORMAT} | {"id": 3}
    return found


def without_nulls(value: Any) -> Any:
    """What is absent and what is null is the same in a format with a schema."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return value


@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
@pytest.mark.parametrize("key", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_events_say_the_same_as_in_json(key: Format, value: Format, images: bool) -> None:
    ids = Ids()
    plain = published(master_with_users(), work, ids, images=images, key="json", value="json")
    found = published(master_with_users(), work, ids, images=images, key=key, value=value)
    assert len(found) == len(plain) == 10
    for (topic, one_key, one), (plain_topic, plain_key, plain_one) in zip(found, plain, strict=True):
        assert topic == plain_topic
        assert reader(ids, key)(one_key) == json_of(plain_key)
        assert without_nulls(reader(ids, value)(one)) == without_nulls(as_event(json_of(plain_one)))
        if one is not None:
            wanted = json_of(plain_one)["source"]
            source = source_of(one)
            assert source is not None
            for name in ("name", "seq", "schema_version"):
                assert source[name] == wanted[name]
            assert source.get("snapshot_id") == wanted.get("snapshot_id")


@pytest.mark.parametrize("key", ["json_schema", "avro", "protobuf", "json_schema_registry"])
def test_keys_alone_have_a_schema(key: Format) -> None:
    ids = Ids()
    plain = published(master_with_users(), work, ids, images=True, key="json", value="json")
    found = published(master_with_users(), work, ids, images=True, key=key, value="json")
    assert [one for _, _, one in found] == [one for _, _, one in plain]
    assert [reader(ids, key)(one) for _, one, _ in found] == [json_of(one) for _, one, _ in plain]


LEAN: Final = ("name", "ts_ms", "table", "lsn", "seq", "schema_version", "server_version", "snapshot_id")


def as_lean(event: dict[str, Any] | None) -> Any:
    """An event with the fields that a lean source leaves."""
    if event is None:
        return None
    source = {name: event["source"].get(name) for name in LEAN}
    kept = {name: event[name] for name in ("op", "before", "after", "patch", "upsert", "ts_ms") if name in event}
    return kept | {"source": source}


@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_a_lean_source(value: Format, images: bool) -> None:
    ids = Ids()
    plain = published(master_with_users(), work, ids, images=images, key="json", value="json")
    found = published(master_with_users(), work, ids, images=images, key="json", value=value, source="lean")
    assert len(found) == len(plain)
    for (_, _, one), (_, _, plain_one) in zip(found, plain, strict=True):
        event = reader(ids, value)(one)
        wanted = as_lean(json_of(plain_one) if value == "json" else as_event(json_of(plain_one)))
        if value == "avro" and event is not None:
            assert event["source"].pop("connector") == "tarantool"
        assert without_nulls(event) == without_nulls(wanted)
        if one is not None:
            source = source_of(one)
            assert source is not None
            assert source["seq"] == wanted["source"]["seq"]
            assert source["name"] == "shop"
            if images and value in ("json", "avro"):
                rows = [wanted[name] for name in ("before", "after", "upsert", "patch") if wanted.get(name)]
                assert len(one) - sum(map(row_size(ids, value, one), rows)) <= {"json": 200, "avro": 60}[value]


def row_size(ids: Ids, value: Format, one: bytes) -> Callable[[Any], int]:
    """The size of a row, or of operations, as it is written in an event."""
    if value == "json":
        return lambda row: len(json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode())
    schema = json.loads(ids.schemas[int.from_bytes(one[1:5], "big") - 1].text)
    (record,) = [
        field["type"][1] for field in schema["fields"] if isinstance(field["type"], list) and "fields" in field["type"][1:][0]
    ][:1]

    def size(row: Any) -> int:
        out = io.BytesIO()
        if isinstance(row, str):
            return len(row) + 1
        fastavro.schemaless_writer(
            out, fastavro.parse_schema(record), {name: row.get(name) for name in (f["name"] for f in record["fields"])}
        )
        return len(out.getvalue())

    return size


def as_flat(event: dict[str, Any] | None) -> Any:
    """A flat event of an event."""
    if event is None:
        return None
    row = event["after"] or event["before"] or {}
    deleted = "true" if event["op"] == "d" else "false"
    return {"__op": event["op"], "__deleted": deleted, **row, "__source_seq": event["source"]["seq"]}


@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_flat_events(value: Format) -> None:
    ids = Ids()
    plain = published(master_with_users(), work, ids, images=True, key="json", value="json")
    found = published(master_with_users(), work, ids, images=True, key="json", value=value, envelope="flat")
    assert [(topic, key) for topic, key, _ in found] == [(topic, key) for topic, key, _ in plain]
    for (_, _, one), (_, _, plain_one) in zip(found, plain, strict=True):
        wanted = as_flat(json_of(plain_one) if value == "json" else as_event(json_of(plain_one)))
        assert without_nulls(reader(ids, value)(one)) == without_nulls(wanted)
        if one is not None:
            assert source_of(one) == {"seq": wanted["__source_seq"]}


@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_flat_events_of_rows_that_end_like_numbers(value: Format) -> None:
    """A reader that doesn't know the schema finds the seq all the same."""
    master = Master("2.11")
    master.create_space("users", [{"name": "id", "type": "unsigned"}, {"name": "data", "type": "varbinary"}])

    def more(changed: Master) -> None:
        for number in range(200):
            changed.insert("users", number, bytes([number, 0x82, 0xFF]))

    found = published(master, more, Ids(), images=True, key="json", value=value, envelope="flat")
    assert [source_of(one) for _, _, one in found] == [{"seq": seq} for seq in range(1, 201)]


@pytest.mark.parametrize("value", ["json", "json_schema", "avro", "protobuf", "json_schema_registry"])
def test_a_space_with_a_collation_has_flat_rows_but_no_flat_updates(value: Format) -> None:
    master = Master("2.11")
    fields = [{"name": "id", "type": "string"}, {"name": "n", "type": "unsigned", "is_nullable": True}]
    master.create_space("users", fields, parts=[{"field": 0, "type": "string", "collation": 1}])

    def more(changed: Master) -> None:
        changed.insert("users", "a", 1)
        changed.update("users", ["a"], ["=", 2, 5])
        changed.delete("users", "a")

    ids = Ids()
    found = published(master, more, ids, images=True, key="json", value=value, envelope="flat")
    rows = [reader(ids, value)(one) for topic, _, one in found if topic == "shop.users"]
    assert [without_nulls(row) for row in rows[:2]] == [
        {"__op": "c", "__deleted": "false", "id": "a", "n": 1, "__source_seq": 1},
        {"__op": "d", "__deleted": "true", "id": "a", "__source_seq": 2},
    ]
    (letter,) = [json_of(one) for topic, _, one in found if topic == "shop.dlq"]
    assert "can't be a flat event" in letter["error"]


def test_a_field_that_flat_events_have_themselves_is_refused() -> None:
    master = Master("2.11")
    master.create_space("users", [{"name": "id", "type": "unsigned"}, {"name": "__op", "type": "string", "is_nullable": True}])
    with pytest.raises(ConfigurationError, match="has a field '__op', which flat events have themselves"):
        published(master, lambda m: m.insert("users", 1), Ids(), images=True, key="json", value="json", envelope="flat")


def test_names_are_those_of_debeziums_tools() -> None:
    ids = Ids()
    published(master_with_users(), work, ids, images=False, key="avro", value="avro")
    by_subject = {wanted.subject: json.loads(wanted.text) for wanted in ids.schemas}
    assert by_subject.keys() == {"shop.users-key", "shop.users-value"}
    key, envelope = by_subject["shop.users-key"], by_subject["shop.users-value"]
    assert (key["namespace"], key["name"], key["connect.name"]) == ("shop.users", "Key", "shop.users.Key")
    assert envelope["connect.name"] == "shop.users.Envelope"
    assert envelope["connect.version"] == 2
    fields = {field["name"]: field["type"] for field in envelope["fields"]}
    assert fields["upsert"][1]["connect.name"] == "shop.users.Value"
    assert fields["before"] == fields["after"] == ["null", "shop.users.Value"]
    assert fields["source"]["connect.name"] == "io.debezium.connector.tarantool.Source"
    assert (fields["transaction"][1]["connect.name"], fields["transaction"][1]["connect.version"]) == ("event.block", 1)


@pytest.mark.parametrize(
    ("strategy", "subjects"),
    [
        ("topic", {"shop.users-key", "shop.users-value"}),
        ("record", {"shop.users.Key", "shop.users.Envelope"}),
        ("topic_record", {"shop.users-shop.users.Key", "shop.users-shop.users.Envelope"}),
    ],
)
def test_subjects(strategy: str, subjects: set[str]) -> None:
    ids = Ids()
    published(master_with_users(), work, ids, images=True, key="avro", value="avro", subject=strategy)
    assert {wanted.subject for wanted in ids.schemas} == subjects


@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
def test_what_a_schema_has_no_place_for_is_refused(value: Format) -> None:
    def more(master: Master) -> None:
        master.insert("users", 2**63)
        master.insert("users", 5, *[None] * 11, *range(65))
        master.insert("users", 6, None, None, None, None, None, Interval(month=1, adjust="last"))
        master.insert("users", 7, *[None] * 10, 2**63)

    found = published(master_with_users(), more, Ids(), images=True, key=value, value=value)
    letters = [json.loads(one) for topic, _, one in found if topic == "shop.dlq"]
    assert len(letters) == len(found) - 1 == 4
    assert 'Set format.unsigned = "decimal" or "string"' in letters[0]["error"]
    assert "has 77 fields, and the space's format has 12: schemas have at most 64 more" in letters[1]["error"]
    assert "this adjust mode has no ISO 8601 form" in letters[2]["error"]
    assert "a value isn't an integer of 64 bits with a sign, in the field 'count'" in letters[3]["error"]
    assert "Give the field the type unsigned" in letters[3]["error"], "format.unsigned doesn't concern an integer"


def longer(master: Master) -> None:
    """Rows past the format: the schema gets their fields, the values before and after as they are."""
    master.insert("users", 2, *[None] * 11, {"past": 1})
    master.insert("users", 3, *[None] * 11, "a", None, "c")
    master.replace("users", 2, "short")
    master.replace("users", 1, *[None] * 11, 5)
    master.delete("users", 3)
    master.insert("users", 4, "four")


PAST: Final = ("field_13", "field_14", "field_15")


@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
def test_rows_past_the_format(value: Format, images: bool) -> None:
    ids = Ids()

    def made(chosen: Format) -> list[Any]:
        return published(master_with_users(), longer, ids, images=images, key="json", value=chosen)

    def row_of(row: dict[str, Any] | None) -> Any:
        if row is None:
            return None
        beyond = {name: json.dumps(row[name], separators=(",", ":")) for name in PAST if row.get(name) is not None}
        return {**(as_columns(row) or {}), **beyond}

    plain, found = made("json"), made(value)
    assert len(plain) == len(found)
    for (_, _, one), (_, _, plain_one) in zip(found, plain, strict=True):
        if plain_one is not None:
            wanted, event = json_of(plain_one), reader(ids, value)(one)
            rows = {name: row_of(wanted[name]) for name in ("before", "after")}
            if not images and wanted["op"] == "d":
                rows["before"] = {"id": 3}
            assert without_nulls({name: event[name] for name in rows}) == without_nulls(rows)
            assert event["source"]["seq"] == wanted["source"]["seq"]


@pytest.mark.parametrize("value", ["avro", "json"])
def test_rows_past_the_format_that_the_store_has_from_before(value: Format) -> None:
    """A daemon that starts anew knows nothing of longer rows until one is before or after."""
    master, ids = master_with_users(), Ids()
    master.insert("users", 2, *[None] * 11, "long")
    replica = Replica(master, images=True, formats=FormatOptions("json", value, schema_ids=ids))
    replica.connect()
    replica.relay.relay()
    replica.receive()
    replica.commit()
    replica.flush()
    replica.news()
    replica.crash()
    replica.connect()
    master.replace("users", 2, "short")
    master.delete("users", 2)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    events = [reader(ids, value)(one[2]) for one in replica.news() if not isinstance(one, Broadcast) and one[0] == "shop.users"]
    assert [event and event["op"] for event in events] == ["u", "d", None]
    assert events[0]["before"]["field_13"] == ("long" if value == "json" else '"long"')
    assert events[0]["after"]["name"] == "short"


@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
def test_a_field_that_gets_the_name_of_one_past_the_format(value: Format) -> None:
    """After rows that were as long: the schema has no field twice, and only such rows are refused."""
    master, ids = Master("2.11"), Ids()
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "unsigned"},
        {"name": "name", "type": "string", "is_nullable": True},
    ]
    master.create_space("users", fields)

    def more(changed: Master) -> None:
        changed.insert("users", 1, "a", "third", "fourth")
        changed.format("users", [fields[0], fields[1] | {"name": "field_4"}])
        changed.insert("users", 2, "b", "third")
        changed.insert("users", 3, "c", "third", "fourth")

    found = published(master, more, ids, images=True, key="json", value=value)
    rows = [reader(ids, value)(one)["after"] for topic, _, one in found if topic == "shop.users"]
    assert rows == [
        {"id": 1, "name": "a", "field_3": '"third"', "field_4": '"fourth"'},
        {"id": 2, "field_4": "b", "field_3": '"third"'},
    ]
    (letter,) = [json_of(one) for topic, _, one in found if topic == "shop.dlq"]
    assert "two of them would be called 'field_4'" in letter["error"]


@pytest.mark.parametrize(("unsigned", "shown"), [("decimal", Decimal(2**64 - 1)), ("string", str(2**64 - 1))])
def test_unsigned_past_63_bits(unsigned: str, shown: object) -> None:
    ids = Ids()
    found = published(
        master_with_users(), lambda m: m.insert("users", 2**64 - 1), ids, images=True, key="avro", value="avro", unsigned=unsigned
    )
    assert ids.read(found[-1][1]) == {"id": shown}
    assert ids.read(found[-1][2])["after"]["id"] == shown


def test_decimals_as_text() -> None:
    ids = Ids()
    found = published(
        master_with_users(),
        lambda m: m.insert("users", 2, None, None, Decimal("0.000")),
        ids,
        images=True,
        key="avro",
        value="avro",
        decimal="string",
    )
    assert ids.read(found[-1][2])["after"]["price"] == "0.000"


def test_doubles_that_json_has_no_number_for() -> None:
    def more(master: Master) -> None:
        master.insert("users", 2, *[None] * 7, float("-inf"))

    ids = Ids()
    found = published(master_with_users(), more, ids, images=True, key="avro", value="avro")
    assert ids.read(found[-1][2])["after"]["ratio"] == float("-inf")
    found = published(master_with_users(), more, ids, images=True, key="json_schema", value="json_schema")
    assert found[-1][0] == "shop.dlq"
    assert "-inf has no JSON number" in json.loads(found[-1][2])["error"]
