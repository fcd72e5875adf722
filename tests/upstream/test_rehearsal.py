"""Which member a start would come to follow: with what `run` learns only from a member's refusal."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from cdc.errors import PositionError, SilenceError
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.upstream.rehearsal import Candidate, Start, rehearse
from cdc.upstream.selection import Rules, Wait
from cdc.upstream.start import Known
from tests.upstream.test_selection import FURTHER, GAP, GOOD, READ_ONLY, answer

SET, OTHER = UUID(int=1), UUID(int=2)
FIRST = Known()
REGISTERED = Known(wants_id=True)
RESUMES = Known(checkpoint=Position(VClock({1: 15, 2: 3}), replicaset_uuid=SET, snapshot=SnapshotState(1, is_complete=True)))


def candidates(*texts: str, ids: tuple[int, ...] = (), late: tuple[int, ...] = ()) -> list[Candidate]:
    silence = SilenceError("it doesn't begin a snapshot")
    return [
        Candidate(replace(answer(text, place), replicaset_uuid=SET), place in ids, silence if place in late else None)
        for place, text in enumerate(texts)
    ]


def followed(found: Start | Wait) -> int:
    assert isinstance(found, Start), found
    return found.choice.index


def test_a_first_start_that_registers_needs_a_writable_member() -> None:
    waits = rehearse(candidates(READ_ONLY), REGISTERED, Rules())
    assert isinstance(waits, Wait)
    assert "m0:3301 is read-only" in waits.reason
    assert isinstance(rehearse(candidates(READ_ONLY, READ_ONLY), REGISTERED, Rules(), waited_ms=1e9), Wait)
    assert followed(rehearse(candidates(READ_ONLY, GOOD), REGISTERED, Rules())) == 1
    assert followed(rehearse(candidates(READ_ONLY, GOOD), FIRST, Rules())) == 0, "an anonymous one doesn't"


def test_a_registered_daemon_needs_no_writable_member() -> None:
    found = rehearse(candidates(READ_ONLY, GOOD, ids=(0, 1)), REGISTERED, Rules())
    assert followed(found) == 0
    assert isinstance(found, Start)
    assert found.plan.wants_id


def test_an_id_that_only_another_member_knows() -> None:
    assert followed(rehearse(candidates(GOOD, READ_ONLY, ids=(1,)), REGISTERED, Rules())) == 1
    waits = rehearse(candidates(GOOD, "away", ids=(1,)), REGISTERED, Rules())
    assert isinstance(waits, Wait)
    assert "m0:3301 doesn't know yet" in waits.reason


def test_a_snapshot_that_does_not_begin() -> None:
    assert isinstance(rehearse(candidates(GOOD, late=(0,)), FIRST, Rules()), Wait)
    assert followed(rehearse(candidates(GOOD, FURTHER, late=(0,)), FIRST, Rules())) == 1
    assert followed(rehearse(candidates(GOOD, late=(0,)), RESUMES, Rules())) == 0, "it isn't needed"
    assert isinstance(rehearse(candidates(GAP, late=(0,)), RESUMES, Rules()), Wait), "a gap needs it"


def test_the_plan_is_the_one_of_the_member() -> None:
    found = rehearse(candidates(GAP), RESUMES, Rules())
    assert isinstance(found, Start)
    assert found.plan.snapshot is not None
    with pytest.raises(PositionError, match="no member has the logs"):
        rehearse(candidates(GAP), replace(RESUMES, on_gap="fail"), Rules(on_gap="fail"))


def test_a_server_of_another_replica_set_is_never_followed() -> None:
    foreign = Candidate(replace(answer(FURTHER, 0), replicaset_uuid=OTHER))
    assert followed(rehearse([foreign, *candidates("away", GOOD)[1:]], RESUMES, Rules())) == 1
    with pytest.raises(PositionError, match=f"belongs to replica set {OTHER}"):
        rehearse([foreign], RESUMES, Rules())
