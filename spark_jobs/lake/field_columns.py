"""Which columns the fields of a space's rows have, over all forms that the space goes through.

A column is of one field name and one type, for good: its values mean what they meant when they were written. So a new field is a
new column, one that is dropped or renamed leaves its column behind, and one of another type gets a second column, called by its
type (`size__string`). Nothing is ever cast to another type, and no form ends the job.

What Delta's tables can't call a column is called otherwise, and two fields whose names differ only in case are two columns; so
the table's properties say which column is whose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.forms import COLUMN_TYPES, Form, Version, column_name, same_name
from spark_jobs.transforms import as_type, fields_of

_IMAGES: Final[Mapping[str, str]] = {"old": "before", "new": "after"}
"""Columns with typed fields, and the texts that they are made of."""

_FIELDS: Final = "_fields_of_"


@dataclass(frozen=True)
class FieldColumn:
    """What values of a field name and a Spark type are called."""

    field: str
    type: str
    name: str


@dataclass(frozen=True)
class FieldColumns:
    """The columns of a space, in the order in which they came."""

    columns: tuple[FieldColumn, ...] = ()

    def with_forms(self, forms: Iterable[Form]) -> FieldColumns:
        """These, and those that the forms need beside them."""
        columns = list(self.columns)
        for form in forms:
            for field, kind in _typed_fields(form):
                if not any(known.field == field and known.type == kind for known in columns):
                    columns.append(FieldColumn(field, kind, _free_name(field, kind, columns)))
        return FieldColumns(tuple(columns))

    def add_to(self, events: DataFrame, forms: Mapping[Version, Form]) -> DataFrame:
        """Events with `old` and `new`: the rows `before` and `after` as structs of these columns, by the form of each event.

        `forms` are those that events with rows name.
        """
        if not self.columns:
            return events
        # A step of its own, as Spark would else read a text again for each column.
        read = events.select("*", *(fields_of(F.col(text)).alias(f"{_FIELDS}{text}") for text in _IMAGES.values()))
        images = [F.when(F.col(text).isNotNull(), self._struct(text, forms)).alias(name) for name, text in _IMAGES.items()]
        return read.select(*events.columns, *images)

    def to_json(self) -> str:
        """For a table's properties."""
        return json.dumps([[column.field, column.type, column.name] for column in self.columns])

    @classmethod
    def from_json(cls, text: str) -> FieldColumns:
        """The inverse of `to_json`."""
        return cls(tuple(FieldColumn(*column) for column in json.loads(text)))

    def _struct(self, text: str, forms: Mapping[Version, Form]) -> Column:
        has = {version: set(_typed_fields(form)) for version, form in forms.items()}
        values = []
        for column in self.columns:
            versions = [version for version, fields in has.items() if (column.field, column.type) in fields]
            value = as_type(F.col(f"{_FIELDS}{text}")[column.field], column.type)
            if len(versions) < len(forms):
                value = F.when(_is_one_of(versions), value)
            values.append((value if versions else F.lit(None).cast(column.type)).alias(column.name))
        return F.struct(*values)


def _typed_fields(form: Form) -> list[tuple[str, str]]:
    return [(field.name, COLUMN_TYPES.get(field.type, "string")) for field in form.fields]


def _free_name(field: str, kind: str, columns: Iterable[FieldColumn]) -> str:
    """Spark tells names apart without regard to case."""
    taken = {same_name(column.name) for column in columns}
    name = column_name(field)
    if any(column.field == field for column in columns):
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
