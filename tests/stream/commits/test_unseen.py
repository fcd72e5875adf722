"""When what was committed has been seen to be readable, whatever hangs and whoever shares the topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.stream.commits.unseen import Place, UnseenCommits

ROWS: Place = ("shop.things", 0)
CHECKPOINT: Place = ("shop.checkpoint", 0)


def committed(**ends: int) -> UnseenCommits:
    """One commit, with the ends of the first partitions of topics."""
    found = UnseenCommits()
    found.committed(f"shop.{name}" for name in ends)
    found.written({(f"shop.{name}", 0): end for name, end in ends.items()})
    return found


def test_nothing_is_unseen_before_a_commit() -> None:
    found = UnseenCommits()
    assert (found.is_seen, found.topics) == (True, frozenset())


def test_a_commit_is_seen_when_readers_have_been_at_the_end_of_each_partition() -> None:
    found = committed(things=7, checkpoint=3)
    assert not found.is_seen
    assert found.topics == {"shop.things", "shop.checkpoint"}
    found.reached({ROWS: 6, CHECKPOINT: 3})
    assert (found.is_seen, dict(found.open)) == (False, {ROWS: 6})
    found.reached({ROWS: 7})
    assert (found.is_seen, dict(found.open), found.has_ends) == (True, {}, False)


def test_topics_of_commits_that_were_not_seen_add_up_and_ends_are_asked_for_anew() -> None:
    found = committed(things=7)
    found.committed(["shop.checkpoint"])
    assert not found.has_ends
    assert found.topics == {"shop.things", "shop.checkpoint"}


def test_topics_that_are_gone_have_nothing_to_see() -> None:
    found = UnseenCommits()
    found.committed(["shop.things"])
    found.written({})
    found.reached({})
    assert found.is_seen


def test_anothers_transaction_is_left_alone_until_readers_get_on() -> None:
    found = committed(things=7)
    found.reached({ROWS: 2})
    found.ignore([ROWS])
    assert found.is_seen
    for offset, is_seen in [(2, True), (3, False)]:
        found.committed(["shop.things"])
        found.written({ROWS: 9})
        found.reached({ROWS: offset})
        assert found.is_seen is is_seen, "what is open now begins elsewhere, so it is another transaction"
    found.reached({ROWS: 9})
    assert found.is_seen


def test_leaving_one_partition_doesnt_make_the_others_seen() -> None:
    found = committed(things=7, checkpoint=3)
    found.reached({ROWS: 2, CHECKPOINT: 2})
    found.ignore([ROWS])
    assert (found.is_seen, dict(found.open)) == (False, {CHECKPOINT: 2})


@given(st.lists(st.dictionaries(st.integers(0, 3), st.integers(0, 5), min_size=4), max_size=5))
def test_seen_means_that_each_partition_has_been_at_its_end(looks: list[dict[int, int]]) -> None:
    found = UnseenCommits()
    found.committed(["shop.things"])
    ends = {("shop.things", number): 3 + number % 2 for number in range(4)}
    found.written(ends)
    reached = set[Place]()
    for look in looks:
        if found.is_seen:
            break
        offsets = {("shop.things", number): offset for number, offset in look.items()}
        found.reached({place: offsets[place] for place in found.open})
        reached |= {place for place, end in ends.items() if offsets[place] >= end}
        assert found.is_seen == (reached == set(ends))
