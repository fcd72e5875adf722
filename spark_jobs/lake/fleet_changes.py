"""Job `changes` over a fleet whose shards share their topics: one table, in which the events of all shards have one order.

    topics ──▶ events read ──▶ complete by shard, in one order ──▶ <path>            the fleet's table, as of one daemon
                    │                (fleet_order.py)              <path>/_control   the forms, by the fleet's numbers
                    └─ the others wait ──▶ <path>/_held
               the plan of each batch (fleet_plan.py) ──▶ <path>/_plan, in files

Readers of the table (`current --changes`, `history_of`) need to know nothing of shards: `seq` orders all events, has no gaps, and
its batches have whole source transactions of each shard. An event waits here until its shard's events before it have been read.
A shard that stands still holds up no other one, except for keys that have moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.contract.avro_envelope import read_again
from spark_jobs.contract.envelope import parse
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.lake import fleet_frames as frames
from spark_jobs.lake.change_rows import SKIPS_BY, SOURCE_FIELDS_OF_CHANGES, event_rows, members_of
from spark_jobs.lake.control import KINDS, Control, ControlTable, Record, scaled_records, without_control
from spark_jobs.lake.event_table import SHARDS, AppendRules, EventTable, table_is_gone
from spark_jobs.lake.fleet_order import Handoff, Stretch, stretches
from spark_jobs.lake.fleet_plan import Emptied, Events, Plan, Progress, Removed, divided
from spark_jobs.lake.fleet_rows import FleetRows
from spark_jobs.lake.positions import Positions
from spark_jobs.lake.watermark import Ends, EventsAfterMark, Seqs, advance, bitmaps, covers, ends_without_records, last_end
from spark_jobs.runner.job import Sink
from spark_jobs.tables import delta
from spark_jobs.tables.codegen import varying
from spark_jobs.tables.format import TableFormat
from spark_jobs.tables.places import HELD, Table, beside
from spark_jobs.tables.state_files import StateFiles

_QUERY, _BATCH = "query", "batch"
_CLEAN_EVERY: Final = 20
_NEVER: Final = 2**63 - 1
"""A seq after all others: what hasn't been read yet."""


@dataclass(frozen=True)
class _Shard:
    """What has been read of a shard: the events after its mark, its control records, and how far it is complete."""

    control: Control
    found: Seqs
    completed: Sequence[int]
    goal: int


