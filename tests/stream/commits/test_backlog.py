"""The backlog: how old waiting changes are, and since when Kafka has accepted none of them."""

from __future__ import annotations

from cdc.stream.commits.backlog import PRODUCER_QUEUE_BYTES, Backlog


def test_quiet_source_waits_for_nothing() -> None:
    backlog = Backlog()
    assert (backlog.oldest_since, backlog.age(12.0, 12.0), backlog.stalled_since()) == (None, 0.0, None)
    backlog.submitted(10.0, 5.0)
    backlog.committed(11.0, 1)
    assert (backlog.oldest_since, backlog.age(12.0, 12.0), backlog.stalled_since()) == (None, 0.0, None)


def test_the_oldest_that_is_not_committed() -> None:
    backlog = Backlog()
    for moment in (10.0, 20.0, 30.0):
        backlog.submitted(moment, moment - 1)
    assert (backlog.oldest_since, backlog.age(0.0, 100.0)) == (10.0, 91.0)
    backlog.committed(31.0, 2)
    assert (backlog.oldest_since, backlog.age(0.0, 100.0)) == (30.0, 71.0)


def test_age_is_that_of_the_oldest() -> None:
    backlog = Backlog()
    assert backlog.age(100.0, 5000.0) == 0.0
    backlog.submitted(10.0, 4930.0)
    backlog.submitted(20.0, 4990.0)
    assert backlog.age(100.0, 5000.0) == 70.0, "since the source wrote it"
    backlog.committed(101.0, 1)
    assert backlog.age(101.0, 5001.0) == 11.0
    backlog.committed(102.0, 1)
    assert backlog.age(102.0, 5002.0) == 0.0
    backlog.submitted(110.0, 0.0)
    assert backlog.age(130.0, 5030.0) == 20.0, "a snapshot's rows have no time of their own"
    backlog.aborted()
    backlog.submitted(140.0, 5040.0)
    assert backlog.age(150.0, 5050.0) == 40.0, "what was aborted waits still"
    assert backlog.age(150.0, 0.0) == 40.0
    backlog.committed(151.0, 1)
    backlog.submitted(152.0, 9999.0)
    assert backlog.age(153.0, 5053.0) == 0.0, "a source whose clock is ahead"


def test_who_commits_all_the_time_is_behind_but_not_stalled() -> None:
    backlog = Backlog()
    for moment in range(100):
        backlog.submitted(float(moment), 0.0)
    for moment in range(200, 250):
        backlog.committed(float(moment), 1)
    assert backlog.oldest_since == 50.0
    assert backlog.stalled_since() == 249.0


def test_stall_begins_with_what_waits_not_with_the_last_commit() -> None:
    backlog = Backlog()
    backlog.submitted(1.0, 0.0)
    backlog.committed(2.0, 1)
    backlog.submitted(1000.0, 0.0)
    assert backlog.stalled_since() == 1000.0


def test_aborts_and_new_producers_make_nothing_younger() -> None:
    """A daemon that goes back to the checkpoint again and again while Kafka is away stands still all the time."""
    backlog = Backlog()
    backlog.submitted(10.0, 7.0)
    for moment in (20.0, 30.0, 40.0):
        backlog.aborted()
        assert (backlog.stalled_since(), backlog.age(0.0, 100.0)) == (10.0, 93.0)
        backlog = Backlog(backlog)
        backlog.submitted(moment, 7.0)
        backlog.submitted(moment + 1, 8.0)
        assert (backlog.stalled_since(), backlog.age(0.0, 100.0)) == (10.0, 93.0)
    backlog.committed(50.0, 0)  # of a checkpoint alone: what waits still does
    assert (backlog.oldest_since, backlog.stalled_since()) == (10.0, 50.0)
    backlog.committed(51.0, 1)
    assert (backlog.oldest_since, backlog.stalled_since()) == (41.0, 51.0)
    backlog.committed(52.0, 1)
    assert backlog.stalled_since() is None


def test_large_transaction_that_kafka_takes_is_no_stall() -> None:
    """What is beyond the producer's queue has been taken; what still fits into it may lie there for ever."""
    backlog = Backlog()
    backlog.submitted(1.0, 0.0)
    backlog.produced(2.0, PRODUCER_QUEUE_BYTES)
    assert backlog.stalled_since() == 1.0
    backlog.produced(3.0, PRODUCER_QUEUE_BYTES + 1)
    assert backlog.stalled_since() == 3.0
    backlog.produced(4.0, PRODUCER_QUEUE_BYTES + 1)
    assert backlog.stalled_since() == 3.0
    backlog.aborted()
    backlog.submitted(5.0, 0.0)
    backlog.produced(6.0, PRODUCER_QUEUE_BYTES + 1)
    assert (backlog.oldest_since, backlog.stalled_since()) == (1.0, 6.0)
