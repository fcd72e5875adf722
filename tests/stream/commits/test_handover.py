"""What is handed between the daemon's thread and the publisher's, and in which order what went wrong is told."""

from __future__ import annotations

import itertools

import pytest

from cdc.errors import PublishAborted, PublishError
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.commits.handover import TRANSITIONS, Handover, Input, State


def position(number: int) -> Position:
    return Position(VClock({1: number}), number)


def batch(number: int, byte_count: int = 10) -> Batch:
    return Batch([("shop.things", b"1", b"row")], byte_count, 1, 1, position(number), True, {}, ["shop.things"], 1.0)


def test_batches_come_in_order_and_their_bytes_are_bounded() -> None:
    shared = Handover(25)
    first, second = batch(1), batch(2, 90)
    shared.submit(first)
    assert (shared.has_room, shared.is_waiting) == (True, True)
    shared.submit(second)
    assert (shared.has_room, shared.queued_bytes) == (False, 100)
    assert shared.take() is first
    assert not shared.has_room
    assert shared.take() is second
    assert (shared.has_room, shared.is_waiting, shared.queued_bytes) == (True, False, 0)
    assert shared.take() is None


def test_settled_positions_are_reported_once_and_before_the_error() -> None:
    shared = Handover(25)
    for number in (1, 2):
        shared.settle(position(number))
    shared.abort(PublishAborted("Kafka was slow"))
    assert shared.collect() == [position(1), position(2)]
    for _ in range(2):
        with pytest.raises(PublishAborted, match="Kafka was slow"):
            shared.collect()
    shared.reset()
    assert shared.collect() == []


def test_reset_after_an_abort_discards_all_batches() -> None:
    shared = Handover(25)
    shared.submit(batch(1, 30))
    shared.settle(position(1))
    shared.abandoned = reason = "the rest won't come"
    shared.abort(PublishAborted(reason))
    shared.reset()
    assert (shared.state, shared.is_waiting, shared.queued_bytes) == (State.RUNNING, False, 0)
    assert not shared.abandoned
    assert shared.collect() == []


def test_it_is_drained_once_nothing_waits() -> None:
    shared = Handover(25)
    assert not shared.is_drained
    shared.submit(batch(1))
    shared.should_drain = True
    assert not shared.is_drained
    shared.take()
    assert shared.is_drained


def test_a_stop_before_the_reset_keeps_the_error_of_the_abort() -> None:
    shared = Handover(25)
    shared.abort(PublishAborted("Kafka was slow"))
    shared.stop()
    assert shared.state is State.FAILED
    with pytest.raises(PublishAborted, match="Kafka was slow"):
        shared.collect()


def test_after_a_stop_settled_positions_come_before_the_last_error() -> None:
    shared = Handover(25)
    shared.settle(position(1))
    shared.stop()
    shared.fail(PublishError("readers can't reach it"))
    assert shared.take_settled() == [position(1)]
    with pytest.raises(PublishError, match="readers can't reach it"):
        shared.collect()


MOVES = {
    Input.ABORT: lambda shared: shared.abort(PublishAborted("x")),
    Input.RESET: Handover.reset,
    Input.FAIL: lambda shared: shared.fail(PublishError("x")),
    Input.STOP: Handover.stop,
}


@pytest.mark.parametrize(("state", "cause"), list(itertools.product(State, Input)))
def test_only_transitions_in_the_table_are_possible(state: State, cause: Input) -> None:
    shared = Handover(25)
    shared.state = state
    following = TRANSITIONS[state].get(cause)
    if following is None:
        with pytest.raises(KeyError):
            MOVES[cause](shared)
        assert (shared.state, shared.error) == (state, None)
    else:
        MOVES[cause](shared)
        assert shared.state is following
