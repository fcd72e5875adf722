"""The columns of the table `changes`, which has one row per event, and of the `changelog`, which has more of them.

`before`, `after`, `patch` and `upsert` are texts exactly as they were published: of JSON's numbers and of fields past the
format no typed column holds all, a form can be another one in the next event, and a text needs no form to be written. What is
typed is made from them where it is read, by the form that is then the latest.

`seq` orders all rows of one daemon; it is unique, and the table has each event once. A truncation, which is sent to every
partition of its topic, is its record in partition 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

DATE: Final = "date_from_unix_date(cast(floor(source.ts_us / 86400000000) as int))"
"""The day of an event: of UTC, whatever the session's zone is."""

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
"""The columns of `changes` and what of a parsed event they are made of; the number of its micro-batch, `batch`, comes last."""

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
"""What `CHANGES_COLUMNS` needs of `source` beside what is always parsed."""

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
"""The columns of the changelog and what they are made of."""


ONCE: Final = "op <> 't' or kafka_partition = 0"
"""Of rows in which a truncation is as often as there are partitions, each event once."""


def event_rows(events: DataFrame, columns: Mapping[str, str], *more: Column) -> DataFrame:
    """One row per event of what `envelope.parse` gave; with more columns at the end."""
    return record_rows(events.where("op <> 't' or partition = 0"), columns, *more)


def record_rows(events: DataFrame, columns: Mapping[str, str], *more: Column) -> DataFrame:
    """One row per record: as `event_rows`, but a truncation is there for each partition, at its place in that one."""
    return events.select(*(F.expr(expression).alias(name) for name, expression in columns.items()), *more)
