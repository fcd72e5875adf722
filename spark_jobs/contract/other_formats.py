"""Forms in which a daemon may publish and that the jobs don't read: how their records are recognized, and what to do."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its customary name

WHAT_JOBS_READ: Final = (
    'The jobs read format.key and format.value "json" and "avro", with format.envelope = "debezium" and format.source = "full":'
    " let a daemon with these settings publish to another kafka.topic_prefix, and read that."
)
"""Sentence for records that no option of a job makes readable."""

_WITH_ID: Final = "\0"
_WITH_SCHEMA: Final = '{"schema":{"type":"struct"'
_REGISTERED: Final = '"avro", "protobuf" or "json_schema_registry"'
_IF_AVRO: Final = "If it is Avro, start the job with --value-format avro and --registry URL. "


def is_with_schema(text: str) -> Column:
    """Return a condition: the column is JSON with its schema beside it. No key or event of the format `json` begins like this."""
    return F.startswith(F.col(text), F.lit(_WITH_SCHEMA))


def complaint() -> Column:
    """Return a sentence about a record in such a form; null for other records.

    Columns: `key` and `text`, the value, as texts, and `source`, as far as it could be read.
    """
    value, key = F.col("text"), F.col("key")
    cases = [
        (F.startswith(value, F.lit(_WITH_ID)), f"its value is in format.value = {_REGISTERED}. {_IF_AVRO}"),
        (is_with_schema("text"), 'its value is in format.value = "json_schema". '),
        (F.startswith(value, F.lit('{"__op":')), 'its value is in format.envelope = "flat". '),
        (F.expr("source.seq is not null and source.space_id is null"), 'its value is in format.source = "lean". '),
        (F.startswith(key, F.lit(_WITH_ID)), f"its key is in format.key = {_REGISTERED}. {_IF_AVRO}"),
        (is_with_schema("key"), 'its key is in format.key = "json_schema". '),
    ]
    found = F.lit(None).cast("string")
    for condition, sentence in reversed(cases):
        found = F.when(condition, F.lit(sentence + WHAT_JOBS_READ)).otherwise(found)
    return found
