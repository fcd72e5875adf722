"""Where to go on: every case of position against ballot, under every mode and policy, against a table written by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import get_args
from uuid import UUID

import pytest

from cdc.errors import PositionError
from cdc.position import Position, SnapshotState
from cdc.protocol.ballot import Ballot
from cdc.upstream.resume import (
    CAUGHT_UP_SECONDS,
    Continue,
    Policy,
    SnapshotMode,
    TakeSnapshot,
    check_replicaset,
    decide,
    is_behind,
    reconcile,
    target,
    vclock_for_upstream,
)
from cdc.vclock import VClock

MODES: tuple[SnapshotMode, ...] = get_args(SnapshotMode)
POLICIES: tuple[Policy, ...] = get_args(Policy)
COMPLETE = SnapshotState(1, is_complete=True)
KEPT_FROM, REACHED = VClock({1: 10}), VClock({1: 20, 2: 5})
BALLOT = Ballot(vclock=REACHED, gc_vclock=KEPT_FROM, is_read_only=False, is_ready=True)


def at(*, complete: bool = True, **components: int) -> Position:
    return Position(
        vclock=VClock({int(origin[1:]): lsn for origin, lsn in components.items()}),
        snapshot=SnapshotState(1, is_complete=complete),
    )


POSITIONS = {
    "none": None,
    "no snapshot": Position(vclock=VClock({1: 15})),
    "interrupted": at(complete=False, o1=15),
    "within": at(o1=15),
    "at the first log": at(o1=10),
    "at the end": at(o1=20, o2=5),
    "gap": at(o1=9),
    "gap from nothing": at(),
    "ahead": at(o1=21),
    "ahead of one, behind the other": at(o1=15, o2=6),
    "of an unknown origin": at(o1=15, o3=1),
    "gap and ahead": at(o1=9, o2=6),
}


def expected(case: str, mode: SnapshotMode, on_gap: Policy, on_divergence: Policy, *, is_first: bool) -> str:
    """The decision in words: continue, snapshot, schema only, or the policy that fails."""
    match case:
        case "none":
            return "schema only" if mode == "never" else "snapshot"
        case "no snapshot" | "interrupted":
            return "schema only" if mode == "never" else "snapshot"
        case _ if mode == "always" and is_first:
            return "snapshot"
        case "within" | "at the first log" | "at the end":
            return "continue"
        case "gap" | "gap from nothing":
            return "fail: gap" if on_gap == "fail" and mode != "when_needed" else "snapshot"
        case _:
            return "fail: divergence" if on_divergence == "fail" else "snapshot"


def decided(position: Position | None, mode: SnapshotMode, on_gap: Policy, on_divergence: Policy, *, is_first: bool) -> str:
    try:
        decision = decide(position, BALLOT, mode=mode, on_gap=on_gap, on_divergence=on_divergence, is_first_connect=is_first)
    except PositionError as error:
        return "fail: gap" if "no longer has the logs" in str(error) else "fail: divergence"
    if isinstance(decision, Continue):
        return "continue"
    return "snapshot" if decision.publish else "schema only"


@pytest.mark.parametrize("case", POSITIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_case(case: str, mode: SnapshotMode) -> None:
    for on_gap, on_divergence, is_first in product(POLICIES, POLICIES, (True, False)):
        found = decided(POSITIONS[case], mode, on_gap, on_divergence, is_first=is_first)
        assert found == expected(case, mode, on_gap, on_divergence, is_first=is_first), (on_gap, on_divergence, is_first)


def test_errors_name_the_components_and_the_way_out() -> None:
    with pytest.raises(PositionError, match=r"origin 2: server 5, published 6.*source\.on_divergence"):
        decide(POSITIONS["gap and ahead"], BALLOT, mode="initial", on_gap="fail", on_divergence="fail", is_first_connect=True)
    with pytest.raises(PositionError, match=r"origin 1: needed from 9, kept from 10.*source\.on_gap"):
        decide(POSITIONS["gap"], BALLOT, mode="initial", on_gap="fail", on_divergence="fail", is_first_connect=True)
    decision = decide(POSITIONS["gap"], BALLOT, mode="initial", on_gap="resnapshot", on_divergence="fail", is_first_connect=True)
    assert isinstance(decision, TakeSnapshot)
    assert "origin 1: needed from 9, kept from 10" in decision.reason


LEFT_OUT: dict[str, tuple[Position, frozenset[int], str]] = {
    "its position stays behind its logs": (at(o1=15), frozenset({2}), "continue"),
    "it is ahead, which says nothing": (at(o1=15, o2=9), frozenset({2}), "continue"),
    "another one is ahead": (at(o1=21, o2=9), frozenset({2}), "fail: divergence"),
    "another one has a gap": (at(o1=9, o2=9), frozenset({2}), "fail: gap"),
    "one that nobody knows": (at(o1=15, o2=5, o3=9), frozenset({3}), "continue"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_origins_that_are_left_out(case: str) -> None:
    position, ignored, outcome = LEFT_OUT[case]
    ballot = Ballot(vclock=REACHED, gc_vclock=VClock({1: 10, 2: 4}), is_read_only=False, is_ready=True)
    try:
        decision = decide(
            position, ballot, mode="initial", on_gap="fail", on_divergence="fail", is_first_connect=True, ignored=ignored
        )
        found = "continue" if isinstance(decision, Continue) else "snapshot"
    except PositionError as error:
        found = "fail: gap" if "no longer has the logs" in str(error) else "fail: divergence"
    assert found == outcome


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


# Checkpoint and store.


def both(seq: int, lsn: int, snapshot_id: int = 1, *, complete: bool = True, replicaset: int = 1) -> Position:
    """A position of the checkpoint or of the store."""
    return Position(
        vclock=VClock({1: lsn}),
        seq=seq,
        replicaset_uuid=UUID(int=replicaset),
        snapshot=SnapshotState(snapshot_id, is_complete=complete),
    )


TOGETHER: dict[str, tuple[Position | None, Position | None, str]] = {
    "both are new": (None, None, "go on"),
    "no checkpoint": (None, both(5, 10), "empty it"),
    "no snapshot in the checkpoint": (Position(), both(5, 10), "empty it"),
    "no store": (both(5, 10), None, "empty it, snapshot"),
    "no snapshot in the store": (both(5, 10), Position(), "empty it, snapshot"),
    "the same": (both(5, 10), both(5, 10), "go on"),
    "the store is behind": (both(7, 12), both(5, 10), "replay"),
    "the store is ahead": (both(5, 10), both(7, 12), "empty it, snapshot"),
    "the store is of another history": (
        both(5, 10),
        replace(both(5, 10), vclock=VClock({1: 9, 2: 1})),
        "empty it, snapshot",
    ),
    "both in the same snapshot": (both(5, 10, complete=False), both(5, 10, complete=False), "go on"),
    "the store is behind in the same snapshot": (both(7, 10, complete=False), both(5, 10, complete=False), "empty it"),
    "the store is before the running snapshot": (both(7, 10, 2, complete=False), both(5, 9, 1), "empty it"),
    "the store lacks the end of the snapshot": (both(7, 10), both(5, 10, complete=False), "empty it, snapshot"),
    "the store lacks the snapshot": (both(7, 10, 2), both(5, 9, 1), "empty it, snapshot"),
}
"""What a snapshot is compared with must be what consumers have: the contents at the checkpoint, not those at the store."""


@pytest.mark.parametrize("case", TOGETHER)
def test_checkpoint_and_store(case: str) -> None:
    kafka, store, expected_ = TOGETHER[case]
    plan = reconcile(kafka, store)
    found = [
        word
        for word, holds in (
            ("empty it", not plan.is_store_good),
            ("snapshot", plan.reason is not None),
            ("replay", plan.catches_up),
        )
        if holds
    ]
    # A snapshot that was interrupted is taken again in any case, whether a reason is given here or not.
    if kafka is not None and kafka.snapshot is not None and not kafka.snapshot.is_complete:
        found = [word for word in found if word != "snapshot"]
    assert ", ".join(found or ["go on"]) == expected_


def test_store_of_another_replica_set() -> None:
    with pytest.raises(PositionError, match=r"remove the directory images in it and start once with --rebuild-state"):
        reconcile(both(5, 10), both(5, 10, replicaset=2))
    assert not reconcile(None, both(5, 10, replicaset=2)).is_store_good


def test_a_busy_master_is_never_caught_up_with_to_the_row() -> None:
    """What was behind a moment ago counts, so that an id is asked for at all."""
    position, master = VClock({1: 5}), VClock({1: 6})
    assert is_behind(position, master, frozenset(), math.inf)
    assert is_behind(position, master, frozenset(), CAUGHT_UP_SECONDS + 1)
    assert not is_behind(position, master, frozenset(), 1.0)
    assert not is_behind(master, master, frozenset(), math.inf)
    assert not is_behind(position, VClock({1: 5, 2: 9}), frozenset({2}), math.inf)
