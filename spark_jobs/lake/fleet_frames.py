"""The events of a fleet as frames: from what has been read of all shards to rows of the fleet's table. No tables, no state.

A row that has been read has the columns of the table `changes`, with `seq`, `space_id` and `schema_version` of its shard, and two
more: `shard`, and `shard_seq`, which is `source.seq` and stays so in the fleet's table. `numbered` gives the rows the fleet's own
numbers (fleet_order.py, fleet_forms.py).

In a fleet's table there are no truncations and no sweeps. They concern the rows of one shard, and readers don't know whose a row
is. Each of them is a `d` for each such row instead (`removed`). A row belongs to the shard that owns its bucket by `_bucket`: if
it has moved there unseen, its last event is another shard's. Without a bucket it belongs to the shard of its last event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.fleet_forms import FleetForms
from spark_jobs.contract.owner import FOREIGN_TO_TOPICS
from spark_jobs.lake.change_rows import CHANGES_COLUMNS
from spark_jobs.lake.fleet_order import Handoff
from spark_jobs.lake.fleet_plan import Emptied, Events

COLUMNS: Final[Mapping[str, str]] = {**CHANGES_COLUMNS, "shard": "source.shard", "shard_seq": "source.seq"}
"""The columns of a fleet's table, with their SQL expressions over a parsed event, before `batch`."""

_OWNED: Final = ("active", "pinned", "readonly", "sending")
"""States in `_bucket` of a bucket that belongs to the shard."""
_NEXT: Final = "fleet seq"
_STEPS: Final = "shard string, after bigint, up_to bigint, base bigint, is_dense boolean"
_KNOWN: Final = "shard string, space_id bigint, schema_version bigint, fleet_version bigint"
_LOST: Final = -1
"""The schema_version of events whose form the schema topic of their shard lacks."""


def with_space_names(rows: DataFrame, prefix: str) -> DataFrame:
    """Return the rows with the names that spaces have in the fleet's table: `<shard>.<space>` if each shard has it by itself."""
    of_shard = F.startswith("kafka_topic", F.concat(F.lit(f"{prefix}."), "shard", F.lit(".")))
    # All shards may share a space with a name such as `s1.x`.
    shared = F.concat(F.lit(f"{prefix}."), F.regexp_replace("space", FOREIGN_TO_TOPICS, "_"))
    is_apart = of_shard & (F.col("kafka_topic") != shared)
    return rows.withColumn("space", F.when(is_apart, F.concat_ws(".", "shard", "space")).otherwise(F.col("space")))


def beyond(marks: Mapping[str, int]) -> Column:
    """Return a condition: the event is after its shard's mark."""
    passed = ((F.col("shard") == shard) & (F.col("shard_seq") <= mark) for shard, mark in marks.items())
    return ~reduce(or_, passed, F.lit(False))


def handoffs(rows: DataFrame) -> list[Handoff]:
    """Return the places where the changes of a key go on in another shard."""
    of_key = Window.partitionBy("kafka_topic", "kafka_partition", "key").orderBy("kafka_offset")
    former = F.lag(F.struct("shard", "shard_seq")).over(of_key).alias("former")
    found = rows.where("key is not null").select("shard", "shard_seq", former).where("former.shard <> shard")
    # Of the handoffs between two shards only those matter that need a later event than all earlier ones.
    place = Window.partitionBy("shard", "former.shard").orderBy("shard_seq").rowsBetween(Window.unboundedPreceding, -1)
    before = F.coalesce(F.max("former.shard_seq").over(place), F.lit(-1)).alias("before")
    needed = found.select("shard", "shard_seq", "former", before).where("former.shard_seq > before")
    return [Handoff(row["shard"], row["shard_seq"], *row["former"]) for row in needed.collect()]


def numbered(rows: DataFrame, steps: Iterable[Events], forms: FleetForms) -> DataFrame:
    """Return those of the rows that the steps have, with the fleet's numbers. `rows` has each event once."""
    session = rows.sparkSession
    dense = [(step.shard, step.after, step.up_to, step.base, step.count == step.up_to - step.after) for step in steps]
    step = session.createDataFrame(dense, _STEPS).withColumnRenamed("shard", "of_shard")
    is_in_step = (F.col("shard") == F.col("of_shard")) & (F.col("seq") > F.col("after_seq")) & (F.col("seq") <= F.col("up_to"))
    joined = rows.join(F.broadcast(step.withColumnRenamed("after", "after_seq")), is_in_step)
    place = F.col("seq") - F.col("after_seq")
    if not all(is_dense for *_, is_dense in dense):
        counted = F.row_number().over(Window.partitionBy("base").orderBy("seq"))
        place = F.when(F.col("is_dense"), place).otherwise(counted)
    return _formed(joined.withColumn(_NEXT, F.col("base") + place), forms)


