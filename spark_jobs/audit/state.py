"""State that job `audit` carries from batch to batch, and its conclusions: the pure part, without Spark.

The state is bounded: seqs by the distance between partitions in their reading (numbers.py), last events by partitions and
origins, and floors, snapshots and transactions by the constants here. The last change of each key is in a table of its own
(job.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from spark_jobs.audit.numbers import Interval, ReceivedSeqs

FLOORS_MAX: Final = 100
"""Maximum number of floors per space."""
SNAPSHOTS_MAX: Final = 50
TRANSACTIONS_MAX: Final = 20_000
TRANSACTIONS_BEHIND: Final = 5_000
"""Maximum distance in seqs by which a transaction's END record may lag behind its events."""


class Lacking(Protocol):
    """Function that returns the phrase for missing seqs; see sources.Source.lacking."""

    def __call__(self, what: str, *, are_several: bool) -> str:
        """Return a phrase that `what` is missing."""


@dataclass(frozen=True)
class Finding:
    """One problem. Positions are Kafka's; `other_…` is the event that it conflicts with."""

    kind: str
    sentence: str
    space: str | None = None
    key: str | None = None
    seq: int | None = None
    other_seq: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    other_offset: int | None = None


FINDING_SCHEMA: Final = (
    "kind string, sentence string, space string, key string, seq bigint, other_seq bigint, topic string, partition int,"
    " offset bigint, other_offset bigint"
)


@dataclass(frozen=True)
class Part:
    """Known counts of one space's events in one source transaction; see facts.transactions."""

    id: str
    space: str
    seen: int
    expected: int | None
    start: int | None
    last: int | None


