"""Kafka records → changes: the envelope of docs/events.md as columns.

Rows stay texts. Spark's JSON reader would write what is nested anew (`1e300` as `1.0E300`, an astral character as two
escapes), so it reads only what surrounds the rows, while `before`, `after`, `patch` and `upsert` are cut out of the message
where the contract's order of fields says they stand. A message in another order or spacing is read too, by Spark's
functions: equal JSON, but not to the byte.

Spark's reader gives null for what it can't read. Nothing here stays silently null: a value that isn't an envelope ends the
query with an error that names its topic, partition and offset; `sorted_out` finds such records so that they can be put aside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

CONTROL_TOPICS: Final = ("transaction", "schema", "snapshot", "checkpoint", "heartbeat", "dlq")
"""What may follow the prefix without being a space."""

ROWS: Final = ("before", "after", "patch", "upsert")
"""The members that stay texts."""

CONTROL: Final = "control"
"""The `op` of a record that isn't a change; see `parse`."""

SOURCE: Final = StructType(
    [
        StructField("version", StringType()),
        StructField("connector", StringType()),
        StructField("name", StringType()),
        StructField("ts_ms", LongType()),
        StructField("ts_us", LongType()),
        StructField("ts_ns", LongType()),
        StructField("snapshot", StringType()),
        StructField("db", StringType()),
        StructField("sequence", StringType()),
        StructField("table", StringType()),
        StructField("space_id", LongType()),
        StructField("replica_id", LongType()),
        StructField("lsn", LongType()),
        StructField("tsn", LongType()),
        StructField("row", LongType()),
        StructField("seq", LongType()),
        StructField("schema_version", LongType()),
        StructField("server_uuid", StringType()),
        StructField("server_version", StringType()),
        StructField("vclock", MapType(StringType(), LongType())),
        StructField("snapshot_id", StringType()),
    ]
)

TRANSACTION: Final = StructType(
    [
        StructField("id", StringType()),
        StructField("total_order", LongType()),
        StructField("data_collection_order", LongType()),
    ]
)

NO_CHANGE_EVENT: Final = "holds something that is no change event"
"""What the error says of a value that isn't an envelope."""

_MEMBERS: Final = ("source", "transaction", "ts_ms", "ts_us", "ts_ns", *ROWS)

_UNREADABLE: Final = "_unreadable"
_RECORD: Final = "_record"
_KAFKA_COLUMNS: Final = ("topic", "partition", "offset", "timestamp")

# How the rows are cut out of a message. They stand between texts in which every quote is JSON's own; one inside a JSON string is
# escaped, so none of these occurs in a value. A row with maps may have them as keys, which is why the last place counts for the
# source's, and between two rows the one outside all brackets.
_SOURCE_MARK: Final = ',"source":{"version":'
_OP: Final = '{"op":"'
_NULL: Final = '","before":null,"after":'
_IMAGE: Final = '","before":'
_BEHIND_NULL: Final = len(_OP) + 1 + len(_NULL) + 1
_BEHIND_IMAGE: Final = len(_OP) + 1 + len(_IMAGE) + 1
_PATCH: Final = 'null,"patch":'
_BEHIND_PATCH: Final = _BEHIND_NULL + len(_PATCH)
_DELETED: Final = ',"after":null'


def _has(place: int, text: str) -> str:
    """Whether a text stands at this byte of the head: from its begin (from 1), or, if it is negative, from its end."""
    return f"substring(head, {place}, {len(text)}) = X'{text.encode().hex()}'"


def _ends(text: str) -> str:
    return _has(-len(text), text)


def _from(place: int, less: int = 0) -> str:
    """What stands in the head from this byte on, without the last ones."""
    return f"cast(substring(head, {place}, octet_length(head) - {place - 1 + less}) as string)"


