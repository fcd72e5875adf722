"""Which of several jobs may append to a table of events."""

from __future__ import annotations

import pytest

from spark_jobs.lake.lanes import claimed, holds, lane, next_claim, number


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("users", "orders", False),
        ("users|carts", r"orders|a\.b", False),
        ("users", "users|orders", True),
        (".*", "users", True),
        ("users", "user.", True),
        ("users.old", "orders", True),  # the dot stands for any letter
        (r"\Qusers\E", "orders", True),
        ("(users)", "orders", True),
    ],
)
def test_only_different_lists_of_names_can_share_a_table(one: str, other: str, overlap: bool) -> None:
    transactions = {lane(one): number(3, 7), "another application": 5}
    assert claimed(other, transactions) == [lane(one)] * overlap + [lane(other)]


def test_no_batch_of_an_earlier_claim_has_a_higher_number() -> None:
    own = lane(".*")
    transactions = {own: number(5, 2**30 - 2), "x": 2**62}
    claim = next_claim([own], transactions, 1)
    assert number(claim, -1) > number(5, 2**30 - 2)
    assert holds(5, own, transactions)
    assert not holds(5, own, {own: number(claim, -1)})
    assert all(holds(claim, own, {own: number(claim, batch)}) for batch in (-1, 0, 1, 2**30 - 2))
    assert number(claim, 2**30 - 2) < 2**63
    with pytest.raises(OverflowError):
        next_claim([own], {own: number(2**33 - 1, 0)}, 1)
