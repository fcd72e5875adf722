"""The pure part of the jobs: frames of changes in, frames of rows out. No tables, no topics, no state.

Workers import this module to run its Python functions, so it may import nothing but this package, PySpark and Python's own:
Delta's Python package is needed on the driver only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import json_text
from spark_jobs.envelope import CONTROL
from spark_jobs.errors import JobError
from spark_jobs.forms import Form
from spark_jobs.patch import PatchError, key_of, update, upsert, version_of

SOURCE_FIELDS_OF_CURRENT: Final = ("ts_us", "server_version")
"""What `latest` needs of `source` beside what is always parsed."""


def latest(changes: DataFrame) -> DataFrame:
    """What a batch says about each key: one row per (space, key), whatever the order of the rows.

    Columns: space, key, image, patches, truncated. `image` is the last change that tells the whole row or deletes it
    (seq, deleted, row, ts, space_id, schema_version), or null; `patches` those after it, in order (seq, patch, upsert, ts,
    space_id, schema_version, server_version). A row without a key tells the seq of the last truncation of the space, or, with
    a null space, that there were control records.
    """
    source = F.col("source")
    form = (source["space_id"].alias("space_id"), source["schema_version"].alias("schema_version"))
    time = F.timestamp_micros(source["ts_us"]).alias("ts")
    sequence = source["seq"].alias("seq")
    is_image = F.col("op").isin("c", "r", "d") | F.col("after").isNotNull()
    is_patch = (F.col("op") == "u") & F.col("after").isNull()
    image = F.struct(sequence, (F.col("op") == "d").alias("deleted"), F.col("after").alias("row"), time, *form)
    patch = F.struct(sequence, "patch", "upsert", time, *form, source["server_version"].alias("server_version"))
    return (
        changes.groupBy(source["table"].alias("space"), F.when(F.col("op") != CONTROL, F.col("key")).alias("key"))
        .agg(
            F.max(F.when(is_image, image)).alias("image"),
            # Distinct: a stream that is delivered at least once may have a patch twice, and that must not count twice.
            F.array_sort(F.collect_set(F.when(is_patch, patch))).alias("patches"),
            F.max(F.when(F.col("op") == "t", source["seq"])).alias("truncated"),
        )
        .withColumn("patches", F.expr("filter(patches, patch -> image is null or patch.seq > image.seq)"))
    )


def above(rows: DataFrame, floor: int, stale_forms: tuple[int, int] | None = None) -> DataFrame:
    """Of what `latest` gave, what came after `floor`.

    `stale_forms` is (space_id, schema_version): events of that space with an older version, whose keys were built
    differently, are left out too.
    """
    condition = "{0}.seq > " + str(floor)
    if stale_forms is not None:
        space_id, schema_version = stale_forms
        condition += f" and not ({{0}}.space_id = {space_id} and {{0}}.schema_version < {schema_version})"
    return (
        rows.withColumn("image", F.expr(f"if({condition.format('image')}, image, null)"))
        .withColumn("patches", F.expr(f"filter(patches, patch -> {condition.format('patch')})"))
        .where("key is not null and (image is not null or size(patches) > 0)")
    )


def whole_rows(rows: DataFrame, form: Form, stale_versions: Iterable[tuple[int, int]] = ()) -> DataFrame:
    """Rows of `latest` that need no folding, with `_key`, `_row`, `_seq`, `_ts`, `_deleted`.

    Rows of the forms in `stale_versions`, (space_id, schema_version), get the field names of `form`.
    """
    text = F.col("image.row")
    stale = [
        (F.col("image.space_id") == space_id) & (F.col("image.schema_version") == version) for space_id, version in stale_versions
    ]
    if stale:
        condition = F.lit(False)
        for one in stale:
            condition = condition | one
        text = F.when(condition, relabel(form)(F.when(condition, text))).otherwise(text)
    return rows.where("image is not null and size(patches) = 0").select(
        F.col("key").alias("_key"),
        text.alias("_row"),
        F.col("image.seq").alias("_seq"),
        F.col("image.ts").alias("_ts"),
        F.col("image.deleted").alias("_deleted"),
    )


def folded_rows(
    rows: DataFrame, table: DataFrame, form: Form, forms: Mapping[tuple[int, int], Form], *, skip_missing: bool = False
) -> DataFrame:
    """Rows of `latest` with patches, applied to the row in the batch or else in `table`; columns as `whole_rows`.

    Only patches after the base count. A patch without a base ends the query, or with `skip_missing` changes nothing.
    """
    patched = rows.where("size(patches) > 0")
    stored = table.select(F.col("_key").alias("key"), "_row", "_seq")
    based = patched.join(stored, "key", "left").select(
        "key",
        F.expr("if(image is null, _row, image.row)").alias("base"),
        F.expr("filter(patches, patch -> patch.seq > coalesce(image.seq, _seq, -1))").alias("patches"),
    )
    fold = F.udf(_Fold(form, forms, skip_missing=skip_missing), "string")
    folded = based.where("size(patches) > 0").select(
        F.col("key").alias("_key"),
        fold("key", "base", "patches").alias("_row"),
        F.expr("element_at(patches, -1).seq").alias("_seq"),
        F.expr("element_at(patches, -1).ts").alias("_ts"),
        F.lit(False).alias("_deleted"),
    )
    return folded.where("_row is not null") if skip_missing else folded


def typed(rows: DataFrame, form: Form) -> DataFrame:
    """Adds the form's columns to rows with `_row`; what a column can't hold is null in it."""
    read = rows.withColumn("_fields", F.from_json("_row", "map<string,string>"))
    unreadable = F.concat(F.lit("the row of "), "_key", F.lit(" at seq "), "_seq", F.lit(" is no JSON object: "), "_row")
    checked = F.when(F.col("_row").isNotNull() & F.col("_fields").isNull(), F.raise_error(unreadable))
    columns = [
        _cast(F.col("_fields")[field.name], kind).alias(name)
        for field, (name, kind) in zip(form.fields, form.columns().items(), strict=True)
    ]
    return read.withColumn("_fields", F.coalesce(checked, F.col("_fields"))).select(*rows.columns, *columns)


def relabel(form: Form) -> Any:
    """A function of columns: a row's text with its fields called as in `form`, whatever they were called before."""

    def renamed(text: str | None) -> str | None:
        return None if text is None else form.row_text(json_text.values(text))

    return F.udf(renamed, "string")


