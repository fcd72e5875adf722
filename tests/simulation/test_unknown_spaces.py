"""Only rows of a space of which the daemon can't know are excused."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Key, Type
from tests.fakes.master import INDEX, LogRow
from tests.simulation.unknown_spaces import UnknownSpaces

LEFT = Position(VClock({1: 10}), seq=5, snapshot=SnapshotState(1, is_complete=True))


class Swept:
    """Takes down what is swept."""

    def __init__(self) -> None:
        self.spaces: list[tuple[int, int]] = []

    def sweep(self, space_id: int, seq: int) -> None:
        self.spaces.append((space_id, seq))


def row(lsn: int, kind: int, **body: Any) -> LogRow:
    keys = {"key": Key.KEY, "row": Key.TUPLE}
    return LogRow(1, lsn, kind, {Key.SPACE_ID: INDEX} | {keys[name]: value for name, value in body.items()}, 0.0)


@pytest.mark.parametrize(
    ("came", "went", "is_stored", "is_excused"),
    [
        (11, 20, True, True),
        (10, 20, True, False),
        (10, 20, False, True),
        (11, 21, True, False),
        (10, 21, False, False),
        (11, None, True, False),
    ],
)
def test_a_space_that_came_and_went_between(came: int, went: int | None, is_stored: bool, is_excused: bool) -> None:
    unknown, swept = UnknownSpaces(), Swept()
    unknown.take(row(came, Type.INSERT, row=[1001, 0]))
    if went is not None:
        unknown.take(row(went, Type.DELETE, key=[1001, 0]))
    unknown.checkpoint_lost(LEFT, {1001} if is_stored else ())
    unknown.snapshot_taken(1, {1: 10})  # the position that is left is written again
    unknown.sweep(swept)  # type: ignore[arg-type]
    assert not swept.spaces
    unknown.snapshot_begun(7)
    unknown.snapshot_taken(2, {1: 20})
    unknown.sweep(swept)  # type: ignore[arg-type]
    assert swept.spaces == ([(1001, 7)] if is_excused else [])


def test_a_number_that_the_checkpoint_knows() -> None:
    """A snapshot compares the next space of this number with it: consumers are told what is gone."""
    unknown, swept = UnknownSpaces(), Swept()
    for kind, lsn in ((Type.INSERT, 5), (Type.DELETE, 12), (Type.INSERT, 13), (Type.DELETE, 15)):
        keys = {"row": [1001, 0]} if kind == Type.INSERT else {"key": [1001, 0]}
        unknown.take(row(lsn, kind, **keys))
    unknown.checkpoint_lost(LEFT, {1001})
    unknown.snapshot_begun(7)
    unknown.snapshot_taken(2, {1: 20})
    unknown.sweep(swept)  # type: ignore[arg-type]
    assert not swept.spaces


def test_a_space_that_went_with_a_lost_history() -> None:
    unknown, swept = UnknownSpaces(), Swept()
    unknown.take(row(11, Type.INSERT, row=[1001, 0]))
    unknown.take(row(5, Type.INSERT, row=[1002, 0]))
    unknown.rewritten({1002: 20})
    unknown.checkpoint_lost(LEFT, {1001, 1002})
    unknown.snapshot_begun(7)
    unknown.snapshot_taken(2, {1: 20})
    unknown.sweep(swept)  # type: ignore[arg-type]
    assert swept.spaces == [(1001, 7)]
