"""The columns of the table `changes`, which has one row per event, and of the `changelog`, which has more columns.

The table of events that the job `current` keeps for itself has a part of them.

`before`, `after`, `patch` and `upsert` are texts exactly as they were published. No typed column could hold all of JSON's numbers
and the fields past the format. Also, the form may change with the next event, and a text can be written without knowing the form.
Readers make typed columns from the texts, by the form that is then the latest.

`seq` orders all rows of one daemon. It is unique, and the table has each event once. A truncation is sent to every partition of
its topic; its row comes from the record in partition 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

DATE: Final = "date_from_unix_date(cast(floor(source.ts_us / 86400000000) as int))"
"""SQL expression for the day of an event, in UTC, independent of the session's time zone."""

CHANGES_COLUMNS: Final[Mapping[str, str]] = {
    "space": "source.table",
    "space_id": "source.space_id",
    "seq": "source.seq",
    "op": "op",
    "key": "key",
    "before": "before",
    "after": "after",
    "patch": "patch",
    "upsert": "upsert",
    "source_ts": "timestamp_micros(source.ts_us)",
    "replica_id": "source.replica_id",
    "lsn": "source.lsn",
    "tsn": "source.tsn",
    "row": "source.row",
    "schema_version": "source.schema_version",
    "server_version": "source.server_version",
    "snapshot": "source.snapshot",
    "snapshot_id": "source.snapshot_id",
    "transaction_id": "transaction.id",
    "total_order": "transaction.total_order",
    "daemon": "source.name",
    "kafka_topic": "topic",
    "kafka_partition": "partition",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
}
"""The columns of `changes`, with their SQL expressions over a parsed event. Last comes `batch`, the micro-batch's number."""

SKIPS_BY: Final = ("seq", "space_id", "op", "schema_version", "source_ts", "batch")
"""Those of the columns by whose values readers of `changes` skip files."""

COLUMNS_OF_READERS: Final = (
    *("space", "space_id", "seq", "op", "key", "after", "patch", "upsert", "source_ts", "schema_version", "server_version"),
    *("snapshot", "total_order", "kafka_partition"),
)
"""Those of the columns that the job `current` and its readers need: half of the bytes of an update with both rows."""

SOURCE_FIELDS_OF_READERS: Final = ("name", "ts_us", "snapshot", "server_version")
"""Fields of `source` that these need beside those that are always parsed."""

SOURCE_FIELDS_OF_CHANGES: Final = (
    "name",
    "ts_us",
    "snapshot",
    "replica_id",
    "lsn",
    "tsn",
    "row",
    "server_version",
    "snapshot_id",
)
"""Fields of `source` that `CHANGES_COLUMNS` needs beside those that are always parsed."""

CHANGELOG_COLUMNS: Final[Mapping[str, str]] = {
    "space": "source.table",
    "date": DATE,
    "space_id": "source.space_id",
    "op": "op",
    "key": "key",
    "before": "before",
    "after": "after",
    "patch": "patch",
    "upsert": "upsert",
    "seq": "source.seq",
    "replica_id": "source.replica_id",
    "lsn": "source.lsn",
    "tsn": "source.tsn",
    "row": "source.row",
    "vclock": "source.vclock",
    "sequence": "source.sequence",
    "schema_version": "source.schema_version",
    "server_uuid": "source.server_uuid",
    "server_version": "source.server_version",
    "snapshot": "source.snapshot",
    "snapshot_id": "source.snapshot_id",
    "transaction_id": "transaction.id",
    "total_order": "transaction.total_order",
    "data_collection_order": "transaction.data_collection_order",
    "source_ts": "timestamp_micros(source.ts_us)",
    "ts": "timestamp_micros(ts_us)",
    "daemon": "source.name",
    "daemon_version": "source.version",
    "kafka_topic": "topic",
    "kafka_partition": "partition",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
}
"""The columns of the changelog, with their SQL expressions over a parsed event."""


ONCE: Final = "op <> 't' or kafka_partition = 0"
"""SQL condition that keeps each event once, for rows that contain a truncation once per partition."""


_MEMBER: Final = re.compile(r"(?<![\w.])(?:transaction\.)?(?:before|after|patch|upsert|ts_[mun]s|(?<=transaction\.)\w+)\b")


def members_of(columns: Mapping[str, str]) -> set[str]:
    """Return the members of an envelope, beside `op` and `source`, that the SQL expressions of columns need."""
    return {found for expression in columns.values() for found in _MEMBER.findall(expression)}


def event_rows(events: DataFrame, columns: Mapping[str, str], *more: Column) -> DataFrame:
    """Return one row per event of the result of `envelope.parse`, with the columns `more` at the end."""
    return record_rows(events.where("op <> 't' or partition = 0"), columns, *more)


def record_rows(events: DataFrame, columns: Mapping[str, str], *more: Column) -> DataFrame:
    """Return one row per record: like `event_rows`, but with a row for a truncation's record in each partition."""
    return events.select(*(F.expr(expression).alias(name) for name, expression in columns.items()), *more)
