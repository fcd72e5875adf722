"""The ledger: batches are settled in the order in which they were published, and nothing else moves the checkpoint."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.ledger import Ledger
from tests.fakes.profiles import MANY


def at(lsn: int, seq: int = 0) -> Position:
    return Position(vclock=VClock({1: lsn}), seq=seq)


def published(ledger: Ledger, position: Position) -> Position:
    ledger.receive(position.vclock)
    ledger.release(position.vclock)
    ledger.publish(position)
    return position


def test_nothing_is_acknowledged_before_it_is_settled() -> None:
    ledger = Ledger(at(5))
    first = published(ledger, at(6))
    assert ledger.acknowledged == VClock({1: 5})
    assert ledger.unsettled_count == 1
    ledger.settle(first)
    assert ledger.acknowledged == VClock({1: 6})
    assert ledger.settled is first
    assert ledger.unsettled_count == 0


def test_a_later_batch_settles_the_earlier_ones() -> None:
    ledger = Ledger(at(5))
    positions = [published(ledger, at(lsn)) for lsn in (6, 7, 9)]
    ledger.settle(positions[1])
    assert ledger.acknowledged == VClock({1: 7})
    assert ledger.unsettled_count == 1


def test_batches_that_end_at_the_same_place_are_told_apart() -> None:
    """One that only says that a snapshot is complete moves no vclock."""
    ledger = Ledger(at(5))
    first, second = published(ledger, at(5, 1)), published(ledger, at(5, 1))
    ledger.settle(first)
    assert ledger.settled is first
    assert ledger.unsettled_count == 1
    ledger.settle(second)
    assert ledger.settled is second


@pytest.mark.parametrize("settled", [at(6), at(5), at(99)])
def test_settling_what_was_never_published(settled: Position) -> None:
    ledger = Ledger(at(5))
    published(ledger, at(6))
    with pytest.raises(RuntimeError, match="never published"):
        ledger.settle(settled)


def test_settling_twice() -> None:
    ledger = Ledger(at(5))
    position = published(ledger, at(6))
    ledger.settle(position)
    with pytest.raises(RuntimeError, match="never published"):
        ledger.settle(position)


def test_a_batch_that_is_not_handed_over_is_not_waited_for() -> None:
    ledger = Ledger(at(5))
    first, second = published(ledger, at(6)), published(ledger, at(7))
    ledger.withdraw(second)
    assert (ledger.published, ledger.unsettled_count) == (VClock({1: 6}), 1)
    ledger.settle(first)
    assert ledger.unsettled_count == 0
    with pytest.raises(RuntimeError, match="never published"):
        ledger.settle(second)
    third = published(ledger, at(8))
    ledger.withdraw(third)
    assert ledger.published == VClock({1: 6})


@pytest.mark.parametrize("withdrawn", [at(6), at(7)])
def test_withdrawing_another_batch_than_the_last(withdrawn: Position) -> None:
    ledger = Ledger(at(5))
    published(ledger, at(6))
    published(ledger, at(7))
    with pytest.raises(AssertionError, match="isn't the last"):
        ledger.withdraw(withdrawn)


def test_releasing_what_was_not_received() -> None:
    with pytest.raises(AssertionError, match="ahead of received"):
        Ledger(at(5)).release(VClock({1: 6}))


def test_publishing_what_was_not_released() -> None:
    ledger = Ledger(at(5))
    ledger.receive(VClock({1: 6}))
    with pytest.raises(AssertionError, match="ahead of released"):
        ledger.publish(at(6))


def test_receiving_backwards() -> None:
    with pytest.raises(AssertionError, match="ahead of received"):
        Ledger(at(5)).receive(VClock({1: 4}))


def test_incomparable_positions_are_not_in_order() -> None:
    ledger = Ledger(at(5))
    ledger.receive(VClock({1: 6, 2: 1}))
    with pytest.raises(AssertionError):
        ledger.release(VClock({1: 5, 2: 2}))


@MANY
@given(seed=st.integers(0, 2**32 - 1))
def test_random_sequences_keep_the_order(seed: int) -> None:
    """Against the simplest model: a list of what was published, and how many of them are settled."""
    rng = random.Random(seed)
    ledger = Ledger(Position(vclock=VClock({1: 5})))
    vclock = VClock({1: 5})
    waiting: list[Position] = []
    settled = VClock({1: 5})
    for seq in range(rng.randint(1, 30)):
        match rng.choice(["receive", "publish", "settle", "settle"]):
            case "receive":
                origin = rng.randint(1, 3)
                vclock = VClock({**vclock, origin: vclock[origin] + rng.randint(1, 5)})
                ledger.receive(vclock)
            case "publish":
                ledger.release(ledger.received)
                position = Position(vclock=ledger.released, seq=seq)
                ledger.publish(position)
                waiting.append(position)
            case _ if waiting:
                index = rng.randrange(len(waiting))
                ledger.settle(waiting[index])
                settled = waiting[index].vclock
                del waiting[: index + 1]
        assert ledger.received.covers(ledger.released)
        assert ledger.released.covers(ledger.published)
        assert ledger.published.covers(ledger.acknowledged)
        assert ledger.acknowledged == settled
        assert ledger.unsettled_count == len(waiting)
