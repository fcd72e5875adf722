"""The table of one space: its merged rows as of some seq, one row per key.

| column | |
|---|---|
| `_key` | the key's JSON text |
| `_row` | the row's JSON text, exactly as published |
| `_seq` | `seq` of the change that produced the row's present state |
| `_ts` | the master's time of that change |

After these columns come those for the fields of a form (forms.py). The table's properties contain the form. The table has no
deleted rows. The seq up to which events are merged is in the table's own transactions: each write carries the seq as the
transaction number of an application. Delta stores this number in the same commit, and accepts it only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.forms import META_COLUMNS, Form
from spark_jobs.contract.row_texts import typed
from spark_jobs.contract.sql_text import quoted
from spark_jobs.errors import JobError
from spark_jobs.lake.current_rows import META_SCHEMA, Base
from spark_jobs.lake.event_table import check_not_put_back
from spark_jobs.lake.seqs import check_merged
from spark_jobs.tables import delta
from spark_jobs.tables.format import NameTakenError, Once, TableFormat
from spark_jobs.tables.found import PREFIX
from spark_jobs.tables.places import Table, own_session
from spark_jobs.tables.upkeep import UNORDERED, UPKEEP

FORM: Final = "tarantool_cdc.form"
"""Property with the form whose columns the table has."""
_AWAITS: Final = "tarantool_cdc.awaits"
_MERGED: Final = "tarantool_cdc.merged"
_SETTLED: Final = "tarantool_cdc.settled."
_SEQ: Final = "tarantool_cdc.seq"
"""What a commit says of itself: the seq of the last event that is in the table with it."""
_LAYOUT: Final = "tarantool_cdc.layout"
"""Property with the version of the table's layout."""
_KNOWN_LAYOUT: Final = "1"

_COMMENTS: Final = {
    "_key": "the key, as JSON",
    "_row": "the row, as JSON, exactly as published",
    "_seq": "seq of the change by which the row is as it is",
    "_ts": "the master's time of that change",
}

_REMEDY: Final = "remove the table: the job makes it again from the space's events, if `maintain` has left all of them"

_PROPERTIES: Final = {_LAYOUT: _KNOWN_LAYOUT}


