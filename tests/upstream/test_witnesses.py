"""Whether a checkpoint is the newest one, and how far numbers were given, by each that may remember more than Kafka."""

from __future__ import annotations

import pytest

from cdc.positions.numbers import Kept, Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.upstream.witnesses import Witnesses


def at(seq: int, snapshot_id: int = 1) -> Position:
    return Position(VClock({1: seq}), seq, 3, snapshot=SnapshotState(snapshot_id, is_complete=True))


KEPT = Kept(Numbers(180, 2, 5), 10_000_180)
AHEAD = {
    "the state store has rows": Witnesses(store=at(180)),
    "the file numbers in state.path counts events": Witnesses(kept=Kept(Numbers(180))),
    "this process has committed events": Witnesses(process=at(180)),
    "the topics have events": Witnesses(topics=Numbers(180)),
}


@pytest.mark.parametrize("what", AHEAD)
def test_any_of_them_may_be_ahead(what: str) -> None:
    witnesses = AHEAD[what]
    reason = witnesses.thrown_back(at(20))
    assert reason == f"Kafka has lost the newest checkpoints: the last one left is at seq 20, and {what} up to seq 180"
    assert witnesses.given(at(20)).seq == 180
    for nothing in (None, Position()):  # a daemon that has its name only
        assert witnesses.thrown_back(nothing) == f"there is no checkpoint, but {what} up to seq 180"
        assert witnesses.given(nothing).seq == 180
    assert witnesses.thrown_back(at(180)) is witnesses.thrown_back(at(181)) is None
    assert witnesses.given(at(181)).seq == 181


def test_another_daemon_of_the_prefix_may_have_gone_further() -> None:
    """It was renamed, and renamed back; or the topics have lost all events, as nothing happened for a week."""
    witnesses = Witnesses(others=Numbers(180, 9, 7), topics=Numbers(180))
    reason = "a daemon of another name has published events under this prefix up to seq 180"
    assert witnesses.thrown_back(at(20)) == f"the checkpoint is at seq 20, but {reason}"
    assert witnesses.thrown_back(None) == f"there is no checkpoint, but {reason}"
    assert witnesses.given(None) == witnesses.given(at(20)) == Numbers(180, 9, 7)
    assert witnesses.thrown_back(at(180)) is None
    assert witnesses.given(at(180)) == Numbers(180, 9, 7)


def test_what_was_only_reserved_counts_where_the_newest_is_lost() -> None:
    """Else the next seq would not follow the last one."""
    assert Witnesses(kept=KEPT).given(at(180, 7)) == Numbers(180, 7, 5)
    assert Witnesses(kept=KEPT).given(at(20, 7)) == Numbers(10_000_180, 7, 5)
    assert Witnesses(store=at(90), kept=KEPT, topics=Numbers(170, 9)).given(None) == Numbers(10_000_180, 9, 5)
    # The topics have what the file had recorded, so they haven't lost their ends.
    assert Witnesses(store=at(90), kept=KEPT, topics=Numbers(183, 9)).given(None) == Numbers(183, 9, 5)
    assert Witnesses(store=at(185), kept=KEPT, topics=Numbers(183)).given(at(20)).seq == 185


def test_at_the_first_start_nothing_is_known() -> None:
    """A first snapshot that was killed has reserved seqs and published nothing."""
    for nothing in (None, Position()):
        witnesses = Witnesses(kept=Kept(Numbers(), 10_000_000))
        assert witnesses.thrown_back(nothing) is None
        assert witnesses.given(nothing) == Numbers()
