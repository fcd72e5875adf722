"""Events in Avro become the JSON that the daemon writes for the same changes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import pytest

from cdc.formats.options import Format, Registration
from spark_jobs.contract.avro_text import Convert, UnreadableAvroError, converter, schema_id
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published
from tests.formats.test_events import FORMAT, ROW, work

ODD_FORMAT: Final[list[dict[str, Any]]] = [
    {"name": "the id", "type": "double"},
    {"name": "1st", "type": "unsigned"},
    {"name": 'a"b', "type": "any", "is_nullable": True},
    {"name": "größe", "type": "scalar", "is_nullable": True},
    {"name": "half", "type": "float32", "is_nullable": True},
]


def in_json(registered: list[Registration]) -> dict[int, Convert]:
    return {number: converter(one.text) for number, one in enumerate(registered, 1)}


def text(converters: dict[int, Convert], data: bytes | None) -> str | None:
    return None if data is None else converters[schema_id(data)](data[5:])


def without_missing(value: Any) -> Any:
    """In Avro a field that a tuple lacks is null."""
    if isinstance(value, dict):
        return {name: without_missing(one) for name, one in value.items() if one is not None}
    return value


def odd_work(master: Master) -> None:
    master.insert("odd", 12345678.0, 2**63 + 5, {"x": [1.0, Decimal("1.50"), None]}, 1e300, 0.5)
    master.insert("odd", 0.00001, 0, "text", float("inf"), float("nan"))
    master.replace("odd", 12345678.0, 7, None, True)
    master.delete("odd", -0.0)
    master.delete("odd", 12345678.0)


def both(images: bool, format_: list[dict[str, Any]], name: str, change: Any, **options: Any) -> list[tuple[Any, Any]]:
    """For each record the daemon's own JSON and the converted one, as (topic, key, value)."""
    found = []
    ids = Ids()
    kinds: tuple[Format, ...] = ("json", "avro")
    for kind in kinds:
        master = Master("2.11")
        master.create_space(name, format_, ((0, format_[0]["type"]),))
        given = options if kind == "avro" else {}
        found.append(published(master, change, ids, images=images, key=kind, value=kind, **given))
    converters = in_json(ids.schemas)
    own = [(topic, key and key.decode(), value and value.decode()) for topic, key, value in found[0]]
    converted = [(topic, text(converters, key), text(converters, value)) for topic, key, value in found[1]]
    return list(zip(own, converted, strict=True))


@pytest.mark.parametrize("images", [True, False], ids=["images", "no images"])
def test_it_is_what_the_daemon_writes_in_json(images: bool) -> None:
    def changes(master: Master) -> None:
        master.insert("users", 1, "one", 10)
        work(master)

    pairs = both(images, FORMAT, "users", changes)
    assert len(pairs) > 8
    for (topic, key, value), (converted_topic, converted_key, converted_value) in pairs:
        assert (converted_topic, converted_key) == (topic, key)
        if value is None:
            assert converted_value is None
            continue
        assert without_missing(json.loads(converted_value)) == without_missing(json.loads(value))
        whole = len(ROW) == len(json.loads(value)["after"] or ())
        if whole and json.loads(value)["before"] is None:
            # Byte for byte, with the order of all members, where no field is missing.
            assert converted_value == value


@pytest.mark.parametrize("unsigned", ["decimal", "string"])
def test_names_that_avro_does_not_allow_and_numbers_past_a_long(unsigned: str) -> None:
    pairs = both(True, ODD_FORMAT, "odd", odd_work, unsigned=unsigned)
    assert len(pairs) >= 4
    for own, converted in pairs:
        assert converted[:2] == own[:2]
        if own[2] is not None:
            assert without_missing(json.loads(converted[2])) == without_missing(json.loads(own[2]))


def test_damaged_bytes_are_told_from_values_and_nothing_of_them_is_shown() -> None:
    ids = Ids()
    master = Master("2.11")
    master.create_space("users", FORMAT)
    (_, key, value), *_ = published(
        master, lambda one: one.insert("users", 1, "secret"), ids, images=True, key="avro", value="avro"
    )
    converters = in_json(ids.schemas)
    convert = converters[schema_id(value)]
    assert json.loads(convert(value[5:]))["after"]["name"] == "secret"
    for place in range(5, len(value)):
        with pytest.raises(UnreadableAvroError) as caught:
            convert(value[5:place])
        assert "secret" not in str(caught.value)
    with pytest.raises(UnreadableAvroError, match="1 bytes follow its end"):
        convert(value[5:] + b"\0")
    with pytest.raises(UnreadableAvroError, match="ends before the schema's id"):
        schema_id(key[:4])
