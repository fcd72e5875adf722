"""Pairs moves by count, for buckets without generations (before vshard 0.1.41).

A counts how often a bucket was sent to B, and B how often it arrived from A. Either began to count when its daemon began, so the
counts of the two may differ by a constant, which B finds out at the first arrival:

    B      RECEIVING … active │ asks ─────────────────────────────┐ hears S, and asks its own members │ has read all that they had
    A                         └──▶ has read all that it had then: S times sent to B ──┘
                              ◀── in B's log the bucket isn't received anywhere in between ──▶

A sends only while B receives. If B's log has no `receiving` from before A counted to after it, no move was under way, and A's S
counts the same moves as B. If it has, B asks again: it takes a moment in which this bucket doesn't move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from cdc.stream.moves.records import OWNED, RECEIVING, SENT, BucketRecord, Shards, Step, count
from cdc.stream.moves.waiting import Queue


@dataclass(slots=True)
class _Asked:
    """A question: how many states waited when it was asked."""

    name: str
    began_us: int
    number: int
    step_count: int
    is_answered: bool = False


class Counts:
    """The questions of one shard."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._asked: dict[int, _Asked] = {}

    def clear(self) -> None:
        """Forget all questions."""
        self._asked.clear()

    def ask(self, bucket_id: int, name: str, record: BucketRecord, queue: Queue) -> BucketRecord:
        """Ask a shard how often it has sent a bucket, if it isn't asked already; return this shard's record.

        Nothing is asked while the last state that was read is `receiving`.
        """
        found = self._shards.shard(name)
        began_us = found.record.began_us if found.record is not None else 0
        asked = self._asked.get(bucket_id)
        if asked is not None and (asked.name, asked.began_us) == (name, began_us):
            answer = found.records[bucket_id].answers.get(self._shards.own_name) if bucket_id in found.records else None
            asked.is_answered = answer is not None and answer[0] == asked.number
            return record
        if queue.steps and queue.steps[-1][1].status == RECEIVING:
            return record
        number = record.question + 1
        self._asked[bucket_id] = _Asked(name, began_us, number, len(queue.steps))
        return replace(record, asks=name, question=number)

    def answered(self) -> Iterator[tuple[int, int]]:
        """Yield the buckets whose questions are answered, and the numbers of these: this shard's own position is wanted now."""
        for bucket_id, asked in self._asked.items():
            if asked.is_answered:
                yield bucket_id, asked.number

    def conclude(self, bucket_id: int, number: int, record: BucketRecord, queue: Queue) -> BucketRecord:
        """Return the record with the difference of the counts, now that everything has been read that the members had."""
        asked = self._asked.get(bucket_id)
        if asked is None or asked.number != number or record.peer is None:
            return record
        del self._asked[bucket_id]
        found = self._shards.shard(asked.name)
        began_us = found.record.began_us if found.record is not None else 0
        later = islice(queue.steps, asked.step_count, None)
        if began_us != asked.began_us or any(step.status == RECEIVING for _, step in later):
            return record
        _, sent = found.records[bucket_id].answers[self._shards.own_name]
        arrived = record.taken.get(record.peer, 0) + _arrivals(record, queue)
        return replace(record, aligned={**record.aligned, record.peer: (began_us, sent - arrived)})


def _arrivals(record: BucketRecord, queue: Queue) -> int:
    """Return how often a bucket arrives from the replica set that it is being received from, by the states that wait."""
    arrivals, last = 0, Step(record.status, None, record.peer)
    for _, step in queue.steps:
        arrivals += last.status == RECEIVING and last.peer == record.peer and step.status in OWNED
        last = step
    return arrivals


def with_arrival(record: BucketRecord) -> BucketRecord:
    """Return the record of a bucket that is being received, with one more arrival from there."""
    if record.peer is None:
        return record
    return replace(record, taken={**record.taken, record.peer: record.taken.get(record.peer, 0) + 1})


def with_answer(
    record: BucketRecord | None, name: str, number: int, known_as: Collection[str], queue: Queue | None
) -> BucketRecord:
    """Return the record of a bucket with the answer to a shard: how often the bucket was sent there.

    `known_as` is what `_bucket` calls that shard's replica set.
    """
    record = record or BucketRecord(None)
    steps = queue.steps if queue is not None else ()
    waiting = sum(step.status == SENT and step.peer in known_as for _, step in steps)
    return replace(record, answers={**record.answers, name: (number, count(record.sent, known_as) + waiting)})
