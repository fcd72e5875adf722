"""Moves without generations: two daemons find out how their counts of a bucket's moves compare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.stream.moves.counts import Counts, with_answer
from cdc.stream.moves.records import BucketRecord, ShardRecord, Shards, Step, bucket_key
from cdc.stream.moves.waiting import Queue

ARRIVING = BucketRecord("receiving", None, "there", taken={"there": 2})
ACTIVE, RECEIVING, SENT = Step("active"), Step("receiving", None, "there"), Step("sent", None, "there")


def queue_of(*steps: Step) -> Queue:
    queue = Queue()
    queue.steps.extend(enumerate(steps, 1))
    return queue


@pytest.fixture
def shards() -> Shards:
    found = Shards("s1", ("s1", "s2"))
    found.fold("s2", bucket_key(None), ShardRecord("there", 5).to_json())
    return found


def told(shards: Shards, record: BucketRecord) -> None:
    shards.fold("s2", bucket_key(7), record.to_json())


def test_the_difference(shards: Shards) -> None:
    """The other has sent the bucket five times, one of which waits there; three arrivals are known here."""
    counts, queue = Counts(shards), queue_of(ACTIVE)
    assert shards.verdict(7, ARRIVING, "here").asks
    asking = counts.ask(7, "s2", ARRIVING, queue)
    assert (asking.asks, asking.question) == ("s2", 1)
    assert counts.ask(7, "s2", asking, queue) is asking, "it is asked already"
    assert list(counts.answered()) == []
    there = BucketRecord("garbage", None, "here", sent={"here": 4, "elsewhere": 9})
    answer = with_answer(there, "s1", 1, {"here"}, queue_of(Step("sent", None, "here"), SENT))
    assert answer.answers == {"s1": (1, 5)}
    told(shards, answer)
    counts.ask(7, "s2", asking, queue)
    assert list(counts.answered()) == [(7, 1)]
    aligned = counts.conclude(7, 1, asking, queue)
    assert aligned.aligned == {"there": (5, 2)}
    assert shards.verdict(7, aligned, "here").waits_for == "s2", "the fifth is yet to be committed"
    assert not shards.verdict(7, aligned, "here").asks
    told(shards, replace(there, sent={"here": 5}))
    assert shards.verdict(7, aligned, "here") == (None, True, False, True)
    told(shards, replace(there, sent={"here": 5}, missed={"here": 5}))
    assert not shards.verdict(7, aligned, "here").was_published
    shards.fold("s2", bucket_key(None), ShardRecord("there", 6).to_json())
    assert shards.verdict(7, aligned, "here").asks, "it has begun again, and counts anew"


def test_none_is_found_while_the_bucket_is_being_received(shards: Shards) -> None:
    counts = Counts(shards)
    assert counts.ask(7, "s2", ARRIVING, queue_of(ACTIVE, RECEIVING)) is ARRIVING
    queue = queue_of(ACTIVE)
    asking = counts.ask(7, "s2", ARRIVING, queue)
    told(shards, with_answer(None, "s1", 1, {"here"}, None))
    counts.ask(7, "s2", asking, queue)
    queue.steps.extend(enumerate((SENT, RECEIVING, ACTIVE), 2))
    assert counts.conclude(7, 1, asking, queue) is asking
    again = counts.ask(7, "s2", asking, queue)
    assert again.question == 2
    assert list(counts.answered()) == [], "the answer was one to another question"


def test_a_bucket_that_the_other_never_had(shards: Shards) -> None:
    """Its daemon began after the bucket had left: nobody has published what arrives."""
    counts, queue = Counts(shards), queue_of(ACTIVE)
    asking = counts.ask(7, "s2", ARRIVING, queue)
    told(shards, with_answer(None, "s1", 1, {"here"}, None))
    counts.ask(7, "s2", asking, queue)
    aligned = counts.conclude(7, 1, asking, queue)
    assert shards.verdict(7, aligned, "here") == (None, False, False, True)