class FleetChangesSink(Sink):
    """Sink that appends each batch's complete events to the fleet's table, once."""

    reads_avro = True

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        path: Table,
        positions: Positions,
        state_path: str,
        table_format: TableFormat = delta,
    ) -> None:
        """Name the tables and the folder for the plans, and create nothing yet."""
        self._session = session
        self._topics = topics
        self._path = path
        self._positions = positions
        self._format = table_format
        rules = AppendRules(skips_by=SKIPS_BY)
        self._table = EventTable(
            session, path, topics.prefix, ("space",), spaces=topics.spaces, rules=rules, table_format=table_format
        )
        self._held = beside(path, HELD)
        self._control = ControlTable(session, path, table_format)
        self._files = StateFiles(session, state_path)
        self._candidates: dict[str, tuple[int, Ends]] = {}
        """Of a shard with a gap: a seq behind the gap, and the ends of the topics after it was seen."""
        self._records: tuple[Ends, dict[str, list[tuple[str, int, str]]]] | None = None
        self._newest_seq: int | None = None

    def newest_seq(self) -> int | None:
        """See `Sink.newest_seq`."""
        return self._newest_seq

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return {"changes": self._path} if isinstance(self._path, str) else {}

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        own = without_control(records, self._topics)
        read_again(own, self._topics.schemas, lambda: self._write(own, batch, query))

    def _write(self, records: DataFrame, batch: int, query: str) -> None:
        rows = frames.with_space_names(event_rows(self._parsed(records), frames.COLUMNS), self._topics.prefix)
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            plans = dict(self._files.read(query))
            stored = Plan.from_json(plans[batch]) if batch in plans else None
            former = stored.before if stored is not None else self._former(plans.get(batch - 1), batch)
            waiting = self._unread(rows, former, batch, query)
            table = self._read().where(F.col(_BATCH) < batch) if self._format.exists(self._session, self._path) else None
            forms = former.forms if stored is None else stored.after.forms
            with FleetRows(waiting, table, forms) as added:
                plan = self._made(added, waiting, former, batch, query) if stored is None else self._again(added, stored)
                known: list[Record] = [("schema", place, text) for place, text in enumerate(forms.records())]
                self._control.write(scaled_records(known, self._topics.scales, is_first=self._newest_seq is None))
                self._hold(rows, plan.after, batch, query)
                self._table.append(added.frame().withColumn(_BATCH, varying(batch)), batch, query)
            self._mark()
        finally:
            rows.unpersist()
        self._newest_seq = plan.after.last
        if batch % _CLEAN_EVERY == 0 and self._format.exists(self._session, self._held):
            is_done = " or ".join(f"(shard = '{shard}' and shard_seq <= {mark})" for shard, mark in former.marks.items())
            if is_done:
                self._format.delete(self._session, self._held, f"{_QUERY} = '{query}' and ({is_done})")

    def _parsed(self, records: DataFrame) -> DataFrame:
        return parse(
            records,
            source_fields=(*SOURCE_FIELDS_OF_CHANGES, "shard"),
            names=self._topics.names,
            wanted=members_of(frames.COLUMNS),
            schemas=self._topics.schemas,
        )

    def _read(self) -> DataFrame:
        return self._format.read(self._session, self._path)

    def _hold(self, rows: DataFrame, after: Progress, batch: int, query: str) -> None:
        """Keep the batch's own events that have to wait."""
        waiting = rows.where(frames.beyond(after.marks))
        if not waiting.isEmpty():
            waiting = waiting.withColumns({_QUERY: F.lit(query), _BATCH: varying(batch)})
            self._format.append_once(waiting, self._held, partition_by=(), application=query, batch=batch)

    def _mark(self) -> None:
        """Say in the table's properties that it is a fleet's."""
        shards = ",".join(self._topics.shards)
        state = self._format.state(self._session, self._path)
        if state is not None and state.properties.get(SHARDS) != shards:
            self._format.set_properties(self._session, self._path, {SHARDS: shards})

    # The plan.

    def _former(self, plan: str | None, batch: int) -> Progress:
        """Return how far the table is before a batch, by the `plan` of the one before. Raises JobError if nothing tells."""
        if plan is not None:
            return Plan.from_json(plan).after
        if batch or (self._format.exists(self._session, self._path) and not self._read().isEmpty()):
            if not self._format.exists(self._session, self._path):
                raise table_is_gone(self._path)
            raise JobError(
                f"The table at {self._path} is that of a fleet, and has the events of another checkpoint, or of another time of"
                " this one: how far each shard is in it isn't known here. Put checkpoint and table back together, or start with a"
                " new --path and an empty --checkpoint."
            )
        return Progress()

    def _unread(self, rows: DataFrame, former: Progress, batch: int, query: str) -> DataFrame:
        """Return the events that aren't in the table yet: those of the batch, and those that have waited. Raises JobError."""
        fresh = rows.where(frames.beyond(former.marks))
        if former.marks and not (late := rows.where(~frames.beyond(former.marks)).where("op <> 't'")).isEmpty():
            there = self._read().select("shard", "shard_seq")
            for row in late.join(there, ["shard", "shard_seq"], "left_anti").limit(1).collect():
                raise JobError(
                    f"The event {row['seq']} of the shard {row['shard']!r} in {row['kafka_topic']} was read after later ones of"
                    " that shard had got their place in the table: its topic became visible late (rights, --spaces). Start with a"
                    " new --path and an empty --checkpoint."
                )
        if not self._format.exists(self._session, self._held):
            if former.has_waiting:
                raise table_is_gone(self._held)
            return fresh
        stored = self._format.read(self._session, self._held)
        held = stored.where((F.col(_QUERY) == query) & (F.col(_BATCH) < batch) & frames.beyond(former.marks))
        return fresh.unionByName(held.drop(_QUERY, _BATCH))

    @staticmethod
    def _again(added: FleetRows, plan: Plan) -> Plan:
        """Add what the plan of a repeated batch says."""
        for step in plan.steps:
            if isinstance(step, Events):
                added.add(step)
            else:
                added.remove(step.removal, step.base)
        return plan

    def _made(self, added: FleetRows, waiting: DataFrame, former: Progress, batch: int, query: str) -> Plan:
        """Make the plan of a batch, keep it, and add what it says. Raises JobError."""
        # Control records are read before the ends of the topics, and the events were read before both.
        records = self._control_records()
        after, before = former, Progress.from_json(former.to_json())
        for shard, found in records.items():
            texts = [value for kind, _, value in found if kind == "schema"]
            after.forms.learn(shard, texts, former.last, self._is_chosen)
        shards = self._complete(waiting, before, records, batch)
        steps = self._steps(added, self._parts(added, waiting, before, after, shards), shards, after)
        plan = Plan(before, after, steps)
        self._files.write(query, batch, plan.to_json())
        return plan

    def _parts(
        self, added: FleetRows, waiting: DataFrame, before: Progress, after: Progress, shards: Mapping[str, _Shard]
    ) -> list[Stretch | Emptied]:
        """Return what the batch adds, in order, and note in `after` how far it gets."""
        goals = {shard: known.goal for shard, known in shards.items()}
        found: list[Stretch] = []
        told = waiting.where("op = 't'").select("shard", "space", "seq").collect()
        removals = [Emptied(row["shard"], row["space"], row["seq"], row["seq"], is_sweep=False) for row in told]
        most = Progress(goals, forms=after.forms)
        sweeps = [sweep for shard, known in shards.items() for sweep in _sweeps(shard, known.control, most)]
        removals += [sweep for sweep in sweeps if sweep.name not in before.swept and self._is_chosen(sweep.space)]
        if any(goal > before.mark(shard) for shard, goal in goals.items()):

            def end(shard: str, up_to: int) -> int:
                known = shards[shard]
                return last_end(known.found, known.completed, up_to) if up_to > known.found.after else known.found.after

            marks = {shard: before.mark(shard) for shard in goals}
            found = stretches(marks, goals, self._handoffs(added, waiting, removals) if len(goals) > 1 else (), end)
            after.marks |= {shard: up_to for shard, _, up_to in found}
        after.has_waiting = any(known.found.last > after.mark(shard) for shard, known in shards.items())
        after.swept = [sweep.name for sweep in sweeps if sweep.at <= after.mark(sweep.shard)]
        return list(divided(found, removals, before.marks))

    @staticmethod
    def _handoffs(added: FleetRows, waiting: DataFrame, removals: Sequence[Emptied]) -> list[Handoff]:
        """Return what must come after what: of keys, and of removals after what has left for their shards before."""
        found = frames.handoffs(waiting)
        states = frames.bucket_states(added.read()) if removals else None
        for removal in removals:
            assert states is not None
            for former, left_at in frames.departures(states, removal).items():
                found.append(Handoff(removal.shard, removal.at, former, _NEVER if left_at is None else left_at))
        return found

    @staticmethod
    def _steps(
        added: FleetRows, parts: Sequence[Stretch | Emptied], shards: Mapping[str, _Shard], after: Progress
    ) -> list[Events | Removed]:
        """Number the parts of a batch, and add them."""
        steps: list[Events | Removed] = []
        for part in parts:
            if isinstance(part, Emptied):
                count = added.remove(part, after.last)
                steps.append(Removed(part, after.last, count))
            else:
                count = shards[part.shard].found.events(part.after, part.up_to)
                step = Events(*part, after.last, count)
                added.add(step)
                steps.append(step)
            after.last += count
        return steps

    def _is_chosen(self, space: str) -> bool:
        return bool(self._topics.chosen(self._session, [space]))

    def _control_records(self) -> dict[str, list[tuple[str, int, str]]]:
        ends = self._positions.ends(KINDS)
        if self._records is None or self._records[0] != ends:
            self._records = ends, {shard: [*self._positions.control_records(shard)] for shard in self._topics.shards}
        return self._records[1]

    def _complete(
        self, waiting: DataFrame, former: Progress, records: Mapping[str, Sequence[tuple[str, int, str]]], batch: int
    ) -> dict[str, _Shard]:
        """Return how far each shard is complete. Raises JobError for events without their rows, or that are there twice."""
        bits = {shard: EventsAfterMark() for shard in self._topics.shards}
        counts = F.count("*"), F.count_if(F.col("patch").isNotNull())
        for shard, bucket, *found_bits, count, patched in bitmaps(waiting, *counts, by=("shard",)).collect():
            if patched:
                raise JobError(
                    f'The shard {shard!r} publishes UPDATEs without their rows (state.images is "none"), and then both halves of'
                    ' a move of a bucket are seen, without marks. No order of such events is right. Set state.images = "full".'
                )
            if shard not in bits:
                raise JobError(
                    f"Events of the shard {shard!r} wait for others, and the fleet has no such shard any more: its topic"
                    f" {self._topics.prefix}.{shard}.schema is gone, or can't be read. Put it back, or start with a new --path"
                    " and an empty --checkpoint."
                )
            if count > int.from_bytes(found_bits[0], "little").bit_count():
                raise JobError(
                    f'Events of the shard {shard!r} are there twice. With kafka.delivery = "at_least_once" both halves of a move'
                    ' of a bucket are seen, without marks, and no order of such events is right. Set it to "exactly_once".'
                )
            bits[shard].add("", bucket, *found_bits)
        read, ends = self._positions.read_up_to(batch), self._positions.ends()
        shards = {}
        for shard, events in bits.items():
            texts = records.get(shard, ())
            control = Control(*([value for kind, _, value in texts if kind == wanted] for wanted in KINDS))
            shards[shard] = self._goal(shard, events.seqs(former.mark(shard)), former.mark(shard), control, read, ends)
        return shards

    def _goal(self, shard: str, found: Seqs, mark: int, control: Control, read: Ends, ends: Ends) -> _Shard:
        """Return how far a shard is complete. watermark.py says why."""
        is_quiet, complete_up_to = covers(read, ends), -1
        if is_quiet:
            complete_up_to = max(found.last, control.last_seq)
        else:
            candidate = self._candidates.pop(shard, None)
            if candidate is not None and covers(read, candidate[1]):
                complete_up_to, candidate = candidate[0], None
            self._candidates[shard] = candidate or (found.last, ends)
        completed = [ended.seq for ended in control.completed]
        completed += ends_without_records(found, completed, control.started, complete_up_to)
        goal = mark
        if found.after == mark or complete_up_to >= found.after:
            goal = max(mark, advance(found, completed, complete_up_to, is_all=is_quiet))
        return _Shard(control, found, completed, goal)


def _sweeps(shard: str, control: Control, progress: Progress) -> list[Emptied]:
    """Return the sweeps of a shard's snapshots that have ended by its mark, with the spaces' names in the fleet's table."""
    names = {form.space_id: known.space for form, known in progress.forms.known.items() if form.shard == shard}
    return [
        Emptied(shard, names.get(sweep.space_id, sweep.space), ended.seq, sweep.up_to, is_sweep=True, ts_ms=ended.ts_ms)
        for ended in control.completed
        for sweep in ended.sweeps
        if ended.seq <= progress.mark(shard)
    ]
