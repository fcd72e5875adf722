"""The events of one daemon, put in order, and every promise that can be checked on them alone.

A Kafka transaction leaves a marker at its end in each partition that it wrote to, and a marker takes an offset. So the gaps
between the offsets of a partition show which records were committed together, whatever the daemon says about itself. With
each of them comes a checkpoint record that names the last `seq` in it. Together they tell, afterwards and for every commit
there ever was, whether it ended where a source transaction does.

At one moment, a reader may find the commit that is just being made visible in some partitions and not yet in others: Kafka
writes its markers one after another. What holds then is that whatever is reachable in part belongs to that one commit
(`Stream.check_looks`), and that all of it becomes reachable without any more doing of the daemon's (`partial`, asked while
the daemon is dead, must become empty).
"""

from __future__ import annotations

import bisect
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from cdc.kafka.hanging import FILLER_KEY
from tests.live.topics import Look, Place, Record, TopicReader

_CONTROL = ("transaction", "schema", "snapshot", "checkpoint", "heartbeat", "dlq", "notification")
_ORDERS = "signal"
"""The topic that isn't the daemon's to write to: what it holds may be anything."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change event; a broadcast stands here once, at its first place."""

    place: Place
    offset: int
    key: str | None
    value: dict[str, Any]

    @property
    def seq(self) -> int:
        return int(self.value["source"]["seq"])

    @property
    def source(self) -> dict[str, Any]:
        source: dict[str, Any] = self.value["source"]
        return source

    @property
    def op(self) -> str:
        return str(self.value["op"])

    @property
    def space_id(self) -> int:
        return int(self.source["space_id"])

    @property
    def transaction_id(self) -> str | None:
        """None for what doesn't come from the stream."""
        transaction = self.value["transaction"]
        return None if transaction is None else str(transaction["id"])

    @property
    def total_order(self) -> int:
        return int(self.value["transaction"]["total_order"])


