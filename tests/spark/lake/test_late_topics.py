"""Topics that a job reads later than others: how far a table is complete then."""

from __future__ import annotations

from spark_jobs.lake.late_topics import LateTopics

READ = {("shop.users", 0): 10, ("shop.users", 1): 12}


def test_what_is_read_from_the_beginning_is_never_late() -> None:
    noted = LateTopics.first("shop", READ)
    more = {place: end + 5 for place, end in READ.items()}
    assert noted.after(more, more) == (noted, set())
    assert not noted.holds("users")


def test_a_later_topic_is_held_up_to_the_end_that_it_had() -> None:
    noted = LateTopics.first("shop", READ)
    read = READ | {("shop.a_b", 0): 3, ("shop.a_b", 1): 0, ("shop.users", 2): 1}
    ends = read | {("shop.a_b", 0): 8, ("shop.users", 0): 99}
    held, complete = noted.after(read, ends)
    assert complete == {("shop.a_b", 1), ("shop.users", 2)}
    assert held.holds("a/b")
    assert not held.holds("users")
    # Also by another process, and whatever has come since.
    held = LateTopics.from_json(held.to_json())
    assert held.after(read | {("shop.a_b", 0): 7}, ends | {("shop.a_b", 0): 50}) == (held, set())
    done, complete = held.after(read | {("shop.a_b", 0): 8}, ends | {("shop.a_b", 0): 50})
    assert complete == {("shop.a_b", 0)}
    assert not done.holds("a/b")
    assert done.after(read | {("shop.a_b", 0): 9}, ends) == (done, set())
