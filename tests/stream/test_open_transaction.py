"""When a Kafka transaction commits."""

from __future__ import annotations

import pytest

from cdc.stream.open_transaction import OpenTransaction, Pace

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