def _formed(joined: DataFrame, forms: FleetForms) -> DataFrame:
    known = [(*form, number.schema_version) for form, number in forms.known.items()]
    versions = F.broadcast(joined.sparkSession.createDataFrame(known, _KNOWN))
    found = joined.join(versions, ["shard", "space_id", "schema_version"], "left")
    changed: dict[str, Column] = {
        "seq": F.col(_NEXT),
        "space_id": F.crc32(F.encode("space", "UTF-8")),
        "schema_version": F.coalesce("fleet_version", F.lit(_LOST)).cast("bigint"),
        # A batch has a shard's snapshot as a whole, so readers needn't wait for the end of one.
        "snapshot": F.when(F.col("snapshot") == "true", F.lit("false")).otherwise(F.col("snapshot")),
        "snapshot_id": F.lit(None).cast("string"),
    }
    return found.select(*(changed.get(name, F.col(name)).alias(name) for name in COLUMNS))


def removed(events: DataFrame, removal: Emptied, base: int, truncation: DataFrame | None) -> DataFrame:
    """Return the `d` events in the place of a removal, numbered from `base` + 1 on.

    `events` has the events of the fleet's table before it, at least those of the space and of each shard's `_bucket`.
    `truncation` is the row of the `t`, None for a sweep.
    """
    of_space = events.where((F.col("space") == removal.space) & F.col("key").isNotNull())
    last = of_space.groupBy("key").agg(F.max_by(F.struct(*(name for name in COLUMNS if name != "key")), "seq").alias("last"))
    rows = last.where("last.op <> 'd'").select("key", "last.*")
    if removal.is_sweep:
        rows = rows.where(~((F.col("shard") == removal.shard) & (F.col("shard_seq") > removal.up_to)))
    doomed = _of_shard(rows, events, removal)
    place = F.row_number().over(Window.partitionBy(F.lit(1)).orderBy("key"))
    about = {name: F.lit(None) for name in ("replica_id", "lsn", "tsn", "row", "transaction_id")}
    order, ts = F.lit(1), F.timestamp_millis(F.lit(removal.ts_ms)) if removal.ts_ms is not None else F.col("source_ts")
    if truncation is not None:
        named = [F.col(name).alias(f"{name} of t") for name in (*about, "total_order", "source_ts")]
        doomed = doomed.crossJoin(F.broadcast(truncation.select(*named)))
        about = {name: F.col(f"{name} of t") for name in about}
        order, ts = F.coalesce("total_order of t", F.lit(1)), F.col("source_ts of t")
    changed: dict[str, Column] = {
        **about,
        "seq": place + base,
        "op": F.lit("d"),
        "before": F.col("after"),
        "after": F.lit(None),
        "source_ts": ts,
        "snapshot": F.lit("false"),
        # All of them are of one source transaction.
        "total_order": order + place - 1,
        "shard": F.lit(removal.shard),
        "shard_seq": F.lit(removal.at),
    }
    types = dict(events.dtypes)
    return doomed.select(*(changed.get(name, F.col(name)).cast(types[name]).alias(name) for name in COLUMNS))


def _of_shard(rows: DataFrame, events: DataFrame, removal: Emptied) -> DataFrame:
    """Return those of a space's rows that belong to the shard of a removal."""
    of_all = bucket_states(events)
    states = of_all.where(F.col("shard") == removal.shard)
    owned = _owned(states, removal.at)
    if removal.is_sweep:
        # Rows of a bucket that came later may be missing in the snapshot.
        owned = owned.join(_owned(states, removal.up_to).select("bucket"), "bucket")
    moved_on = _moved_on(of_all.where(F.col("shard") != removal.shard), owned)
    is_known = states.agg((F.count("*") > 0).alias("has_buckets"))
    told = rows.withColumn("bucket", F.get_json_object("after", "$.bucket_id")).crossJoin(F.broadcast(is_known))
    told = told.join(F.broadcast(owned.select("bucket", F.lit(True).alias("is_owned"))), "bucket", "left")
    told = told.join(F.broadcast(moved_on), ["shard", "bucket"], "left")
    by_bucket = F.col("bucket").isNotNull() & F.col("has_buckets")
    belongs = F.when(by_bucket, F.coalesce("is_owned", F.lit(False))).otherwise(F.col("shard") == removal.shard)
    belongs &= F.col("since").isNull() | (F.col("shard_seq") < F.col("since"))
    return told.where(belongs).select(*rows.columns)


