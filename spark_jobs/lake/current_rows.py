"""The rows of a space as of some event: the merged rows, combined with the unmerged events. This module only transforms frames.

Frames of events have the columns of the table of events. `latest` reduces them to one row per key. `current_rows` replaces the
merged rows of these keys with them. Reads and merges use the same frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spark_jobs.contract.forms import META_COLUMNS, Form, Version
from spark_jobs.contract.python_function import python_function
from spark_jobs.contract.row_texts import Fold, relabel, typed
from spark_jobs.contract.unfit_values import UnfitValues

META_SCHEMA = StructType(
    [
        StructField("_key", StringType()),
        StructField("_row", StringType()),
        StructField("_seq", LongType()),
        StructField("_ts", TimestampType()),
    ]
)

_HASH: Final = "hash of the key"
"""Column by which frames are grouped and joined, before the key itself. No field's column can have this name.

Spark sorts rows by the first eight bytes of the first column, and compares complete values only where these are equal. The keys'
texts begin alike (`{"id":12`), their hashes don't.
"""

_FEW_UNMERGED: Final = 50_000
"""Number of events up to which their keys are sent to all tasks that read merged rows. With more, these rows are shuffled."""


@dataclass(frozen=True)
class Base:
    """Merged rows of a space, with the form whose columns they have."""

    rows: DataFrame
    form: Form


@dataclass(frozen=True)
class Unmerged:
    """Unmerged events of a space. All are above the seq `floor`, up to which the space's rows are gone.

    `forms` has the forms that the events name. Without patches each event contains a complete row. With `is_latest` there is only
    the newest event of each key. `count` also counts the events up to the floor.
    """

    events: DataFrame
    floor: int
    forms: Mapping[Version, Form]
    has_patches: bool
    count: int
    is_latest: bool = False


def latest(events: DataFrame, *, has_patches: bool, is_latest: bool = False) -> DataFrame:
    """Return one row per key. The order of the events doesn't matter.

    Columns: key, _HASH, image, patches. `image` is the last change that contains the complete row or deletes it (seq, deleted,
    row, ts, space_id, schema_version), or null. `patches` are the patches after it, in order (seq, patch, upsert, ts, space_id,
    schema_version, server_version). Without patches, the column `patches` is missing.
    """
    time = F.col("source_ts").alias("ts")
    version = ("space_id", "schema_version")
    events = events.withColumn(_HASH, F.xxhash64("key"))
    image = F.struct("seq", (F.col("op") == "d").alias("deleted"), F.col("after").alias("row"), time, *version)
    if is_latest:
        return events.select("key", _HASH, image.alias("image"))
    if not has_patches:
        return events.groupBy(_HASH, "key").agg(F.max(image).alias("image"))
    is_image = F.col("op").isin("c", "r", "d") | F.col("after").isNotNull()
    patch = F.struct("seq", "patch", "upsert", time, *version, "server_version")
    return (
        events.groupBy(_HASH, "key")
        .agg(
            F.max(F.when(is_image, image)).alias("image"),
            # A set: with at-least-once delivery a patch may occur twice, and must not be applied twice.
            F.array_sort(F.collect_set(F.when(~is_image, patch))).alias("patches"),
        )
        .withColumn("patches", F.expr("filter(patches, patch -> image is null or patch.seq > image.seq)"))
    )


def newest_rows(
    base: DataFrame | None, unmerged: Unmerged, form: Form, *, fails_without_row: bool, unfit: UnfitValues | None = None
) -> DataFrame:
    """Return the rows that result from the events, one per key: META_COLUMNS, `_deleted` and the form's columns.

    `base` are the merged rows, to which patches are applied. With `fails_without_row` an UPDATE without a row ends the query.
    `unfit` is as in `typed`.
    """
    return _newest_with_hash(base, unmerged, form, fails_without_row=fails_without_row, unfit=unfit).drop(_HASH)


def _newest_with_hash(
    base: DataFrame | None, unmerged: Unmerged, form: Form, *, fails_without_row: bool, unfit: UnfitValues | None
) -> DataFrame:
    """Return `newest_rows` with the column _HASH."""
    boiled = latest(unmerged.events, has_patches=unmerged.has_patches, is_latest=unmerged.is_latest)
    whole = boiled if not unmerged.has_patches else boiled.where("image is not null and size(patches) = 0")
    rows = whole.select(
        _HASH,
        F.col("key").alias("_key"),
        _relabelled(F.col("image.row"), form, unmerged.forms).alias("_row"),
        F.col("image.seq").alias("_seq"),
        F.col("image.ts").alias("_ts"),
        F.col("image.deleted").alias("_deleted"),
    )
    if unmerged.has_patches:
        rows = rows.unionByName(_folded(boiled, base, unmerged.forms, form, fails_without_row=fails_without_row))
    return typed(rows, form, unfit)


def current_rows(
    base: Base | None, unmerged: Unmerged | None, form: Form, *, fails_without_row: bool, unfit: UnfitValues | None = None
) -> DataFrame:
    """Return the rows of a space: META_COLUMNS and the form's columns. The last two arguments are as in `newest_rows`."""
    columns = [*META_COLUMNS, *(f"`{name}`" for name in form.columns())]
    merged = None if base is None else in_form(base, form, unfit)
    if unmerged is None:
        if merged is None:
            raise ValueError("a space needs merged rows or unmerged events")
        return merged.select(*columns)
    kept = merged if merged is None or unmerged.floor < 0 else merged.where(F.col("_seq") > unmerged.floor)
    newest = _newest_with_hash(kept, unmerged, form, fails_without_row=fails_without_row, unfit=unfit)
    shown = newest.where("not _deleted").select(*columns)
    if kept is None:
        return shown
    if unmerged.count <= _FEW_UNMERGED:
        # Computing the newest rows a second time is cheaper than shuffling the merged rows. Their keys need no columns.
        again = _newest_with_hash(kept, unmerged, form, fails_without_row=fails_without_row, unfit=None)
        return kept.join(F.broadcast(again.select("_key")), "_key", "left_anti").select(*columns).unionByName(shown)
    hashed = kept.withColumn(_HASH, F.xxhash64("_key"))
    same_key = (F.col(f"kept.`{_HASH}`") == F.col(f"newest.`{_HASH}`")) & (F.col("kept._key") == F.col("newest._key"))
    both = hashed.alias("kept").join(newest.alias("newest"), same_key, "full")
    is_new = F.col("newest._key").isNotNull()
    picked = (F.when(is_new, F.col(f"newest.{name}")).otherwise(F.col(f"kept.{name}")).alias(name.strip("`")) for name in columns)
    return both.where("newest._deleted is null or not newest._deleted").select(*picked)