@dataclass
class State:
    """The audit's state."""

    numbers: ReceivedSeqs = field(default_factory=ReceivedSeqs)
    last_in: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per partition (`topic/number`), the seq and the offset of its last event; the seq is -1 if there was none yet."""
    origins: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per partition and origin (`topic/number/origin`), the last event."""
    cut: set[str] = field(default_factory=set)
    """Partitions whose beginning was deleted and that have had no event since: their former contents are unknown."""
    floors: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    transactions: list[Part] = field(default_factory=list)
    judged_from: int = 0
    """Transactions that began at or below this seq, and snapshots that began below it, may be known only in part."""
    waiting_since: float | None = None
    """Wall-clock time since when seqs have been missing that may still arrive."""
    waiting_up_to: int = -1
    """Highest seq that was known at that time."""
    told_up_to: int = -1
    """Position of the last noted snapshot record, for sources where these aren't in the stream."""

    def to_json(self) -> str:
        """Return the stored form."""
        kept = {
            **{name: getattr(self, name) for name in ("last_in", "origins", "snapshots", "judged_from", "waiting_since")},
            **{name: getattr(self, name) for name in ("waiting_up_to", "told_up_to")},
            "numbers": self.numbers.to_json(),
            "cut": sorted(self.cut),
            "floors": {str(space_id): floors for space_id, floors in self.floors.items()},
            "transactions": [asdict(part) for part in self.transactions],
        }
        return json.dumps(kept)

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse of `to_json`."""
        kept = json.loads(text)
        return cls(
            numbers=ReceivedSeqs.from_json(kept["numbers"]),
            last_in={place: (seq, offset) for place, (seq, offset) in kept["last_in"].items()},
            origins=kept["origins"],
            cut=set(kept["cut"]),
            floors={int(space_id): [(up_to, at) for up_to, at in floors] for space_id, floors in kept["floors"].items()},
            snapshots=kept["snapshots"],
            transactions=[Part(**part) for part in kept["transactions"]],
            judged_from=kept["judged_from"],
            waiting_since=kept["waiting_since"],
            waiting_up_to=kept["waiting_up_to"],
            told_up_to=kept["told_up_to"],
        )

    def passed(self) -> int:
        """Return the seq that every partition has passed: a seq missing up to it can't arrive any more."""
        return min((seq for seq, _ in self.last_in.values()), default=-1)

    def complete_up_to(self) -> int:
        """Return the seq up to which all seqs were received or settled."""
        missing = self.numbers.missing(self.numbers.highest)
        return missing[0][0] - 1 if missing else self.numbers.highest

    def add_floor(self, space_id: int, up_to: int, at: int) -> None:
        """Record that rows of the space up to a seq don't exist for events after `at`."""
        floors = self.floors.setdefault(space_id, [])
        if (up_to, at) not in floors:
            floors.append((up_to, at))

    def forget_floors(self) -> None:
        """Keep the newest floors of each space, up to FLOORS_MAX."""
        self.floors = {space_id: sorted(floors)[-FLOORS_MAX:] for space_id, floors in self.floors.items()}

    def excuse(self, up_to: int) -> None:
        """Settle the seqs that are missing up to `up_to`, and don't judge counts that begin before it."""
        self.numbers.settle(self.numbers.missing(up_to))
        self.judged_from = max(self.judged_from, up_to)

    def waited_for(self, now: float, grace_seconds: float) -> int | None:
        """Return the seq up to which missing seqs have waited for the grace period, or None if it isn't over.

        A new period then begins.
        """
        if not self.numbers.missing(self.numbers.highest):
            self.waiting_since = None
            return None
        if self.waiting_since is None:
            self.waiting_since, self.waiting_up_to = now, self.numbers.highest
        if now - self.waiting_since < grace_seconds:
            return None
        self.waiting_since = None
        return self.waiting_up_to

    def note_snapshots(self, records: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Note those records of the snapshot topic, given with their positions, that haven't been noted yet."""
        for position, record in records:
            if position > self.told_up_to:
                self.note_snapshot(record)
                self.told_up_to = position

    def note_snapshot(self, record: Mapping[str, Any]) -> None:
        """Note a record of the snapshot topic."""
        known = self._snapshot(record["snapshot_id"])
        if record["status"] == "STARTED":
            known["started"] = record["seq"]
            return
        if record["status"] != "COMPLETED":
            return  # a request for rows that was cut off: nothing says how many there should be
        known["completed"] = record["seq"]
        known["spaces"] = [[space["space"], space["rows"], space["sweep_seq"]] for space in record["spaces"]]
        self.note_sweeps(record)

    def note_sweeps(self, record: Mapping[str, Any]) -> None:
        """Note the removals of rows that the end of a snapshot reports."""
        for space in record["spaces"]:
            if space["sweep_seq"] > 0:
                self.add_floor(space["space_id"], space["sweep_seq"], record["seq"])

    def see_origin(self, name: str, event: Any) -> None:
        """Keep the last event of an origin in a partition."""
        if name not in self.origins or event["offset"] > self.origins[name]["offset"]:
            self.origins[name] = {member: event[member] for member in ("lsn", "total_order", "seq", "offset")}

    @staticmethod
    def are_of_one_row(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
        """Return whether two events of one lsn are different events of one row. A state of an earlier version has no orders."""
        orders = earlier.get("total_order"), later["total_order"]
        return earlier["lsn"] == later["lsn"] and None not in orders and orders[0] < orders[1]

    def count_rows(self, snapshot_id: str, space: str, rows: int) -> None:
        """Count received rows of a snapshot."""
        counts = self._snapshot(snapshot_id)["rows"]
        counts[space] = counts.get(space, 0) + rows

    def _snapshot(self, snapshot_id: str) -> dict[str, Any]:
        if snapshot_id not in self.snapshots and len(self.snapshots) >= SNAPSHOTS_MAX:
            del self.snapshots[next(iter(self.snapshots))]
        return self.snapshots.setdefault(snapshot_id, {"rows": {}, "started": None, "completed": None, "spaces": []})

    def judge_snapshots(self, complete_up_to: int, chosen: Iterable[str] | None, *, repeats: bool) -> list[Finding]:
        """Compare the counts of completed snapshots with the received rows, once all of them must have been received.

        Only snapshots that repeat all rows are judged: others leave out rows that consumers already have. For `repeats` see
        `judge_transactions`.
        """
        found: list[Finding] = []
        for snapshot_id, known in list(self.snapshots.items()):
            if known["completed"] is None or known["completed"] > complete_up_to:
                continue
            del self.snapshots[snapshot_id]
            if known["started"] is None or known["started"] < self.judged_from:
                continue
            for space, rows, sweep_seq in known["spaces"]:
                came = known["rows"].get(space, 0)
                is_wrong = came < rows if repeats else came != rows
                if sweep_seq == known["started"] and is_wrong and (chosen is None or space in chosen):
                    found.append(
                        Finding(
                            "snapshot",
                            f"Snapshot {snapshot_id} had {rows} rows of {space!r} when it was completed, and {came} came"
                            f" between seq {known['started']} and {known['completed']}. If rows of it are on the dead-letter"
                            " topic, these are what is missing; else take a snapshot again.",
                            space=space,
                            seq=known["started"],
                            other_seq=known["completed"],
                        )
                    )
        return found

    def judge_transactions(self, parts: Sequence[Part], complete_up_to: int, *, repeats: bool) -> list[Finding]:
        """Compare transactions with their END's counts, and keep those that may still get more events.

        `parts` has at most TRANSACTIONS_MAX + 1 entries: the newest transactions, followed by ENDs without any events.
        `repeats`: events and records may occur several times, so only too low counts are reported.
        """
        lasts = [part.last for part in parts if part.last is not None]
        if len(lasts) > TRANSACTIONS_MAX:
            self.judged_from = max(self.judged_from, min(lasts))
        spans: dict[str, Interval] = {}
        for part in parts:
            if part.start is not None and part.last is not None:
                start, last = spans.get(part.id, (part.start, part.last))
                spans[part.id] = (min(start, part.start), max(last, part.last))
        found: list[Finding] = []
        kept: list[Part] = []
        for part in parts:
            if part.id not in spans:
                # An END without any events: their missing seqs are reported as a gap.
                kept.append(part)
                continue
            start, last = spans[part.id]
            if start <= self.judged_from:
                continue
            if last > complete_up_to or (part.expected is None and last > complete_up_to - TRANSACTIONS_BEHIND):
                kept.append(part)
            elif part.expected is not None and part.seen != part.expected and not (repeats and part.seen > part.expected):
                found.append(
                    Finding(
                        "transaction",
                        f"Transaction {part.id} has {part.expected} events of {part.space!r} by its END on the transaction topic,"
                        f" and {part.seen} came, between seq {start} and {last}.",
                        space=part.space,
                        seq=start,
                        other_seq=last,
                    )
                )
        self.transactions = kept[:TRANSACTIONS_MAX]
        return found


def partition_name(topic: str, partition: int) -> str:
    """Return a partition's name in the state."""
    return f"{topic}/{partition}"


def gap(interval: Interval, before: Any, after: Any, lacking: Lacking) -> Finding:
    """Return the finding of a gap, in the words of `lacking`.

    The rows are the events beside the gap; None if they aren't available.
    """
    start, end = interval
    count = end - start + 1
    numbers = f"seq {start}" if count == 1 else f"seq {start} to {end}, {count} events,"
    what = lacking(numbers, are_several=count > 1)
    beside = "".join(
        f" Seq {row['seq']}, {side} the gap, is at {row['topic']}/{row['partition']} offset {row['offset']} ({row['space']}"
        f" {row['key']})."
        for row, side in ((before, "before"), (after, "after"))
        if row is not None
    )
    known = after if after is not None else before
    return Finding(
        "gap",
        f"{what[0].upper()}{what[1:]}.{beside} Consumers lack these events: compare with `tarantool-cdc verify`, and take a"
        " snapshot if rows are missing.",
        seq=start,
        other_seq=end,
        topic=None if known is None else known["topic"],
        partition=None if known is None else known["partition"],
        offset=None if known is None else known["offset"],
    )


def further_gaps(intervals: Sequence[Interval]) -> list[Finding]:
    """Return one finding for all gaps above the limit, in a list; an empty list if there are none."""
    if not intervals:
        return []
    start, end = intervals[0][0], intervals[-1][1]
    count = sum(last - first + 1 for first, last in intervals)
    sentence = f"Further gaps between seq {start} and {end}: {len(intervals)}, of {count} events together."
    return [Finding("gap", sentence, seq=start, other_seq=end)]
