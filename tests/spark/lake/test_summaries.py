"""What the merger knows of unmerged events without reading them again."""

from __future__ import annotations

from spark_jobs.lake.summaries import Summaries, Summary


def some(first: int, last: int, *, version: int = 1, patches: int = 0, truncated: int | None = None) -> Summary:
    return Summary(512, version, last - first + 1, patches, truncated, first, last)


def test_events_of_several_batches_add_up_by_their_form() -> None:
    known = Summaries()
    for found in (some(1, 10, truncated=3), some(11, 20, patches=2), some(15, 15, version=2), some(5, 5, truncated=5)):
        known.add("users", 1, found)
    known.add("orders", 1, some(1, 2))
    both = Summary(512, 1, 21, 2, 5, 1, 20)
    assert known.between("users", 0, 20) == [both, some(15, 15, version=2)]
    assert known.between("gone", 0, 20) == []


def test_groups_that_lie_across_a_limit_leave_it_unknown() -> None:
    known = Summaries()
    known.add("users", 1, some(1, 10))
    known.add("users", 2, some(11, 20))
    assert known.between("users", 0, 9) is None
    assert known.between("users", 0, 10) == [some(1, 10)]
    assert known.between("users", 5, 20) is None
    assert known.between("users", 10, 20) == [some(11, 20)]
    # A merge never goes back, so what precedes it isn't kept.
    assert known.between("users", 0, 20) == [some(11, 20)]


def test_events_before_those_that_were_seen_leave_it_unknown() -> None:
    known = Summaries(100)
    known.add("users", 1, some(101, 110))
    assert known.between("users", 99, 110) is None
    assert known.between("users", 100, 110) == [some(101, 110)]
    known.lack("users", 105)
    known.lack("users", 103)
    assert known.between("users", 100, 120) is None
    known.add("users", 2, some(111, 120))
    assert known.between("users", 110, 120) == [some(111, 120)]
