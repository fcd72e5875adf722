"""Chains of images over the shards of a fleet that share their topics: frames of changes in, broken links out.

A key's changes are in one partition, whichever shard made them, and there they have their order: moves of buckets aren't seen,
and the next owner's daemon writes only what follows the former one's last commit. So the link before a change is the key's change
with the next lower offset, not seq.

What removes rows without events breaks no chain. A `t` is in each partition, between the changes before and after it. It concerns
what its shard then had, of which some rows may have come unseen, with another shard's last change. The sweep of a snapshot is in
no partition: a link over the end of one isn't judged, and neither is one from another shard to events after that end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit.state import Finding

LAST_SCHEMA: Final = (
    "key_hash bigint, offset bigint, shard string, seq bigint, op string, has_after boolean, has_images boolean, version bigint,"
    " text_hash bigint, values_hash bigint, topic string, partition int"
)
"""Last known change of each key; `key_hash` is the hash of the topic and the key's text. Truncations (`t`) are among them, as
they concern keys of all earlier batches."""

SWEEP_SCHEMA: Final = "swept_shard string, swept string, up_to bigint, at bigint"
"""Sweeps of snapshots: rows of the space `swept` up to a seq of the shard are gone for its events after `at`."""


def linked(changes: DataFrame) -> DataFrame:
    """Return changes (facts.slim, with `shard`) by key, each with the change before it in the batch as `earlier`."""
    of_key = Window.partitionBy("key_hash").orderBy("offset")
    # Equal numbers of two shards are different forms.
    named = {
        "key_hash": F.xxhash64("topic", "key"),
        "version": F.xxhash64("shard", "version"),
        "text_hash": F.col("after_text"),
        "values_hash": F.col("after_values"),
    }
    shown = changes.where("key is not null").withColumns(named)
    return shown.withColumn("earlier", F.lag(_image()).over(of_key))


def _image() -> Any:
    return F.struct(*(name.split()[0] for name in LAST_SCHEMA.split(", ") if name.split()[0] != "key_hash"))


def broken(changes: DataFrame, known: DataFrame, sweeps: DataFrame) -> DataFrame:
    """Return events whose row before isn't the row after of their key's change before, with that change as `previous`.

    `known` (LAST_SCHEMA) has the last change of each key before this batch.
    """
    link = linked(changes)
    first = link.where("earlier is null").drop("earlier")
    stored = known.select("key_hash", _image().alias("previous"))
    both = link.where("earlier is not null").withColumnRenamed("earlier", "previous")
    compared = both.unionByName(first.join(stored, "key_hash", "left"))
    same = F.expr(
        "if(previous.version = version, array_contains(before_text, previous.text_hash),"
        " array_contains(before_values, previous.values_hash))"
    )
    goes_on = F.when(F.col("op").isin("u", "d"), F.expr("previous.op <> 'd'") & (~F.expr("previous.has_after") | same))
    begins = F.when(F.col("op") == "c", F.expr("previous.op = 'd' or not previous.has_after"))
    suspects = compared.where(
        F.expr("previous.offset < offset and has_images and previous.has_images and (has_before or op = 'c')")
        & F.expr("previous.shard <> shard or previous.seq < seq")
        & ~F.coalesce(goes_on, begins, F.lit(True))
    )
    place = ("topic", "partition", "offset", "shard")
    told = changes.select("op", *place).unionByName(known.select("op", *place)).where("op = 't'")
    truncations = told.select(*(F.col(name).alias(f"t_{name}") for name in place))
    # A row may have come to the shard unseen, and its bucket may have gone on since: then a third one inserts the key again.
    is_emptied = F.expr(
        "topic = t_topic and partition = t_partition and t_offset between previous.offset and offset"
        " and (op = 'c' or t_shard in (shard, previous.shard))"
    )
    is_swept = F.expr(
        "space = swept and if(shard = previous.shard, shard = swept_shard and previous.seq <= up_to and at < seq,"
        " (shard = swept_shard and at < seq) or (previous.shard = swept_shard and previous.seq <= up_to))"
    )
    rest = suspects.join(F.broadcast(truncations), is_emptied, "left_anti").join(F.broadcast(sweeps), is_swept, "left_anti")
    return rest.select("topic", "partition", "offset", "space", "key", "seq", "op", "shard", "previous")


def last(changes: DataFrame) -> DataFrame:
    """Return the last change of each key, as LAST_SCHEMA, and the last truncation by each shard in each partition."""
    shown = linked(changes).select("key_hash", _image().alias("image"))
    whose = F.xxhash64(F.lit("t"), "topic", "partition", "shard").alias("key_hash")
    emptied = changes.where("op = 't'").withColumns({"text_hash": F.col("after_text"), "values_hash": F.col("after_values")})
    told = emptied.withColumn("version", F.xxhash64("shard", "version")).select(whose, _image().alias("image"))
    newest = shown.unionByName(told).groupBy("key_hash").agg(F.max_by("image", "image.offset").alias("image"))
    return newest.select("key_hash", "image.*")


def newest(stored: DataFrame) -> DataFrame:
    """Return the newest row of each key from rows of LAST_SCHEMA."""
    columns = [name for name in stored.columns if name != "key_hash"]
    return stored.groupBy("key_hash").agg(F.max_by(F.struct(*columns), "offset").alias("last")).select("key_hash", "last.*")


def findings(rows: Iterable[Any]) -> list[Finding]:
    """Return what broken links say."""
    return [_finding(row) for row in rows]


def _finding(row: Any) -> Finding:
    previous = row["previous"]
    where = f"{row['topic']}/{row['partition']} offset {row['offset']}, seq {row['seq']} of the shard {row['shard']!r},"
    behind = f"its change before, seq {previous['seq']} of {previous['shard']!r} at offset {previous['offset']}"
    place = {"space": row["space"], "key": row["key"], "seq": row["seq"], "other_seq": previous["seq"]}
    at = {"topic": row["topic"], "partition": row["partition"], "offset": row["offset"], "other_offset": previous["offset"]}
    if row["op"] == "c" and row["shard"] != previous["shard"]:
        told = (
            f"Two shards have the key {row['key']} of {row['space']!r}: {where} inserts it, and by {behind}, that shard has it."
            " Look for the bucket at both (status, box.space._bucket)."
        )
        return Finding("owner", told, **place, **at)
    what = {"c": "inserts a row that exists", "u": "changes a row", "d": "deletes a row"}[row["op"]]
    if row["op"] != "c":
        what += " that was deleted" if previous["op"] == "d" else " that was different"
    told = f"{where} {what} after {behind}, of {row['space']} {row['key']}: its `before` isn't that change's `after`."
    return Finding("image", told, **place, **at)
