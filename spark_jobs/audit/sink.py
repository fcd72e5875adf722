"""The sink of job `audit`: it checks that the topics contain each event once, in order, complete, and consistent with the others.

The job reads a batch once, reduces it to facts (facts.py), and judges these together with the state of earlier batches
(state.py). Under --path there are two tables: `findings`, and `images` with the last change of each key. `state` has a file per
batch with its findings, so a repeated batch has the same ones.

A missing seq may still arrive, because partitions aren't read at the same time. It becomes a finding once every partition has
passed it, or once Kafka was asked for it again: at the end with --available-now, otherwise after --grace-seconds. With --changes
the job reads and asks a table instead (sources.py), and there such a seq always waits for --grace-seconds.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, ClassVar, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its customary name

from spark_jobs.audit.facts import (
    FLOOR_SCHEMA,
    LAST_IMAGE_SCHEMA,
    TRANSACTION_SCHEMA,
    broken_chains,
    counts,
    doubled,
    last_images,
    newest,
    order_breaks,
    places,
    summed,
    transaction_ends,
    transactions,
)
from spark_jobs.audit.numbers import BUCKET_BITS, BUCKET_SIZE, Interval, without
from spark_jobs.audit.sources import CONTROL_TOPICS, Source, completed
from spark_jobs.audit.state import (
    FINDING_SCHEMA,
    TRANSACTIONS_BEHIND,
    TRANSACTIONS_MAX,
    Finding,
    Part,
    State,
    further_gaps,
    gap,
    partition_name,
)
from spark_jobs.contract.envelope import CONTROL
from spark_jobs.contract.source import Topics
from spark_jobs.errors import JobError
from spark_jobs.runner.job import Sink
from spark_jobs.runner.output import tell
from spark_jobs.tables.codegen import varying
from spark_jobs.tables.location import Location
from spark_jobs.tables.state_files import StateFiles

FINDINGS_MAX: Final = 1000
"""Maximum number of findings of one kind in one batch.

For gaps, which later batches don't report again, the number of further ones is reported.
"""
COMPACT_EVERY: Final = 20
_FINDINGS, IMAGES = "findings", "images"
"""The job's tables."""
_SAID_MAX: Final = 10
_EVERYTHING: Final = ".*"


