"""The SQL of a view with the newest rows of a space: the merged rows, combined with the later events. This module does no I/O.

The text of a view stays the same while the tables change, so a view that nobody has renewed must still be right. It reads

* the merged rows in one version of their table (`VERSION AS OF`), which contains the events up to a seq M, and no later one;
* the events after M, as they are when the view is read. Delta reads a table in one version per query, even where the text names
  the table several times.

Why its rows are right, however old its text is:

* If a key has events after M, the newest of them decides: it has the row, or deletes it. If a key has none, its merged row is
  still the newest. Later merges don't matter, because the view doesn't see them.
* A truncation is an event, too. Rows up to the newest one are gone, merged or not. So are rows that a snapshot has swept. Its
  record in `_control` is read each time.
* Not every event can be applied in SQL: a patch needs Python, and an event of another form may have other field names, another
  key, or belong to another space that has taken the name. The view stops before the first such event. It then shows the space
  as it was right before that event, as if no later truncation or sweep had arrived either.
* A change of name or key that is known when the view is made limits it in the same way (`up_to`), even without any event.
* `maintain` removes merged events, and records the seqs of the last ones beforehand (forgotten.py). If events after M have been
  removed, the view raises an error. If VACUUM has removed the files of the version, Delta does so.

The job makes the view again after each merge. A view that is read before that is slower, because it reads more events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_jobs.contract.forms import META_COLUMNS, Form
from spark_jobs.contract.row_texts import LONG_STRINGS, column_values
from spark_jobs.contract.sql_text import literal, quoted

_SNAPSHOT: Final = "struct<status: string, seq: bigint, spaces: array<struct<space_id: bigint, sweep_seq: bigint>>>"
"""The members of a record of the snapshot topic (control_topics.py) that sweeps need."""

_OUT_OF_DATE: Final = (
    "This view is out of date: `maintain` has removed events that it needs. Start the job `current` with --catalog, which makes "
    "the view again."
)
_OPTIONS: Final = f"map({', '.join(literal(text) for option in LONG_STRINGS.items() for text in option)})"
_UNREADABLE: Final = "raise_error(concat('the row of ', key, ' at seq ', image.seq, ' isn\\'t a JSON object'))"


@dataclass(frozen=True)
class FreshView:
    """Parts of a space's view.

    `base` names the merged rows in SQL, which have the columns of `form`, and are as of the event `merged` in `version`.
    `changes`, `control` and `forgotten` name the tables with the events, with the records of the control topics, and
    with the seqs up to which events were removed (None if they never are). `schema_versions` are those of events that have the
    rows of `form`. The view shows no event after `up_to`.
    """

    base: str
    version: int
    merged: int
    form: Form
    schema_versions: tuple[int, ...]
    changes: str
    control: str
    forgotten: str | None
    up_to: int

    def query(self) -> str:
        """Return the SQL of the view. Its columns are META_COLUMNS and the columns of the form.

        Spark plans the subquery of a name once for each of its uses, so there are few: `gone` applies to all rows at the end.
        """
        names = ", ".join(map(quoted, (*META_COLUMNS, *self.form.columns())))
        values = ", ".join(("key", "image.row", "image.seq", "image.ts", *column_values(self.form, "fields").values()))
        space, space_id = literal(self.form.space), self.form.space_id
        versions = ", ".join(map(str, self.schema_versions))
        return f"""WITH event AS (
  SELECT key, seq, op, after, source_ts,
    space_id = {space_id} AND schema_version IN ({versions}) AND patch IS NULL AS is_known
  FROM {self.changes} WHERE space = {space} AND seq > {self.merged} AND seq <= {self.up_to}
),
bound AS (SELECT coalesce(min(seq) - 1, {self.up_to}) AS seq FROM event WHERE NOT is_known),
shown AS (SELECT * FROM event WHERE seq <= (SELECT seq FROM bound)),
snapshot AS (SELECT from_json(value, '{_SNAPSHOT}') AS ended FROM {self.control} WHERE kind = 'snapshot'),
sweep AS (SELECT ended.seq, explode(ended.spaces) AS swept FROM snapshot WHERE ended.status = 'COMPLETED'),
gone AS (
  SELECT {self._checked("coalesce(max(seq), -1)")} AS seq FROM (
    SELECT seq FROM shown WHERE op = 't' UNION ALL
    SELECT swept.sweep_seq FROM sweep WHERE swept.space_id = {space_id} AND seq <= (SELECT seq FROM bound)
  )
),
newest AS (
  SELECT key, max(struct(seq, op = 'd' AS is_deleted, after AS row, source_ts AS ts)) AS image
  FROM shown WHERE op <> 't' GROUP BY key
),
changed AS (
  SELECT key, image, coalesce(from_json(image.row, 'map<string,string>', {_OPTIONS}), {_UNREADABLE}) AS fields
  FROM newest WHERE NOT image.is_deleted
)
SELECT * FROM (
  SELECT {names} FROM {self.base} VERSION AS OF {self.version} AS merged
  LEFT ANTI JOIN newest ON merged._key = newest.key
  UNION ALL
  SELECT {values} FROM changed
) WHERE _seq > (SELECT seq FROM gone)"""  # noqa: S608 - all names and texts are quoted

    def _checked(self, value: str) -> str:
        """Return an SQL expression for a value that raises an error instead if events have been removed that the view needs."""
        if self.forgotten is None:
            return value
        removed = f"SELECT max(seq) FROM {self.forgotten} WHERE space = {literal(self.form.space)}"  # noqa: S608
        return f"if(({removed}) > {self.merged}, raise_error({literal(_OUT_OF_DATE)}), {value})"
