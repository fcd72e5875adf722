"""What is kept between two lives: positions and schema as records of a compacted topic, and back."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ConfigurationError
from cdc.positions.last_row import LastRow
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, Rekeyed, SnapshotState
from cdc.positions.vclock import VClock
from cdc.schema.forms import StoredSpace
from cdc.stream.commits.checkpoint import Checkpoint, Writer, fold, position_record, space_record
from tests.fakes.profiles import MANY, SOME

ME, THEM = Writer("me", has_store=True), Writer("them", has_store=False)
POSITIONS = st.builds(
    Position,
    vclock=st.dictionaries(st.integers(1, 31), st.integers(1, 2**63), max_size=4).map(VClock),
    seq=st.integers(0, 2**63),
    schema_version=st.integers(0, 10_000),
    replicaset_uuid=st.none() | st.uuids(),
    server_uuid=st.none() | st.uuids(),
    snapshot=st.none() | st.builds(SnapshotState, st.integers(1, 99), st.booleans(), st.integers(0, 10**9)),
)
BYTES_IN_TEXT = st.binary(max_size=4).map(lambda data: data.decode("utf-8", "surrogateescape"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | BYTES_IN_TEXT
    | st.binary(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(BYTES_IN_TEXT | st.integers(0, 9), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(VALUES, max_size=7)
SPACES = st.builds(
    StoredSpace,
    space_id=st.integers(256, 9999),
    space_row=ROWS,
    index_rows=st.dictionaries(st.integers(-1, 9), ROWS, max_size=3),
    schema_version=st.integers(0, 99),
)


def folded(*records: tuple[bytes, bytes | None], name: str = "shop") -> Checkpoint:
    checkpoint = Checkpoint()
    for key, value in records:
        fold(name, key, value, checkpoint)
    return checkpoint


@MANY
@given(POSITIONS)
def test_positions_come_back(position: Position) -> None:
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    checkpoint = folded(position_record("shop", position, ME, 17))
    assert (checkpoint.position, checkpoint.writer, checkpoint.spaces) == (position, "me", {})


def test_position_record_in_full() -> None:
    position = Position(VClock({2: 7, 1: 42}), 9, 3, UUID(int=1), UUID(int=2), SnapshotState(4, is_complete=True, row_count=5))
    key, value = position_record("shop", position, ME, 17)
    assert key == b'{"name":"shop"}'
    assert json.loads(value) == {
        "name": "shop",
        "version": 1,
        "vclock": {"1": 42, "2": 7},
        "seq": 9,
        "schema_version": 3,
        "replicaset_uuid": "00000000-0000-0000-0000-000000000001",
        "server_uuid": "00000000-0000-0000-0000-000000000002",
        "snapshot": {"snapshot_id": 4, "is_complete": True, "row_count": 5, "sweep_seq": 0, "request_count": 0},
        "writer": "me",
        "has_store": True,
        "ts_ms": 17,
    }


@pytest.mark.parametrize("former", [{}, {"is_request_open": True}])
def test_requests_that_older_versions_do_not_tell_enough_of_may_be_open(former: dict[str, bool]) -> None:
    state = SnapshotState(4, is_complete=True, request_count=1)
    for position, expected in (
        (Position(snapshot=state), 4),
        (Position(snapshot=state, rekeyed=(Rekeyed(512, 4),)), 0),
        (Position(snapshot=state, rekeyed=(Rekeyed(512),)), 4),
        (Position(snapshot=replace(state, request_count=0)), 0),
    ):
        value = position.to_json()
        value["snapshot"].pop("open_request", None)
        if position.snapshot is not None and position.snapshot.request_count:
            value["snapshot"] |= former
        found = Position.from_json(value).snapshot
        assert found is not None
        assert found.open_request == expected


def test_last_rows_come_back_and_may_be_absent() -> None:
    """A checkpoint of an older version has none."""
    rows = (LastRow(1, 42, 2, 1_795_622_942.913684, 0xFFFFFFFF), LastRow(2, 7, 4, 0.0, 0))
    position = Position(VClock({1: 42, 2: 7}), server_uuid=UUID(int=2), last_rows=rows)
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    assert "last_rows" not in Position().to_json()


def test_whether_there_was_a_store_is_kept() -> None:
    assert folded(position_record("shop", Position(), ME, 1)).has_store is True
    assert folded(position_record("shop", Position(), THEM, 1)).has_store is False
    key, value = position_record("shop", Position(), ME, 1)
    without = {name: given for name, given in json.loads(value).items() if name != "has_store"}
    assert folded((key, json.dumps(without).encode())).has_store is None


@MANY
@given(SPACES)
def test_spaces_come_back(space: StoredSpace) -> None:
    checkpoint = folded(space_record("shop", space.space_id, space))
    assert checkpoint.spaces == {space.space_id: space}


@SOME
@given(st.lists(st.tuples(st.integers(512, 515), st.none() | SPACES), max_size=12))
def test_the_last_record_of_a_space_counts(changes: list[tuple[int, StoredSpace | None]]) -> None:
    expected: dict[int, StoredSpace] = {}
    records = []
    for space_id, space in changes:
        kept = StoredSpace(space_id, space.space_row, space.index_rows, space.schema_version) if space else None
        records.append(space_record("shop", space_id, kept))
        expected.pop(space_id, None)
        if kept is not None:
            expected[space_id] = kept
    assert folded(*records).spaces == expected
    # Compaction keeps the last record of each key, tombstones for a while: the same comes of it.
    assert folded(*{key: (key, value) for key, value in records}.values()).spaces == expected


def test_a_format_whose_default_value_is_a_decimal() -> None:
    """3.x keeps default values of fields in `_space`, of any type."""
    field = {"name": "price", "type": "decimal", "default": Decimal("0.50")}
    space = StoredSpace(512, [512, 1, "goods", "memtx", 0, {}, [field]], {}, 1)
    assert folded(space_record("shop", 512, space)).spaces == {512: space}


def test_records_of_other_daemons_are_passed_over() -> None:
    space = StoredSpace(512, [512, 1, "x"], {}, 1)
    records = [position_record("other", Position(seq=5), THEM, 1), space_record("other", 512, space)]
    assert folded(*records) == Checkpoint(others=Numbers(5))
    mine = position_record("shop", Position(seq=6), ME, 1)
    assert folded(mine, *records).position == Position(seq=6)


def test_the_highest_numbers_of_other_daemons_are_known() -> None:
    found = Checkpoint()
    for name, seq, snapshot in (("me", 900, None), ("them", 7, SnapshotState(3, is_complete=True)), ("old", 5, None)):
        fold("me", *position_record(name, Position(seq=seq, schema_version=seq, snapshot=snapshot), THEM, 1), found)
    fold("me", position_record("them", Position(), THEM, 1)[0], None, found)
    assert found.others == Numbers(7, 3, 7)


def test_a_position_that_was_deleted() -> None:
    key, value = position_record("shop", Position(seq=6), ME, 1)
    assert folded((key, value), (key, None)) == Checkpoint()


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_newer_format_is_refused(version: Any) -> None:
    value = {**Position().to_json(), "version": version}
    with pytest.raises(ConfigurationError, match="Run the version that wrote it"):
        Position.from_json(value)
    with pytest.raises(ConfigurationError):
        folded((b'{"name":"shop"}', json.dumps(value).encode()))


GOOD_KEY = b'{"name":"shop","space_id":512}'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"{}"),
        (b"\xff", b"{}"),
        (b"5", b"{}"),
        (b"[]", b"{}"),
        (b"{}", b"{}"),
        (b"user-17", None),
        (b'{"name":"shop"}', b"not json"),
        (b'{"name":"shop"}', b"[1]"),
        (b'{"name":"shop"}', b'"text"'),
        (b'{"name":"shop"}', b'{"version":1}'),
        (b'{"name":"shop"}', b'{"version":1,"vclock":{"x":1},"snapshot":null,"seq":0,"writer":"me"}'),
        (GOOD_KEY, b"{}"),
        (GOOD_KEY, b'{"rows":"!","schema_version":1}'),
        (GOOD_KEY, b'{"rows":"kA==","schema_version":1}'),
        (GOOD_KEY, b'{"rows":"wQ==","schema_version":1}'),
        (GOOD_KEY, b'{"rows":5,"schema_version":1}'),
        (GOOD_KEY, b"[1]"),
    ],
)
def test_what_is_no_checkpoint(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ConfigurationError, match=r"isn't a checkpoint's.*topic_prefix must not be shared"):
        folded((key, value))
