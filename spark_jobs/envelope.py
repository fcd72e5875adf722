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

# The texts between which the rows stand. A quote inside a JSON string is escaped, so none of these occurs in a value; a row
# with maps may have them as keys, which is why the last place counts for SOURCE and the first balanced one for the others.
_SOURCE_MARK: Final = ',"source":{"version":'
_HEAD_OF_NULL: Final = '{"op":"?","before":null,"after":'
_HEAD_OF_IMAGE: Final = '{"op":"?","before":'


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
    texts = records.select(
        *_KAFKA_COLUMNS,
        *kept,
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("text"),
        F.from_json(F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": _UNREADABLE}).alias("envelope"),
        _head(F.col("value").cast("string")).alias("head"),
    )
    return texts.withColumn("rows", _rows()).select(*_KAFKA_COLUMNS, *kept, "key", "text", "envelope.*", "rows.*")


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
        & source["table"].isNotNull()
        & source["space_id"].isNotNull()
        & source["seq"].isNotNull()
        & source["schema_version"].isNotNull()
        & (F.col("key").isNotNull() | (op == "t")),
        F.lit(False),
    )


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


def _head(text: Column) -> Column:
    """The message up to its `source`, without the comma; empty where the mark is missing.

    In bytes, as all that is cut out of it: places in bytes are reached at once, characters have to be counted.
    """
    bytes_ = text.cast("binary")
    tail = F.octet_length(F.substring_index(text, _SOURCE_MARK, -1))
    length = F.octet_length(text)
    return F.when(tail < length, F.substring(bytes_, F.lit(1), length - tail - len(_SOURCE_MARK))).otherwise(F.lit(b""))


def _rows() -> Column:
    """The texts of before, after, patch and upsert, null where they are absent or null, of `head` or else of `text`."""
    after_null, after_image = _from(len(_HEAD_OF_NULL) + 1), _from(len(_HEAD_OF_IMAGE) + 1)
    patch_mark, deleted = 'null,"patch":', ',"after":null'
    patches = _from(len(_HEAD_OF_NULL) + len(patch_mark) + 1)
    balanced_patch, balanced_row = "json_array_length", "json_object_keys"
    # (how the head begins, how it ends, the members), the first that fits
    layouts: tuple[tuple[str, str, dict[str, str]], ...] = (
        (_HEAD_OF_NULL + "{", "}", {"after": after_null}),
        (_HEAD_OF_NULL + patch_mark + "[", "]", {"patch": patches}),
        (
            _HEAD_OF_NULL + patch_mark + "[",
            "}",
            {
                "patch": _left(patches, '],"upsert":{', balanced_patch),
                "upsert": _right(patches, '],"upsert":{', balanced_patch),
            },
        ),
        (_HEAD_OF_NULL + "null", "null", {}),
        (_HEAD_OF_IMAGE + "{", deleted, {"before": _from(len(_HEAD_OF_IMAGE) + 1, len(deleted))}),
        (
            _HEAD_OF_IMAGE + "{",
            "}",
            {
                "before": _left(after_image, '},"after":{', balanced_row),
                "after": _right(after_image, '},"after":{', balanced_row),
            },
        ),
    )
    cases = " ".join(f"when {_fits(begin, end)} then {_struct(members)}" for begin, end, members in layouts)
    others = _struct({name: f"get_json_object(text, '$.{name}')" for name in ROWS})
    return F.expr(f"case {cases} else {others} end")


def _struct(members: Mapping[str, str]) -> str:
    pairs = (f"'{name}', {members.get(name, 'cast(null as string)')}" for name in ROWS)
    return f"named_struct({', '.join(pairs)})"


def _fits(begin: str, end: str) -> str:
    """Whether the head begins, but for the letter of the operation, and ends so."""
    before, after = begin.split("?")
    return (
        f"substring(head, 1, {len(before)}) = {_binary(before)}"
        f" and substring(head, {len(before) + 2}, {len(after)}) = {_binary(after)}"
        f" and substring(head, {-len(end)}, {len(end)}) = {_binary(end)}"
    )


def _binary(text: str) -> str:
    return f"X'{text.encode().hex()}'"


def _from(place: int, less: int = 0) -> str:
    """What stands from this byte (from 1) on, without the last ones."""
    return f"cast(substring(head, {place}, octet_length(head) - {place - 1 + less}) as string)"


def _left(text: str, mark: str, balanced: str) -> str:
    """What stands before `mark`, with the bracket that the mark begins with."""
    left = f"concat(substring_index({text}, '{mark}', 1), '{mark[0]}')"
    return f"if({_is_once(text, mark)}, {left}, concat({_until(text, mark, balanced)}, '{mark[0]}'))"


def _right(text: str, mark: str, balanced: str) -> str:
    """What follows `mark`, with the bracket that the mark ends with."""
    right = f"concat('{mark[-1]}', substring_index({text}, '{mark}', -1))"
    behind = f"substring({text}, length({_until(text, mark, balanced)}) + {len(mark) + 1})"
    return f"if({_is_once(text, mark)}, {right}, concat('{mark[-1]}', {behind}))"


def _is_once(text: str, mark: str) -> str:
    """Whether a text has the mark in one place, as nearly all have: then it needn't be looked at what is balanced."""
    pieces = " + ".join(f"octet_length(substring_index({text}, '{mark}', {end}))" for end in (1, -1))
    return f"{pieces} + {len(mark)} = octet_length({text})"


def _until(text: str, mark: str, balanced: str) -> str:
    """What stands before the first `mark` that lies outside all brackets: where the text before it is whole by itself."""
    count = f"size(split({text}, '\\\\Q{mark}\\\\E'))"
    return (
        f"if({count} = 2, substring_index({text}, '{mark}', 1),"
        f" substring_index({text}, '{mark}', try_element_at(filter(sequence(1, greatest({count} - 1, 1)),"
        f" n -> {balanced}(concat(substring_index({text}, '{mark}', n), '{mark[0]}')) is not null), 1)))"
    )
