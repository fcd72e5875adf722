"""A Kafka: partitions with offsets, transactions with a coordinator and markers, and what goes wrong there.

    produce ─▶ partition: … open records … ─▶ the coordinator decides ─▶ a marker in each partition, one after the other

A reader of committed records gets no further than the first record of an open transaction. A transaction counts as ended when the
coordinator has decided, although markers are still missing; its producer can't write again before they are there. A marker may be
left out for good (KAFKA-20734): then only the same producer's next marker in that partition ends what hangs. If that producer is
fenced, or too slow, while it writes that marker, what was committed is lost to readers, as docs/guarantees.md says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cdc.kafka.hanging import FILLER_KEY
from tests.simulation.scheduler import Process, Scheduler, Waiters

MARKER: Final = "marker"
NEW_SECONDS: Final = 0.03
LEFT_OUT_MAX: Final = 3
"""How many markers in a row may be left out in a partition: it has no leader then, and sooner or later a daemon that asks for the
partition's end notices that, and counts its attempts from the beginning (see cdc.kafka.readability)."""
NEW_REFUSAL: Final = 0.3
"""Share of the first batches that the leader of a new partition refuses, for so long (see cdc.kafka.first_writes)."""


@dataclass(slots=True)
class Entry:
    """One offset of a partition. `state`: plain, open, committed, aborted, lost or marker."""

    key: bytes | None
    value: bytes | None
    ts_ms: int
    producer: str | None = None
    state: str = "plain"
    is_decided: bool = False
    """Whether it is committed, and its marker was left out."""


