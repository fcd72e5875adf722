"""How a standby's store begins: what it can be followed from, and when a filled one counts."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from cdc.positions.position import Position, Rekeyed, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.stream.commits.checkpoint import Checkpoint
from cdc.stream.commits.standby_course import Course, aligned, course, is_behind

SET, OTHER = UUID(int=1), UUID(int=2)
K = Position(VClock({1: 50}), 40, 3, SET, snapshot=SnapshotState(4, True, request_count=2))
S = Position(VClock({1: 30}), 20, 2, SET, snapshot=SnapshotState(3, True, request_count=1))
KEPT_FROM = VClock({1: 20})
SPACE = StoredSpace(512, [512, 1, "things"], {0: [512, 0]}, 3)


@pytest.mark.parametrize(
    ("kafka", "store", "expected"),
    [
        pytest.param(None, None, Course.WAIT, id="nothing is published"),
        pytest.param(replace(K, snapshot=None), None, Course.WAIT, id="only the name is registered"),
        pytest.param(replace(K, snapshot=SnapshotState(4, False)), S, Course.WAIT, id="in the middle of a snapshot"),
        pytest.param(K, None, Course.FILL, id="no store"),
        pytest.param(K, S, Course.FOLLOW, id="behind"),
        pytest.param(K, K, Course.FOLLOW, id="level"),
        pytest.param(S, K, Course.FILL, id="ahead"),
        pytest.param(K, replace(S, snapshot=None), Course.FILL, id="filled in part"),
        pytest.param(K, replace(S, snapshot=SnapshotState(1, True)), Course.FILL, id="of an earlier snapshot"),
        pytest.param(K, replace(S, replicaset_uuid=OTHER), Course.FILL, id="of another replica set"),
        pytest.param(K, replace(S, vclock=VClock({1: 19})), Course.FILL, id="behind the logs"),
        pytest.param(K, replace(S, vclock=VClock({1: 30, 2: 1})), Course.FILL, id="with another history"),
    ],
)
def test_the_course(kafka: Position | None, store: Position | None, expected: Course) -> None:
    assert course(kafka, store, KEPT_FROM) is expected


def test_a_store_that_cannot_be_brought_up_is_not_behind() -> None:
    assert not is_behind(None, S)
    assert not is_behind(K, None)


FILLED = Position(K.vclock, 0, 7, SET, OTHER)


def test_a_filled_store_counts_once_it_is_at_a_checkpoint() -> None:
    filled, kafka = Checkpoint(FILLED, {512: replace(SPACE, schema_version=1)}), Checkpoint(K, {512: SPACE})
    assert not is_behind(K, filled.position)
    found = aligned(filled, kafka)
    assert found is not None
    assert (found.position, found.spaces) == (K, {512: SPACE})
    assert aligned(found, kafka) is None, "that was all"


def test_a_form_that_was_changed_and_changed_back_gets_kafkas_version() -> None:
    followed = Checkpoint(K, {512: replace(SPACE, schema_version=5)})
    assert aligned(followed, Checkpoint(K, {512: SPACE})) is not None
    doubtful = replace(K, doubtful=frozenset({b"key"}))
    assert aligned(followed, Checkpoint(doubtful, {512: SPACE})) is not None, "it has what consumers have"


@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param(replace(K, vclock=VClock({1: 51})), id="at another position"),
        pytest.param(replace(K, snapshot=SnapshotState(5, False)), id="in the middle of a snapshot"),
        pytest.param(replace(K, rekeyed=(Rekeyed(512),)), id="rows come again under another key"),
        pytest.param(replace(K, doubtful=frozenset({b"key"})), id="consumers have another row of a key"),
        pytest.param(None, id="none"),
    ],
)
def test_a_filled_store_does_not_count_before(kafka: Position | None) -> None:
    assert aligned(Checkpoint(FILLED, {512: SPACE}), Checkpoint(kafka, {512: SPACE})) is None
