"""When a Kafka transaction commits."""

from __future__ import annotations

import pytest

from cdc.stream.commits.open_transaction import COMMIT_LEADS_SECONDS, OpenTransaction, Pace

PACE = Pace(interval_seconds=0.1, pause_seconds=0.02, bytes_max=1000)


@pytest.mark.parametrize(
    ("last_commit_at", "follows_more", "due_at"),
    [
        (1.0, False, 1.02),  # the last commit was long ago, and nothing waits: at once
        (10.0, False, 10.02),  # it was just now
        (10.0, True, 10.1),  # others are to share the commit
        (10.5, False, 10.1),  # the interval is the longest wait
    ],
)
def test_a_commit_is_due_when_nothing_more_waits(last_commit_at: float, follows_more: bool, due_at: float) -> None:
    open_ = OpenTransaction(began_at=10.0)
    assert open_.due_at(PACE, last_commit_at, follows_more=follows_more) == pytest.approx(due_at)
    for now in (10.001, 10.05, 10.2):
        assert open_.is_due(PACE, last_commit_at, now, follows_more=follows_more) == (now >= due_at)
    open_.byte_count = 1000
    assert open_.is_due(PACE, last_commit_at, 10.0, follows_more=follows_more)


EARLY, LATE = COMMIT_LEADS_SECONDS


@pytest.mark.parametrize(
    ("since_commit", "has_open", "is_committing", "wanted_in"),
    [
        (0.0, False, False, 1 - EARLY),
        (0.4, True, False, 0.6 - EARLY),
        (1 - EARLY, True, False, EARLY - LATE),  # what comes now has yet to be
        (1 - LATE, True, False, 1 - EARLY),  # there is a commit to come, which it would be too late for
        (1 - LATE, False, False, 0.0),  # there is none, so it would be the next
        (9.0, False, False, 0.0),
        (9.0, True, False, 1 - EARLY),
        (9.0, False, True, 1 - EARLY),
    ],
)
def test_batches_are_wanted_a_while_before_a_commit_may_begin_and_just_before(
    since_commit: float, wanted_in: float, *, has_open: bool, is_committing: bool
) -> None:
    pace = Pace(interval_seconds=5.0, pause_seconds=1.0, bytes_max=1000)
    found = pace.wanted_in_seconds(since_commit, has_open=has_open, is_committing=is_committing)
    assert found == pytest.approx(wanted_in)


@pytest.mark.parametrize("pause_seconds", [0.0, LATE, EARLY])
def test_with_a_short_pause_batches_are_wanted_later_or_at_once(pause_seconds: float) -> None:
    pace = Pace(interval_seconds=5.0, pause_seconds=pause_seconds, bytes_max=1000)
    assert pace.wanted_in_seconds(0.0, has_open=False, is_committing=True) == max(0.0, pause_seconds - LATE)
