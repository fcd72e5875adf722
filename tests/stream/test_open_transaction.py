"""When a Kafka transaction commits."""

from __future__ import annotations

import pytest

from cdc.stream.open_transaction import OpenTransaction


@pytest.mark.parametrize(
    ("rested_at", "follows_more", "due_at"),
    [
        (0.0, False, 0.0),  # the last commit was long ago, and nothing waits
        (10.02, False, 10.02),  # it was just now
        (0.0, True, 10.1),  # others are to share the commit
        (10.5, False, 10.1),  # a pause that is longer than the interval
    ],
)
def test_a_commit_is_due_when_nothing_more_waits(rested_at: float, follows_more: bool, due_at: float) -> None:
    open_ = OpenTransaction(began_at=10.0)
    assert open_.due_at(0.1, rested_at, follows_more=follows_more) == pytest.approx(due_at)
