"""Readers of what the daemon writes that know nothing of the daemon."""

from __future__ import annotations

import base64
import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from cdc.formats.options import Format, FormatOptions, Registration
from cdc.stream.batches.batch import Broadcast
from tests.fakes.master import Master
from tests.fakes.replica import Replica

Event = tuple[Any, Any]
"""Key and value, decoded."""


class Ids:
    """A registry that gives each schema the next number."""

    def __init__(self) -> None:
        self.schemas: list[Registration] = []

    def __call__(self, wanted: Registration) -> int:
        if wanted not in self.schemas:
            self.schemas.append(wanted)
        return self.schemas.index(wanted) + 1

    def read(self, data: bytes | None) -> Any:
        """What is written in Confluent's form."""
        if data is None:
            return None
        assert data[0] == 0
        return read_with(self.schemas[int.from_bytes(data[1:5], "big") - 1].text, data[5:])


def read_with(text: str, data: bytes) -> Any:
    """What is written by a schema, read by fastavro or protobuf, or checked by jsonschema; nothing may be left over."""
    if text.startswith("syntax"):
        assert data[0] == 0, "the first message of the file"
        return as_dict(first_message(text).FromString(data[1:]))
    if '"$schema"' in text:
        value, validator = json.loads(data), _validator(text)
        schema = validator.schema
        validator.validate(value)
        return documented(schema, value, schema.get("definitions", {}))
    rest = io.BytesIO(data)
    found = fastavro.schemaless_reader(rest, _parsed(text), None)
    assert not rest.read()
    return found


@functools.cache
def _validator(text: str) -> Any:
    """Of a schema that is one: to check it takes far longer than to check a value."""
    schema = json.loads(text)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@functools.cache
def _parsed(text: str) -> Any:
    return fastavro.parse_schema(json.loads(text))


@functools.cache
def first_message(text: str) -> Any:
    """The class of the first message of a file, compiled by protoc."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file.proto").write_text(text)
        output = Path(folder) / "file.set"
        arguments = ["protoc", f"-I{folder}", f"--descriptor_set_out={output}", "file.proto"]
        assert protoc.main(arguments) == 0, text
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    name = f"{files.file[0].package}.{files.file[0].message_type[0].name}"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def as_dict(message: Any) -> dict[str, Any]:
    """The fields of a message; what isn't there and has no default is None."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = as_dict(value) if field.message_type is not None else value
    return found


def documented(schema: dict[str, Any], value: Any, definitions: dict[str, Any]) -> Any:
    """A value with its binary parts decoded, as its JSON Schema says."""
    if value is None:
        return None
    if "oneOf" in schema:
        schema = schema["oneOf"][1]
    if "allOf" in schema:
        (schema,) = schema["allOf"]
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if schema.get("connect.type") == "bytes":
        return base64.b64decode(value, validate=True)
    if "properties" in schema:
        return {name: documented(schema["properties"][name], one, definitions) for name, one in value.items()}
    return value


def published(master: Master, work: Any, ids: Ids, *, images: bool, key: Format, value: Format, **options: Any) -> list[Any]:
    """What a daemon in these formats publishes of the spaces' topics, while `work` changes the master."""
    formats = FormatOptions(key, value, schema_ids=ids, **options)
    replica = Replica(master, images=images, formats=formats, on_error="dlq")
    replica.connect()
    work(master)
    replica.relay.relay()
    replica.receive()
    replica.commit()
    return [
        (one.topic, None, one.value) if isinstance(one, Broadcast) else one
        for one in replica.news()
        if (one.topic if isinstance(one, Broadcast) else one[0])
        not in {f"shop.{name}" for name in ("schema", "snapshot", "transaction", "checkpoint")}
    ]