class AuditSink(Sink):
    """Sink that judges batches."""

    _orders_lsns: ClassVar[bool] = True
    """Whether the lsns of an origin ascend within a partition."""

    def __init__(
        self,
        session: SparkSession,
        topics: Topics,
        location: Location,
        source: Source,
        query: Callable[[], str | None],
        *,
        state_path: str,
        repeats: bool = False,
        grace_seconds: float = 60,
    ) -> None:
        """`source` provides the batches' data; with `repeats`, events may occur repeatedly.

        `query` returns the id of the checkpoint's query, None before its first start. `state_path` is the folder for the state.
        """
        self._session = session
        self._topics = topics
        self._format = location.format
        self._findings = location.of(_FINDINGS)
        self._images = location.of(IMAGES) if location.path is not None else location.inner(f"_{IMAGES}")
        self._state_path = state_path
        self._repeats = repeats
        self._grace_seconds = grace_seconds
        self._source = source
        self._query = query
        self._all_spaces = topics.spaces == _EVERYTHING
        self._control = [topics.control(name) for name in CONTROL_TOPICS]
        self._files = StateFiles(session, state_path)
        self._state: State | None = None
        self._position: tuple[str, int] | None = None
        self._found: Counter[str] = Counter()
        """Findings since the start, by kind."""
        self._unreported: Counter[str] = Counter()
        """Findings since the last run that reported its findings at its end. An earlier process may have made them."""
        self._reports = 0
        """Number of reports that runs have begun at their end."""

    def write(self, records: DataFrame, batch: int, query: str) -> None:
        """See `Sink.write`."""
        state, stored_batch, stored = self._load(query)
        if stored_batch not in (batch - 1, batch):
            raise JobError(
                f"The state of this checkpoint's audit in {self._state_path} is that after batch {stored_batch}, and the"
                f" checkpoint goes on with batch {batch}: one of them is an older copy, and some events would not be examined."
                " Put the newest copy back, or start with an empty --checkpoint, which examines everything again."
            )
        if stored_batch == batch:
            self._publish(stored, batch, query)
            return
        cached = self._source.changes(records).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = self._judge(cached, state, batch, query)
        finally:
            cached.unpersist()
        self._unreported.update(finding.kind for finding in found)
        self._save(state, batch, query, found)
        self._publish(found, batch, query)

    def tables(self) -> Mapping[str, str]:
        """See `Sink.tables`."""
        return {_FINDINGS: self._findings} if isinstance(self._findings, str) else {}

    def counts(self) -> Mapping[str, int]:
        """See `Sink.counts`."""
        return {"findings": sum(self._found.values())}

    def finish(self) -> int:
        """See `Sink.finish`. Ask the source for missing seqs, and return 1 if there are findings that no run has reported yet."""
        if self._state is None and (query := self._query()) is not None:
            # An earlier run may have been killed after its last batch, before it reported its findings.
            self._load_saved(query)
        if self._state is None or self._position is None:
            _say("found nothing")
            return 0
        state, (query, batch) = self._state, self._position
        is_final = self._source.is_final
        found = self._settle_missing(state, state.numbers.highest) if is_final else self._settle_waiting(state)
        found += self._judge_counts(state, state.transactions)
        self._unreported.update(finding.kind for finding in found)
        self._reports += 1
        # Kept first, so that the next run publishes the same ones if this one is killed in between. Delta accepts each report's
        # number only once.
        self._save(state, batch, query, (), found)
        self._publish_report(found, query)
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self._unreported.items()))
        _say(f"found {told}; the table {self._findings} has them" if told else "found nothing")
        self._unreported.clear()
        self._save(state, batch, query, ())
        return 1 if told else 0

    def _load(self, query: str) -> tuple[State, int, list[Finding]]:
        if self._state is not None and self._position is not None and self._position[0] == query:
            return self._state, self._position[1], []
        saved = self._load_saved(query)
        if saved is not None:
            return saved
        self._state, self._position = self._begin(), (query, -1)
        return self._state, -1, []

    def _load_saved(self, query: str) -> tuple[State, int, list[Finding]] | None:
        """Load what an earlier process has saved last: the state after a batch, with the batch's findings."""
        for batch, text in self._files.read(query):
            kept = json.loads(text)
            try:
                stored, report = ([Finding(*values) for values in kept[name]] for name in ("findings", "report"))
                self._state, self._position = State.from_json(kept["state"]), (query, batch)
                self._unreported, self._reports = Counter(kept["unreported"]), kept["reports"]
            except KeyError as error:
                raise JobError(
                    f"The state of the job `audit` in {self._state_path} is one that this version doesn't know ({error} is"
                    " missing): another version has written it. Start the job with a new --path and an empty --checkpoint."
                ) from error
            self._publish_report(report, query)
            return self._state, batch, stored
        return None

    def _begin(self) -> State:
        """Return the initial state. Seqs begin with 1, unless the beginning of some partitions was deleted."""
        state = State()
        # Topics of others under the prefix have none of the seqs, whatever was deleted from them.
        others = {*self._control, *self._topics.known.foreign}
        for topic, offsets in self._source.first_offsets().items():
            if topic not in others:
                for partition, offset in offsets.items():
                    where = partition_name(topic, int(partition))
                    state.last_in[where] = (-1, offset - 1)
                    if offset > 0:
                        state.cut.add(where)
        return state

    def _save(self, state: State, batch: int, query: str, found: Sequence[Finding], report: Sequence[Finding] = ()) -> None:
        """Keep the state, the batch's findings, and those of a report at the end that are about to be published."""
        kept = {
            "state": state.to_json(),
            "findings": [astuple(finding) for finding in found],
            "unreported": self._unreported,
            "reports": self._reports,
            "report": [astuple(finding) for finding in report],
        }
        self._files.write(query, batch, json.dumps(kept))
        self._state, self._position = state, (query, batch)

    def _publish_report(self, found: Sequence[Finding], query: str) -> None:
        # Delta has the batch's findings already. Under the same application's name it would take these for them.
        self._publish(found, self._reports, f"{query}/reports")

    def _publish(self, found: Sequence[Finding], batch: int, application: str) -> None:
        if not found:
            return
        self._found.update(finding.kind for finding in found)
        rows = self._session.createDataFrame([astuple(finding) for finding in found], FINDING_SCHEMA)
        rows = rows.withColumn("found_at", F.current_timestamp())
        self._format.append_once(rows, self._findings, partition_by=(), application=application, batch=batch)
        for finding in found[:_SAID_MAX]:
            _say(f"{finding.kind}: {finding.sentence}")
        if len(found) > _SAID_MAX:
            _say(f"and {len(found) - _SAID_MAX} more")

    def _judge(self, cached: DataFrame, state: State, batch: int, query: str) -> list[Finding]:
        changes = cached.where(F.col("op") != CONTROL)
        facts = counts(cached).collect()
        state.note_snapshots(self._source.snapshots_beside())
        found: list[Finding] = []
        if not self._repeats:
            found += self._order(changes, facts, state)
        found += self._count(changes, facts, state)
        found += self._chains(changes, state, batch, query)
        state.forget_floors()
        found += self._settle_missing(state, state.passed(), changes)
        found += self._settle_waiting(state, changes)
        return found + self._judge_counts(state, self._transactions(cached, changes, state))

    def _count(self, changes: DataFrame, facts: Sequence[Row], state: State) -> list[Finding]:
        """Add received seqs and their positions, removals of rows, and snapshot records to the state. Return duplicates."""
        bits: Counter[int] = Counter()
        events: Counter[int] = Counter()
        firsts: dict[str, Any] = {}
        for row in facts:
            where = partition_name(row["topic"], row["partition"])
            for record in row["records"]:
                state.note_snapshot(json.loads(record["key"]))
            if row["last"] is None:
                continue
            firsts[where] = min(firsts.get(where, row["first"]), row["first"])
            if row["last"]["offset"] > state.last_in.get(where, (-1, -1))[1]:
                state.last_in[where] = (row["last"]["seq"], row["last"]["offset"])
            if row["replica_id"] is not None:
                state.see_origin(f"{where}/{row['replica_id']}", row["last"])
            if row["snapshot_id"] is not None:
                state.count_rows(row["snapshot_id"], row["space"], row["rows"])
            for truncation in row["truncations"]:
                state.add_floor(truncation["space_id"], truncation["seq"], truncation["seq"])
                state.numbers.add(truncation["seq"] >> BUCKET_BITS, 1 << (truncation["seq"] & BUCKET_SIZE - 1))
            bits[row["bucket"]] |= int.from_bytes(row["bits"], "little")
            events[row["bucket"]] += row["events"]
        known = [number for bucket in sorted(bits) if bits[bucket] for number in state.numbers.add(bucket, bits[bucket])]
        for where in state.cut & set(firsts):
            state.excuse(firsts[where]["seq"])
        state.cut -= set(firsts)
        if self._repeats:
            return []
        found = []
        if any(events[bucket] > found_bits.bit_count() for bucket, found_bits in bits.items()):
            known += [row["seq"] for row in doubled(changes).limit(FINDINGS_MAX).collect()]
        if known:
            copies: dict[int, list[Row]] = {}
            for row in places(changes, sorted(set(known))[:FINDINGS_MAX], 2 * FINDINGS_MAX):
                copies.setdefault(row["seq"], []).append(row)
            for seq, rows in copies.items():
                at = " and ".join(f"{row['topic']}/{row['partition']} offset {row['offset']}" for row in rows)
                there = f"is there twice, at {at}" if len(rows) > 1 else f"was read before, and is there again at {at}"
                found.append(_at(rows[-1], "duplicate", f"Seq {seq} ({rows[0]['space']} {rows[0]['key']}) {there}.", rows[0]))
        return found

    def _order(self, changes: DataFrame, facts: Sequence[Row], state: State) -> list[Finding]:
        """Check that `seq` ascends within each partition, and so does `lsn` of each origin."""
        found = []
        for row in order_breaks(changes).limit(FINDINGS_MAX).collect():
            previous, of_origin = row["previous"], row["previous_of_origin"]
            if previous["seq"] >= row["seq"]:
                if row["op"] == "t" or previous["seq"] > row["seq"]:
                    found.append(_disorder(row, previous["seq"], previous["offset"]))
            elif self._judges(of_origin, row) and not self._is_other_history(of_origin["seq"], row["seq"]):
                found.append(_same_change(row, row["lsn"], row["replica_id"], of_origin))
        firsts: dict[str, dict[str, Any]] = {}
        for row in facts:
            if row["first"] is not None:
                where = partition_name(row["topic"], row["partition"])
                first = {"topic": row["topic"], "partition": row["partition"], **row["first"].asDict()}
                for name in (where, f"{where}/{row['replica_id']}"):
                    firsts[name] = min(firsts.get(name, first), first, key=lambda one: int(one["offset"]))
        for name, first in firsts.items():
            seq, offset = state.last_in.get(name, (-1, -1))
            if first["seq"] < seq and first["offset"] > offset:
                found.append(_disorder(first, seq, offset))
            known = state.origins.get(name)
            if known is None or known["lsn"] < first["lsn"] or known["seq"] >= first["seq"] or state.are_of_one_row(known, first):
                continue
            if self._judges(known, first) and not self._is_other_history(known["seq"], first["seq"]):
                found.append(_same_change(first, first["lsn"], int(name.rpartition("/")[2]), known))
        return found

    def _judges(self, earlier: Any, later: Any) -> bool:
        """Whether the lsns of two events of an origin, of which the earlier one isn't lower, are judged."""
        return self._orders_lsns or all(earlier[name] == later[name] for name in ("lsn", "total_order"))

    def _is_other_history(self, after: int, before: int) -> bool:
        """Whether a snapshot began between two seqs. It may have followed a divergence, after which lsns are assigned again."""
        records = self._source.snapshots()
        return any(record["status"] == "STARTED" and after <= record["seq"] < before for _, record in records)

    def _chains(self, changes: DataFrame, state: State, batch: int, query: str) -> list[Finding]:
        """Check that each row before is the row after of its key's previous change."""
        known = self._session.createDataFrame([], LAST_IMAGE_SCHEMA)
        if self._format.exists(self._session, self._images):
            stored = self._format.read(self._session, self._images).where(F.col("query") == query)
            known = newest(stored.where(F.col("batch") < batch).drop("query", "batch"))
            if batch % COMPACT_EVERY == 0:
                # Batches before this one are final. If this one is repeated, its first rows stay: they aren't appended again.
                alive = known.where("op <> 'd'").withColumns({"query": F.lit(query), "batch": varying(batch - 1)})
                self._format.overwrite(alive.unionByName(stored.where(F.col("batch") >= batch)), self._images)
        broken = self._broken(changes, known, state)
        if broken:
            # A snapshot's end may be read later than the events after it.
            for record in completed(self._source.snapshots()):
                state.note_sweeps(record)
            broken = self._broken(changes, known, state)
        images = last_images(changes).withColumns({"query": F.lit(query), "batch": varying(batch)})
        self._format.append_once(images, self._images, partition_by=(), application=query, batch=batch)
        return [_broken_chain(row) for row in broken]

    def _broken(self, changes: DataFrame, known: DataFrame, state: State) -> list[Row]:
        floors = [(space_id, up_to, at) for space_id, found in state.floors.items() for up_to, at in found]
        broken = broken_chains(changes, known, self._session.createDataFrame(floors, FLOOR_SCHEMA))
        return broken.orderBy("seq").limit(FINDINGS_MAX).collect()

    def _gaps(self, state: State, lost: Sequence[Interval], changes: DataFrame | None) -> list[Finding]:
        """Settle missing seqs that can't arrive, and return them as findings, once."""
        state.numbers.settle(lost)
        told = lost[:FINDINGS_MAX]
        beside: dict[int, Row] = {}
        if changes is not None and told:
            numbers = sorted({number for start, end in told for number in (start - 1, end + 1)})
            beside = {row["seq"]: row for row in places(changes, numbers, 2 * FINDINGS_MAX)}
        lacking = self._source.lacking
        found = [gap(interval, beside.get(interval[0] - 1), beside.get(interval[1] + 1), lacking) for interval in told]
        return found + further_gaps(lost[FINDINGS_MAX:])

    def _settle_waiting(self, state: State, changes: DataFrame | None = None) -> list[Finding]:
        """Settle seqs that have been missing long enough."""
        due = state.waited_for(time.time(), self._grace_seconds)
        if due is None:
            return []
        # A seq that a table has lacked only for a moment may still be read from Kafka into it, whatever the table is asked.
        return self._settle_missing(state, state.numbers.highest if self._source.is_final else due, changes)

    def _settle_missing(self, state: State, up_to: int, changes: DataFrame | None = None) -> list[Finding]:
        """Ask the source for the missing seqs. Those that it doesn't have either are gaps."""
        missing = state.numbers.missing(up_to)
        if not missing or not self._all_spaces:
            state.numbers.settle(missing)
            return []
        if state.cut:
            _say(
                f"missing seqs up to {up_to} can't be told apart from events that Kafka's retention has deleted: no event is"
                f" left in {', '.join(sorted(state.cut)[:5])}. Later gaps are still found."
            )
            state.excuse(up_to)
            return []
        offsets: dict[str, dict[str, int]] = {}
        for where, (_, offset) in state.last_in.items():
            topic, _, partition = where.rpartition("/")
            offsets.setdefault(topic, {})[partition] = offset + 1
        behind = self._source.numbers(offsets)
        on_their_way = [row["seq"] for row in behind.where(f"seq between {missing[0][0]} and {missing[-1][1]}").collect()]
        return self._gaps(state, without(missing, on_their_way), changes)

    def _transactions(self, cached: DataFrame, changes: DataFrame, state: State) -> list[Part]:
        """Return transactions that are incomplete or differ from their END's counts, the newest first.

        If retention has deleted the events, their ENDs may still exist without any events; newer transactions come before these.
        """
        if not self._source.knows_transactions:
            return []
        records = cached.where((F.col("op") == CONTROL) & (F.col("topic") == self._topics.control("transaction")))
        parts = transactions(changes, transaction_ends(records.select(F.col("key").alias("value"))))
        if state.transactions:
            carried = [astuple(part) for part in state.transactions]
            parts = parts.unionByName(self._session.createDataFrame(carried, TRANSACTION_SCHEMA))
        behind = state.complete_up_to() - TRANSACTIONS_BEHIND
        is_open = f"if(expected is null, last > {behind}, expected <> seen)"
        newest_first = F.desc("last"), F.desc(F.expr("try_cast(substring_index(id, ':', -1) AS bigint)"))
        return [Part(*row) for row in summed(parts).where(is_open).orderBy(*newest_first).limit(TRANSACTIONS_MAX + 1).collect()]

    def _judge_counts(self, state: State, parts: Sequence[Part]) -> list[Finding]:
        """Compare events with the counts of transactions and snapshots."""
        chosen: set[str] | None = None
        if not self._all_spaces:
            topics = {where.rpartition("/")[0] for where in state.last_in}
            parts = [part for part in parts if self._topics.of_space(part.space) in topics]
            chosen = {space for known in state.snapshots.values() for space in known["rows"]}
        complete = state.complete_up_to()
        found = state.judge_transactions(parts, complete, repeats=self._repeats)
        return found + state.judge_snapshots(complete, chosen, repeats=self._repeats)


