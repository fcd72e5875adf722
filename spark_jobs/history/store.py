"""Tables of a history: the append-only versions of all spaces' rows, and the intervals computed from them.

    <path>/_versions   one row per event and per record of `<prefix>.schema` and `<prefix>.snapshot`, partitioned by space
    <path>/<folder>    the intervals of one space, for readers without Spark: updated from time to time

In a catalog these are tables of a schema (location.py).

A space is identified by its id, so its history includes changes under its former names. Its name is the last one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract import control_topics
from spark_jobs.contract.forms import Form, Forms
from spark_jobs.contract.scales import Scales, with_scales
from spark_jobs.contract.unfit_values import UnfitValues
from spark_jobs.errors import JobError
from spark_jobs.history.intervals import ENDING_SCHEMA, intervals, seq_at, shown, shown_columns
from spark_jobs.history.keys import Move, moves, with_moves
from spark_jobs.tables import delta
from spark_jobs.tables.format import NameTakenError, TableFormat, TableState
from spark_jobs.tables.formats import format_of
from spark_jobs.tables.found import TEMPLATE, location
from spark_jobs.tables.location import Location
from spark_jobs.tables.places import Table, check_java_side, names_in_catalog

VERSIONS: Final = "_versions"
_FORM: Final = "tarantool_cdc.form"
_APPENDED: Final = "tarantool_cdc.appended"
_MOVES: Final = "tarantool_cdc.moves"
"""Table property with the number of changes of keys that no event tells (keys.py)."""
_IDENTITY: Final = ("_key", "_begin_seq")
_OTHER_END: Final = "not stored._end_seq <=> new._end_seq"
_SCALES: Final = "tarantool_cdc.scales"
_CONTROL: Final = "tarantool_cdc.control"
"""Application of the control records that `History.add_control` appends."""


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

    def __init__(self, session: SparkSession, place: str | Location, prefix: str | None = None) -> None:
        """`place` is where job `history` keeps its tables: a path or, as a text too, a schema of a catalog.

        `prefix` is needed if the schema has histories of several daemons. Raises JobError if it has none.
        """
        check_java_side(session, "History")
        self._session = session
        self._location = _location(session, place, prefix) if isinstance(place, str) else place
        self.format: TableFormat = self._location.format
        self.versions_table: Table = self._location.inner(VERSIONS)

    def prepare(self, scales: Scales) -> None:
        """Have the table of versions tell later what was appended to it, and in a catalog how the tables are named.

        `scales` are those of decimals whose forms say none, for all that reads the history.
        """
        self.format.keep_appended(self._session, self.versions_table)
        template = {} if self._location.path is not None else {TEMPLATE: self._location.template}
        known = self._state().properties
        told = {**template, **({_SCALES: json.dumps(dict(scales))} if scales or _SCALES in known else {})}
        if not told.items() <= known.items():
            self.format.set_properties(self._session, self.versions_table, told)

    def add_control(self, records: DataFrame) -> None:
        """Append those control records (`intervals.control_versions`) that the table doesn't have yet."""
        # Not by their positions, which change when the schema topic is compacted.
        known = self.versions().where("op in ('schema', 'snapshot')").select("space", "row")
        missing = records.join(known, ["space", "row"], "left_anti").select(*self.versions().columns)
        number = self._state().transactions.get(_CONTROL, -1) + 1
        self.format.append_once(missing, self.versions_table, partition_by=("space",), application=_CONTROL, batch=number)

    def exists(self) -> bool:
        """Return whether any versions have been appended."""
        return self.format.state(self._session, self.versions_table) is not None

    def _state(self) -> TableState:
        """Return the state of the table of versions. Raises JobError if there is no history."""
        found = self.format.state(self._session, self.versions_table)
        if found is None:
            raise JobError(f"There is no history in {self._location}: job `history` begins one with its first batch.")
        return found

    def versions(self) -> DataFrame:
        """Return all versions. Raises JobError if there is no history."""
        return self.format.read(self._session, self.versions_table, self._state().version)

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
        for table in map(self._table, sorted(names)):
            if self.format.exists(self._session, table) and not self.format.read(self._session, table).isEmpty():
                self.format.delete(self._session, table, "true")

    def _table(self, name: str) -> Table:
        """Return the table with the intervals of a space."""
        return self._location.of(name, (VERSIONS,))

    def _forms(self) -> Forms:
        records = self.versions().where("space = '~schema' and op = 'schema'").orderBy("seq").collect()
        scales: Scales = json.loads(self._state().properties.get(_SCALES, "{}"))
        return Forms("<prefix>.schema", [with_scales(row["row"], scales) for row in records])

    def space(self, name: str) -> Space:
        """Return a space by its last name. Raises JobError if there is none."""
        spaces = self.spaces()
        if name not in spaces:
            known = ", ".join(sorted(spaces)) or "none at all"
            raise JobError(
                f"The history in {self._location} knows no space {name!r}, but {known}. A space has its last name there."
            )
        return spaces[name]

    def intervals(self, name: str, keys: DataFrame | None = None, unfit: UnfitValues | None = None) -> DataFrame:
        """Return all intervals of a space, up to the last appended event; if `keys` (space_id, key) is given, only of these keys.

        Columns: META_COLUMNS and the fields of the space's last form. `unfit` is as in `typed`.
        """
        space = self.space(name)
        own = self.versions().where(F.col("space_id").isin(*space.ids))
        found = own if keys is None else own.join(keys, ["space_id", "key"], "left_semi")
        endings = self._endings(own, space)
        stale = [*space.stale(), *self._lost(own, space)]
        return shown(intervals(with_moves(found, endings, self._moves(space)), endings), space.form, stale, unfit)

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

    def bring_up_to_date(self, name: str, unfit: UnfitValues | None = None) -> Table:
        """Update the space's table of intervals, and return it. A repeated call without new versions changes nothing."""
        space, table = self.space(name), self._table(name)
        appended = self._state().version
        state = self.format.state(self._session, table)
        known = {} if state is None else state.properties
        if known.get(_APPENDED) == str(appended):
            return table
        # An earlier version of the job has written other columns for the same form.
        has_columns = state is not None and list(state.columns) == shown_columns(space.form)
        is_current = known.get(_FORM) == space.form.to_json() and has_columns
        # If rows have got other keys, an event may change versions of any of a row's keys, or tell that they haven't.
        count = str(len(self._moves(space)))
        properties = {_FORM: space.form.to_json(), _APPENDED: str(appended), _MOVES: count}
        if is_current and known.get(_MOVES, "0") == "0" == count:
            try:
                self._merge_new(space, table, int(known[_APPENDED]), appended, unfit)
                self.format.set_properties(self._session, table, properties)
                return table
            except NameTakenError:
                pass  # the table can only be rewritten
            except (PySparkException, Py4JError) as error:
                if not self.format.are_gone(error):
                    raise
        self.format.overwrite(self.intervals(name, None, unfit), table, properties=properties)
        return table

    def _merge_new(self, space: Space, table: Table, after: int, up_to: int, unfit: UnfitValues | None) -> None:
        """Merge the intervals of the keys that these versions of the table of versions have changed."""
        fresh = self.format.appended(self._session, self.versions_table, after, up_to)
        fresh = fresh.where(F.col("space_id").isin(*space.ids) | (F.col("op") == "snapshot"))
        ends_many = not fresh.where("op in ('t', 'snapshot')").isEmpty()
        keys = None if ends_many else fresh.select("space_id", "key").where("key is not null").distinct()
        new = self.intervals(space.form.space, keys, unfit)
        self.format.upsert(self._session, table, new, _IDENTITY, _OTHER_END)

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


def _location(session: SparkSession, place: str, prefix: str | None) -> Location:
    schema = names_in_catalog(session, place)
    if schema is not None:
        return location(session, schema, VERSIONS, prefix)
    path = place.rstrip("/")
    return Location(path=path, format=format_of(session, f"{path}/{VERSIONS}") or delta)
