"""The numbers that are never given twice: which are higher, and what a daemon's own file remembers of them."""

from __future__ import annotations

import pytest

from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position, SnapshotState


def test_the_higher_of_each() -> None:
    assert Numbers(5, 1, 9) | Numbers(3, 4, 9) == Numbers(5, 4, 9)
    assert Numbers.of(None) == Numbers.of(Position()) == Numbers()
    assert Numbers.of(Position(seq=7, schema_version=2, snapshot=SnapshotState(3, is_complete=True))) == Numbers(7, 3, 2)


def test_a_position_with_at_least_these_numbers() -> None:
    numbers, state = Numbers(50, 4, 6), SnapshotState(2, is_complete=True, row_count=9)
    raised = numbers.applied_to(Position(seq=7, schema_version=8, snapshot=state))
    assert (Numbers.of(raised), raised.snapshot) == (Numbers(50, 4, 8), SnapshotState(4, is_complete=True, row_count=9))
    # Nothing is known of that snapshot, so that the next one counts as its repetition.
    assert numbers.applied_to(Position()).snapshot == SnapshotState(4, is_complete=False)
    assert Numbers(50).applied_to(Position()) == Position(seq=50)
    same = Position(seq=90, schema_version=8, snapshot=SnapshotState(9, is_complete=True))
    assert numbers.applied_to(same) == same


def test_what_is_kept_is_read_back_by_its_owner_alone() -> None:
    kept = Kept(Numbers(180, 2, 5), 10_000_180, "a cluster", "exactly_once")
    content = kept.encode("shop", "shop")
    assert Kept.decode(content.ljust(511) + b"\n", "shop", "shop") == kept
    assert Kept.decode(content, "other", "shop") == Kept.decode(content, "shop", "staging") == Kept()


@pytest.mark.parametrize("content", [b"", b"\0" * 512, b"{}", b"[]", b'{"name":"shop","topic_prefix":"shop","seq":"x"}', b"\xff"])
def test_what_can_not_be_read_says_nothing(content: bytes) -> None:
    assert Kept.decode(content, "shop", "shop") == Kept()
