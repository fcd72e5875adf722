"""Events and keys in Avro → the JSON that the daemon writes for them with `format.value = "json"`.

    0 │ id of the schema, 4 bytes │ the value in Avro        (Confluent's form)

The schema says everything that is needed: names as they are in Tarantool, which Avro doesn't allow (`tarantool.name`), and the
meaning of strings and bytes (`connect.name`). One function per schema is made of it, with a writer for each column.

Two things differ from JSON. A field that a tuple lacks at its end is null, as if it were nil. And a number of the type float or
double is written as its shortest text, also where the server sent an integer.

Spark's workers import this module. It imports fastavro only when there is something to read.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from spark_jobs.contract import json_text
from spark_jobs.contract.avro_names import full_name, is_record, schema_of
from spark_jobs.errors import JobError

MAGIC: Final = 0
"""First byte of a value in Confluent's form. No JSON begins with it."""
HEADER_BYTES: Final = 5

Write = Callable[[Any], str]
Convert = Callable[[bytes], str]
"""Function from the bytes behind the header to a text of JSON. Raises UnreadableAvroError."""

_ROWS: Final = ("before", "after", "patch", "upsert")
_ABSENT_IF_NULL: Final = ("patch", "upsert")
"""Members that the JSON lacks where they are null."""
_SOURCE_ABSENT_IF_NULL: Final = ("server_version", "snapshot_id")
"""Members of `source` likewise."""
NAME: Final = "tarantool.name"
TYPE: Final = "tarantool.type"
ENVELOPE: Final = ".Envelope"
JSON: Final = "io.debezium.data.Json"
SCALED: Final = "io.debezium.data.VariableScaleDecimal"


class UnreadableAvroError(Exception):
    """Bytes that aren't a value of their schema. The text says why, and shows nothing of them."""


def schema_id(data: bytes | bytearray) -> int:
    """Return the id of a value's schema. Raises UnreadableAvroError."""
    if len(data) < HEADER_BYTES:
        raise UnreadableAvroError("it ends before the schema's id does")
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def converter(schema_text: str) -> Convert:
    """Return the function for values of a schema. Raises JobError if fastavro isn't installed."""
    try:
        import fastavro
    except ImportError as error:
        raise JobError(
            f"Topics in Avro are read with fastavro, which isn't installed here ({error}). Install it where the driver and"
            " Spark's workers run: pip install 'tarantool-cdc[avro]'."
        ) from error
    schema = schema_of(schema_text)
    try:
        write = _value(schema)
        parsed = fastavro.parse_schema(schema)
    except (fastavro.schema.SchemaParseException, KeyError, ValueError, TypeError):
        return _refused
    read = fastavro.schemaless_reader

    def convert(data: bytes) -> str:
        stream = io.BytesIO(data)
        try:
            value = read(stream, parsed, None)
            left = len(data) - stream.tell()
            if left:
                raise UnreadableAvroError(f"{left} bytes follow its end")
            return write(value)
        except (EOFError, ValueError, TypeError, KeyError, IndexError, OverflowError, StopIteration) as error:
            # Without the error's own text, which can have a part of the value.
            raise UnreadableAvroError(f"{type(error).__name__} while it was read") from error

    return convert


def _refused(data: bytes) -> str:  # noqa: ARG001 - no value of such a schema is read
    raise UnreadableAvroError("the schema is that of another program")


def _value(schema: Any) -> Write:
    """Return the writer of a daemon's values. Raises KeyError, ValueError or TypeError at the schema of another program."""
    if not is_record(schema):
        raise ValueError("no record")
    return _envelope(schema) if schema.get("connect.name", "").endswith(ENVELOPE) else _record(schema, {})


def _envelope(schema: Mapping[str, Any]) -> Write:
    named: dict[str, Write] = {}
    # In the order of the schema, because a record is defined where its name occurs first.
    members = {
        field["name"]: _record(field["type"], named, absent_if_null=_SOURCE_ABSENT_IF_NULL)
        if field["name"] == "source"
        else _optional(field["type"], named)
        for field in schema["fields"]
    }
    has_images = "patch" not in members
    rest = [name for name in members if name not in (*_ROWS, "op", "source")]

    def write(event: Mapping[str, Any]) -> str:
        before = event["before"]
        if event["op"] == "d" and not has_images:
            before = None  # it has only the key, for readers that need some row
        parts = [
            f'{{"op":{json_text.render(event["op"])}',
            f'"before":{members["before"](before)}',
            f'"after":{members["after"](event["after"])}',
            *(f'"{name}":{members[name](event[name])}' for name in _ABSENT_IF_NULL if event.get(name) is not None),
            f'"source":{members["source"](event["source"])}',
            *(f'"{name}":{members[name](event[name])}' for name in rest),
        ]
        return ",".join(parts) + "}"

    return write


def _record(schema: Mapping[str, Any], named: dict[str, Write], absent_if_null: Sequence[str] = ()) -> Write:
    columns = [
        (field["name"], f"{json_text.render(field.get(NAME, field['name']))}:", _optional(field["type"], named))
        for field in schema["fields"]
    ]

    def write(record: Mapping[str, Any]) -> str:
        texts = [
            label + value(record[name])
            for name, label, value in columns
            if name not in absent_if_null or record[name] is not None
        ]
        return "{" + ",".join(texts) + "}"

    named[full_name(schema)] = write
    return write


def _optional(schema: Any, named: dict[str, Write]) -> Write:
    if not isinstance(schema, list):
        return _writer(schema, named)
    (other,) = (one for one in schema if one != "null")
    write = _writer(other, named)
    return lambda value: "null" if value is None else write(value)


def _writer(schema: Any, named: dict[str, Write]) -> Write:
    if isinstance(schema, str):
        return named[schema] if schema in named else _BY_TYPE[schema]
    if schema.get("connect.name") == SCALED:
        named[SCALED] = _scaled
        return _scaled
    if schema["type"] == "record":
        return _record(schema, named)
    if schema["type"] == "map":
        write = _writer(schema["values"], named)
        return lambda value: "{" + ",".join(f"{json_text.render(key)}:{write(one)}" for key, one in value.items()) + "}"
    if schema.get("connect.name") == JSON or schema.get("connect.parameters", {}).get(TYPE) == "unsigned":
        return str  # the text is JSON already
    return _BY_TYPE[schema["type"]]


def _binary(value: bytes | Decimal) -> str:
    if isinstance(value, Decimal):  # a whole number
        return format(value, "f")
    return f'"{base64.b64encode(value).decode()}"'


def _scaled(value: Mapping[str, Any]) -> str:
    unscaled = int.from_bytes(value["value"], "big", signed=True)
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    return f'"{Decimal((sign, digits, -value["scale"])):f}"'


_BY_TYPE: Final[Mapping[str, Write]] = {
    "boolean": lambda value: "true" if value else "false",
    "int": str,
    "long": str,
    "float": json_text.render,
    "double": json_text.render,
    "string": json_text.render,
    "bytes": _binary,
}
