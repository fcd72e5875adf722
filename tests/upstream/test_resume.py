"""A position against a server: what it lacks, what it keeps, what it is told, and whose it is."""

from __future__ import annotations

from uuid import UUID

import pytest

from cdc.errors import PositionError
from cdc.positions.position import Position
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.upstream.resume import check_replicaset, fails_on_gap, lost_history, missing_logs, target, vclock_for_upstream

REACHED = VClock({1: 20, 2: 5})
BALLOT = Ballot(vclock=REACHED, gc_vclock=VClock({1: 10}), is_read_only=False, is_ready=True)


def test_what_a_server_lacks_and_what_it_has_removed() -> None:
    assert lost_history(VClock({1: 20}), BALLOT) == ""
    assert lost_history(VClock({1: 21, 2: 6}), BALLOT) == "origin 1: server 20, published 21; origin 2: server 5, published 6"
    assert lost_history(VClock({1: 21, 2: 6}), BALLOT, frozenset({1})) == "origin 2: server 5, published 6"
    assert missing_logs(VClock({1: 10}), BALLOT) == ""
    assert missing_logs(VClock({2: 5}), BALLOT) == "origin 1: needed from 0, kept from 10"
    assert missing_logs(VClock({2: 5}), BALLOT, frozenset({1})) == ""


def test_the_mode_that_takes_a_snapshot_whenever_one_is_needed_fails_on_no_gap() -> None:
    assert fails_on_gap("fail", "initial")
    assert not fails_on_gap("fail", "when_needed")
    assert not fails_on_gap("resnapshot", "initial")


def test_what_a_master_is_told_of_origins_that_are_left_out() -> None:
    """As far as itself: from the position that stays where it was, it would look for its logs, and keep them."""
    ours, master = VClock({1: 15, 2: 3, 3: 9}), VClock({1: 20, 2: 8, 3: 7, 4: 1})
    assert vclock_for_upstream(ours, master, frozenset()) is ours
    assert vclock_for_upstream(ours, master, frozenset({2})) == VClock({1: 15, 2: 8, 3: 9})
    assert vclock_for_upstream(ours, master, frozenset({3})) == ours, "never back"
    assert vclock_for_upstream(ours, master, frozenset({2, 4, 9})) == VClock({1: 15, 2: 8, 3: 9, 4: 1})


def test_target_without_origins_that_are_left_out() -> None:
    assert target(REACHED, frozenset()) == REACHED
    assert target(REACHED, frozenset({2})) == VClock({1: 20})
    assert VClock({1: 20}).covers(target(REACHED, frozenset({2})))


def test_replica_sets() -> None:
    position = Position(replicaset_uuid=UUID(int=1))
    check_replicaset(position, UUID(int=1))
    check_replicaset(position, None)
    check_replicaset(Position(), UUID(int=2))
    with pytest.raises(PositionError, match=r"belongs to replica set .*2, the checkpoint to .*1.*source\.uris"):
        check_replicaset(position, UUID(int=2))