def rekey(form: Form) -> Any:
    """A function of columns: (key, a row's text) → its key's text as `form` builds it.

    Null where the row has no such key, if a snapshot told the form: the space can't have that row any more, and the snapshot
    will say so. Else all that has happened to the row is in it, and such a row ends the query.
    """

    def rekeyed(key: str, text: str) -> str | None:
        built = key_of(json_text.values(text), form)
        if built is not None:
            return json_text.render(built)
        if form.is_from_snapshot:
            return None
        raise JobError(
            f"The row {key} of {form.space} has no value for the primary key {list(form.key)} that the space has now, so the "
            'table and the space have parted. Let the daemon take a snapshot (snapshot.mode = "always" and a restart), and '
            "start the job again once that is complete."
        )

    return F.udf(rekeyed, "string")


def labels_differ(form: Form) -> Column:
    """Whether a frame's `_row` has other field names than `form` gives them."""
    found = F.json_object_keys("_row")
    names = F.array(*(F.lit(field.name) for field in form.fields)).cast("array<string>")

    def differs(name: Column, place: Column) -> Column:
        return name != F.coalesce(F.get(names, place), F.concat(F.lit("field_"), (place + 1).cast("string")))

    return F.coalesce(F.array_contains(F.transform(found, differs), True), F.lit(False))


def _cast(text: Column, kind: str) -> Column:
    if kind == "string":
        return text
    if kind == "binary":
        return F.try_to_binary(text, F.lit("base64"))
    return text.try_cast(kind)


class _Fold:
    """(key, base row or null, patches) → the row's text after them; what Spark's workers run for keys with patches."""

    def __init__(self, form: Form, forms: Mapping[tuple[int, int], Form], *, skip_missing: bool) -> None:
        self._form = form
        self._forms = dict(forms)
        self._skip_missing = skip_missing

    def __call__(self, key: str, base: str | None, patches: Sequence[Any]) -> str | None:
        row = None if base is None else json_text.values(base)
        for change in patches:
            row = self._after(row, key, change)
        return None if row is None else self._form.row_text(row)

    def _after(self, row: list[Any] | None, key: str, change: Any) -> list[Any] | None:
        form = self._forms.get((change["space_id"], change["schema_version"]))
        if form is None:
            raise JobError(
                f"The schema topic has no form of space {change['space_id']} at schema_version {change['schema_version']}, "
                f"which the change of {key} at seq {change['seq']} needs."
            )
        patch = json_text.parse(change["patch"])
        if row is None:
            if change["upsert"] is not None:
                return json_text.values(change["upsert"])
            if self._skip_missing:
                return None
            raise JobError(
                f"The UPDATE of {key} in {form.space} at seq {change['seq']} has no row to apply to: the job began after the "
                "row's last whole image. Start it with --starting-offsets earliest, a new --path and a new --checkpoint; if "
                "the topic no longer has its beginning, let the daemon take a snapshot, and pass --missing-row skip until "
                "that has been read."
            )
        try:
            carry_out = update if change["upsert"] is None else upsert
            return carry_out(row, patch, form, version_of(change["server_version"]))
        except PatchError as error:
            raise JobError(
                f"The UPDATE of {key} in {form.space} at seq {change['seq']} doesn't fit the row that is stored: {error}. "
                "The table and the stream have parted; build it anew with a new --path and a new --checkpoint."
            ) from error
