"""Schemas mean the same in the form in which a registry gives them back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_jobs.contract.avro_columns import event_reading, key_reading
from spark_jobs.contract.avro_names import full_name, is_record, schema_of
from spark_jobs.contract.avro_text import UnreadableAvroError, converter
from tests.spark.contract.test_avro_columns import FIELDS, schemas

WANTED: dict[str, Any] = {"op": None, "before": None, "after": None, "source": ["table"], "transaction": ["id"]}


def shortest(schema: Any, namespace: str = "") -> Any:
    """A schema as Avro's Java library writes it, and so Confluent's registry: no namespace is said that is known already."""
    if isinstance(schema, list):
        return [shortest(one, namespace) for one in schema]
    if isinstance(schema, str):
        return schema.removeprefix(f"{namespace}.")
    if schema["type"] != "record":
        return schema
    own = schema["namespace"]
    found = {name: value for name, value in schema.items() if name != "namespace" or own != namespace}
    return {**found, "fields": [{**one, "type": shortest(one["type"], own)} for one in schema["fields"]]}


def test_the_shortest_form_of_a_schema_is_read_like_the_one_that_was_registered() -> None:
    for text in schemas(FIELDS):
        short = json.dumps(shortest(json.loads(text)))
        assert schema_of(short) == schema_of(text) == json.loads(text)
    assert '"type": ["null", "Value"]' in short
    found, wanted = event_reading(short, WANTED, "event"), event_reading(text, WANTED, "event")
    assert found is not None
    assert wanted is not None
    assert (found.reader, found.texts, found.fields) == (wanted.reader, wanted.texts, wanted.fields)
    converter(short)


def test_names_of_all_kinds_are_completed() -> None:
    inner = {"type": "array", "items": {"type": "map", "values": "E"}}
    text = json.dumps(
        {
            "type": "record",
            "name": "a.b.R",
            "fields": [
                {"name": "one", "type": {"type": "enum", "name": "E", "symbols": ["x"]}},
                {"name": "more", "type": inner},
                {"name": "other", "type": {"type": {"type": "fixed", "name": "c.F", "size": 1}}},
            ],
        }
    )
    found = schema_of(text)
    assert (full_name(found), is_record(found)) == ("a.b.R", True)
    one, more, other = (field["type"] for field in found["fields"])
    assert (full_name(one), more["items"]["values"], full_name(other["type"])) == ("a.b.E", "a.b.E", "c.F")
    assert full_name(schema_of('{"type":"record","name":"R","fields":[]}')) == "R"


@pytest.mark.parametrize(
    "text",
    [
        '"string"',
        '["null","string"]',
        '{"type":"enum","name":"E","symbols":["x"]}',
        '{"type":"array","items":"long"}',
        '{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"array","items":"long"}}]}',
        '{"type":"record","name":"Envelope","connect.name":"x.Envelope","fields":[{"name":"op","type":"string"}]}',
    ],
)
def test_the_schema_of_another_program_ends_nothing(text: str) -> None:
    assert event_reading(text, WANTED, "event") is None
    if "Envelope" not in text:
        assert key_reading(text, "key") is None
    with pytest.raises(UnreadableAvroError, match="KeyError" if "Envelope" in text else "the schema is that of another program"):
        converter(text)(b"\x02x")
