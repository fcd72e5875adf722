"""Fields by which `maintain` is to put the rows of spaces together, as a user has chosen them (`--cluster-by`)."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from typing import Final

from spark_jobs.lake.base_table import BaseTable
from spark_jobs.runner.output import tell
from spark_jobs.tables.upkeep import UNORDERED

_FIELDS_MAX: Final = 4
"""Number of columns by which Delta puts rows together."""


def cluster_by(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the space and the fields of SPACE=FIELD,…; no fields if the rows are no longer to be put together.

    For `add_argument(type=…)`.
    """
    space, is_given, listed = text.rpartition("=")
    fields = tuple(listed.split(",")) if listed else ()
    if not is_given or not space or not all(fields) or len(fields) > _FIELDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} isn't SPACE=FIELD,… with up to {_FIELDS_MAX} fields")
    return space, fields


class Clustering:
    """The chosen fields by space. Tables of other spaces stay as they are."""

    def __init__(self, chosen: Iterable[tuple[str, tuple[str, ...]]] = ()) -> None:
        """Take what `cluster_by` returned."""
        self._fields = dict(chosen)
        self._told: set[str] = set()
        self._told_of: set[tuple[str, str]] = set()

    def check(self, spaces: Collection[str]) -> None:
        """Tell of chosen spaces that aren't there."""
        if unknown := sorted(self._fields.keys() - {*spaces} - self._told):
            self._told.update(unknown)
            tell(f"--cluster-by: no space is called so: {', '.join(unknown)}")

    def apply(self, space: str, table: BaseTable) -> None:
        """Have a space's table clustered. Fields by which it can't be are told, once."""
        fields = self._fields.get(space)
        if fields is None:
            return
        without = ", ".join(table.cluster(fields))
        if without and (space, without) not in self._told_of:
            self._told_of.add((space, without))
            tell(
                f"--cluster-by: rows of the space {space!r} aren't put together by {without}: it has no such fields, or their"
                f" columns are of a type without order ({', '.join(UNORDERED)})."
            )
