"""What the jobs need of a table format. Nothing but the module of a format knows how its tables are kept.

A batch may be repeated after a failure, and a job that was replaced may still be running. So what a job writes carries the name
of an *application* and a number: the table keeps the highest number of each application in the same commit, and accepts only
higher ones. The check and the commit are one step, whoever else writes at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.tables.places import Table


class OvertakenError(Exception):
    """While a write was running, another writer has committed a number of the same application."""


class NameTakenError(Exception):
    """The format can't do this to the table, because one of its columns has a name that the format uses itself."""


@dataclass(frozen=True)
class Once:
    """An application and its number: a commit with them is accepted only if the table has no such number, or a lower one."""

    application: str
    number: int
    told: Mapping[str, str] = field(default_factory=dict)
    """What the commit says of itself to people who look at the table's history."""


class TableState(Protocol):
    """A version of a table. What takes time is read only when it is asked for."""

    @property
    def version(self) -> int:
        """The version, with which it can be read later. Versions are equal or different; they needn't be in order."""

    @property
    def identity(self) -> tuple[str, int]:
        """The table's id and the version: unique among all versions of all tables, at any place."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns."""

    @property
    def transactions(self) -> Mapping[str, int]:
        """The highest number of each application that has written to the table."""

    @property
    def previous_version(self) -> int | None:
        """The version before this one; None if this is the first one."""

    @property
    def put_back_from(self) -> int | None:
        """The version that the jobs have last written, if someone has put the table back to rows from before it (RESTORE).

        It is None otherwise, and also if `transactions` and `properties` have gone back together with the rows.
        """


class TableFormat(Protocol):
    """A format of tables. Each function that writes may be repeated."""

    NAME: str
    """The format's name in Spark, and on the command line."""

    def name_in_sql(self, session: SparkSession, table: Table) -> str:
        """Return the table's name in SQL."""

    def exists(self, session: SparkSession, table: Table) -> bool:
        """Return whether there is a table of this format. Raises JobError if a catalog's table has another format."""

    def state(self, session: SparkSession, table: Table, version: int | None = None) -> TableState | None:
        """Return the table's present state, or its state in a version; None if there is no table."""

    def state_at(self, session: SparkSession, table: Table, seconds: float) -> TableState | None:
        """Return the table's state at a time (seconds since 1970); None if it didn't exist, or that version is gone."""

    def read(self, session: SparkSession, table: Table, version: int | None = None) -> DataFrame:
        """Return the table's rows, now or in an earlier version."""

    def create(
        self,
        session: SparkSession,
        table: Table,
        schema: StructType,
        properties: Mapping[str, str],
        *,
        partition_by: Sequence[str] = (),
        skips_by: Sequence[str] = (),
        has_others_inside: bool = False,
    ) -> None:
        """Create an empty table, unless there is one. The property `comment` is what the table says of itself.

        With `skips_by` only the values of these columns are summed up for each file, by which readers skip files. With
        `has_others_inside` other tables may be in the table's folder already.
        """

    def append_once(
        self,
        frame: DataFrame,
        table: Table,
        *,
        partition_by: Sequence[str],
        application: str,
        batch: int,
        gets_columns: bool = False,
        told: Mapping[str, str] | None = None,
    ) -> None:
        """Append a micro-batch, unless this application has already appended this batch or a later one.

        A missing table is created. With `gets_columns` the same commit adds the columns that the table lacks. `told` is that of
        Once. Raises OvertakenError.
        """

    def overwrite(
        self, frame: DataFrame, table: Table, *, once: Once | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """Replace all rows and columns of the table with these, and change properties. `frame` may read the table itself.

        Nothing happens if the table has the number of `once`, or a higher one. The rows and the number are one commit.
        """

    def merge_rows(self, session: SparkSession, table: Table, newest: DataFrame, once: Once | None = None) -> None:
        """Merge the newest rows of some keys into the table by `_key`, where their `_seq` is higher than the stored row's.

        A row marked `_deleted` deletes the stored row. Any other row replaces it, or is inserted if there is none. With `once`
        the session must be this table's own. Raises NameTakenError.
        """

    def upsert(self, session: SparkSession, table: Table, new: DataFrame, by: Sequence[str], condition: str = "false") -> None:
        """Insert the rows whose values of the columns `by` no row of the table has.

        A row with the same values is replaced if the condition, over `stored` and `new`, is true. Raises NameTakenError.
        """

    def keep_appended(self, session: SparkSession, table: Table) -> None:
        """Prepare a table, to which rows are only appended, for `appended`."""

    def appended(self, session: SparkSession, table: Table, after: int, up_to: int) -> DataFrame:
        """Return the rows that were appended after one version, up to another one."""

    def are_gone(self, error: Exception) -> bool:
        """Return whether an error of a query over `appended` means that it can't be told any more what was appended."""

    def stream(self, session: SparkSession, table: Table, checkpoint: str) -> DataFrame:
        """Return a stream of a table, to which rows are only appended: first all of its rows, then each commit as a whole.

        Rows that are deleted don't matter. `checkpoint` is that of the query which reads the stream. Raises JobError.
        """

    def delete(self, session: SparkSession, table: Table, condition: str) -> None:
        """Delete the rows that meet the condition. Raises NameTakenError."""

    def set_properties(self, session: SparkSession, table: Table, changed: Mapping[str, str]) -> None:
        """Change some of the table's properties, in one commit."""
