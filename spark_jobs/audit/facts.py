"""Computation of the facts that job `audit` needs of a batch: frames of changes in, frames of facts out.

No tables, topics or state.

All facts are ordered by `seq` or by offset, never by the order in which rows arrive, so the relative reading progress of the
topics' partitions doesn't matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit.numbers import BUCKET_BITS, BUCKET_SIZE
from spark_jobs.contract.envelope import CONTROL
from spark_jobs.contract.row_texts import fields_of

SOURCE_FIELDS: Final = ("replica_id", "lsn", "server_version", "snapshot_id", "ts_ms")

LAST_IMAGE_SCHEMA: Final = (
    "key_hash bigint, seq bigint, op string, has_after boolean, has_images boolean, version bigint, text_hash bigint,"
    " values_hash bigint, topic string, partition int, offset bigint"
)
"""Last known change of each key; `key_hash` is the hash of the space's id and the key's text."""

FLOOR_SCHEMA: Final = "space_id bigint, up_to bigint, at bigint"
"""Removals of a space's rows: rows whose last change has a seq up to `up_to` don't exist for events after `at`."""

_NULLS_AT_THE_END: Final = r"""r'(?:,"(?:[^"\\]|\\.)*":null)+\}$'"""
"""Regular expression for members of a row's text that are null and that no other member follows, as a literal of SQL."""

TRANSACTION_SCHEMA: Final = "id string, space string, seen bigint, expected bigint, start bigint, last bigint"


def slim(changes: DataFrame, *more: Column) -> DataFrame:
    """Reduce changes to the columns that the audit needs, with the columns `more`; images only as hashes.

    If the space's format is altered between two changes of a row, its images have the same values under different names.
    Therefore there are two hashes: of the text, and of the values alone. Both are without the nulls at the row's end: in Avro an
    image has all fields of its schema, and the schema of the next event may have more. Earlier versions of this job stored
    hashes with these nulls; `before` has these too.
    """
    source = F.col("source")
    return changes.select(
        "topic",
        "partition",
        "offset",
        "op",
        "key",
        source["table"].alias("space"),
        source["space_id"].alias("space_id"),
        source["seq"].alias("seq"),
        source["replica_id"].alias("replica_id"),
        source["lsn"].alias("lsn"),
        source["schema_version"].alias("version"),
        source["snapshot_id"].alias("snapshot_id"),
        source["server_version"].isNull().alias("has_images"),
        F.col("transaction.id").alias("transaction_id"),
        F.col("transaction.total_order").alias("total_order"),
        F.xxhash64(source["space_id"], "key").alias("key_hash"),
        F.col("before").isNotNull().alias("has_before"),
        F.col("after").isNotNull().alias("has_after"),
        _stored_before("before", F.xxhash64).alias("before_text"),
        F.xxhash64(_shortened("after")).alias("after_text"),
        _stored_before("before", _values_hash).alias("before_values"),
        _values_hash(_shortened("after")).alias("after_values"),
        *more,
    )


def _shortened(row: str) -> Column:
    return F.expr(f"if(endswith({row}, ':null}}'), regexp_replace({row}, {_NULLS_AT_THE_END}, '}}'), {row})")


def _stored_before(row: str, hashed: Callable[[Column], Column]) -> Column:
    """Return the hashes under which the same row may be stored. Most rows have one, which is computed once."""
    whole = hashed(F.col(row))
    return F.when(F.col(row).endswith(":null}"), F.array(hashed(_shortened(row)), whole)).otherwise(F.array(whole))


def _values_hash(row: Column) -> Column:
    return F.xxhash64(F.map_values(fields_of(row)))