def _in_layouts(**members: str) -> str:
    """What is cut out in the layouts named; in those that aren't known, what Spark finds by the member's `path`; else nothing."""
    path = members.pop("path", None)
    cases = " ".join(f"when layout = '{layout}' then {expression}" for layout, expression in members.items())
    other = "" if path is None else f"when layout = '' then get_json_object(text, '{path}')"
    return f"case {cases} {other} end"


_FIRST_BALANCED: Final = (
    "substring_index(both, mark, try_element_at(filter("
    "sequence(1, greatest(size(split(both, concat('\\\\Q', mark, '\\\\E'))) - 1, 1)),"
    " n -> if(layout = 'images', json_object_keys(concat(substring_index(both, mark, n), '}')) is not null,"
    " json_array_length(concat(substring_index(both, mark, n), ']')) is not null)), 1))"
)

# Columns, each made of some before it: where these are used more than once, Spark works them out once, while within a single
# expression it would search the message again for each. `head` is the message up to its `source`, without the comma, or empty:
# in bytes, as places in bytes are reached at once, and characters have to be counted. How it begins and ends tells which members
# it has; `both` are two of them with a mark in between, nearly always the only one.
_STEPS: Final[Mapping[str, str]] = {
    "tail": f"octet_length(substring_index(text, '{_SOURCE_MARK}', -1))",
    "head": "if(tail < octet_length(text),"
    f" substring(cast(text as binary), 1, octet_length(text) - tail - {len(_SOURCE_MARK)}), X'')",
    "layout": f"case when not {_has(1, _OP)} then ''"
    f" when {_has(len(_OP) + 2, _IMAGE + '{')} then"
    f" case when {_ends(_DELETED)} then 'before' when {_ends('}')} then 'images' else '' end"
    f" when not {_has(len(_OP) + 2, _NULL)} then ''"
    f" when {_has(_BEHIND_NULL, '{')} and {_ends('}')} then 'after'"
    f" when {_has(_BEHIND_NULL, _PATCH + '[')} then"
    f" case when {_ends(']')} then 'patch' when {_ends('}')} then 'upsert' else '' end"
    f" when {_has(_BEHIND_NULL, 'null')} and {_ends('null')} then 'none' else '' end",
    "both": _in_layouts(images=_from(_BEHIND_IMAGE), upsert=_from(_BEHIND_PATCH)),
    "mark": _in_layouts(images="""'},"after":{'""", upsert="""'],"upsert":{'"""),
    "up_to_first": "substring_index(both, mark, 1)",
    "behind_last": "substring_index(both, mark, -1)",
    "is_once": "octet_length(up_to_first) + octet_length(behind_last) + octet_length(mark) = octet_length(both)",
    "left": f"if(is_once, up_to_first, {_FIRST_BALANCED})",
    "right": "if(is_once, behind_last, substring(both, length(left) + length(mark) + 1))",
}
_ROWS: Final[Mapping[str, str]] = {
    "before": _in_layouts(images="concat(left, '}')", before=_from(_BEHIND_IMAGE, len(_DELETED)), path="$.before"),
    "after": _in_layouts(images="concat('{', right)", after=_from(_BEHIND_NULL), path="$.after"),
    "patch": _in_layouts(patch=_from(_BEHIND_PATCH), upsert="concat(left, ']')", path="$.patch"),
    "upsert": _in_layouts(upsert="concat('{', right)", path="$.upsert"),
}


def parse(records: DataFrame, *, source_fields: Collection[str] = SOURCE.names, control: Collection[str] = ()) -> DataFrame:
    """Changes, one row each, of a frame with the columns of Spark's Kafka source. Tombstones are left out.

    Columns: op, key, before, after, patch, upsert (texts), source, transaction (structs), ts_ms, ts_us, ts_ns, topic,
    partition, offset, timestamp. A job that needs few of the `source_fields` reads faster; `table`, `space_id`, `seq` and
    `schema_version` are always there. Records of the topics named in `control` come as op CONTROL with no other field but
    Kafka's.
    """
    cut = _cut(records.where(F.col("value").isNotNull()), source_fields)
    # A job's filter must stay behind the reading: moved before it, it would read every message a second time. Spark moves
    # none past what isn't the same in every run, as the number of a partition.
    is_read = F.spark_partition_id() >= 0
    op = F.when(is_read & _is_change(), F.col("op")).otherwise(F.raise_error(_complaint()))
    members = [F.col(name) for name in _MEMBERS]
    if control:
        is_control = F.col("topic").isin(*control)
        op = F.when(is_control, F.lit(CONTROL)).otherwise(op)
        members = [F.when(~is_control, member).alias(name) for member, name in zip(members, _MEMBERS, strict=True)]
    return cut.select(op.alias("op"), "key", *members, "topic", "partition", "offset", "timestamp")


