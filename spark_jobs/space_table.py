"""The table of one space: one row per key, guarded by `_seq`.

| column | |
|---|---|
| `_key` | the key's JSON text |
| `_row` | the row's JSON text, exact; null in a deleted row |
| `_seq` | `seq` of the change that made the row what it is |
| `_ts` | the master's time of that change |
| `_deleted` | deleted rows stay, so that a change which comes late or again can't bring them back |

After them come the fields of the latest form (forms.py). What the table needs to know across restarts stands in its
properties: its form, and its floor. Rows and events up to the floor are void: a truncation raises it to its own seq, a
completed snapshot to the seq at which it started. It is raised for good, so it doesn't matter in which order the partitions
of a topic are read: an older row that comes in after the truncation is as void as one that was there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from spark_jobs import tables
from spark_jobs.errors import JobError
from spark_jobs.forms import META_COLUMNS, Form
from spark_jobs.transforms import labels_differ, rekey, relabel, typed

_FORM: Final = "tarantool_cdc.form"
_FLOOR: Final = "tarantool_cdc.floor"
_PREFIX: Final = "tarantool_cdc.prefix"
_KEYED_SINCE: Final = "tarantool_cdc.keyed_since"
_SETTLED: Final = "tarantool_cdc.settled"
_AWAITS: Final = "tarantool_cdc.awaits"

_META_SCHEMA: Final = StructType(
    [
        StructField("_key", StringType()),
        StructField("_row", StringType()),
        StructField("_seq", LongType()),
        StructField("_ts", TimestampType()),
        StructField("_deleted", BooleanType()),
    ]
)


class SpaceTable:
    """One table and its properties. Every method may be repeated."""

    def __init__(self, session: SparkSession, path: str, prefix: str) -> None:
        """Nothing is created yet."""
        self._session = session
        self._path = path
        self._prefix = prefix
        self._properties: dict[str, str] = {}
        self._has_rows = False
        self.exists = tables.exists(session, path)
        if self.exists:
            self._properties, self._has_rows = tables.describe(session, path)
            if self._properties.get(_PREFIX) != prefix:
                raise JobError(
                    f"The table at {path} isn't of this job and {prefix!r} (its properties say "
                    f"{self._properties.get(_PREFIX)!r}). Choose another --path."
                )

    @property
    def form(self) -> Form:
        """The form whose columns the table has."""
        return Form.from_json(self._properties[_FORM])

    @property
    def floor(self) -> int:
        """The seq up to which rows and events are void."""
        return int(self._properties.get(_FLOOR, "-1"))

    @property
    def keyed_since(self) -> tuple[int, int]:
        """(space_id, schema_version) since which keys are built as they are now: what is older has been applied already."""
        space_id, version = self._properties[_KEYED_SINCE].split(":")
        return int(space_id), int(version)

    def has_settled(self, form: Form) -> bool:
        """Whether the rows have been brought over to this form's name and primary key."""
        return _point(form) in self._properties[_SETTLED].split(",")

    def settle(self, form: Form) -> None:
        """Remember that they have been."""
        self._set({_SETTLED: f"{self._properties[_SETTLED]},{_point(form)}", _AWAITS: ""})

    def awaits(self, form: Form) -> int | None:
        """The version of the other table from which it is to take over the rows of this form; None if it isn't."""
        point, _, version = self._properties.get(_AWAITS, "").partition("@")
        return int(version) if point == _point(form) else None

    def await_rows(self, form: Form, version: int) -> None:
        """Remember that it is."""
        self._set({_AWAITS: f"{_point(form)}@{version}"})

    def version(self) -> int:
        """The table's version, which it can be read as later."""
        return tables.version(self._session, self._path)

    def create(self, form: Form) -> None:
        """An empty table for this form, if there is none."""
        if self.exists:
            return
        schema = typed(self._session.createDataFrame([], _META_SCHEMA), form).schema
        state = {_FORM: form.to_json(), _FLOOR: "-1", _KEYED_SINCE: f"{form.space_id}:0", _SETTLED: ""}
        self._properties = {_PREFIX: self._prefix, **state}
        tables.create(self._session, self._path, schema, self._properties)
        self.exists = True

    def evolve(self, form: Form) -> None:
        """Change the table to this form: columns, and the names that fields have in `_row`."""
        stored = self.form
        if stored == form:
            return
        rows = self.rows()
        before, after = stored.columns(), form.columns()
        is_longer = list(after.items())[: len(before)] == list(before.items())
        added = {name: kind for name, kind in after.items() if name not in before}
        if is_longer and (not self._has_rows or rows.where(labels_differ(form)).isEmpty()):
            if added:
                tables.add_columns(self._session, self._path, added)
        else:
            renamed = F.when(labels_differ(form), relabel(form)("_row")).otherwise(F.col("_row"))
            meta = rows.select(*(renamed.alias(name) if name == "_row" else name for name in META_COLUMNS))
            tables.overwrite(typed(meta, form), self._path)
        self._set({_FORM: form.to_json()})

    def rekey(self, form: Form, floor: int) -> None:
        """Build all keys anew, after the primary key has changed to that of `form`, and take out rows up to `floor`.

        Everything older must have been applied; from here on it is void.
        """
        self.evolve(form)
        if self._has_rows:
            # Tombstones go: they stand under keys that no event has any more.
            kept = self.rows().where(f"not _deleted and _seq > {floor}")
            keyed = kept.withColumn("_key", rekey(form)("_key", "_row")).where("_key is not null")
            # If the stream has a gap, rows that are gone since may stand here beside others that got their values.
            newest = keyed.groupBy("_key").agg(F.max_by(F.struct(*META_COLUMNS), "_seq").alias("newest")).select("newest.*")
            tables.overwrite(typed(newest, form), self._path)
        self._set({_KEYED_SINCE: _point(form)})

    def move_in(self, rows: DataFrame, form: Form) -> None:
        """Take over the rows that the space had under its former name; `form` is its first one under this name."""
        self.evolve(form)
        # What else is here is of an earlier space of this name, which is gone; its tombstones must not hide these rows.
        if self._has_rows:
            tables.delete(self._session, self._path, f"_seq <= {form.seq}")
        self.merge(rows.select(*(relabel(form)(name).alias(name) if name == "_row" else name for name in META_COLUMNS)))

    def move_out(self, seq: int) -> None:
        """Void all up to this seq, without leaving tombstones: the space lives on under another name."""
        if seq > self.floor:
            if self._has_rows:
                tables.delete(self._session, self._path, f"_seq <= {seq}")
            self._set({_FLOOR: str(seq)})

    def raise_floor(self, seq: int) -> None:
        """Rows up to this seq are deleted, and events up to it void."""
        if seq <= self.floor:
            return
        if self._has_rows:
            # The rows first: if this stops in between, the batch comes again with the floor where it was.
            emptied = dict.fromkeys(map(_quoted, ("_row", *self.form.columns())), "null")
            changes = {"_deleted": "true", "_seq": str(seq), **emptied}
            tables.update(self._session, self._path, f"_seq <= {seq} and not _deleted", changes)
        self._set({_FLOOR: str(seq)})

    def merge(self, rows: DataFrame) -> None:
        """Take in rows (META_COLUMNS), each key once, where they are newer than what is stored."""
        new = typed(rows, self.form)
        if self._has_rows:
            tables.merge_newer(self._session, self._path, new)
        else:
            tables.append(new, self._path)
            self._has_rows = True

    def rows(self, version: int | None = None) -> DataFrame:
        """All rows, deleted ones too, now or as they were."""
        return tables.read(self._session, self._path, version)

    def forget_deleted(self, before: datetime) -> None:
        """Take out rows that were deleted before this time."""
        tables.delete(self._session, self._path, f"_deleted and _ts < timestamp '{before.isoformat()}'")

    def _set(self, changed: dict[str, str]) -> None:
        tables.set_properties(self._session, self._path, changed)
        self._properties.update(changed)


def made_for(session: SparkSession, path: str) -> str | None:
    """The space whose table is at the path, None if that is another table."""
    properties, _ = tables.describe(session, path)
    return Form.from_json(properties[_FORM]).space if _FORM in properties else None


def _point(form: Form) -> str:
    return f"{form.space_id}:{form.schema_version}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
