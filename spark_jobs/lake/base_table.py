"""The table of one space: its rows as they were after some seq, one row per key.

| column | |
|---|---|
| `_key` | the key's JSON text |
| `_row` | the row's JSON text, exact |
| `_seq` | `seq` of the change that made the row what it is |
| `_ts` | the master's time of that change |

After them come the fields of a form (forms.py), which stands in the table's properties. Deleted rows aren't there. Up to which
seq events are in it, the table's own transactions tell: each write carries the seq as the number of an application, which Delta
keeps with the write and takes once.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_jobs import tables
from spark_jobs.errors import JobError
from spark_jobs.forms import Form
from spark_jobs.lake import delta_log
from spark_jobs.lake.current_rows import META_SCHEMA, Base
from spark_jobs.transforms import typed

_FORM: Final = "tarantool_cdc.form"
_PREFIX: Final = "tarantool_cdc.prefix"
_AWAITS: Final = "tarantool_cdc.awaits"
_MERGED: Final = "tarantool_cdc.merged"
_SETTLED: Final = "tarantool_cdc.settled."
_TRANSACTION_NAME: Final = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_NUMBER: Final = "spark.databricks.delta.write.txnVersion"
_LAYOUT: Final = "tarantool_cdc.layout"
"""Tables that an earlier version has made haven't got it until they are merged for the first time."""
_FORMER_MARK: Final = "_deleted"
"""They keep deleted rows, marked."""
_FORMER_SETTLED: Final = "tarantool_cdc.settled"
"""In this property they have the points that they have settled,"""
_FORMER_FLOOR: Final = "tarantool_cdc.floor"
"""and here the seq of the last truncation: what is older and comes later is void."""

_PROPERTIES: Final = {_LAYOUT: "1", "delta.enableDeletionVectors": "true"}


