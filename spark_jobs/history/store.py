"""Tables of a history: the append-only versions of all spaces' rows, and the intervals computed from them.

    <path>/_versions   one row per event and per record of `<prefix>.schema` and `<prefix>.snapshot`, partitioned by space
    <path>/<folder>    the intervals of one space, for readers without Spark: updated from time to time

A space is identified by its id, so its history includes changes under its former names. Its name is the last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics
from spark_jobs.contract.forms import Form, Forms
from spark_jobs.errors import JobError
from spark_jobs.history.intervals import ENDING_SCHEMA, intervals, seq_at, shown, shown_columns
from spark_jobs.history.keys import Move, moves, with_moves
from spark_jobs.tables import delta
from spark_jobs.tables.folders import folder

_VERSIONS: Final = "_versions"
_FORM: Final = "tarantool_cdc.form"
_APPENDED: Final = "tarantool_cdc.appended"
_MOVES: Final = "tarantool_cdc.moves"
"""Table property with the number of changes of keys that no event tells (keys.py)."""
_FEED: Final = "delta.enableChangeDataFeed"
_SAME: Final = "stored._key = new._key and stored._begin_seq = new._begin_seq"
_OTHER_END: Final = "not stored._end_seq <=> new._end_seq"
_VACUUMED: Final = re.compile(
    r"FILE_NOT_EXIST|DELTA_CHANGE_DATA_FILE_NOT_FOUND|DELTA_FILE_NOT_FOUND|DELTA_VERSION_NOT_FOUND|DELTA_LOG_FILE"
)
"""Errors of Delta and Spark where `maintain` has removed what tells the versions appended since the last publication."""

_TAKEN_NAME: Final = "AMBIGUOUS_REFERENCE"
"""Error of a MERGE into a table with a column whose name Delta's MERGE uses itself."""


@dataclass(frozen=True)
class Space:
    """A space: its ids (it may have been dropped and created again), its forms, and the last form."""

    ids: tuple[int, ...]
    forms: tuple[Form, ...]
    form: Form

    def stale(self) -> list[tuple[int, int]]:
        """Return the forms (space_id, schema_version) whose rows have other field names."""
        names = self.form.fields
        return [
            (form.space_id, form.schema_version)
            for form in self.forms
            if [field.name for field in form.fields] != [field.name for field in names[: len(form.fields)]]
            or len(form.fields) < len(names)
        ]


