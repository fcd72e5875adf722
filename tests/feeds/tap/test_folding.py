"""What messages make of a store of rows, whatever order partitions are read in."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.feeds.tap.changes import MalformedError
from cdc.feeds.tap.folding import (
    Emptied,
    Fold,
    Row,
    SchemaRecord,
    SnapshotRecord,
    SpaceState,
    decoded_spaces,
    encoded_spaces,
    event_of,
    schema_of,
    snapshot_of,
)


def event(seq: int, op: str = "c", *, after: Any = None, name: str = "shop", snapshot_id: str | None = None) -> bytes:
    source = {"name": name, "table": "users", "space_id": 512, "seq": seq}
    if snapshot_id is not None:
        source["snapshot_id"] = snapshot_id
    return json.dumps({"op": op, "before": None, "after": after, "source": source}).encode()


def completed(snapshot_id: int, seq: int, rows: int, sweep_seq: int = 0) -> SnapshotRecord:
    text = {"space": "users", "space_id": 512, "rows": rows, "sweep_seq": sweep_seq}
    record = snapshot_of(
        json.dumps({"snapshot_id": str(snapshot_id), "status": "COMPLETED", "seq": seq, "spaces": [text]}).encode()
    )
    assert record is not None
    return record


def new() -> Fold:
    fold = Fold({}, lambda name: name != "hidden")
    fold.schema(SchemaRecord(0, 512, 1, "users", ["id"], is_dropped=False))
    return fold


def row(seq: int, key: bytes = b"1", value: bytes | None = b"v", *, snapshot_id: int = 0, table: str = "users") -> Row:
    return Row(seq, 512, table, key, value, snapshot_id)


def contents(fold: Fold) -> dict[bytes, tuple[int, bytes]]:
    """The rows that a reader gets."""
    return {
        key: (found.seq, found.value)
        for (space_id, key), found in fold.rows.items()
        if found.value is not None and found.seq > fold.spaces[space_id].floor
    }


def is_complete(fold: Fold) -> bool:
    return fold.spaces[512].is_complete


def test_messages_are_read() -> None:
    assert event_of("shop", b'{"id":1}', event(7, after={"id": 1})) == Row(7, 512, "users", b'{"id":1}', b'{"id": 1}', 0)
    assert event_of("shop", b'{"id":1}', event(7, "r", after={}, snapshot_id="3")) == Row(7, 512, "users", b'{"id":1}', b"{}", 3)
    assert event_of("shop", b'{"id":1}', event(8, "d")) == Row(8, 512, "users", b'{"id":1}', None, 0)
    assert event_of("shop", None, event(9, "t")) == Emptied(9, 512)
    assert event_of("shop", b'{"id":1}', None) is None
    assert event_of("shop", b'{"id":1}', event(7, name="another")) is None
    for odd in (b"?", b'{"op":"\xff","source":{"name":"other"}}', b'{"after":' + b"[" * 5_000 + b"]" * 5_000 + b"}"):
        with pytest.raises(MalformedError):
            event_of("shop", b"", odd)
        assert snapshot_of(odd) is None
        assert schema_of("shop", odd) is None
    source = {"name": "shop", "table": "people", "space_id": 512, "schema_version": 4, "seq": 70}
    change = {"type": "ALTER", "id": '"people"', "table": {"primaryKeyColumnNames": ["id"]}}
    record = json.dumps({"source": source, "tableChanges": [change]}).encode()
    assert schema_of("shop", record) == SchemaRecord(70, 512, 4, "people", ["id"], is_dropped=False)
    assert schema_of("another", record) is None
    assert schema_of("shop", b"?") is None
    assert snapshot_of(b'{"snapshot_id":"x","status":"STARTED","seq":1}') is None


_CHANGES = st.lists(st.tuples(st.sampled_from("aabcdt"), st.booleans()), max_size=60)


@given(_CHANGES, st.integers(1, 4), st.randoms(use_true_random=False))
def test_any_order_of_partitions_gives_what_the_order_of_changes_gives(
    told: list[tuple[str, bool]], partition_count: int, chance: random.Random
) -> None:
    expected: dict[bytes, tuple[int, bytes]] = {}
    partitions: list[list[Row | Emptied]] = [[] for _ in range(partition_count)]
    for seq, (key, is_put) in enumerate(told, 1):
        if key == "t":
            expected.clear()
            for partition in partitions:
                partition.append(Emptied(seq, 512))
            continue
        name, value = key.encode(), b"%d" % seq if is_put else None
        expected.pop(name, None)
        if value is not None:
            expected[name] = seq, value
        # Partitions may be added, so that a key's changes are in several.
        partitions[chance.randrange(partition_count)].append(row(seq, name, value))
    fold = new()
    while any(partitions):
        partition = chance.choice([partition for partition in partitions if partition])
        fold.add(partition[0])
        if chance.random() < 0.8:
            del partition[0]  # otherwise it comes again
    assert contents(fold) == expected
    assert decoded_spaces(encoded_spaces(fold.spaces)) == fold.spaces


def test_a_sweep_leaves_what_the_snapshot_has_told() -> None:
    fold = new()
    fold.add(row(3, b"gone"))
    fold.add(row(4, b"there"))
    fold.add(row(11, b"there", b"again", snapshot_id=2))
    fold.snapshot(completed(2, 11, 1, sweep_seq=10))
    assert contents(fold) == {b"there": (11, b"again")}
    assert fold.is_reset
    again = Fold(fold.spaces, lambda _: True)
    again.snapshot(completed(2, 11, 1, sweep_seq=10))
    assert not again.is_reset, "it is told again at each start"


def test_a_store_that_lacks_changes_is_healed_by_a_snapshot_of_all_rows() -> None:
    fold = new()
    fold.lacks(512, 20)
    fold.add(row(5, b"old"))
    fold.snapshot(SnapshotRecord("3", "STARTED", 30))
    fold.add(row(31, b"a", snapshot_id=3))
    fold.snapshot(completed(3, 32, 2))
    assert not is_complete(fold), "one row was as the daemon knew it, and didn't come"
    fold.snapshot(SnapshotRecord("4", "STARTED", 40))
    fold.add(row(41, b"a", snapshot_id=4))
    fold.add(row(42, b"b", snapshot_id=4))
    fold.snapshot(completed(4, 42, 2))
    assert is_complete(fold)
    assert contents(fold).keys() == {b"a", b"b"}


def test_a_request_that_was_cut_off_heals_nothing() -> None:
    fold = new()
    fold.lacks(512, 20)
    fold.snapshot(SnapshotRecord("3", "STARTED", 30))
    fold.add(row(31, b"a", snapshot_id=3))
    record = snapshot_of(b'{"snapshot_id":"3","status":"ABORTED","vclock":{},"seq":31,"spaces":[],"ts_ms":7}')
    assert record is not None
    fold.snapshot(record)
    assert not is_complete(fold)
    assert not fold.is_reset


@pytest.mark.parametrize("is_truncated", [True, False], ids=["t", "sweep"])
def test_what_else_heals(is_truncated: bool) -> None:
    fold = new()
    fold.lacks(512, 20)
    if is_truncated:
        fold.add(Emptied(21, 512))
    else:
        fold.snapshot(completed(3, 32, 0, sweep_seq=20))
    assert is_complete(fold)


def test_forms() -> None:
    fold = new()
    fold.add(row(1))
    fold.schema(SchemaRecord(1, 512, 2, "people", ["id"], is_dropped=False))
    assert fold.is_reset
    assert not fold.is_outgrown
    assert fold.spaces[512].name == "people"
    assert contents(fold)
    fold.schema(SchemaRecord(0, 512, 1, "users", ["id"], is_dropped=False))
    assert fold.spaces[512].name == "people", "all are told again at each start"
    fold.schema(SchemaRecord(5, 512, 3, "people", ["code"], is_dropped=False))
    assert not is_complete(fold), "without images nobody says what became of the rows"
    fold.add(Emptied(6, 512))
    assert is_complete(fold)
    fold.schema(SchemaRecord(7, 512, 3, "people", [], is_dropped=True))
    fold.schema(SchemaRecord(5, 512, 3, "people", ["code"], is_dropped=False))
    assert fold.spaces[512].is_dropped, "a DROP has the version of the form that it ends"


def test_a_name_that_is_wanted_now_asks_for_all_rows_again() -> None:
    fold = Fold({512: SpaceState("hidden", version=1)}, lambda name: name != "hidden")
    fold.add(row(1, table="hidden"))
    assert not fold.rows
    fold.schema(SchemaRecord(1, 512, 2, "users", ["id"], is_dropped=False))
    assert fold.is_outgrown