class BaseTable:
    """One table. Every method that writes may be repeated."""

    def __init__(self, session: SparkSession, path: str, prefix: str | None = None) -> None:
        """Nothing is created yet. Raises JobError if the table at the path is of another prefix."""
        self.path = path
        self._session = session
        self._prefix = prefix
        self._own_session: SparkSession | None = None
        self._state = delta_log.state(session, path)
        found = None if self._state is None else self._state.properties.get(_PREFIX)
        if self._state is not None and (found is None or (prefix is not None and found != prefix)):
            raise JobError(
                f"The table at {path} isn't of this job and {prefix!r} (its properties say {found!r}). Choose another --path."
            )

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._state is not None

    @property
    def version(self) -> int:
        """Its version, as which it can be read later."""
        assert self._state is not None
        return self._state.version

    @property
    def merged(self) -> int:
        """The seq up to which events are in it."""
        return -1 if self._state is None else self._state.transactions.get(_MERGED, -1)

    def merged_at(self, seconds: float) -> int:
        """The seq up to which events were in it at a time, in seconds since 1970."""
        state = delta_log.state_at(self._session, self.path, seconds)
        return -1 if state is None else state.transactions.get(_MERGED, -1)

    @property
    def is_former(self) -> bool:
        """Whether it is as an earlier version of this job has left it: with events that aren't in the table of events."""
        return self._state is not None and _LAYOUT not in self._state.properties

    def former_points(self) -> list[str]:
        """The points (`Form.point`) that an earlier version has settled, all events before which it had applied."""
        return [] if self._state is None else self._state.properties.get(_FORMER_SETTLED, "").strip(",").split(",")

    def former_seqs(self) -> tuple[int, int]:
        """Of a table of an earlier version: up to which events are void, and the newest that is in it."""
        assert self._state is not None
        last = tables.read(self._session, self.path).agg({"_seq": "max"}).collect()[0][0]
        return int(self._state.properties.get(_FORMER_FLOOR, "-1")), -1 if last is None else int(last)

    @property
    def form(self) -> Form:
        """The form whose columns it has."""
        assert self._state is not None
        return Form.from_json(self._state.properties[_FORM])

    def refresh(self) -> None:
        """Look at it anew."""
        self._state = delta_log.state(self._session, self.path)

    def as_of(self, seq: int) -> BaseTable:
        """The last version that has nothing behind a seq."""
        then = copy(self)
        while then._state is not None and then.merged > seq:
            version = then._state.version
            then._state = delta_log.state(self._session, self.path, version - 1) if version else None
        return then

    def base(self, version: int | None = None) -> Base | None:
        """Its rows, now or as they were."""
        if self._state is None:
            return None
        rows = tables.read(self._session, self.path, self._state.version if version is None else version)
        if _FORMER_MARK in rows.columns:
            rows = rows.where(f"not {_FORMER_MARK}").drop(_FORMER_MARK)
        return Base(rows, self.form)

    def count(self) -> int:
        """How many rows it has."""
        return 0 if self._state is None else tables.read(self._session, self.path).count()

    def create(self, form: Form) -> None:
        """An empty table with this form's columns, if there is none."""
        if self._state is None:
            assert self._prefix is not None
            schema = typed(self._session.createDataFrame([], META_SCHEMA), form).schema
            properties = {_PREFIX: self._prefix, _FORM: form.to_json(), **_PROPERTIES}
            tables.create(self._session, self.path, schema, properties)
            self.refresh()

    def replace(self, rows: DataFrame, form: Form, merged: int) -> None:
        """Put these rows in the place of all others: those after a seq."""
        self._overwrite(rows, form, _MERGED, merged)

    def merge(self, newest: DataFrame, merged: int) -> None:
        """Take in the newest rows of some keys (`current_rows.newest_rows`): those after a seq."""
        # The number of a merge's transaction is a setting of the session, so each table has a session of its own.
        self._own_session = self._own_session or self._session.newSession()
        self._own_session.conf.set(_TRANSACTION_NAME, _MERGED)
        self._own_session.conf.set(_TRANSACTION_NUMBER, str(merged))
        tables.merge_rows(self._own_session, self.path, newest)
        self.refresh()

    def advance(self, merged: int) -> None:
        """Remember that nothing else has happened to its rows up to a seq."""
        empty = tables.read(self._session, self.path).limit(0)
        tables.append_once(empty, self.path, partition_by=(), application=_MERGED, batch=merged)
        self.refresh()

    def sweep(self, seq: int) -> None:
        """Take out all rows up to a seq; only once what is before the sweep is merged, or older versions would lack them."""
        tables.delete(self._session, self.path, f"_seq <= {seq}")
        self.refresh()

    def is_settled(self, form: Form) -> bool:
        """Whether the table has done what this form's other name or primary key means for it."""
        return self._state is not None and f"{_SETTLED}{form.point}" in self._state.transactions

    def settle(self, rows: DataFrame | None, columns: Form, form: Form) -> None:
        """Do it: put these rows in the place of all others, or, with None, only remember that it is done."""
        if self.is_settled(form):
            return
        if rows is None:
            empty = tables.read(self._session, self.path).limit(0)
            tables.append_once(empty, self.path, partition_by=(), application=f"{_SETTLED}{form.point}", batch=1)
            self.refresh()
        else:
            self._overwrite(rows, columns, f"{_SETTLED}{form.point}", 1)

    def awaits(self, form: Form) -> int | None:
        """The version of the other table from which it is to take over the rows of this form; None if it isn't."""
        assert self._state is not None
        point, _, version = self._state.properties.get(_AWAITS, "").partition("@")
        return int(version) if point == form.point else None

    def await_rows(self, form: Form, version: int) -> None:
        """Remember that it is, whatever becomes of the other table meanwhile."""
        tables.set_properties(self._session, self.path, {_AWAITS: f"{form.point}@{version}"})
        self.refresh()

    def _overwrite(self, rows: DataFrame, form: Form, application: str, number: int) -> None:
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer = writer.option("txnAppId", application).option("txnVersion", number)
        # The rows are of a version that stays what it is, whoever compacts the table meanwhile.
        tables.retried(lambda: writer.save(self.path))
        # If it stops in between, the columns are those of another form than the properties say, and are made anew from `_row`.
        if self.form != form or self.is_former:
            tables.set_properties(self._session, self.path, {_FORM: form.to_json(), **_PROPERTIES})
        self.refresh()