class History:
    """The history that job `history` writes."""

    def __init__(self, session: SparkSession, path: str) -> None:
        """`path` is the folder that job `history` writes to."""
        self._session = session
        self._path = path.rstrip("/")
        self.versions_path = f"{self._path}/{_VERSIONS}"

    def prepare(self) -> None:
        """Enable the change data feed of the table of versions. The feed costs nothing if rows are only appended."""
        if delta.describe(self._session, self.versions_path)[0].get(_FEED) != "true":
            delta.set_properties(self._session, self.versions_path, {_FEED: "true"})

    def add_control(self, records: DataFrame) -> None:
        """Append those control records (`intervals.control_versions`) that the table doesn't have yet."""
        # Not by their positions, which change when the schema topic is compacted.
        known = self.versions().where("op in ('schema', 'snapshot')").select("space", "row")
        missing = records.join(known, ["space", "row"], "left_anti").select(*self.versions().columns)
        missing.write.format("delta").mode("append").save(self.versions_path)

    def exists(self) -> bool:
        """Return whether any versions have been appended."""
        return delta.exists(self._session, self.versions_path)

    def versions(self) -> DataFrame:
        """Return all versions. Raises JobError if there is no history."""
        if not delta.exists(self._session, self.versions_path):
            raise JobError(f"There is no history in {self._path}: job `history` begins one with its first batch.")
        return delta.read(self._session, self.versions_path)

    def spaces(self) -> dict[str, Space]:
        """Return all spaces by their last names."""
        forms = self._forms()
        found: dict[str, list[list[Form]]] = {}
        for forms_of_id in forms.histories():
            found.setdefault(forms_of_id[-1].space, []).append(forms_of_id)
        return {
            name: Space(
                tuple(one[0].space_id for one in histories),
                tuple(form for one in histories for form in one),
                max((one[-1] for one in histories), key=lambda form: (form.seq, form.schema_version)),
            )
            for name, histories in found.items()
        }

    def empty_former(self) -> None:
        """Remove the intervals from the tables of former names: a renamed space has all of them under its last name."""
        names = self._forms().names() - self.spaces().keys()
        for path in (f"{self._path}/{folder(name, (_VERSIONS,))}" for name in sorted(names)):
            if delta.exists(self._session, path) and delta.describe(self._session, path)[1]:
                delta.delete(self._session, path, "true")

    def _forms(self) -> Forms:
        records = self.versions().where("space = '~schema' and op = 'schema'").orderBy("seq").collect()
        return Forms("<prefix>.schema", [row["row"] for row in records])

    def space(self, name: str) -> Space:
        """Return a space by its last name. Raises JobError if there is none."""
        spaces = self.spaces()
        if name not in spaces:
            known = ", ".join(sorted(spaces)) or "none at all"
            raise JobError(f"The history in {self._path} knows no space {name!r}, but {known}. A space has its last name there.")
        return spaces[name]

    def intervals(self, name: str, keys: DataFrame | None = None) -> DataFrame:
        """Return all intervals of a space, up to the last appended event; if `keys` (space_id, key) is given, only of these keys.

        Columns: META_COLUMNS and the fields of the space's last form.
        """
        space = self.space(name)
        own = self.versions().where(F.col("space_id").isin(*space.ids))
        found = own if keys is None else own.join(keys, ["space_id", "key"], "left_semi")
        endings = self._endings(own, space)
        stale = [*space.stale(), *self._lost(own, space)]
        return shown(intervals(with_moves(found, endings, self._moves(space)), endings), space.form, stale)

    @staticmethod
    def _lost(own: DataFrame, space: Space) -> list[tuple[int, int]]:
        """Return those forms of rows (space_id, schema_version) that the schema topic lacks: any names are possible."""
        known = {(form.space_id, form.schema_version) for form in space.forms}
        versions = F.collect_set(F.struct("space_id", "schema_version"))
        found = own.where("row is not null and schema_version is not null").agg(versions).collect()[0][0]
        return sorted({(row["space_id"], row["schema_version"]) for row in found} - known)

    def _moves(self, space: Space) -> list[Move]:
        histories = [[form for form in space.forms if form.space_id == space_id] for space_id in space.ids]
        return moves(self.versions().where(F.col("space_id").isin(*space.ids)), histories)

    def seq_at(self, moment: Any) -> int:
        """Return the seq of the last event at a moment; see intervals.seq_at."""
        return seq_at(self.versions(), moment)

    def bring_up_to_date(self, name: str) -> str:
        """Update the space's table of intervals, and return its path. A repeated call without new versions changes nothing."""
        space, path = self.space(name), f"{self._path}/{folder(name, (_VERSIONS,))}"
        appended = delta.version(self._session, self.versions_path)
        is_new = not delta.exists(self._session, path)
        known = {} if is_new else delta.describe(self._session, path)[0]
        if known.get(_APPENDED) == str(appended):
            return path
        # An earlier version of the job has written other columns for the same form.
        is_current = known.get(_FORM) == space.form.to_json() and self._has_columns(path, space.form)
        # If rows have got other keys, an event may change versions of any of a row's keys, or tell that they haven't.
        count = str(len(self._moves(space)))
        if not is_current or known.get(_MOVES, "0") != "0" or count != "0":
            delta.overwrite(self.intervals(name), path)
        else:
            try:
                self._merge_new(space, path, int(known[_APPENDED]) + 1, appended)
            except (PySparkException, Py4JError) as error:
                if not (_VACUUMED.search(str(error)) or _TAKEN_NAME in str(error)):
                    raise
                delta.overwrite(self.intervals(name), path)
        properties = {_FORM: space.form.to_json(), _APPENDED: str(appended), _MOVES: count}
        delta.set_properties(self._session, path, properties)
        return path

    def _has_columns(self, path: str, form: Form) -> bool:
        return delta.read(self._session, path).columns == shown_columns(form)

    def _merge_new(self, space: Space, path: str, first: int, last: int) -> None:
        """Merge the intervals of the keys that these versions of the table of versions have changed."""
        feed = self._session.read.format("delta").option("readChangeFeed", "true")
        feed = feed.option("startingVersion", first).option("endingVersion", last)
        fresh = feed.load(self.versions_path).where(F.col("space_id").isin(*space.ids) | (F.col("op") == "snapshot"))
        ends_many = not fresh.where("op in ('t', 'snapshot')").isEmpty()
        keys = None if ends_many else fresh.select("space_id", "key").where("key is not null").distinct()
        merge = (
            DeltaTable.forPath(self._session, path)
            .alias("stored")
            .merge(self.intervals(space.form.space, keys).alias("new"), _SAME)
        )
        merge.whenMatchedUpdateAll(_OTHER_END).whenNotMatchedInsertAll().execute()

    def _endings(self, own: DataFrame, space: Space) -> DataFrame:
        """Return the events that end many versions: truncations, and snapshots that swept rows."""
        found = own.where("op = 't'").select("space_id", F.col("seq").alias("up_to"), F.col("seq").alias("at"), "ts", "op")
        records = self.versions().where("space = '~snapshot' and op = 'snapshot'").select("row").collect()
        swept = [
            (sweep.space_id, sweep.up_to, ended.seq, ended.ts_ms)
            for ended in control_topics.completed([row["row"] for row in records], "<prefix>.snapshot")
            for sweep in ended.sweeps
            if sweep.space_id in space.ids
        ]
        sweeps = self._session.createDataFrame(swept, "space_id bigint, up_to bigint, at bigint, ts_ms bigint")
        told = sweeps.select("space_id", "up_to", "at", F.timestamp_millis("ts_ms").alias("ts"), F.lit("snapshot").alias("op"))
        return found.unionByName(told).to(self._session.createDataFrame([], ENDING_SCHEMA).schema)