def in_form(base: Base, form: Form, unfit: UnfitValues | None = None) -> DataFrame:
    """Return the merged rows with the columns and the field names of `form`. `unfit` is as in `typed`."""
    if base.form.columns() == form.columns() and base.form.fields == form.fields:
        return base.rows
    text = _relabelled(F.col("_row"), form, base.form)
    return typed(base.rows.select("_key", text.alias("_row"), "_seq", "_ts"), form, unfit)


def _relabelled(text: Column, form: Form, written: Form | Mapping[Version, Form]) -> Column:
    """Return a column: the row's text with the field names of `form`.

    `written` is the form in which the text was written, or the forms that `image` names.
    """
    if isinstance(written, Form):
        known, is_other = [written], F.lit(not written.writes_as(form))
    else:
        known, is_other = list(written.values()), F.lit(False)
        for (space_id, version), stale in written.items():
            if not stale.writes_as(form):
                is_other |= (F.col("image.space_id") == space_id) & (F.col("image.schema_version") == version)
    if any(len(shorter.fields) < len(form.fields) for shorter in known):
        is_other |= text.contains('"field_')  # fields that were past the format then
    elif all(same.writes_as(form) for same in known):
        return text
    return F.when(is_other, relabel(form)(F.when(is_other, text))).otherwise(text)


def _folded(
    boiled: DataFrame, base: DataFrame | None, forms: Mapping[Version, Form], form: Form, *, fails_without_row: bool
) -> DataFrame:
    """Apply the patches of `latest`, each key's to the row among the events, or else to the merged row.

    Only patches after that row count. An UPDATE without a row ends the query or, without `fails_without_row`, changes nothing.
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
    fold = python_function(Fold(form, forms, skips_missing=not fails_without_row), "string")
    return (
        based.where("size(patches) > 0")
        .select(
            F.xxhash64("key").alias(_HASH),
            F.col("key").alias("_key"),
            fold("key", "base", "patches").alias("_row"),
            F.expr("element_at(patches, -1).seq").alias("_seq"),
            F.expr("element_at(patches, -1).ts").alias("_ts"),
            F.lit(False).alias("_deleted"),
        )
        .where("_row is not null")
    )


def above(events: DataFrame, floor: int) -> DataFrame:
    """Return the row changes of a space's events that come after the floor."""
    return events.where((F.col("op") != "t") & (F.col("seq") > floor))