@dataclass
class Stream:
    """Everything on one daemon's topics, parsed."""

    partition_counts: dict[str, int]
    events: list[Event] = field(default_factory=list)
    """In the order of `seq`, as far as each place allows; with repeats, if there are any."""
    control: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Values of the control topics, in order."""
    records: dict[Place, list[Record]] = field(default_factory=dict)
    values: dict[Place, list[dict[str, Any] | None]] = field(default_factory=dict)
    """Of the records in the partitions of spaces, in the same order. To read JSON is most of what the checks cost."""

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """Positions, in order."""
        return [value for value in self.control["checkpoint"] if "vclock" in value]

    @cached_property
    def transactions(self) -> dict[str, list[Event]]:
        """The events of each source transaction, in order."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.transaction_id is not None:
                found[event.transaction_id].append(event)
        return found

    def check(self) -> None:
        """All promises of exactly-once delivery. Raises AssertionError."""
        self.check_sequence()
        self.check_partitions()
        self.check_transactions()
        self.check_commits()
        self.check_schema()

    def check_sequence(self) -> None:
        """`seq` counts all events from 1 without a gap, no row of the source stands twice, origins' lsns ascend."""
        seqs = [event.seq for event in self.events]
        repeated = [seq for seq, count in Counter(seqs).items() if count > 1]
        assert not repeated, f"{len(repeated)} numbers were given twice: {repeated[:5]}"
        missing = sorted(set(range(1, len(seqs) + 1)) - set(seqs))
        assert not missing, f"{len(missing)} numbers are missing of {len(seqs)}: {missing[:5]}; the last is {max(seqs)}"
        assert seqs == sorted(seqs)
        rows = Counter(
            (event.source["replica_id"], event.source["lsn"], event.source["row"])
            for event in self.events
            if event.transaction_id is not None
        )
        twice = [row for row, count in rows.items() if count > 1]
        assert not twice, f"{len(twice)} rows were published twice: {twice[:5]}"
        last: dict[int, int] = {}
        for event in self.events:
            if event.transaction_id is not None:
                origin, lsn = event.source["replica_id"], event.source["lsn"]
                assert lsn > last.get(origin, 0), f"seq {event.seq} has lsn {lsn} after {last[origin]} of origin {origin}"
                last[origin] = lsn
                assert event.source["vclock"][str(origin)] >= lsn

    def check_partitions(self) -> None:
        """In each partition `seq` ascends; a key stays in its partition; a tombstone follows each delete at once."""
        partitions: dict[tuple[str, str], int] = {}
        for (topic, number), values in self.values.items():
            last, awaited = 0, None
            for record, value in zip(self.records[topic, number], values, strict=True):
                if record.key == FILLER_KEY:
                    continue  # ended a transaction that Kafka, killed in between, had left open
                key = None if record.key is None else record.key.decode()
                if key is not None:
                    assert partitions.setdefault((topic, key), number) == number, f"{key} of {topic} is in two partitions"
                if value is None:
                    assert key == awaited, f"a tombstone for {key} in {topic}, where one for {awaited} was due"
                    awaited = None
                    continue
                assert awaited is None, f"no tombstone for {awaited} in {topic}"
                seq = value["source"]["seq"]
                assert seq > last, f"{topic}[{number}]: seq {seq} follows {last}"
                last = seq
                awaited = key if value["op"] == "d" else None
            assert awaited is None, f"no tombstone for {awaited} in {topic}"

    def check_transactions(self) -> None:
        """Each source transaction is there as a whole, in one piece, as its END counts it."""
        ends = {value["id"]: value for value in self.control["transaction"] if value["status"] == "END"}
        begins = [value["id"] for value in self.control["transaction"] if value["status"] == "BEGIN"]
        assert sorted(begins) == sorted(ends), "BEGIN and END don't pair"
        for transaction_id, events in self.transactions.items():
            assert [event.total_order for event in events] == list(range(1, len(events) + 1)), transaction_id
            assert events[-1].seq - events[0].seq == len(events) - 1, f"{transaction_id} is interrupted by other events"
            assert len({json.dumps(event.source["vclock"]) for event in events}) == 1, transaction_id
            assert transaction_id == f"{events[0].source['replica_id']}:{events[0].source['tsn']}"
            rows = [event.source["row"] for event in events]
            assert rows == sorted(set(rows)), transaction_id
            orders: dict[int, list[int]] = defaultdict(list)
            for event in events:
                orders[event.space_id].append(event.value["transaction"]["data_collection_order"])
            assert all(order == list(range(1, len(order) + 1)) for order in orders.values()), transaction_id
            end = ends.pop(transaction_id, None)
            if len(events) == 1:
                assert end is None, f"{transaction_id} has one event and an END"
                continue
            assert end is not None, f"{transaction_id} has {len(events)} events and no END"
            assert end["event_count"] == len(events), transaction_id
            counts = sorted(collection["event_count"] for collection in end["data_collections"])
            assert counts == sorted(map(len, orders.values())), transaction_id
        assert not ends, f"END without events: {list(ends)[:5]}"

    def check_commits(self) -> None:
        """Every commit ended between source transactions, and what was committed together is what its checkpoint says."""
        boundaries = [value["seq"] for value in self.checkpoints]
        assert boundaries == sorted(boundaries), "a checkpoint went back"
        inside = {event.seq for event, after in pairwise(self.events) if _same_transaction(event, after)}
        torn = [seq for seq in boundaries if seq in inside]
        assert not torn, f"{len(torn)} of {len(boundaries)} commits ended inside a source transaction, the first at seq {torn[0]}"
        interval_of: dict[int, int] = {}
        last = 0
        for number, seq in enumerate(boundaries):
            interval_of.update(dict.fromkeys(range(last + 1, seq + 1), number))
            last = max(last, seq)
        for place, values in self.values.items():
            seen: set[int] = set()
            for group in _committed_together(self.records[place], values):
                intervals = {interval_of[value["source"]["seq"]] for value in group}
                assert len(intervals) <= 1, f"{place}: one commit holds the events of {len(intervals)} checkpoints"
                assert not intervals & seen, f"{place}: the events of one checkpoint were committed in two pieces"
                seen |= intervals

    def check_schema(self) -> None:
        """The form that an event names is on the schema topic, under the event's space, from before the event."""
        known = {
            (value["source"]["space_id"], value["source"]["schema_version"]): value["source"]
            for value in self.control["schema"]
            if value["tableChanges"][0]["table"] is not None
        }
        for event in self.events:
            if event.op == "t" and event.transaction_id is None:
                continue  # a space that a snapshot lacks: its form is one that was known
            form = known.get((event.space_id, event.source["schema_version"]))
            assert form is not None, f"seq {event.seq} names a form that was never published"
            assert form["table"] == event.source["table"]
            assert form["seq"] < event.seq

    def check_looks(self, looks: Sequence[Look], share_with_more: float = 0.0) -> int:
        """What earlier looks had in sight in part was of one commit at each; returns how many transactions that were.

        This stream is a later one, that knows all commits. At that share of the looks it may have been of more than one.
        """
        ends = {place: [look.get(place, 0) for look in looks] for place in self.records}
        # The first look that had the event in sight.
        first = {event.seq: bisect.bisect_right(ends[event.place], event.offset) for event in self.events}
        boundaries = [value["seq"] for value in self.checkpoints]
        torn_at: dict[int, set[int]] = defaultdict(set)
        torn_count = 0
        for events in self.transactions.values():
            firsts = [first[event.seq] for event in events]
            torn_count += min(firsts) < max(firsts)
            for number in range(min(firsts), max(firsts)):
                torn_at[number].add(bisect.bisect_left(boundaries, events[-1].seq))
        with_more = [number for number, commits in torn_at.items() if len(commits) > 1]
        assert len(with_more) <= share_with_more * len(looks), (
            f"{len(with_more)} of {len(looks)} looks had transactions of more than one commit in sight in part: {with_more[:20]}"
        )
        return torn_count


