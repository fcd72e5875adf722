"""The typed columns for the fields of a space's rows, over all forms that the space has had.

A column permanently belongs to one field name and one type, so its values keep the meaning that they had when they were written.
A new field gets a new column. A dropped or renamed field leaves its column. A field with another type gets a second column, named
after the type (`size__string`). No value is ever cast to another type, and no form ends the job.

If Delta doesn't accept a field's name for a column, the column has another name. Two fields whose names differ only in case have
two columns. The table's properties therefore list the field of each column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.field_types import SUFFIXES, kinds_of, spark_type, value_of
from spark_jobs.contract.forms import Form, Version, column_name, same_name
from spark_jobs.contract.row_texts import fields_of
from spark_jobs.contract.unfit_values import UnfitValues, may_lack

_IMAGES: Final[Mapping[str, str]] = {"old": "before", "new": "after"}
"""Struct columns with typed fields, and the text columns from which they are made."""

_FIELDS: Final = "_fields_of_"


@dataclass(frozen=True)
class FieldColumn:
    """Column name for a field name and a kind of column (field_types.py), here called its type."""

    field: str
    type: str
    name: str


@dataclass(frozen=True)
class FieldColumns:
    """Columns of a space, in the order in which they were added."""

    columns: tuple[FieldColumn, ...] = ()

    def with_forms(self, forms: Iterable[Form]) -> FieldColumns:
        """Return these columns, and after them the columns that the forms need in addition."""
        columns = list(self.columns)
        for form in forms:
            for field, kind in _typed_fields(form):
                if not any(known.field == field and known.type == kind for known in columns):
                    columns.append(FieldColumn(field, kind, _free_name(field, kind, columns)))
        return FieldColumns(tuple(columns))

    def add_to(self, events: DataFrame, forms: Mapping[Version, Form], unfit: UnfitValues | None = None) -> DataFrame:
        """Return events with `old` and `new`: the rows `before` and `after` as structs of these columns.

        Each event is typed by its own form. `forms` are those that events with rows name. With `unfit`, values of `new` that
        their columns can't hold are counted, or end the query.
        """
        if not self.columns:
            return events
        # A separate step, because Spark would otherwise parse a text again for each column.
        read = events.select("*", *(fields_of(F.col(text)).alias(f"{_FIELDS}{text}") for text in _IMAGES.values()))
        images = [F.when(F.col(text).isNotNull(), self._struct(text, forms)).alias(name) for name, text in _IMAGES.items()]
        if unfit is None:
            return read.select(*events.columns, *images)
        place = F.concat("space", F.lit(" at seq "), "seq")
        return unfit.checked(read.select("*", *images), self._lacks(forms), "after", place).select(*events.columns, *_IMAGES)

    def _lacks(self, forms: Mapping[Version, Form]) -> dict[str, Column]:
        """Return the conditions that `new` lacks a value of `after`, by the names of the columns that can't hold any value."""
        checked = {version: may_lack((one, one) for one in _typed_fields(form)) for version, form in forms.items()}
        texts, new = F.col(f"{_FIELDS}after"), F.col("new")
        lacks = {}
        for column in self.columns:
            if versions := [version for version, fields in checked.items() if (column.field, column.type) in fields]:
                is_null = new[column.name].isNull() & texts[column.field].isNotNull()
                lacks[column.name] = _is_one_of(versions) & is_null
        return lacks

    def to_json(self) -> str:
        """Return the columns as JSON, for a table's properties."""
        return json.dumps([[column.field, column.type, column.name] for column in self.columns])

    @classmethod
    def from_json(cls, text: str) -> FieldColumns:
        """Return the columns that `to_json` wrote."""
        return cls(tuple(FieldColumn(*column) for column in json.loads(text)))

    def _struct(self, text: str, forms: Mapping[Version, Form]) -> Column:
        has = {version: set(_typed_fields(form)) for version, form in forms.items()}
        values = []
        for column in self.columns:
            versions = [version for version, fields in has.items() if (column.field, column.type) in fields]
            value = F.expr(value_of(f"{_FIELDS}{text}", column.field, column.type))
            if len(versions) < len(forms):
                value = F.when(_is_one_of(versions), value)
            values.append((value if versions else F.lit(None).cast(spark_type(column.type))).alias(column.name))
        return F.struct(*values)


def _typed_fields(form: Form) -> list[tuple[str, str]]:
    return [(field.name, kind) for field in form.fields for kind in kinds_of(field.type, field.scale)]


def _free_name(field: str, kind: str, columns: Iterable[FieldColumn]) -> str:
    """Return a free column name for a field. Spark ignores case in names, so names that differ only in case aren't free."""
    taken = {same_name(column.name) for column in columns}
    name = column_name(field)
    if kind in SUFFIXES:
        name += SUFFIXES[kind]
    elif any(column.field == field for column in columns):
        name = f"{name}__{kind.partition('(')[0]}"
    free, number = name, 2
    while same_name(free) in taken:
        free, number = f"{name}__{number}", number + 1
    return free


def _is_one_of(versions: Iterable[Version]) -> Column:
    found = F.lit(False)
    for space_id, version in versions:
        found |= (F.col("space_id") == space_id) & (F.col("schema_version") == version)
    return found
