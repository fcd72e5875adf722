"""Kafka records with keys and values in Avro → the same records with JSON, in Python: for all that avro_envelope.py doesn't read.

A record that already is JSON stays as it is: a topic may have both, from before and after a change of the daemon's format. Bytes
that can't be read become a text that says so, and the jobs treat it like everything that is no change event. An event whose
schema the registry doesn't have ends the query instead, unless it is in a topic of another daemon: a registry that has lost its
data must not make dead letters of good events.

The functions run in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.avro_schemas import head_of
from spark_jobs.contract.avro_text import HEADER_BYTES, MAGIC, Convert, UnreadableAvroError, converter, schema_id
from spark_jobs.contract.python_function import python_function
from spark_jobs.contract.registry import Registry, UnknownSchemaError

_NO_SCHEMA: Final = "\0no schema: "
"""Beginning of the text that stands for an event without a schema. No other value begins with a zero byte."""
_converters: Final[dict[tuple[Registry, int], Convert]] = {}
"""Those that this process has made. A worker lives as long as the session, and gets a copy of its function for each task."""


def as_json(registry: Registry) -> Callable[[bytes | None], bytes | None]:
    """Return a function from the bytes of a key or a value to those of its JSON."""

    def convert(data: bytes | bytearray | None) -> bytes | None:
        if data is None or not data or data[0] != MAGIC:
            return None if data is None else bytes(data)
        try:
            return _converter(registry, schema_id(data))(bytes(data[HEADER_BYTES:])).encode()
        except UnreadableAvroError as error:
            return f"{len(data)} bytes that aren't the Avro of their schema: {error}".encode()
        except UnknownSchemaError as error:
            return f"{_NO_SCHEMA}{error}".encode()

    return convert


def with_json(records: DataFrame, registry: Registry) -> DataFrame:
    """Return records whose keys and values are JSON."""
    # Otherwise Spark would move a filter of the result before the conversion, and convert twice.
    read = python_function(as_json(registry), "binary").asNondeterministic()
    return records.withColumns({name: read(F.col(name)) for name in ("key", "value")})


def with_schemas(records: DataFrame) -> DataFrame:
    """Return the records of `with_json`; the query ends at one whose schema the registry doesn't have."""
    sentence = f"substring(cast(value as string), {len(_NO_SCHEMA) + 1})"
    is_unknown = f"startswith(value, X'{_NO_SCHEMA.encode().hex()}')"
    return records.withColumn("value", F.expr(f"if({is_unknown}, raise_error({sentence}), value)"))


def with_left_to_python(records: DataFrame, registry: Registry, left: Mapping[str, Sequence[int]]) -> DataFrame:
    """Return the records, with the JSON of those with the schemas `left`, by the name of the column. Others stay as they are."""
    changed = {}
    for name, numbers in left.items():
        if numbers:
            is_left = F.expr(f"substring({name}, 1, {HEADER_BYTES}) in ({', '.join(map(head_of, numbers))})")
            read = python_function(as_json(registry), "binary").asNondeterministic()
            changed[name] = F.when(is_left, read(F.when(is_left, F.col(name)))).otherwise(F.col(name))
    return records.withColumns(changed) if changed else records


def _converter(registry: Registry, number: int) -> Convert:
    found = _converters.get((registry, number))
    if found is None:
        found = _converters[registry, number] = converter(registry.schema(number))
    return found