def sorted_out(records: DataFrame, control: Collection[str] = ()) -> DataFrame:
    """The records, with a column `sentence`: what is wrong with those that `parse` would end the query at, null in the others."""
    is_wrong = F.col("value").isNotNull() & ~_is_change()
    if control:
        is_wrong &= ~F.col("topic").isin(*control)
    cut = _cut(records.withColumn(_RECORD, F.struct("*")), SOURCE.names, _RECORD, "value")
    return cut.select(f"{_RECORD}.*", F.when(is_wrong, _complaint()).alias("sentence"))


def _cut(records: DataFrame, source_fields: Collection[str], *kept: str) -> DataFrame:
    """The members of the envelopes as columns, beside Kafka's and those that are to be kept; nulls where they can't be read."""
    wanted = {*source_fields, "table", "space_id", "seq", "schema_version"}
    schema = StructType(
        [
            StructField("op", StringType()),
            StructField("source", StructType([field for field in SOURCE.fields if field.name in wanted])),
            StructField("transaction", TRANSACTION),
            StructField("ts_ms", LongType()),
            StructField("ts_us", LongType()),
            StructField("ts_ns", LongType()),
            StructField(_UNREADABLE, StringType()),
        ]
    )
    # In one step, since each one takes time in every batch, however few records that has.
    cut = records.select(
        *_KAFKA_COLUMNS,
        *kept,
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("text"),
        F.from_json(F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": _UNREADABLE}).alias("envelope"),
        *(F.expr(expression).alias(name) for name, expression in _STEPS.items()),
    )
    rows = (F.expr(expression).alias(name) for name, expression in _ROWS.items())
    return cut.select(*_KAFKA_COLUMNS, *kept, "key", "text", "envelope.*", *rows)


def _is_change() -> Column:
    """Whether a message is an envelope with all that jobs rely on."""
    op, source = F.col("op"), F.col("source")
    has_images = (
        F.when(op.isin("c", "r"), F.col("after").isNotNull())
        .when(op == "u", F.col("after").isNotNull() | F.col("patch").isNotNull())
        .otherwise(op.isin("d", "t"))
    )
    return F.coalesce(
        F.col(_UNREADABLE).isNull()
        & F.expr("endswith(rtrim(text), '}')")  # the reader passes over what follows the object
        & has_images
        & _is_null_or("{", "before", "after", "upsert")
        & _is_null_or("[", "patch")
        & source["table"].isNotNull()
        & source["space_id"].isNotNull()
        & source["seq"].isNotNull()
        & source["schema_version"].isNotNull()
        & (F.col("key").isNotNull() | (op == "t")),
        F.lit(False),
    )


def _is_null_or(begin: str, *names: str) -> Column:
    """Whether these texts begin so; one that doesn't would end every job that makes something of it later."""
    each = [F.coalesce(F.startswith(F.col(name), F.lit(begin)), F.lit(True)) for name in names]
    return reduce(and_, each)


def _complaint() -> Column:
    return F.concat(
        F.lit("topic "),
        F.col("topic"),
        F.lit(", partition "),
        F.col("partition").cast("string"),
        F.lit(", offset "),
        F.col("offset").cast("string"),
        F.lit(f" {NO_CHANGE_EVENT}: "),
        F.substring("text", 1, 300),
    )
