"""Daemons that begin while buckets move: what they owe consumers until each has seen all others begin."""

from __future__ import annotations

import pytest

from cdc.stream.moves.beginnings import Beginnings
from cdc.stream.moves.records import ShardRecord, Shards, Step, bucket_key

NAMES = ("s1", "s2", "s3")
SENT_TO_2 = Step("sent", 4, "there 2")


def tell(shards: Shards, name: str, began_us: int, departed: int = 0, **seen: int) -> None:
    """A shard's record is read."""
    record = ShardRecord(f"there {name[1:]}", began_us, seen, departed)
    shards.fold(name, bucket_key(None), record.to_json())


@pytest.fixture
def shards() -> Shards:
    return Shards("s1", NAMES)


@pytest.fixture
def own(shards: Shards) -> Beginnings:
    """This shard's, which has begun."""
    found = Beginnings(shards)
    found.begin("there 1", 10, [])
    return found


def test_others_are_seen_once_nothing_waits_that_came_before(shards: Shards, own: Beginnings) -> None:
    assert own.unseen() == []
    tell(shards, "s2", 20)
    assert own.unseen() == [("s2", 20)]
    own.see("s2", 20, last_number=7)
    own.go_on(oldest_number=7)
    assert own.unseen() == [("s2", 20)], "it waits"
    own.go_on(oldest_number=8)
    assert own.unseen() == []
    assert own.record.seen == {"s2": 20}
    tell(shards, "s2", 30)
    assert own.unseen() == [("s2", 30)], "it has begun again"


def test_rows_are_taken_away_from_those_who_may_begin_behind_them(shards: Shards, own: Beginnings) -> None:
    """A replica set that is no shard of the fleet is none of them, as soon as all shards are known."""
    foreign = Step("sent", 4, "elsewhere")
    assert own.is_taken_away(SENT_TO_2)
    tell(shards, "s2", 20)
    assert own.is_taken_away(SENT_TO_2)
    assert not own.is_taken_away(Step("sending", 4, "there 2"))
    own.see("s2", 20, 0)
    own.go_on(None)
    assert not own.is_taken_away(SENT_TO_2)
    assert own.is_taken_away(foreign), "it may be s3"
    tell(shards, "s3", 30)
    assert not own.is_taken_away(foreign)
    tell(shards, "s2", 40)
    assert not own.is_taken_away(SENT_TO_2), "what it had before it began again was published"


@pytest.mark.parametrize(("departed", "doubts", "shows"), [(0, False, False), (1, False, True), (0, True, True)])
def test_settled_once_all_have_seen_all(shards: Shards, own: Beginnings, departed: int, doubts: bool, shows: bool) -> None:
    """Rows are shown again if a bucket had left for somebody unseen, or rows came of which older events may come."""
    if doubts:
        own.doubt()
    tell(shards, "s2", 20, departed, s1=10, s3=30)
    tell(shards, "s3", 30, s1=10)
    for name, began_us in own.unseen():
        own.see(name, began_us, 0)
    own.go_on(None)
    assert (own.awaits, own.must_settle, own.is_certain) == (["s3"], False, False)
    tell(shards, "s3", 30, s1=10, s2=20)
    assert (own.awaits, own.must_settle) == ([], True)
    assert own.settle() is shows
    assert own.is_certain
    own.doubt()
    assert own.is_certain, "whatever arrives now comes behind everything older"


def test_a_daemon_that_begins_again(shards: Shards, own: Beginnings) -> None:
    """It has rows to show again, once it was seen, only if buckets have arrived meanwhile."""
    tell(shards, "s2", 20, s1=10, s3=30)
    tell(shards, "s3", 30, s1=10, s2=20)
    for name, began_us in own.unseen():
        own.see(name, began_us, 0)
    own.go_on(None)
    own.settle()
    own.begin("there 1", 50, [])
    assert (own.is_certain, own.must_settle) == (True, False)
    own.begin("there 1", 60, [7, 8])
    assert (own.is_certain, own.must_settle) == (False, False)
    assert (own.arrived_unseen, own.record.arrived_unseen) == ([7, 8], 2)
    tell(shards, "s2", 20, s1=60, s3=30)
    tell(shards, "s3", 30, s1=60, s2=20)
    assert own.must_settle
    assert own.settle()


def test_a_record_survives(own: Beginnings, shards: Shards) -> None:
    own.begin("there 1", 20, [3])
    own.take_away()
    shards.fold("s1", bucket_key(None), own.record.to_json())
    assert shards.own.record == own.record
    assert Beginnings(shards).record == own.record
