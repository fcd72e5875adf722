"""The rows of a space as they are after some of its events: what is merged, with what isn't yet on top. Pure frames.

`changes` has the columns of the table of events; `latest` boils them down to one row per key, and `current_rows` puts these in
the place of the merged ones. What a view shows and what a merge writes is the same frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.forms import META_COLUMNS, Form, Version
from spark_jobs.transforms import Fold, relabel, typed

META_SCHEMA = StructType(
    [
        StructField("_key", StringType()),
        StructField("_row", StringType()),
        StructField("_seq", LongType()),
        StructField("_ts", TimestampType()),
    ]
)

_FEW: Final = 50_000
"""So many keys are sent to all who read merged rows, rather than have these sent to where the keys are."""


@dataclass(frozen=True)
class Base:
    """The merged rows of a space, with the form whose columns they have."""

    rows: DataFrame
    form: Form


@dataclass(frozen=True)
class Unmerged:
    """Events of a space that aren't merged, all above `floor`, up to which its rows are gone.

    `forms` has those that their versions name. Without patches each event tells a whole row, and with `is_latest` only the newest
    one of each key is there. `count` includes what is up to the floor.
    """

    events: DataFrame
    floor: int
    forms: Mapping[Version, Form]
    has_patches: bool
    count: int
    is_latest: bool = False


def latest(events: DataFrame, *, has_patches: bool, is_latest: bool = False) -> DataFrame:
    """One row per key, whatever the order of the events.

    Columns: key, image, patches. `image` is the last change that tells the whole row or deletes it (seq, deleted, row, ts,
    space_id, schema_version), or null; `patches` those after it, in order (seq, patch, upsert, ts, space_id, schema_version,
    server_version).
    """
    time = F.col("source_ts").alias("ts")
    version = ("space_id", "schema_version")
    image = F.struct("seq", (F.col("op") == "d").alias("deleted"), F.col("after").alias("row"), time, *version)
    if is_latest:
        return events.select("key", image.alias("image"))
    if not has_patches:
        return events.groupBy("key").agg(F.max(image).alias("image"))
    is_image = F.col("op").isin("c", "r", "d") | F.col("after").isNotNull()
    patch = F.struct("seq", "patch", "upsert", time, *version, "server_version")
    return (
        events.groupBy("key")
        .agg(
            F.max(F.when(is_image, image)).alias("image"),
            # Distinct: a stream that is delivered at least once may have a patch twice, and that must not count twice.
            F.array_sort(F.collect_set(F.when(~is_image, patch))).alias("patches"),
        )
        .withColumn("patches", F.expr("filter(patches, patch -> image is null or patch.seq > image.seq)"))
    )


def newest_rows(base: DataFrame | None, unmerged: Unmerged, form: Form, *, fails_without_row: bool) -> DataFrame:
    """The rows that events make, by key: META_COLUMNS, `_deleted` and the form's columns."""
    boiled = latest(unmerged.events, has_patches=unmerged.has_patches, is_latest=unmerged.is_latest)
    whole = boiled if not unmerged.has_patches else boiled.where("image is not null and size(patches) = 0")
    rows = whole.select(
        F.col("key").alias("_key"),
        _relabelled(F.col("image.row"), form, unmerged.forms).alias("_row"),
        F.col("image.seq").alias("_seq"),
        F.col("image.ts").alias("_ts"),
        F.col("image.deleted").alias("_deleted"),
    )
    if unmerged.has_patches:
        rows = rows.unionByName(_folded(boiled, base, unmerged.forms, form, fails_without_row=fails_without_row))
    return typed(rows, form)


def current_rows(base: Base | None, unmerged: Unmerged | None, form: Form, *, fails_without_row: bool) -> DataFrame:
    """The rows of a space: META_COLUMNS and the form's columns."""
    columns = [*META_COLUMNS, *(f"`{name}`" for name in form.columns())]
    merged = None if base is None else in_form(base, form)
    if unmerged is None:
        if merged is None:
            raise ValueError("a space has merged rows or others")
        return merged.select(*columns)
    kept = None if merged is None else merged.where(F.col("_seq") > unmerged.floor)
    newest = newest_rows(kept, unmerged, form, fails_without_row=fails_without_row)
    shown = newest.where("not _deleted").select(*columns)
    if kept is None:
        return shown
    if unmerged.count <= _FEW:
        # Working them out a second time is cheaper than moving the merged rows.
        return kept.join(F.broadcast(newest.select("_key")), "_key", "left_anti").select(*columns).unionByName(shown)
    both = kept.alias("kept").join(newest.alias("newest"), F.col("kept._key") == F.col("newest._key"), "full")
    is_new = F.col("newest._key").isNotNull()
    picked = (F.when(is_new, F.col(f"newest.{name}")).otherwise(F.col(f"kept.{name}")).alias(name.strip("`")) for name in columns)
    return both.where("newest._deleted is null or not newest._deleted").select(*picked)


def in_form(base: Base, form: Form) -> DataFrame:
    """The merged rows with the columns and the names of fields that `form` has."""
    if base.form.columns() == form.columns() and base.form.fields == form.fields:
        return base.rows
    text = _relabelled(F.col("_row"), form, base.form)
    return typed(base.rows.select("_key", text.alias("_row"), "_seq", "_ts"), form)


def _relabelled(text: Column, form: Form, written: Form | Mapping[Version, Form]) -> Column:
    """The row's text with its fields called as in `form`, written in one form or in those that `image` names."""
    if isinstance(written, Form):
        known, is_other = [written], F.lit(not written.writes_as(form))
    else:
        known, is_other = list(written.values()), F.lit(False)
        for (space_id, version), stale in written.items():
            if not stale.writes_as(form):
                is_other |= (F.col("image.space_id") == space_id) & (F.col("image.schema_version") == version)
    if any(len(shorter.fields) < len(form.fields) for shorter in known):
        is_other |= text.contains('"field_')  # what was past the format then
    elif all(same.writes_as(form) for same in known):
        return text
    return F.when(is_other, relabel(form)(F.when(is_other, text))).otherwise(text)


def _folded(
    boiled: DataFrame, base: DataFrame | None, forms: Mapping[Version, Form], form: Form, *, fails_without_row: bool
) -> DataFrame:
    """Rows of `latest` with patches, applied to the row among the events or else to the merged one.

    Only patches after it count. One without a row ends the query, or changes nothing.
    """
    patched = boiled.where("size(patches) > 0")
    if base is None:
        stored = patched.sparkSession.createDataFrame([], "key string, _row string, _seq bigint")
    else:
        stored = base.select(F.col("_key").alias("key"), "_row", "_seq")
    based = patched.join(stored, "key", "left").select(
        "key",
        F.expr("if(image is null, _row, image.row)").alias("base"),
        F.expr("filter(patches, patch -> patch.seq > coalesce(image.seq, _seq, -1))").alias("patches"),
    )
    fold = F.udf(Fold(form, forms, skips_missing=not fails_without_row), "string")
    return (
        based.where("size(patches) > 0")
        .select(
            F.col("key").alias("_key"),
            fold("key", "base", "patches").alias("_row"),
            F.expr("element_at(patches, -1).seq").alias("_seq"),
            F.expr("element_at(patches, -1).ts").alias("_ts"),
            F.lit(False).alias("_deleted"),
        )
        .where("_row is not null")
    )


def above(events: DataFrame, floor: int) -> DataFrame:
    """Of a space's events, the changes of rows that came after the floor."""
    return events.where((F.col("op") != "t") & (F.col("seq") > floor))