def counts(changes: DataFrame) -> DataFrame:
    """Count events per topic, partition, space, snapshot, origin and bucket of seqs.

    The result has the seqs as bits, the number of events, and the first and last event. Truncations, which are in every
    partition, are separate from the seqs. Control records come with their offsets and texts.
    """
    end = F.struct("offset", "seq", "lsn", "total_order", "space", "key")
    is_change = F.col("op") != CONTROL
    bucket = F.shiftright("seq", BUCKET_BITS).alias("bucket")
    return changes.groupBy("topic", "partition", "space", "snapshot_id", "replica_id", bucket).agg(
        F.expr(f"bitmap_construct_agg(if(op in ('t', '{CONTROL}'), null, seq & {BUCKET_SIZE - 1}))").alias("bits"),
        F.count_if(is_change & (F.col("op") != "t")).alias("events"),
        F.count_if(F.col("op").isin("r", "c", "u")).alias("rows"),
        F.min(F.when(is_change, end)).alias("first"),
        F.max(F.when(is_change, end)).alias("last"),
        F.collect_set(F.when(F.col("op") == "t", F.struct("seq", "space_id"))).alias("truncations"),
        F.array_sort(F.collect_list(F.when(F.col("topic").endswith(".snapshot") & ~is_change, F.struct("offset", "key")))).alias(
            "records"
        ),
    )


def order_breaks(changes: DataFrame) -> DataFrame:
    """Return events whose `seq`, or `lsn` of the same origin, is not above that of the previous event in their partition.

    A row of the log may have several events (DELETE_RANGE): then their order in the source transaction is above the previous
    one's. The first events of a batch's partitions have no previous event here: `counts` returns them and the last ones.
    """
    place = Window.partitionBy("topic", "partition").orderBy("offset")
    origin = Window.partitionBy("topic", "partition", "replica_id").orderBy("offset")
    of_one_row = "coalesce(previous_of_origin.lsn = lsn and previous_of_origin.total_order < total_order, false)"
    return (
        changes.select("topic", "partition", "offset", "space", "key", "seq", "op", "replica_id", "lsn", "total_order")
        .withColumn("previous", F.lag(F.struct("seq", "offset")).over(place))
        .withColumn("previous_of_origin", F.lag(F.struct("lsn", "total_order", "seq", "offset")).over(origin))
        .where(f"previous.seq >= seq or (replica_id is not null and previous_of_origin.lsn >= lsn and not {of_one_row})")
        .orderBy("seq", "topic", "partition", "offset")
    )


def broken_chains(changes: DataFrame, known: DataFrame, floors: DataFrame) -> DataFrame:
    """Return events whose row before isn't the row after of their key's previous change, with that change as `previous`.

    `known` (LAST_IMAGE_SCHEMA) has the last change of each key before this batch, `floors` (FLOOR_SCHEMA) the removals of rows.
    Events without images, and events whose previous change isn't known, are not checked.
    """
    of_key = Window.partitionBy("key_hash").orderBy("seq")
    image = ("seq", "op", "has_after", "has_images", "version", "text_hash", "values_hash", "topic", "partition", "offset")
    shown = changes.where("key is not null").withColumns({"text_hash": F.col("after_text"), "values_hash": F.col("after_values")})
    linked = shown.withColumn("earlier", F.lag(F.struct(*image)).over(of_key))
    stored = known.select("key_hash", F.struct(*image).alias("stored"))
    # Only the first change of a key in a batch is compared with the stored one.
    first = linked.where("earlier is null").drop("earlier").join(stored, "key_hash", "left")
    both = linked.where("earlier is not null").withColumnRenamed("earlier", "previous")
    compared = both.unionByName(first.withColumnRenamed("stored", "previous"))
    same_text = F.expr(
        "if(previous.version = version, array_contains(before_text, previous.text_hash),"
        " array_contains(before_values, previous.values_hash))"
    )
    goes_on = F.when(F.col("op").isin("u", "d"), (F.expr("previous.op <> 'd'") & (~F.expr("previous.has_after") | same_text)))
    begins = F.when(F.col("op") == "c", F.expr("previous.op = 'd' or not previous.has_after"))
    suspects = compared.where(
        F.expr("previous.seq < seq and has_images and previous.has_images and (has_before or op = 'c')")
        & ~F.coalesce(goes_on, begins, F.lit(True))
    )
    voids = floors.withColumnRenamed("space_id", "emptied")
    return suspects.join(
        F.broadcast(voids), F.expr("space_id = emptied and previous.seq <= up_to and at < seq"), "left_anti"
    ).select("topic", "partition", "offset", "space", "key", "seq", "op", "version", "previous")


