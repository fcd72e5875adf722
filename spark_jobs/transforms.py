"""What becomes of a row's text: columns, other names of its fields, another key, the row after patches.

Workers import this module to run its Python functions, so it may import nothing but this package, PySpark and Python's own:
Delta's Python package is needed on the driver only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs import json_text
from spark_jobs.errors import JobError
from spark_jobs.forms import Form, Version
from spark_jobs.patch import PatchError, key_of, update, upsert, version_of


def typed(rows: DataFrame, form: Form) -> DataFrame:
    """Adds the form's columns to rows with `_row`; what a column can't hold is null in it."""
    read = rows.withColumn("_fields", fields_of(F.col("_row")))
    unreadable = F.concat(F.lit("the row of "), "_key", F.lit(" at seq "), "_seq", F.lit(" is no JSON object: "), "_row")
    checked = F.when(F.col("_row").isNotNull() & F.col("_fields").isNull(), F.raise_error(unreadable))
    columns = [
        as_type(F.col("_fields")[field.name], kind).alias(name)
        for field, (name, kind) in zip(form.fields, form.columns().items(), strict=True)
    ]
    return read.withColumn("_fields", F.coalesce(checked, F.col("_fields"))).select(*rows.columns, *columns)


def relabel(form: Form) -> Any:
    """A function of columns: a row's text with its fields called as in `form`, whatever they were called before."""

    def renamed(text: str | None) -> str | None:
        return None if text is None else form.row_text(json_text.values(text))

    return F.udf(renamed, "string")


def rekey(form: Form, doomed_up_to: int) -> Any:
    """A function of columns: (key, a row's text, its seq) → its key's text as `form` builds it.

    Null where the row has no such key, if it is known to be gone later, or if a snapshot told the form: the space can't have that
    row any more, and the snapshot will say so. Else all that has happened to the row is in it, and such a row ends the query.
    """

    def rekeyed(key: str, text: str, seq: int) -> str | None:
        built = key_of(json_text.values(text), form)
        if built is not None:
            return json_text.render(built)
        if form.is_from_snapshot or seq <= doomed_up_to:
            return None
        raise JobError(
            f"The row {key} of {form.space} has no value for the primary key {list(form.key)} that the space has now, so the "
            'table and the space have parted. Let the daemon take a snapshot (snapshot.mode = "always" and a restart), and '
            "start the job again once that is complete."
        )

    return F.udf(rekeyed, "string")


def fields_of(text: Column) -> Column:
    """The values of a row's text by the names of its fields, as texts."""
    return F.from_json(text, "map<string,string>")


def as_type(text: Column, kind: str) -> Column:
    """A value's text as a column's type; null if that can't hold it."""
    if kind == "string":
        return text
    if kind == "binary":
        return F.try_to_binary(text, F.lit("base64"))
    return text.try_cast(kind)


class Fold:
    """(key, base row or null, patches) → the row's text after them; what Spark's workers run for keys with patches."""

    def __init__(self, form: Form, forms: Mapping[Version, Form], *, skips_missing: bool) -> None:
        """`forms` are those that patches name; a patch without a row is an error or, skipped, null."""
        self._form = form
        self._forms = dict(forms)
        self._skips_missing = skips_missing

    def __call__(self, key: str, base: str | None, patches: Sequence[Any]) -> str | None:
        """The row after the patches, as a text."""
        row = None if base is None else json_text.values(base)
        for change in patches:
            row = self._after(row, key, change)
        return None if row is None else self._form.row_text(row)

    def _after(self, row: list[Any] | None, key: str, change: Any) -> list[Any] | None:
        form = self._forms[change["space_id"], change["schema_version"]]
        patch = json_text.parse(change["patch"])
        if row is None:
            if change["upsert"] is not None:
                return json_text.values(change["upsert"])
            if self._skips_missing:
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
