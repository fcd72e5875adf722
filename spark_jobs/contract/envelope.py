"""Kafka records → changes: the envelope of docs/events.md as columns.

Rows stay texts. Spark's JSON reader would rewrite nested values (`1e300` as `1.0E300`, an astral character as two escapes). It
therefore reads only the members around the rows. `before`, `after`, `patch` and `upsert` are cut out of the message, at the
places that follow from the contract's order of fields. A message with another order or spacing is also read, by Spark's
functions: the JSON is then equal, but not byte for byte.

Spark's reader returns null for a value that it can't read. This module never leaves such a null unnoticed: a value that isn't an
envelope ends the query with an error that names its topic, partition and offset. `with_fault_column` finds such records, so that
they can become dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType

from spark_jobs.contract import other_formats
from spark_jobs.contract.avro_envelope import IS_AVRO, AvroEnvelope
from spark_jobs.contract.avro_schemas import Schemas

CONTROL_TOPICS: Final = ("transaction", "schema", "snapshot", "checkpoint", "heartbeat", "dlq")
"""Names that may follow the prefix in a topic without being a space."""

OPTIONAL_TOPICS: Final = ("signal", "notification")
"""Names of control topics that only some daemons have. Under other prefixes, spaces may have these names: what the schema topic
names, or holds the owner's events, is a space."""

OF_SHARDS: Final = ("buckets",)
"""Names of further control topics that only the shards of a fleet have."""

ROWS: Final = ("before", "after", "patch", "upsert")
"""The members of an envelope that stay texts."""

CONTROL: Final = "control"
"""The `op` that `parse` gives to a record of a control topic."""

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
        StructField("shard", StringType()),
    ]
)

TRANSACTION: Final = StructType(
    [
        StructField("id", StringType()),
        StructField("total_order", LongType()),
        StructField("data_collection_order", LongType()),
    ]
)

_UNKNOWN_SHARD: Final = (
    ", which wasn't there when the job began, or whose topic <prefix>.<shard>.schema the job may not read. The seqs of different"
    " shards can't be compared. Give the job the right to read that topic, and start it again."
)

_LONG_NAME: Final = r'"[^"]{50001,}+"\s*:'
_TOO_LONG: Final = "an event with a name of a field, or a key of a map, of more characters than Spark can read (50,000),"

NO_CHANGE_EVENT: Final = "holds something that is no change event"
"""Part of the error text for a value that isn't an envelope."""


@dataclass(frozen=True)
class Names:
    """The values of `source.name` in a daemon's own events.

    Events of other daemons are left out. With `doubt` they end the query instead, with an error that ends in this text.
    """

    own: frozenset[str]
    doubt: str | None = None
    shards: tuple[str, ...] = ()
    """The shards of a fleet whose events are expected. One of another shard ends the query, if it has the fleet's own name."""


_TIMES: Final = ("ts_ms", "ts_us", "ts_ns")
_MEMBERS: Final = ("source", "transaction", *_TIMES, *ROWS)
ALL: Final = (*_MEMBERS, *(f"transaction.{name}" for name in TRANSACTION.names))
"""What `parse` can be asked for, beside fields of `source`."""