def last_images(changes: DataFrame) -> DataFrame:
    """Return the last change of each key, as LAST_IMAGE_SCHEMA."""
    image = {
        "op": "op",
        "has_after": "has_after",
        "has_images": "has_images",
        "version": "version",
        "text_hash": "after_text",
        "values_hash": "after_values",
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
    }
    last = F.max_by(F.struct("seq", *(F.col(column).alias(name) for name, column in image.items())), "seq")
    return changes.where("key is not null").groupBy("key_hash").agg(last.alias("last")).select("key_hash", "last.*")


def newest(images: DataFrame) -> DataFrame:
    """Return the newest row of each key from rows of LAST_IMAGE_SCHEMA."""
    columns = [name for name in images.columns if name != "key_hash"]
    return images.groupBy("key_hash").agg(F.max_by(F.struct(*columns), "seq").alias("last")).select("key_hash", "last.*")


def transactions(changes: DataFrame, ends: DataFrame) -> DataFrame:
    """Return per source transaction and space: received events, events that END counts (null without END), and seqs.

    `start` is the seq of the transaction's first event, whether it was received or not: a transaction's events have consecutive
    seqs.
    """
    seen = (
        changes.where("transaction_id is not null and (op <> 't' or partition = 0)")
        .groupBy(F.col("transaction_id").alias("id"), "space")
        .agg(
            F.count("*").alias("seen"),
            F.lit(None).cast("bigint").alias("expected"),
            F.min(F.expr("seq - total_order + 1")).alias("start"),
            F.max("seq").alias("last"),
        )
    )
    nothing = F.lit(None).cast("bigint")
    counted = ends.select(
        "id", "space", F.lit(0).cast("bigint").alias("seen"), "expected", nothing.alias("start"), nothing.alias("last")
    )
    return seen.unionByName(counted)


def summed(parts: DataFrame) -> DataFrame:
    """Sum rows of `transactions` over several batches."""
    return parts.groupBy("id", "space").agg(
        F.sum("seen").alias("seen"),
        F.sum("expected").alias("expected"),
        F.min("start").alias("start"),
        F.max("last").alias("last"),
    )


def transaction_ends(records: DataFrame) -> DataFrame:
    """Decode Kafka records of `<prefix>.transaction` into one row (id, space, expected) per space of each END."""
    schema = "status string, id string, data_collections array<struct<data_collection: string, event_count: bigint>>"
    read = records.where("value is not null").select(F.from_json(F.col("value").cast("string"), schema).alias("record"))
    return (
        read.where("record.status = 'END'")
        .select("record.id", F.explode("record.data_collections").alias("counted"))
        .select("id", F.col("counted.data_collection").alias("space"), F.col("counted.event_count").alias("expected"))
    )


def doubled(changes: DataFrame) -> DataFrame:
    """Return seqs that several events have, with their number."""
    single = changes.where("op <> 't'")
    return single.groupBy("seq").agg(F.count("*").alias("copies")).where("copies > 1").orderBy("seq")


def places(changes: DataFrame, numbers: list[int], limit: int) -> list[Any]:
    """Return the positions of events with these seqs, in the order of seq, topic, partition and offset."""
    wanted = changes.where(F.col("seq").isin(numbers)).select("seq", "topic", "partition", "offset", "space", "key", "op")
    return wanted.orderBy("seq", "topic", "partition", "offset").limit(limit).collect()
