"""Names that Avro allows, and names that become one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdc.errors import ConfigurationError
from cdc.formats.names import cleaned, cleaned_path
from cdc.formats.options import Format
from tests.fakes.master import Master
from tests.formats.oracles import Ids, published


@pytest.mark.parametrize(
    ("name", "shown"), [("a", "a"), ("a-b", "a_b"), ("1st", "_1st"), ("имя", "___"), ("", "_"), ("a.b", "a_b"), ("_a1", "_a1")]
)
def test_names_of_fields(name: str, shown: str) -> None:
    assert cleaned(name) == shown


def test_full_names_keep_their_dots() -> None:
    assert cleaned_path("shop.eu-1.2nd.Value") == "shop.eu_1._2nd.Value"


FIELDS = [{"name": "id", "type": "unsigned"}, {"name": "a-b", "type": "string", "is_nullable": True}]
TWICE = [*FIELDS, {"name": "a_b", "type": "string", "is_nullable": True}]


def test_fields_that_become_one_are_refused_at_the_start_and_at_ddl() -> None:
    master = Master("2.11")
    master.create_space("users", FIELDS)
    ids = Ids()
    with pytest.raises(ConfigurationError, match="the fields 'a-b' and 'a_b' of space 'users' would both be called 'a_b'"):
        published(master, lambda m: m.format("users", TWICE), ids, images=True, key="avro", value="avro")
    with pytest.raises(ConfigurationError, match="the fields 'a-b' and 'a_b'"):
        published(master, lambda _: None, ids, images=True, key="avro", value="avro")
    published(master, lambda _: None, ids, images=True, key="json_schema", value="json_schema")


def test_fields_that_become_one_in_protobufs_json_are_refused() -> None:
    fields = [{"name": "id", "type": "unsigned"}, {"name": "user_id", "type": "string"}, {"name": "userId", "type": "string"}]
    master = Master("2.11")
    master.create_space("users", fields)
    with pytest.raises(
        ConfigurationError, match="the fields 'user_id' and 'userId' of space 'users' would both be called 'userId'"
    ):
        published(master, lambda _: None, Ids(), images=True, key="json", value="protobuf")
    published(master, lambda _: None, Ids(), images=True, key="json", value="avro")


def test_fields_of_protobuf_may_have_the_names_of_its_own() -> None:
    fields = [{"name": name, "type": "unsigned"} for name in ("id", "seq", "__op", "message", "optional", "op", "Value")]
    master = Master("2.11")
    master.create_space("users", fields)
    ids = Ids()
    found = published(master, lambda m: m.insert("users", *range(1, 8)), ids, images=True, key="protobuf", value="protobuf")
    assert list(ids.read(found[-1][2])["after"].values()) == [1, 2, 3, 4, 5, 6, 7]


def test_spaces_that_become_one_are_refused() -> None:
    master = Master("2.11")
    master.create_space("a-b", FIELDS)
    ids = Ids()

    def more(changed: Master) -> None:
        changed.create_space("a_b", FIELDS)

    with pytest.raises(ConfigurationError, match="the schemas of the spaces 'a-b' and 'a_b' would both be called 'a_b'"):
        published(master, more, ids, images=False, key="json", value="avro")


@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
@pytest.mark.parametrize(
    ("fields", "parts", "what"),
    [
        # The name of the key's second part, which the format doesn't name, is the first one's.
        ([{"name": "field_2", "type": "unsigned"}], [(0, "unsigned"), (1, "unsigned")], "two fields .* 'field_2'"),
        (
            [{"name": "a.b", "type": "unsigned"}, {"name": "a", "type": "map"}],
            [(0, "unsigned"), {"field": 1, "type": "unsigned", "path": "b"}],
            "two parts of the primary key .* 'a.b'",
        ),
    ],
)
def test_two_parts_of_a_key_with_one_name_are_refused(value: Format, fields: list[Any], parts: list[Any], what: str) -> None:
    """Different keys would have the same bytes."""
    master = Master("2.11")
    master.create_space("users", fields, parts)
    with pytest.raises(ConfigurationError, match=what):
        published(master, lambda _: None, Ids(), images=False, key=value, value=value)


@pytest.mark.parametrize("value", ["json_schema", "avro", "protobuf", "json_schema_registry"])
def test_fields_with_the_names_of_flat_events_alone(value: Format) -> None:
    """An event is told from a flat one by its envelope, not by the names of its row."""
    master = Master("2.11")
    names = ["__op", "x", "__source_seq"]
    master.create_space("users", [{"name": name, "type": "unsigned"} for name in names], [(0, "unsigned"), (2, "unsigned")])
    ids = Ids()
    found = published(master, lambda m: m.insert("users", 5, 6, 7), ids, images=True, key=value, value=value)
    read = (lambda data: json.loads(data)["payload"]) if value == "json_schema" else ids.read
    assert read(found[-1][1]) == {"__op": 5, "__source_seq": 7}
    assert read(found[-1][2])["after"] == {"__op": 5, "x": 6, "__source_seq": 7}