_ALWAYS: Final = ("table", "space_id", "seq", "schema_version")
"""Fields of `source` that are always read."""
_TYPES: Final[Mapping[str, DataType]] = {
    "transaction": TRANSACTION,
    **dict.fromkeys(_TIMES, LongType()),
    **dict.fromkeys(ROWS, StringType()),
}
_UNREADABLE: Final = "_unreadable"
_FAULT: Final = "_fault"
_IS_WHOLE: Final = "_is_whole"
"""Column with whether a message is one complete JSON object, or its equal in Avro."""
_RECORD: Final = "_record"
_STRICTLY: Final = {"columnNameOfCorruptRecord": _UNREADABLE, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
"""Options of Spark's JSON reader, which by default accepts what no other reader of the rows' texts would."""
_KAFKA_COLUMNS: Final = ("topic", "partition", "offset", "timestamp")

# These texts delimit the rows in a message. Every quote in them is part of JSON's syntax. A quote inside a JSON string is
# escaped, so none of these texts occurs inside a value. A row with maps may contain them as keys. For the mark of `source` the
# last occurrence therefore counts, and between two rows the occurrence outside all brackets.
_SOURCE_MARK: Final = ',"source":{"version":'
_OP: Final = '{"op":"'
_NULL: Final = '","before":null,"after":'
_IMAGE: Final = '","before":'
_PART: Final = 256
"""Number of bytes at the end of a message in which the mark of `source` is first looked for.

Spark finds out quickly whether a text contains another one, by its first byte. To find where, it compares both at each place.
"""
_OVERLAP: Final = len(_SOURCE_MARK) - 1
_BEHIND_NULL: Final = len(_OP) + 1 + len(_NULL) + 1
_BEHIND_IMAGE: Final = len(_OP) + 1 + len(_IMAGE) + 1
_PATCH: Final = 'null,"patch":'
_BEHIND_PATCH: Final = _BEHIND_NULL + len(_PATCH)
_DELETED: Final = ',"after":null'


def _has(place: int, text: str) -> str:
    """Return an SQL condition: the head has `text` at the byte `place`, counted from 1, or from the end if negative."""
    return f"substring(head, {place}, {len(text)}) = X'{text.encode().hex()}'"


def _has_mark_in_last(count: int) -> str:
    """Return an SQL condition: the mark of `source` is in the last `count` bytes of the message."""
    return f"contains(cast(substring(cast(text as binary), -{count}) as string), '{_SOURCE_MARK}')"


def _ends(text: str) -> str:
    return _has(-len(text), text)


def _from(place: int, less: int = 0) -> str:
    """Return an SQL expression: the head from the byte `place` on, without its last `less` bytes."""
    return f"cast(substring(head, {place}, octet_length(head) - {place - 1 + less}) as string)"


def _in_layouts(**members: str) -> str:
    """Return an SQL expression for a member: by layout, the expression that cuts it out of the message.

    In an unknown layout Spark finds the member by its JSON `path`. In all other layouts the member is null.
    """
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

# Columns, each computed from earlier ones. Spark computes a column once, even if it is used several times; within a single
# expression Spark would search the message again for each use. `head` is the message up to its `source`, without the comma, or
# empty. It is in bytes, because a position in bytes is reached directly, while characters have to be counted. The beginning and
# the end of the head show which members it has (`layout`). `both` is two members with `mark` between them; the mark nearly
# always occurs only once. The mark of `source` isn't in the last `skipped` bytes of the message, so it isn't looked for there.
_STEPS: Final[Mapping[str, str]] = {
    "skipped": f"case when not {_has_mark_in_last(2 * _PART)} then {2 * _PART - _OVERLAP}"
    f" when not {_has_mark_in_last(_PART)} then {_PART - _OVERLAP} else 0 end",
    "tail": "skipped + octet_length(substring_index(cast(substring(cast(text as binary), 1, octet_length(text) - skipped)"
    f" as string), '{_SOURCE_MARK}', -1))",
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
    "behind": "cast(substring(cast(both as binary), octet_length(up_to_first) + octet_length(mark) + 1) as string)",
    "is_once": "octet_length(up_to_first) < octet_length(both) and not contains(behind, mark)",
    "left": f"if(is_once, up_to_first, {_FIRST_BALANCED})",
    "right": "if(is_once, behind, substring(both, length(left) + length(mark) + 1))",
}
_ROWS: Final[Mapping[str, str]] = {
    "before": _in_layouts(images="concat(left, '}')", before=_from(_BEHIND_IMAGE, len(_DELETED)), path="$.before"),
    "after": _in_layouts(images="concat('{', right)", after=_from(_BEHIND_NULL), path="$.after"),
    "patch": _in_layouts(patch=_from(_BEHIND_PATCH), upsert="concat(left, ']')", path="$.patch"),
    "upsert": _in_layouts(upsert="concat('{', right)", path="$.upsert"),
}


def parse(
    records: DataFrame,
    *,
    source_fields: Collection[str] = SOURCE.names,
    control: Collection[str] = (),
    names: Names | None = None,
    wanted: Collection[str] = ALL,
    schemas: Schemas | None = None,
) -> DataFrame:
    """Return one row per change of `records`, a frame with the columns of Spark's Kafka source. Tombstones are left out.

    Columns: op, key, before, after, patch, upsert (texts), source, transaction (structs), ts_ms, ts_us, ts_ns, topic,
    partition, offset, timestamp. Parsing is faster with few `source_fields`; `table`, `space_id`, `seq` and `schema_version`
    are always included. Records of the topics in `control` have op CONTROL, and otherwise only Kafka's own fields. A record that
    isn't a change event ends the query with an error. With `names` only those events count.

    With `schemas` some of the records are in Avro. These have only the `wanted` members beside `op` and `source`; the others are
    null. If the schemas lack that of a record, the query ends with an error that `Schemas.learn_from` knows.
    """
    named = () if names is None else ("name", "shard")
    fields = {*source_fields, *named, *_ALWAYS}
    avro = None if schemas is None else _avro(schemas, fields, wanted)
    changes = records.where(F.col("value").isNotNull())
    cut = _cut(changes, fields) if avro is None else _cut_avro(changes, fields, avro)
    # Spark must apply a job's filter after parsing. A filter that it moved before the parsing would parse every message a second
    # time. Spark moves no filter past a nondeterministic expression, such as the number of a partition.
    is_read = F.spark_partition_id() >= 0
    op = F.when(is_read & _is_change(), F.col("op")).otherwise(F.raise_error(_complaint()))
    if avro is not None:
        op = F.when(F.col(_FAULT).isNotNull(), F.raise_error(F.col(_FAULT))).otherwise(op)
    members = [F.col(name) for name in _MEMBERS]
    if control:
        is_control = F.col("topic").isin(*control)
        op = F.when(is_control, F.lit(CONTROL)).otherwise(op)
        members = [F.when(~is_control, member).alias(name) for member, name in zip(members, _MEMBERS, strict=True)]
    parsed = cut.select(op.alias("op"), "key", *members, "topic", "partition", "offset", "timestamp")
    return parsed if names is None else parsed.where(_is_own(names))


def with_fault_column(records: DataFrame, control: Collection[str] = ()) -> DataFrame:
    """Return the records with a column `sentence`: the fault of a record at which `parse` would end the query, else null."""
    is_wrong = F.col("value").isNotNull() & ~_is_change()
    if control:
        is_wrong &= ~F.col("topic").isin(*control)
    cut = _cut(records.withColumn(_RECORD, F.struct("*")), SOURCE.names, _RECORD, "value")
    return cut.select(f"{_RECORD}.*", F.when(is_wrong, _complaint()).alias("sentence"))


def _cut(records: DataFrame, source_fields: Collection[str], *kept: str) -> DataFrame:
    """Return the members of the envelopes as columns, null where unreadable, beside Kafka's columns and the `kept` ones."""
    schema = StructType(
        [
            StructField("op", StringType()),
            StructField("source", _source(source_fields)),
            StructField("transaction", TRANSACTION),
            StructField("ts_ms", LongType()),
            StructField("ts_us", LongType()),
            StructField("ts_ns", LongType()),
            StructField(_UNREADABLE, StringType()),
        ]
    )
    # All in one select: each further select costs time in every batch, even in one with few records.
    cut = records.select(
        *_KAFKA_COLUMNS,
        *kept,
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("text"),
        F.from_json(F.col("value").cast("string"), schema, _STRICTLY).alias("envelope"),
        *(F.expr(expression).alias(name) for name, expression in _STEPS.items()),
    )
    rows = (F.expr(expression).alias(name) for name, expression in _ROWS.items())
    is_whole = F.col(f"envelope.{_UNREADABLE}").isNull() & F.expr("endswith(rtrim(text), '}')")  # the reader ignores the rest
    return cut.select(*_KAFKA_COLUMNS, *kept, "key", "text", "layout", is_whole.alias(_IS_WHOLE), "envelope.*", *rows)


def _source(fields: Collection[str]) -> StructType:
    return StructType([field for field in SOURCE.fields if field.name in fields])


def _avro(schemas: Schemas, source_fields: Collection[str], wanted: Collection[str]) -> AvroEnvelope:
    parts = StructType([field for field in TRANSACTION.fields if f"transaction.{field.name}" in wanted])
    structs = {"source": _source(source_fields), **({"transaction": parts} if parts.fields else {})}
    return AvroEnvelope(schemas, structs, [name for name in (*_TIMES, *ROWS) if name in wanted])


def _cut_avro(records: DataFrame, source_fields: Collection[str], avro: AvroEnvelope) -> DataFrame:
    """Return what `_cut` returns, of records of which some are in Avro."""
    read = avro.read(records)
    members = {name: avro.member(name) for name in ("op", *_MEMBERS) if name in avro}
    beside = {"layout": F.lit("avro"), _IS_WHOLE: F.lit(True), "text": F.lit("")}
    if not avro.has_json:
        nothing = {name: F.lit(None).cast(kind) for name, kind in _TYPES.items() if name not in members}
        return read.select(*_KAFKA_COLUMNS, "key", avro.fault().alias(_FAULT), *_named({**beside, **nothing, **members}))
    cut = _cut(read, source_fields, *avro.columns)
    others = {name: F.when(F.col(IS_AVRO), found).otherwise(F.col(name)) for name, found in {**beside, **members}.items()}
    rest = [name for name in _TYPES if name not in others]
    return cut.select(*_KAFKA_COLUMNS, "key", avro.fault().alias(_FAULT), *rest, *_named(others))


def _named(columns: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def _is_change() -> Column:
    """Return a condition: the message is an envelope with all the members that jobs rely on."""
    op, source = F.col("op"), F.col("source")
    has_images = (
        F.when(op.isin("c", "r"), F.col("after").isNotNull())
        .when(op == "u", F.col("after").isNotNull() | F.col("patch").isNotNull())
        .otherwise(op.isin("d", "t"))
    )
    return F.coalesce(
        F.col(_IS_WHOLE)
        & has_images
        # In a known layout the texts begin so, and what isn't read otherwise, such as `before`, isn't cut out for this.
        & ((F.col("layout") != "") | (_is_null_or("{", "before", "after", "upsert") & _is_null_or("[", "patch")))
        & source["table"].isNotNull()
        & source["space_id"].isNotNull()
        & (source["seq"] >= 0)
        & source["schema_version"].isNotNull()
        & (_has_key() | (op == "t")),
        F.lit(False),
    )


def _is_own(names: Names) -> Column:
    """Return a condition: the event has one of the names. A control record has none."""
    name, shard = F.col("source.name"), F.col("source.shard")
    place = F.concat(F.lit("topic "), "topic", F.lit(", partition "), F.col("partition").cast("string"))
    # In topics that shards share, source.name is the fleet's. Else it ends in the shard, and seqs are those of one daemon.
    is_strange = shard.isNotNull() & ~shard.isin(*names.shards) & ~F.endswith(name, F.concat(F.lit("."), shard))
    error = F.raise_error(F.concat(place, F.lit(" has an event of the shard "), shard, F.lit(_UNKNOWN_SHARD)))
    is_own = F.coalesce(name.isin(*names.own), F.lit(True))
    is_own &= F.when(F.coalesce(is_own & is_strange, F.lit(False)), error.isNull()).otherwise(F.lit(True))
    if names.doubt is None:
        return is_own
    return is_own | F.raise_error(F.concat(place, F.lit(" has an event of the daemon "), name, F.lit(names.doubt))).isNull()


def _has_key() -> Column:
    """Return a condition: the record's key has the ends of a JSON object. Reading all of it would cost time for each record."""
    has_ends = F.startswith(F.col("key"), F.lit("{")) & F.endswith(F.col("key"), F.lit("}"))
    return F.coalesce(has_ends & ~other_formats.is_with_schema("key"), F.lit(False))


def _is_null_or(begin: str, *names: str) -> Column:
    """Return a condition: each text is null or begins with `begin`. Any other text would fail in later steps of the jobs."""
    each = [F.coalesce(F.startswith(F.col(name), F.lit(begin)), F.lit(True)) for name in names]
    return reduce(and_, each)


def _complaint() -> Column:
    what = F.concat(F.lit("the record's key isn't a JSON object: "), F.coalesce(F.substring("key", 1, 300), F.lit("null")))
    # No message may show a row, and this may be a damaged event.
    is_event = F.col("text").rlike('"(before|after|patch|upsert)"')
    fault = F.when(F.col("text").rlike(_LONG_NAME), _TOO_LONG).otherwise("a damaged event")
    damaged = F.concat(fault, F.lit(" of "), F.length("text").cast("string"), F.lit(" characters"))
    return F.concat(
        F.lit("topic "),
        F.col("topic"),
        F.lit(", partition "),
        F.col("partition").cast("string"),
        F.lit(", offset "),
        F.col("offset").cast("string"),
        F.lit(f" {NO_CHANGE_EVENT}: "),
        F.coalesce(
            other_formats.complaint(),
            F.when(F.col("op").isin("c", "r", "u", "d") & ~_has_key(), what)
            .when(is_event, damaged)
            .otherwise(F.substring("text", 1, 300)),
        ),
    )
