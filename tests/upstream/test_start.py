"""Where a connection begins: every case of position against ballot and store against a table written by hand, and what must
hold in all of them.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import product
from typing import Any, Final, get_args
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import PositionError
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, Rekeyed, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.upstream.resume import Policy, SnapshotMode
from cdc.upstream.selection import Answer, Choice, Rules, Standing, choose, standing
from cdc.upstream.start import (
    CAUGHT_UP_SECONDS,
    FollowAs,
    Known,
    StartPlan,
    StateForeignError,
    TakeSnapshot,
    check_store,
    makes_ours,
    needed,
    plan,
)
from tests.fakes.profiles import MANY

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
    "interrupted, and silent": Position(VClock({1: 15}), snapshot=SnapshotState(1, is_complete=False, is_silent=True)),
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
        case "no snapshot" | "interrupted, and silent":
            return "schema only" if mode == "never" else "snapshot"
        case "interrupted":
            return "snapshot"
        case _ if mode in ("always", "snapshot_only") and is_first:
            return "snapshot"
        case "within" | "at the first log" | "at the end":
            return "continue"
        case "gap" | "gap from nothing":
            return "fail: gap" if on_gap == "fail" and mode != "when_needed" else "snapshot"
        case _:
            return "fail: divergence" if on_divergence == "fail" else "snapshot"


def decided(position: Position | None, mode: SnapshotMode, on_gap: Policy, on_divergence: Policy, *, is_first: bool) -> str:
    return in_words(Known(position, mode=mode, on_gap=on_gap, on_divergence=on_divergence, is_first_connect=is_first), BALLOT)


def in_words(known: Known, ballot: Ballot) -> str:
    try:
        snapshot = plan(known, ballot).snapshot
    except PositionError as error:
        return "fail: gap" if "no longer has the logs" in str(error) else "fail: divergence"
    if snapshot is None:
        return "continue"
    return "snapshot" if snapshot.publish else "schema only"


@pytest.mark.parametrize("case", POSITIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_case(case: str, mode: SnapshotMode) -> None:
    for on_gap, on_divergence, is_first in product(POLICIES, POLICIES, (True, False)):
        found = decided(POSITIONS[case], mode, on_gap, on_divergence, is_first=is_first)
        assert found == expected(case, mode, on_gap, on_divergence, is_first=is_first), (on_gap, on_divergence, is_first)


def test_errors_name_the_components_and_the_way_out() -> None:
    with pytest.raises(PositionError, match=r"origin 2: server 5, published 6.*source\.on_divergence"):
        plan(Known(POSITIONS["gap and ahead"], on_gap="fail"), BALLOT)
    with pytest.raises(PositionError, match=r"origin 1: needed from 9, kept from 10.*source\.on_gap"):
        plan(Known(POSITIONS["gap"], on_gap="fail"), BALLOT)
    snapshot = plan(Known(POSITIONS["gap"]), BALLOT).snapshot
    assert snapshot is not None
    assert "origin 1: needed from 9, kept from 10" in snapshot.reason


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
    assert in_words(Known(position, on_gap="fail", ignored=ignored), ballot) == outcome


# Checkpoint and store.


def both(seq: int, lsn: int, snapshot_id: int = 1, *, complete: bool = True, replicaset: int = 1) -> Position:
    """A position of the checkpoint or of the store."""
    return Position(
        vclock=VClock({1: lsn}),
        seq=seq,
        replicaset_uuid=UUID(int=replicaset),
        snapshot=SnapshotState(snapshot_id, is_complete=complete),
    )


def sweeping(lsn: int, snapshot_id: int, *, sweep_seq: int) -> Position:
    """A running snapshot after which consumers sweep what has come up to there and not since."""
    return replace(both(5, lsn), snapshot=SnapshotState(snapshot_id, is_complete=False, sweep_seq=sweep_seq))


TOGETHER: dict[str, tuple[Position | None, Position | None, str]] = {
    "both are new": (None, None, "go on"),
    "no checkpoint": (None, both(5, 10), "empty it"),
    "no snapshot in the checkpoint": (Position(), both(5, 10), "empty it"),
    "no store": (both(5, 10), None, "empty it, snapshot"),
    "no snapshot in the store": (both(5, 10), Position(), "empty it, snapshot"),
    "the same": (both(5, 10), both(5, 10), "go on"),
    "the store is behind": (both(7, 12), both(5, 10), "catch up"),
    "the store is ahead": (both(5, 10), both(7, 12), "empty it, snapshot"),
    "the store is of another history": (
        both(5, 10),
        replace(both(5, 10), vclock=VClock({1: 9, 2: 1})),
        "empty it, snapshot",
    ),
    "both in the same snapshot": (both(5, 10, complete=False), both(5, 10, complete=False), "go on"),
    "the store is behind in the same snapshot": (both(7, 10, complete=False), both(5, 10, complete=False), "empty it"),
    "the store is before the running snapshot": (both(7, 10, 2, complete=False), both(5, 9, 1), "empty it"),
    "the running snapshot has only begun": (both(5, 12, 2, complete=False), both(5, 10, 1), "go on"),
    "it has begun again": (both(5, 12, 3, complete=False), both(5, 10, 2, complete=False), "go on"),
    "it has begun, with another schema": (
        replace(both(5, 12, 2, complete=False), schema_version=8),
        both(5, 10, 1),
        "empty it",
    ),
    "it has begun, where rows had another key": (
        both(5, 12, 2, complete=False),
        replace(both(5, 10, 1), rekeyed=(Rekeyed(512),)),
        "empty it",
    ),
    "it has begun, and the store is ahead": (both(5, 12, 2, complete=False), both(5, 13, 1), "empty it"),
    "it has begun, and all rows before it are to be swept": (
        sweeping(12, 3, sweep_seq=7),
        both(5, 10, 2, complete=False),
        "empty it",
    ),
    "it has begun again, and the same rows are to be swept": (
        sweeping(12, 3, sweep_seq=4),
        sweeping(10, 2, sweep_seq=4),
        "go on",
    ),
    "the store lacks the end of the snapshot": (both(7, 10), both(5, 10, complete=False), "empty it, snapshot"),
    "the store lacks the snapshot": (both(7, 10, 2), both(5, 9, 1), "empty it, snapshot"),
}
"""What a snapshot is compared with must be what consumers have: the contents at the checkpoint, not those at the store."""


@pytest.mark.parametrize("case", TOGETHER)
def test_checkpoint_and_store(case: str) -> None:
    kafka, store, expected_ = TOGETHER[case]
    found = plan(Known(kafka, has_store=True, store=store), Ballot(VClock({1: 20}), VClock(), is_read_only=False, is_ready=True))
    is_due = kafka is None or kafka.snapshot is None or not kafka.snapshot.is_complete
    words = [
        word
        for word, holds in (
            ("empty it", found.clears_store is not None),
            # One is taken in any case where none has been taken, or not to its end.
            ("snapshot", found.snapshot is not None and not is_due),
            ("catch up", found.catch_up_to is not None),
        )
        if holds
    ]
    assert ", ".join(words or ["go on"]) == expected_
    assert found.snapshot is not None or not is_due


def test_store_of_another_replica_set() -> None:
    with pytest.raises(PositionError, match=r"remove the directory images in it and start once with --rebuild-state"):
        needed(Known(both(5, 10), has_store=True, store=both(5, 10, replicaset=2)))
    with pytest.raises(PositionError, match=r"start once with --rebuild-state"):
        plan(Known(both(5, 10), has_store=True, store=both(5, 10, replicaset=2)), BALLOT)
    assert plan(Known(None, has_store=True, store=both(5, 10, replicaset=2)), BALLOT).clears_store is not None


def test_a_gap_behind_the_store_names_all_three_positions() -> None:
    known = Known(both(7, 15), has_store=True, store=both(5, 9), on_gap="fail")
    with pytest.raises(PositionError) as caught:
        plan(known, BALLOT)
    assert caught.value.message == (
        "the server no longer has the logs after the state store's position: it keeps them from {1: 10}, the state store is at "
        "{1: 9}, the checkpoint is at {1: 15} (origin 1: needed from 9, kept from 10)"
    )
    healed = plan(replace(known, on_gap="resnapshot"), BALLOT)
    assert (healed.position, healed.catch_up_to) == (known.checkpoint, None)
    assert healed.clears_store is not None


REASONS: dict[str, tuple[Known, str, bool]] = {
    "what the stream found comes out under any mode": (
        Known(both(5, 15), forced="a gap", mode="never", has_store=True, newly_published=("a",)),
        "a gap",
        True,
    ),
    "a checkpoint that was thrown back": (Known(both(5, 15), thrown_back="Kafka has lost", mode="never"), "Kafka has lost", True),
    "a checkpoint that was thrown back below the store": (
        Known(both(5, 15), has_store=True, store=both(7, 17), thrown_back="Kafka has lost", newly_published=("a",)),
        "Kafka has lost",
        True,
    ),
    "a checkpoint that is gone, under any mode": (Known(None, thrown_back="Kafka has lost it", mode="never"), "lost it", True),
    "a store without rows": (Known(both(5, 15), has_store=True, newly_published=("a",)), "nothing in the state store", True),
    "the same, where no rows were wanted at first": (Known(both(5, 15), has_store=True, mode="never"), "nothing in the", True),
    "spaces that are newly published": (
        Known(both(5, 15), has_store=True, store=both(5, 15), newly_published=("a", "b")),
        "newly published: a, b",
        True,
    ),
    "a store that is gone in the middle of another key": (
        Known(replace(both(5, 15), rekeyed=(Rekeyed(512),))),
        "rows were being published again from the state store, which isn't there any more",
        True,
    ),
}


@pytest.mark.parametrize("kafka", [None, Position(), both(5, 15), both(7, 15)])
@pytest.mark.parametrize("store", [None, both(7, 15), both(9, 17)])
def test_after_a_checkpoint_that_was_thrown_back_nothing_is_compared(kafka: Position | None, store: Position | None) -> None:
    """Consumers have events that neither the checkpoint nor, perhaps, the store knows of."""
    known = Known(kafka, has_store=True, store=store, thrown_back="Kafka has lost", given=Numbers(9, 3, 2))
    found = plan(known, BALLOT)
    assert (found.snapshot, found.catch_up_to, found.given) == (TakeSnapshot("Kafka has lost"), None, Numbers(9, 3, 2))
    assert found.clears_store is not None or (store is None and (kafka is None or kafka.snapshot is None))
    assert needed(known).takes_snapshot


def test_after_a_checkpoint_that_was_thrown_back_a_member_needs_what_the_store_has() -> None:
    """A replica that lags would take consumers back, for as long as it lags."""
    known = Known(both(5, 10), has_store=True, store=both(7, 17), thrown_back="Kafka has lost")
    assert (needed(known).published, needed(known).takes_snapshot) == (VClock({1: 17}), True)
    assert needed(replace(known, checkpoint=None)).published == VClock({1: 17})
    assert needed(replace(known, thrown_back=None)).published == VClock({1: 10})


def test_a_store_of_another_replica_set_is_no_proof() -> None:
    with pytest.raises(PositionError, match="has rows of replica set"):
        plan(Known(both(5, 10), has_store=True, store=both(7, 10, replicaset=2), thrown_back="Kafka has lost"), BALLOT)


@pytest.mark.parametrize("case", REASONS)
def test_snapshots_that_no_ballot_asks_for(case: str) -> None:
    known, reason, publishes = REASONS[case]
    snapshot = plan(known, BALLOT).snapshot
    assert snapshot is not None
    assert reason in snapshot.reason
    assert snapshot.publish is publishes
    assert needed(known).takes_snapshot


def test_newly_published_spaces_go_on_without_a_snapshot_where_there_is_no_store() -> None:
    assert plan(Known(both(5, 15), newly_published=("a",)), BALLOT).snapshot is None


# What must hold whatever is known.

ORIGINS = (1, 2, 3)
vclocks = st.fixed_dictionaries({origin: st.integers(0, 4) for origin in ORIGINS}).map(VClock)
snapshots = st.none() | st.builds(
    SnapshotState, st.integers(1, 3), is_complete=st.sampled_from([True, True, False]), request_count=st.integers(0, 1)
)
positions = st.builds(
    Position,
    vclock=vclocks,
    seq=st.integers(0, 3),
    snapshot=snapshots,
    replicaset_uuid=st.sampled_from([None, UUID(int=1), UUID(int=1), UUID(int=2)]),
    rekeyed=st.sampled_from([(), (), (Rekeyed(512),)]),
)
knowns = st.builds(
    Known,
    checkpoint=st.none() | positions,
    has_store=st.booleans(),
    store=st.none() | positions,
    newly_published=st.sampled_from([(), (), ("users",)]),
    forced=st.none() | st.just("the stream found a gap"),
    is_first_connect=st.booleans(),
    mode=st.sampled_from(MODES),
    on_gap=st.sampled_from(POLICIES),
    on_divergence=st.sampled_from(POLICIES),
    ignored=st.frozensets(st.sampled_from(ORIGINS), max_size=1),
    wants_id=st.booleans(),
)


@st.composite
def situations(draw: Any) -> tuple[Known, Ballot]:
    """An ordinary connection (the store a little behind, the server a little ahead), with up to two things out of order."""
    step = st.integers(0, 2)
    at = Position(
        draw(vclocks), draw(st.integers(1, 3)), replicaset_uuid=UUID(int=1), snapshot=SnapshotState(2, is_complete=True)
    )
    store = VClock({origin: max(0, at.vclock[origin] - draw(st.sampled_from([0, 0, 1, 2, -1]))) for origin in ORIGINS})
    ordinary = Known(at, has_store=draw(st.booleans()), store=replace(at, vclock=store, seq=at.seq - 1))
    odd = draw(knowns)
    fields_ = draw(st.sets(st.sampled_from([field.name for field in fields(Known)]), max_size=2))
    known = replace(ordinary, **{name: getattr(odd, name) for name in fields_})
    reached = VClock({origin: max(0, at.vclock[origin] + draw(step) - draw(st.sampled_from([0, 0, 0, 1]))) for origin in ORIGINS})
    kept = VClock({origin: min(reached[origin], draw(st.integers(0, store[origin] + 1))) for origin in ORIGINS})
    return known, Ballot(vclock=reached, gc_vclock=kept, is_read_only=draw(st.booleans()), is_ready=True)


def outcome(known: Known, ballot: Ballot) -> StartPlan | PositionError:
    try:
        return plan(known, ballot)
    except PositionError as error:
        return error


@MANY
@given(situation=situations())
def test_rows_are_read_from_where_the_server_has_them_and_none_is_skipped(situation: tuple[Known, Ballot]) -> None:
    known, ballot = situation
    found = outcome(known, ballot)
    if isinstance(found, PositionError) or found.snapshot is not None:
        return
    assert known.checkpoint is not None
    for origin in set(ORIGINS) - known.ignored:
        assert found.position.vclock[origin] >= ballot.gc_vclock[origin], "logs from there are gone"
        assert found.position.vclock[origin] <= known.checkpoint.vclock[origin], "rows would be skipped"
        assert ballot.vclock[origin] >= known.checkpoint.vclock[origin], "the server lacks what was published"
    assert (found.catch_up_to or found.position) == known.checkpoint, "what comes next is what follows the checkpoint"
    assert known.checkpoint.snapshot is not None
    assert known.checkpoint.snapshot.is_complete


BEGUN: Final = Position(VClock({3: 1}), 2, snapshot=SnapshotState(3, is_complete=False))
FILLED: Final = Position(VClock({}), 2, snapshot=SnapshotState(2, is_complete=True))


@MANY
@given(situation=situations())
@example(
    situation=(Known(BEGUN, has_store=True, store=FILLED), Ballot(VClock({3: 1}), VClock({}), is_read_only=False, is_ready=True))
)
def test_the_store_has_what_consumers_have_or_comes_there_or_is_emptied(situation: tuple[Known, Ballot]) -> None:
    known, ballot = situation
    found = outcome(known, ballot)
    if isinstance(found, PositionError):
        return
    assert known.has_store or (found.clears_store, found.catch_up_to) == (None, None)
    if not known.has_store:
        return
    if found.clears_store is not None:
        assert found.snapshot is not None, "an empty store has to be filled"
        assert found.catch_up_to is None
    elif found.catch_up_to is not None:
        assert found.snapshot is None, "a snapshot is compared with what consumers have"
        assert found.position == known.store
        assert found.position.vclock != found.catch_up_to.vclock
    elif known.store is not None:
        assert known.checkpoint is not None
        assert known.checkpoint.snapshot is not None
        # An interrupted snapshot may have published nothing but its beginning. It is taken again, and compared with the store.
        begun = (
            found.snapshot is not None and not known.checkpoint.snapshot.is_complete and known.store.seq == known.checkpoint.seq
        )
        assert begun or known.store.vclock == known.checkpoint.vclock, "its rows are those of the checkpoint"


@MANY
@given(situation=situations())
def test_refusals_name_what_does_not_go_together(situation: tuple[Known, Ballot]) -> None:
    known, ballot = situation
    found = outcome(known, ballot)
    if not isinstance(found, PositionError):
        return
    assert found.hint
    assert known.checkpoint is not None
    if "replica set" in found.message:
        assert known.store is not None
        assert str(known.store.replicaset_uuid) in found.message
        assert str(known.checkpoint.replicaset_uuid) in found.message
        return
    assert str(known.checkpoint.vclock) in found.message
    assert str(ballot.gc_vclock if "source.on_gap" in found.hint else ballot.vclock) in found.message


@MANY
@given(situation=situations())
def test_who_is_chosen_can_be_followed(situation: tuple[Known, Ballot]) -> None:
    """The choice and the plan answer one question: neither is surprised by the other."""
    known, ballot = situation
    answer, found = Answer("m:3301", ballot), outcome(known, ballot)
    if isinstance(found, PositionError) and "replica set" in found.message:
        with pytest.raises(PositionError, match="replica set"):
            needed(known)
        return
    wanted = needed(known)
    if standing(answer, wanted) is Standing.GOOD:
        assert isinstance(found, StartPlan)
        assert (found.snapshot is not None) == wanted.takes_snapshot
    elif isinstance(found, StartPlan):
        assert found.snapshot is not None
    rules = Rules(mode=known.mode, on_gap=known.on_gap, on_divergence=known.on_divergence)
    try:
        choice = choose([answer], wanted, rules)
    except PositionError:
        assert isinstance(found, PositionError)
    else:
        assert isinstance(choice, Choice)
        assert isinstance(found, StartPlan)


# As what it is followed.


@pytest.mark.parametrize(
    ("wants_id", "has_id", "lsn", "since", "expected_as"),
    [
        (False, False, 5, math.inf, FollowAs.ANONYMOUS),
        (True, True, 5, math.inf, FollowAs.MEMBER),
        (True, False, 6, math.inf, FollowAs.NEW_MEMBER),
        (True, False, 5, math.inf, FollowAs.BEHIND),
        (True, False, 5, CAUGHT_UP_SECONDS + 1, FollowAs.BEHIND),
        # A busy master is never caught up with to the row: what was behind a moment ago counts.
        (True, False, 5, 1.0, FollowAs.NEW_MEMBER),
    ],
)
def test_as_what_it_is_followed(*, wants_id: bool, has_id: bool, lsn: int, since: float, expected_as: FollowAs) -> None:
    start = StartPlan(Position(), wants_id=wants_id, ignored=frozenset({2}))
    found = start.follow_as(has_id=has_id, vclock=VClock({1: lsn}), master=VClock({1: 6, 2: 9}), seconds_since_caught_up=since)
    assert found is expected_as


OTHER_BASE = Position(vclock=VClock({1: 15}), snapshot=SnapshotState(2, is_complete=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "store", [None, at(), at(o1=9), at(o1=16), OTHER_BASE, replace(OTHER_BASE, snapshot=COMPLETE), at(o1=12)], ids=str
)
def test_an_old_copy_of_the_store_publishes_nothing_again(store: Position | None, mode: SnapshotMode) -> None:
    """Whatever leads to a snapshot that nothing can be compared with: it is refused, unless somebody orders it."""
    checkpoint = at(o1=15)
    ours = Known(checkpoint=checkpoint, has_store=True, store=store, mode=mode)
    begun = plan(ours, BALLOT)
    foreign = replace(ours, is_store_ours=False)
    if begun.clears_store is None or mode == "never":
        assert plan(foreign, BALLOT) == begun
        check_store(foreign)
        return
    with pytest.raises(StateForeignError, match=r"would be published again.*state\.path.*--rebuild-state"):
        plan(foreign, BALLOT)
    # No copy can be brought along from a gap, and that is only known with the ballot.
    if store is None or not KEPT_FROM.covers(store.vclock):
        with pytest.raises(StateForeignError):
            check_store(foreign)


def test_an_old_copy_is_named_with_both_positions() -> None:
    known = Known(checkpoint=at(o1=15), has_store=True, is_store_ours=False, store_name="/x/state/images")
    with pytest.raises(StateForeignError) as caught:
        check_store(known)
    what = (
        "the state store /x/state/images (state.path) isn't the one that the checkpoint was written with, "
        "or is an older copy of it"
    )
    reason = "there is nothing in the state store"
    assert str(caught.value).startswith(f"{what}: it is empty, the checkpoint is at {{1: 15}} ({reason})")
    with pytest.raises(StateForeignError) as caught:
        check_store(replace(known, store=at(o1=17)))
    assert str(caught.value).startswith(f"{what}: the state store is at {{1: 17}}, the checkpoint at {{1: 15}}. With this store")


def test_without_a_checkpoint_no_store_is_an_old_copy() -> None:
    foreign = Known(has_store=True, store=at(o1=9), is_store_ours=False)
    check_store(foreign)
    assert plan(foreign, BALLOT).clears_store


@pytest.mark.parametrize(
    ("checkpoint", "store", "is_made"),
    [
        pytest.param(None, None, True, id="nothing is published"),
        pytest.param(replace(at(), snapshot=None), at(o1=9), True, id="it is emptied"),
        pytest.param(at(o1=15), at(o1=15), True, id="it is level"),
        pytest.param(at(o1=15), at(o1=14), False, id="it is behind"),
    ],
)
def test_a_foreign_store_becomes_ours_at_once_unless_it_is_behind(
    checkpoint: Position | None, store: Position | None, *, is_made: bool
) -> None:
    assert makes_ours(Known(checkpoint, has_store=True, store=store, is_store_ours=False)) == is_made