def parse(reader: TopicReader, look: Look | None = None, *, may_repeat: bool = False) -> Stream:
    """The stream as one look of the reader's could reach it; without a look, all of it, once no transaction is open.

    If events `may_repeat`, each copy counts, one of a broadcast where it is in partition 0.
    """
    ends = reader.look_at_rest() if look is None else look
    stream = Stream(dict(reader.partition_counts), control={name: [] for name in _CONTROL})
    broadcasts: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for place in sorted(ends):
        topic, partition = place
        records = [record for record in reader.records[place] if record.offset < ends[place]]
        stream.records[place] = records
        name = topic.rpartition(".")[2]
        if name == _ORDERS:
            continue
        if name in _CONTROL:
            stream.control[name] += [json.loads(record.value) for record in records if record.value is not None]
            continue
        stream.values[place] = [None if record.value is None else json.loads(record.value.decode()) for record in records]
        for record, content in zip(records, stream.values[place], strict=True):
            if content is None:
                continue
            event = Event(place, record.offset, None if record.key is None else record.key.decode(), content)
            if event.op == "t":
                seen = broadcasts[topic, event.seq, str(event.source["lsn"])]
                assert record.key is None
                assert may_repeat or partition not in seen, f"a broadcast came twice to {place}"
                seen.add(partition)
                if partition if may_repeat else len(seen) > 1:
                    continue
            stream.events.append(event)
    stream.events.sort(key=lambda event: event.seq)
    if look is None:
        for (topic, seq, _), partitions in broadcasts.items():
            assert len(partitions) == reader.partition_counts[topic], f"`t` with seq {seq} isn't in all partitions of {topic}"
    return stream


def partial(stream: Stream) -> list[str]:
    """Source transactions that are in sight in part."""
    counts = {value["id"]: value["event_count"] for value in stream.control["transaction"] if value["status"] == "END"}
    torn = []
    for transaction_id, events in stream.transactions.items():
        orders = sorted(event.total_order for event in events)
        if orders != list(range(1, len(orders) + 1)) or counts.pop(transaction_id, 1) != len(orders):
            torn.append(transaction_id)
    return torn + list(counts)


def distinct(events: Iterable[Event]) -> list[Event]:
    """Each event once, the first time that it came."""
    found: dict[int, Event] = {}
    for event in events:
        found.setdefault(event.seq, event)
    return list(found.values())


def _same_transaction(one: Event, other: Event) -> bool:
    return one.transaction_id is not None and one.transaction_id == other.transaction_id


def _committed_together(records: Sequence[Record], values: Sequence[dict[str, Any] | None]) -> list[list[dict[str, Any]]]:
    """The values between two markers."""
    groups: list[list[dict[str, Any]]] = []
    next_offset = None
    for record, value in zip(records, values, strict=True):
        if record.offset != next_offset:
            groups.append([])
        next_offset = record.offset + 1
        if value is not None:
            groups[-1].append(value)
    return groups