def bucket_states(events: DataFrame) -> DataFrame:
    """Return the changes of `_bucket` in all shards: shard, shard_seq, bucket (text), status (null if it's gone), generation."""
    of_buckets = events.where((F.col("space") == F.concat("shard", F.lit("._bucket"))) & F.col("key").isNotNull())
    member = {
        name: F.coalesce(*(F.get_json_object("row", f"$.{field}") for field in fields)) for name, fields in _BUCKET_FIELDS.items()
    }
    told = of_buckets.select("shard", "shard_seq", "op", F.coalesce("after", "before").alias("row"))
    status = F.when(F.col("op") != "d", member["status"]).alias("status")
    return told.select(
        "shard", "shard_seq", member["bucket"].alias("bucket"), status, member["generation"].cast("bigint").alias("generation")
    )


def _owned(states: DataFrame, up_to: int) -> DataFrame:
    """Return the buckets of one shard as of a seq of its own, each with the generation since which it has been there."""
    last = F.max_by(F.struct("status", "generation"), "shard_seq").alias("now")
    now = states.where(F.col("shard_seq") <= up_to).groupBy("bucket").agg(last).select("bucket", "now.*")
    # A bucket that is being sent has the generation of that move.
    generation = F.coalesce("generation", F.lit(0)) - F.when(F.col("status") == "sending", 1).otherwise(0)
    return now.where(F.col("status").isin(*_OWNED)).select("bucket", generation.alias("generation"))


def _moved_on(others: DataFrame, owned: DataFrame) -> DataFrame:
    """Return the shards to which buckets have gone on, with the first seq there after that (`since`).

    Such a shard may be read before the former owner's removal. Its changes from then on are of rows that came later.
    """
    held = F.broadcast(owned.withColumnRenamed("generation", "held"))
    later = others.join(held, "bucket").where(F.col("generation") > F.col("held"))
    return later.groupBy("shard", "bucket").agg(F.min("shard_seq").alias("since"))


def departures(states: DataFrame, removal: Emptied) -> dict[str, int | None]:
    """Return the shards from which a removal's shard had got its buckets, each with the seq at which the last of them had left.

    Their events before that are of rows that the removal concerns. It is None if a shard hasn't come to that yet. `states` are
    those of all events that have been read. Before vshard 0.1.41 nothing tells, and the result is empty.
    """
    own = states.where((F.col("shard") == removal.shard) & (F.col("shard_seq") <= removal.at))
    came = own.where("status = 'receiving'").groupBy("bucket").agg(F.max("generation").alias("arrival"))
    arrived = came.join(_owned(own, removal.at).select("bucket"), "bucket")
    others = states.where(F.col("shard") != removal.shard).join(F.broadcast(arrived), "bucket")
    per_shard = others.groupBy("bucket", "shard").agg(
        F.min(F.when(F.expr("status in ('sent', 'garbage') and generation = arrival"), F.col("shard_seq"))).alias("left_at"),
        F.max_by(F.struct("status", "generation", "arrival"), "shard_seq").alias("now"),
    )
    of_bucket = Window.partitionBy("bucket")
    told = per_shard.withColumn("has_left", F.max("left_at").over(of_bucket).isNotNull())
    still = F.col("now.status").isin(*_OWNED) & (F.coalesce("now.generation", F.lit(0)) < F.col("now.arrival"))
    is_missing = (~F.col("has_left") & still).alias("is_missing")
    found = told.select("shard", "left_at", is_missing).where("left_at is not null or is_missing")
    rows = found.groupBy("shard").agg(F.max("left_at").alias("left_at"), F.max("is_missing").alias("is_missing")).collect()
    return {row["shard"]: None if row["is_missing"] else row["left_at"] for row in rows}


_BUCKET_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "bucket": ("id", "field_1"),
    "status": ("status", "field_2"),
    "generation": ("opts.generation", "field_4.generation"),
}
