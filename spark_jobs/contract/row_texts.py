"""Conversions of a row's text: to typed columns, to other field names, to another key, and to the row after patches.

Workers import this module to run its Python functions. It may therefore import only this package, PySpark and Python's standard
library. Delta's Python package is only required on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.contract import json_text
from spark_jobs.contract.field_types import EXACT, NUMERIC, numeric_of, value_of
from spark_jobs.contract.forms import Form, Version, same_name
from spark_jobs.contract.patch import PatchError, key_of, update, upsert, version_of
from spark_jobs.contract.python_function import python_function
from spark_jobs.contract.sql_text import quoted
from spark_jobs.contract.unfit_values import UnfitValues, may_lack
from spark_jobs.errors import JobError

_FIELDS: Final = "_fields"
_NUMERIC_OF: Final = "numeric value of "
"""Beginning of the names of columns in between. No column of a form can have a name with a space."""
_UNREADABLE: Final = "_unreadable row"
_TEXTS: Final = "texts of the fields"

LONG_STRINGS: Final = {"maxStringLen": str(2**31 - 1)}
"""Options of Spark's JSON reader, which otherwise reads no text with a string of more than 20,000,000 characters."""


def typed(rows: DataFrame, form: Form, unfit: UnfitValues | None = None) -> DataFrame:
    """Return rows that have `_row` with the form's columns added. A value that a column can't hold is null.

    With `unfit` such values are counted, or end the query.
    """
    kinds = form.columns_of_fields()
    # Each step in a column of its own, which Spark computes once. It would otherwise repeat the step for each column after it.
    read = _with_fields(rows, list(dict.fromkeys(field for field, _ in kinds.values())))
    numerics = {field: numeric_of(_FIELDS, field) for field, kind in kinds.values() if kind == NUMERIC}
    read = read.withColumns({f"{_NUMERIC_OF}{field}": F.expr(value) for field, value in numerics.items()})
    columns = [_typed_value(field, kind).alias(name) for name, (field, kind) in kinds.items()]
    kept = [F.col(quoted(name)) for name in rows.columns]
    checked = {} if unfit is None else may_lack(kinds.items())
    if unfit is None or not checked:
        return read.select(*kept, *columns)
    texts = F.col(quoted(_TEXTS))
    lacks = {name: F.col(quoted(name)).isNull() & texts[field].isNotNull() for name, field in checked.items()}
    place = F.concat(F.lit(f"The row of {form.space} at seq "), "_seq")
    return unfit.checked(read.select(*kept, *columns, F.col(_FIELDS).alias(_TEXTS)), lacks, "_row", place).drop(_TEXTS)


def _with_fields(rows: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return rows with the column _FIELDS: `_row`'s values as texts, by field name. A `_row` that is no object ends the query."""
    row, read = F.col("_row"), F.col(_FIELDS)
    if len({same_name(name) for name in (*fields, _UNREADABLE)}) <= len(fields):
        # Spark can't tell the members of such a struct from each other.
        rows, is_read = rows.withColumn(_FIELDS, fields_of(row)), read.isNotNull()
    else:
        # The values of a struct are found by their places. In a map each column would search for its name.
        schema = StructType([StructField(name, StringType()) for name in (*fields, _UNREADABLE)])
        rows = rows.withColumn(_FIELDS, F.from_json(row, schema, {**LONG_STRINGS, "columnNameOfCorruptRecord": _UNREADABLE}))
        # Spark's reader takes an array around an object for the object.
        is_read = read[_UNREADABLE].isNull() & F.startswith(row, F.lit("{"))
    unreadable = F.raise_error(F.concat(F.lit("the row of "), "_key", F.lit(" at seq "), "_seq", F.lit(" isn't a JSON object")))
    return rows.withColumn(_FIELDS, F.when(row.isNull() | is_read, read).otherwise(unreadable))


def _typed_value(field: str, kind: str) -> Column:
    if kind not in (NUMERIC, EXACT):
        return F.expr(value_of(_FIELDS, field, kind))
    number = F.col(quoted(f"{_NUMERIC_OF}{field}"))
    return number if kind == NUMERIC else F.when(number.isNull(), F.col(_FIELDS)[field])


def relabel(form: Form) -> Any:
    """Return a function of columns: a row's text → the text with the field names of `form`, whatever the names were before."""

    def renamed(text: str | None) -> str | None:
        return None if text is None else form.row_text(json_text.values(text))

    return python_function(renamed, "string")


def rekey(form: Form, doomed_up_to: int) -> Any:
    """Return a function of columns: (key, a row's text, its seq) → the text of the row's key by `form`.

    If the row lacks a value of the key, the result depends on the row:

    * It is null if a later event is known to remove the row (its seq is at most `doomed_up_to`).
    * It is null if the form comes from a snapshot: the space can't have that row any more, and the snapshot will sweep it.
    * Otherwise the row contains all its changes, so such a row ends the query with a JobError.
    """

    def rekeyed(key: str, text: str, seq: int) -> str | None:
        built = key_of(json_text.values(text), form)
        if built is not None:
            return json_text.render(built)
        if form.is_from_snapshot or seq <= doomed_up_to:
            return None
        raise JobError(
            f"The row {key} of {form.space} has no value for the space's present primary key {list(form.key)}, so the table no "
            'longer matches the space. Let the daemon take a snapshot (snapshot.mode = "always" and a restart), and start the '
            "job again when the snapshot is complete."
        )

    return python_function(rekeyed, "string")


def fields_of(text: Column) -> Column:
    """Return a map column: the values of a row's text, as texts, by field name."""
    return F.from_json(text, "map<string,string>", LONG_STRINGS)


def column_values(form: Form, fields: str) -> dict[str, str]:
    """Return SQL expressions for the form's columns by their names. `fields` is the column that `fields_of` made."""
    return {name: value_of(fields, field, kind) for name, (field, kind) in form.columns_of_fields().items()}


class Fold:
    """Function that Spark's workers run for keys with patches: (key, base row or null, patches) → the row's text after them."""

    def __init__(self, form: Form, forms: Mapping[Version, Form], *, skips_missing: bool) -> None:
        """Set the function up. `forms` are the forms that the patches name.

        An UPDATE without a row is an error; with `skips_missing` it is skipped.
        """
        self._form = form
        self._forms = dict(forms)
        self._skips_missing = skips_missing

    def __call__(self, key: str, base: str | None, patches: Sequence[Any]) -> str | None:
        """Return the text of the row after the patches, or None if there is no row. Raises JobError."""
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
                "last event with the complete row. Start the job with --starting-offsets earliest, a new --path and a new "
                "--checkpoint. If the topic no longer has its beginning, let the daemon take a snapshot, and use --missing-row "
                "skip until the job has read the snapshot."
            )
        try:
            carry_out = update if change["upsert"] is None else upsert
            return carry_out(row, patch, form, version_of(change["server_version"]))
        except PatchError as error:
            raise JobError(
                f"The UPDATE of {key} in {form.space} at seq {change['seq']} doesn't fit the stored row: {error}. The table "
                "no longer matches the stream. Build the table again with a new --path and a new --checkpoint."
            ) from error