@dataclass(slots=True)
class Partition:
    """The log of one."""

    entries: list[Entry] = field(default_factory=list)
    open_from: dict[str, int] = field(default_factory=dict)
    """By transactional id: where its open transaction begins."""
    begin: int = 0
    """First offset that retention has left."""
    created_at: float = 0.0
    left_out_count: int = 0
    """Markers that were left out since the last one."""

    @property
    def end(self) -> int:
        """Where the next record goes."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """Up to where readers of committed records get."""
        return min(self.open_from.values(), default=len(self.entries))

    def write(self, entry: Entry) -> None:
        """Append a record."""
        if entry.producer is not None and entry.state == "open":
            self.open_from.setdefault(entry.producer, len(self.entries))
        self.entries.append(entry)

    def mark(self, producer: str, *, commit: bool, loses: bool = False) -> None:
        """Append the marker of a transaction. `loses`: what hangs is lost with it, as nobody could help."""
        self.left_out_count = 0
        start = self.open_from.pop(producer, None)
        if start is not None:
            for entry in self.entries[start:]:
                if entry.producer == producer and entry.state == "open":
                    entry.state = "committed" if commit else "lost" if loses and entry.is_decided else "aborted"
        self.entries.append(Entry(None, None, 0, producer, MARKER))

    def hanging(self, producer: str) -> list[Entry]:
        """The records of a transaction that hangs, and those behind it."""
        return [entry for entry in self.entries[self.open_from.get(producer, self.end) :] if entry.producer == producer]

    def committed(self, since: int = 0, *, with_lost: bool = False) -> Iterator[tuple[int, Entry]]:
        """Offsets and records that a reader of committed ones gets, or should have got."""
        for offset in range(max(since, self.begin), self.stable):
            if self.entries[offset].state in ("plain", "committed", *(["lost"] if with_lost else [])):
                yield offset, self.entries[offset]


@dataclass(slots=True)
class Transactions:
    """What the coordinator knows of one transactional id."""

    epoch: int = -1
    partitions: list[tuple[str, int]] = field(default_factory=list)
    """Those of the open transaction."""
    missing: int = 0
    """Markers that are still to be written."""
    turn: int = 0
    """Number of the transaction, so that a time-out ends no later one."""


class Faults:
    """What goes wrong, and how often: shares of requests, from 0 to 1."""

    def __init__(self) -> None:
        self.lost_answer = 0.0
        self.refusal = 0.0
        self.hanging = 0.0
        self.slow_marker = 0.02
        self.first_refusal = 0.0
        """Of a producer's first batches in a partition, as a broker that doesn't know yet that it leads refuses them."""
        self.slow_seconds = 0.0
        """How long messages may take to leave a producer: a quota, or a slow disk."""

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.lost_answer = self.refusal = self.hanging = self.first_refusal = self.slow_seconds = 0.0


class Brokers:
    """The cluster."""

    def __init__(self, scheduler: Scheduler, wall_ms: Callable[[], int]) -> None:
        self.scheduler = scheduler
        self.wall_ms = wall_ms
        self.topics: dict[str, list[Partition]] = {}
        self.ids: dict[str, str] = {}
        self.faults = Faults()
        self.transactions: dict[str, Transactions] = {}
        self.changed = Waiters(scheduler)
        """Who waits for an answer."""
        self.down_until = 0.0
        self.cut_off: set[Process] = set()
        """Processes whose machines don't reach the brokers."""
        self.queue_count_max = 100_000
        """How many messages a producer holds (queue.buffering.max.messages)."""
        self.version = 0
        """Rises with whatever readers may see."""
        self.on_claim: Callable[[Process], None] = lambda _: None
        self.on_decide: Callable[[str], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self._id_count = 0

    def answer(self, process: Process | None) -> bool:
        """Whether anybody answers this process."""
        return self.scheduler.now >= self.down_until and process not in self.cut_off

    def cut_off_for(self, process: Process, seconds: float) -> None:
        """A process reaches nobody for so long."""
        self.cut_off.add(process)

        def reach() -> None:
            self.cut_off.discard(process)
            self.changed.wake()

        self.scheduler.after(seconds, reach)

    def fail_for(self, seconds: float) -> None:
        """Nobody answers for so long."""
        self.down_until = self.scheduler.now + seconds
        self.scheduler.after(seconds, self.changed.wake)

    def answers(self, seconds: float) -> bool:
        """Wait for a round trip, or for the brokers to be back. Return whether there is an answer in time."""
        scheduler = self.scheduler
        scheduler.check_alive()
        process = scheduler.current.process if scheduler.current is not None else None
        if not self.changed.wait_for(lambda: self.answer(process), seconds):
            return False
        scheduler.block(0.0003 + scheduler.random.random() * 0.001)
        return True

    def create(self, topic: str, count: int) -> bool:
        """Make a topic; False if there is one."""
        if topic in self.topics:
            return False
        self._id_count += 1
        self.topics[topic] = [Partition(created_at=self.scheduler.now) for _ in range(count)]
        self.ids[topic] = f"id-{self._id_count}"
        return True

    def refuses_first(self, topic: str, number: int) -> bool:
        """Whether the broker refuses a producer's first batch in a partition: a new one, or one whose leader moves."""
        is_new = self.scheduler.now < self.topics[topic][number].created_at + NEW_SECONDS
        return self.scheduler.random.random() < (NEW_REFUSAL if is_new else self.faults.first_refusal)

    def write(self, topic: str, number: int, entry: Entry) -> None:
        """Append a record to a partition."""
        self.topics[topic][number].write(entry)
        self.version += 1

    def place(self, topic: str, key: bytes | None) -> int:
        """The partition of a key, for a producer that doesn't name it."""
        count = len(self.topics[topic])
        if key is None:
            return self.scheduler.random.randrange(count)
        from cdc.kafka.murmur2 import partition_of

        return partition_of(key, count)

    # The coordinator.

    def claim(self, name: str) -> int:
        """A producer begins: earlier ones are fenced, and their transaction is aborted. Returns its epoch."""
        if self.scheduler.current is not None:
            self.on_claim(self.scheduler.current.process)
        known = self.transactions.setdefault(name, Transactions())
        known.epoch += 1
        if known.partitions:
            self.end(name, commit=False, is_unlucky=True)
        return known.epoch

    def _is_only_ending(self, name: str) -> bool:
        """Whether a producer's open transaction is there only to end what hangs."""
        hanging = [self.topics[topic][number].hanging(name) for topic, number in self.transactions[name].partitions]
        return all(entry.is_decided or entry.key == FILLER_KEY for entries in hanging for entry in entries)

    def is_busy(self, name: str) -> bool:
        """Whether markers of the last transaction are missing."""
        return self.transactions[name].missing > 0

    def join(self, name: str, place: tuple[str, int], timeout_seconds: float) -> None:
        """A transaction writes to a partition; with its first one, its time begins."""
        known = self.transactions[name]
        if not known.partitions:
            known.turn += 1
            turn, epoch = known.turn, known.epoch
            self.scheduler.after(timeout_seconds, lambda: self._expire(name, turn, epoch))
        if place not in known.partitions:
            known.partitions.append(place)

    def _expire(self, name: str, turn: int, epoch: int) -> None:
        known = self.transactions[name]
        if known.partitions and (known.turn, known.epoch) == (turn, epoch):
            self.scheduler.note(f"the coordinator aborts the transaction of {name}")
            known.epoch += 1
            self.end(name, commit=False, is_unlucky=True)

    def end(self, name: str, *, commit: bool, is_unlucky: bool = False) -> None:
        """Decide, and have the markers written. `is_unlucky`: it isn't the producer who wants the abort."""
        known, rng = self.transactions[name], self.scheduler.random
        known.turn += 1
        if commit:
            self.on_decide(name)
        loses = is_unlucky and not commit and self._is_only_ending(name)
        places, known.partitions = known.partitions, []
        if loses and any(topic.endswith(".checkpoint") for topic, _ in places):
            # All of it comes again, under other numbers.
            loses = False
            self.scheduler.note("a checkpoint is lost that nobody has read")
            self.on_lost()
        for topic, number in places:
            partition = self.topics[topic][number]
            if rng.random() < self.faults.hanging and partition.left_out_count < LEFT_OUT_MAX:
                partition.left_out_count += 1
                for entry in partition.hanging(name) if commit else ():
                    entry.is_decided = True
                self.scheduler.note(f"no marker in {topic}-{number}")
                continue
            known.missing += 1
            slow = rng.random() < self.faults.slow_marker
            delay = 0.0002 + rng.random() * (2.5 if slow else 0.002)
            self.scheduler.after(delay, lambda place=(topic, number): self._mark(name, place, commit=commit, loses=loses))  # type: ignore[misc]
        self.changed.wake()

    def _mark(self, name: str, place: tuple[str, int], *, commit: bool, loses: bool) -> None:
        topic, number = place
        if topic in self.topics:
            self.topics[topic][number].mark(name, commit=commit, loses=loses)
            self.version += 1
        known = self.transactions[name]
        known.missing -= 1
        if not known.missing:
            self.changed.wake()

    def digest(self) -> str:
        """What all partitions hold, in short: two runs of a seed must agree."""
        found = hashlib.sha256()
        for topic in sorted(self.topics):
            for partition in self.topics[topic]:
                for entry in partition.entries:
                    found.update(repr((topic, entry.key, entry.value, entry.state)).encode())
        return found.hexdigest()[:16]
