"""What has arrived in a bucket is compared with what has been collected where it came from, by sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.stream.moves.comparison import row_hash, with_arrived, with_collected, with_emptied, with_lost
from cdc.stream.moves.records import BucketRecord, RowSum, Shards, bucket_key

ROWS = st.lists(st.tuples(st.sampled_from(("orders", "customers")), st.lists(st.one_of(st.integers(), st.floats(), st.text()))))
COLLECTING = BucketRecord("garbage", 3, collected=(RowSum(3),))


@given(rows=ROWS, chance=st.randoms())
def test_the_order_does_not_matter(rows: list[tuple[str, list[Any]]], chance: Any) -> None:
    arriving, collecting, again = BucketRecord("receiving", 3, arrived=(RowSum(3),)), COLLECTING, list(rows)
    chance.shuffle(again)
    for row in rows:
        arriving = with_arrived(arriving, row_hash(*row))
    for row in again:
        collecting = with_collected(collecting, row_hash(*row))
    assert arriving.arrived == collecting.collected
    assert arriving.arrived == (RowSum(3, len(rows), sum(row_hash(*row) for row in rows) % (1 << 64)),)


@pytest.mark.parametrize(
    "other", [("orders", [1, 2]), ("orders", ["1", 2.0]), ("customers", [1, 2.0]), ("orders", [1, 2.0, None])]
)
def test_values_their_types_and_spaces_matter(other: tuple[str, list[Any]]) -> None:
    assert row_hash(*other) != row_hash("orders", [1, 2.0])


def test_what_is_not_comparable() -> None:
    """A changed copy differs from everything. Of an emptied space, and of a move that has failed since, nothing is known."""
    lost = with_collected(with_lost(COLLECTING), 5)
    assert lost.collected == (RowSum(3, -1),)
    assert with_emptied(COLLECTING).collected == ()
    assert with_emptied(BucketRecord("receiving", 3, arrived=(RowSum(3),))).arrived == ()
    failed = replace(COLLECTING, generation=4)
    assert with_collected(failed, 5) == with_lost(failed) == failed
    assert with_emptied(BucketRecord("active", 3, collected=(RowSum(2),))).collected == (RowSum(2),)


@pytest.mark.parametrize(("status", "generation", "is_known"), [("garbage", 3, False), (None, 3, True), ("receiving", 4, True)])
def test_a_sum_is_known_once_all_is_collected(status: str | None, generation: int, is_known: bool) -> None:
    shards, found = Shards("s1", ("s1", "s2")), RowSum(3, 2, 9)
    shards.fold("s2", bucket_key(7), BucketRecord(status, generation, collected=(RowSum(2), found), changed=2, shown=1).to_json())
    assert shards.collected(7, 3) == (found if is_known else None)
    assert shards.collected(7, 1) is None
    assert (shards.changed(7), shards.changed(8)) == ((2, 1), (0, 0))