class BaseTable:
    """Merged rows of one space. Every method that writes may be repeated."""

    def __init__(self, session: SparkSession, path: Table, prefix: str | None = None, table_format: TableFormat = delta) -> None:
        """Read the table's state, and create nothing yet.

        Raises JobError if the table at the path is another job's or prefix's, or has a layout that this version doesn't know.
        """
        self.path = path
        self._session = session
        self._format = table_format
        self._prefix = prefix
        self._own_session: SparkSession | None = None
        self._has_taken_name = False
        self._state = table_format.state(session, path)
        found = None if self._state is None else self._state.properties.get(PREFIX)
        if self._state is not None and (found is None or (prefix is not None and found != prefix)):
            raise JobError(
                f"The table at {path} doesn't belong to this job and the prefix {prefix!r}; the prefix in its properties is "
                f"{found!r}. Choose another --path."
            )
        if self._state is not None and self._state.properties.get(_LAYOUT) != _KNOWN_LAYOUT:
            raise JobError(
                f"The table at {path} has a layout that this version of the job `current` doesn't know: another version has made"
                " it. Read it with that version, or start the job with a new --path and an empty --checkpoint."
            )

    @property
    def exists(self) -> bool:
        """Whether the table exists."""
        return self._state is not None

    @property
    def version(self) -> int:
        """The table's version, with which it can be read later."""
        assert self._state is not None
        return self._state.version

    @property
    def merged(self) -> int:
        """The seq up to which events are merged into the table, -1 if there are none."""
        return -1 if self._state is None else self._state.transactions.get(_MERGED, -1)

    def merged_at(self, seconds: float) -> int:
        """Return the seq up to which events were merged at a time, in seconds since 1970; -1 if there were none."""
        state = self._format.state_at(self._session, self.path, seconds)
        return -1 if state is None else state.transactions.get(_MERGED, -1)

    @property
    def form(self) -> Form:
        """The form whose columns the table has."""
        assert self._state is not None
        return Form.from_json(self._state.properties[FORM])

    @property
    def has_columns_of_form(self) -> bool:
        """Whether the columns are those of `form`.

        They may differ if a process stopped while it rewrote the table, or if another version of the job wrote it.
        """
        return self._state is not None and self._state.columns == (*META_COLUMNS, *self.form.columns())

    def is_there(self) -> bool:
        """Return whether the table exists now."""
        return self._format.state(self._session, self.path) is not None

    def check_not_put_back(self) -> None:
        """Raise JobError if somebody has put the table back to rows from before its last merge."""
        if (now := self._format.state(self._session, self.path)) is not None:
            check_not_put_back(self.path, now, _REMEDY)

    def refresh(self) -> None:
        """Read the table's state again."""
        self._state = self._format.state(self._session, self.path)

    def as_of(self, seq: int) -> BaseTable:
        """Return the last version of the table that contains no event after a seq."""
        then = copy(self)
        while then._state is not None and then.merged > seq:
            version = then._state.previous_version
            then._state = None if version is None else self._format.state(self._session, self.path, version)
        return then

    def base(self, version: int | None = None) -> Base | None:
        """Return the table's rows, now or in a version; None if there is no table."""
        if self._state is None:
            return None
        rows = self._format.read(self._session, self.path, self._state.version if version is None else version)
        if tuple(rows.columns) != (*META_COLUMNS, *self.form.columns()):
            # A process stopped while it rewrote the table, or another version of the job gives fields other columns.
            rows = typed(rows.select(*META_COLUMNS), self.form)
        return Base(rows, self.form)

    def count(self) -> int:
        """Return the number of rows."""
        return 0 if self._state is None else self._format.read(self._session, self.path).count()

    def create(self, form: Form) -> None:
        """Create an empty table with this form's columns, unless the table exists."""
        if self._state is None:
            assert self._prefix is not None
            schema = _commented(typed(self._session.createDataFrame([], META_SCHEMA), form), form).schema
            properties = {PREFIX: self._prefix, FORM: form.to_json(), **_PROPERTIES}
            properties["comment"] = f"The rows of the space {form.space}, from the topics of {self._prefix}"
            # Rows are in the order of their keys' hashes, so each file has nearly all values of a column. What is summed up for
            # readers would take CPU for each row, and they could skip nothing by it.
            self._format.create(self._session, self.path, schema, properties, skips_by=("_seq",))
            self.refresh()

    def cluster(self, fields: Sequence[str]) -> list[str]:
        """Have `maintain` put rows together that are alike in these fields, and return those by which it can't.

        The form hasn't got these, or their columns have no order. A field may become so while the job runs.
        """
        columns: dict[str, str] = {}
        for name, (one, _) in self.form.columns_of_fields().items():
            if self.form.columns()[name] not in UNORDERED:
                columns.setdefault(one, name)
        chosen = [columns[one] for one in fields if one in columns]
        UPKEEP[self._format.NAME].cluster(self._session, self.path, chosen)
        self.refresh()
        return [one for one in fields if one not in columns]

    def replace(self, rows: DataFrame, form: Form, merged: int) -> None:
        """Replace all rows with these, the rows as of the seq `merged`."""
        check_merged(self.merged, merged)
        self._overwrite(rows, form, Once(_MERGED, merged, _told(merged)))

    def merge(self, newest: DataFrame, merged: int) -> bool:
        """Merge the newest rows of some keys (`current_rows.newest_rows`), as of the seq `merged`.

        Returns False if the format can't, because a column has a name that MERGE uses itself. Nothing has changed then.
        """
        check_merged(self.merged, merged)
        # The number of a MERGE is a setting of the session, so each table has its own session.
        session = self._own_session = self._own_session or own_session(self._session)
        is_done = self._by_name(lambda: self._format.merge_rows(session, self.path, newest, Once(_MERGED, merged, _told(merged))))
        self.refresh()
        return is_done

    def advance(self, merged: int) -> None:
        """Record that the rows haven't changed up to the seq `merged`."""
        check_merged(self.merged, merged)
        empty = self._format.read(self._session, self.path).limit(0)
        self._format.append_once(empty, self.path, partition_by=(), application=_MERGED, batch=merged, told=_told(merged))
        self.refresh()

    def sweep(self, seq: int) -> None:
        """Delete all rows up to a seq. All events before the sweep must be merged, or older versions would lack these rows."""
        if not self._by_name(lambda: self._format.delete(self._session, self.path, f"_seq <= {seq}")):
            self._format.overwrite(self._format.read(self._session, self.path).where(F.col("_seq") > seq), self.path)
        self.refresh()

    def is_settled(self, form: Form) -> bool:
        """Return whether the table has applied the change of name or primary key that came with this form."""
        return self._state is not None and f"{_SETTLED}{form.point}" in self._state.transactions

    def apply_form_change(self, rows: DataFrame | None, columns: Form, form: Form) -> None:
        """Apply this form's change of name or primary key: replace all rows with these, or with None only record the change.

        `columns` is the form whose columns `rows` have. A change that is settled already is skipped.
        """
        if self.is_settled(form):
            return
        if rows is None:
            empty = self._format.read(self._session, self.path).limit(0)
            application, told = f"{_SETTLED}{form.point}", _told(form.seq)
            self._format.append_once(empty, self.path, partition_by=(), application=application, batch=1, told=told)
            self.refresh()
        else:
            self._overwrite(rows, columns, Once(f"{_SETTLED}{form.point}", 1, _told(form.seq)))

    def pending_source_version(self, form: Form) -> int | None:
        """Return the version of the other table from which this one must take over this form's rows; None if it needn't."""
        assert self._state is not None
        point, _, version = self._state.properties.get(_AWAITS, "").partition("@")
        return int(version) if point == form.point else None

    def await_rows(self, form: Form, version: int) -> None:
        """Record from which version of the other table this one must take over the rows, even if that table changes meanwhile."""
        self._format.set_properties(self._session, self.path, {_AWAITS: f"{form.point}@{version}"})
        self.refresh()

    def _by_name(self, step: Callable[[], None]) -> bool:
        """Run a step that needs names of its own for columns, and return whether the table leaves it these."""
        if self._has_taken_name:
            return False
        try:
            step()
        except NameTakenError:
            if not self.has_columns_of_form:
                raise
            self._has_taken_name = True
        return not self._has_taken_name

    def _overwrite(self, rows: DataFrame, form: Form, once: Once) -> None:
        # The rows come from a fixed version of the table, so it doesn't matter if `maintain` compacts the table meanwhile. If the
        # process stops before the property is there, too, the columns are made again from `_row`.
        text = form.to_json()
        self._format.overwrite(_commented(rows, form), self.path, once=once, properties={FORM: text})
        self.refresh()


def _told(merged: int) -> dict[str, str]:
    return {_SEQ: str(merged)}


def _commented(rows: DataFrame, form: Form) -> DataFrame:
    """Return the rows with the comments of the form's columns, which a table takes over with the columns."""
    comments = {**form.comments(), **_COMMENTS}
    columns = (F.col(quoted(name)).alias(name, metadata={"comment": comments[name]}) for name in rows.columns)
    return rows.select(*columns)