def _at(row: Any, kind: str, sentence: str, other: Any = None) -> Finding:
    """Return a finding at an event."""
    return Finding(
        kind,
        sentence,
        space=row["space"],
        key=row["key"],
        seq=row["seq"],
        other_seq=None if other is None else other["seq"],
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        other_offset=None if other is None else other["offset"],
    )


def _disorder(row: Any, seq: int, offset: int) -> Finding:
    told = (
        f"{row['topic']}/{row['partition']} has seq {row['seq']} at offset {row['offset']}, after seq {seq} at offset {offset}."
    )
    return _at(row, "order", told, {"seq": seq, "offset": offset})


def _same_change(row: Any, lsn: int, replica_id: int, other: Any) -> Finding:
    if lsn == other["lsn"]:
        told = f"Lsn {lsn} of origin {replica_id} was published twice, as seq {other['seq']} and as seq {row['seq']}."
        return _at(row, "duplicate", told, other)
    told = (
        f"{row['topic']}/{row['partition']} has lsn {lsn} of origin {replica_id} at offset {row['offset']}, behind its lsn"
        f" {other['lsn']} at offset {other['offset']}."
    )
    return _at(row, "order", told, other)


def _broken_chain(row: Any) -> Finding:
    previous = row["previous"]
    expected = {"c": "inserts a row that exists", "u": "changes a row", "d": "deletes a row"}[row["op"]]
    if row["op"] != "c":
        expected += " that was deleted" if previous["op"] == "d" else " that was different"
    told = (
        f"Seq {row['seq']} at {row['topic']}/{row['partition']} offset {row['offset']} {expected} after the previous change of"
        f" {row['space']} {row['key']}, seq {previous['seq']} at {previous['topic']}/{previous['partition']} offset"
        f" {previous['offset']}: its `before` isn't that change's `after`."
    )
    return _at(row, "image", told, previous)


def _say(text: str) -> None:
    tell(f"audit: {text}")
