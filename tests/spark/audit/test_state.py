"""What the audit concludes from counts, and that what it keeps stays small."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.audit.state import FLOORS_MAX, SNAPSHOTS_MAX, TRANSACTIONS_BEHIND, TRANSACTIONS_MAX, Part, State


def record(status: str, snapshot_id: str, seq: int, rows: int = 0, sweep_seq: int = 0) -> dict[str, Any]:
    spaces = [{"space": "users", "space_id": 512, "rows": rows, "sweep_seq": sweep_seq}]
    return {"status": status, "snapshot_id": snapshot_id, "seq": seq, "spaces": spaces}


def test_it_is_kept_as_it_is() -> None:
    state = State(last_in={"shop.users/0": (5, 9)}, cut={"shop.users/1"}, transactions=[Part("1:5", "users", 1, 2, 5, 5)])
    state.add_floor(512, 3, 4)
    state.note_snapshot(record("STARTED", "1", 0))
    state.count_rows("1", "users", 3)
    state.numbers.add(0, 0b110)
    state.see_origin("shop.users/0/1", {"lsn": 7, "total_order": 1, "seq": 5, "offset": 9})
    assert State.from_json(state.to_json()) == state


def test_a_transaction_is_judged_when_it_must_be_there() -> None:
    state = State()
    short, whole = Part("1:5", "users", 1, 2, 5, 5), Part("1:7", "users", 2, 2, 7, 8)
    single, recent = Part("1:1", "users", 1, None, 1, 1), Part("1:6", "users", 1, None, 6, 6)
    unseen = Part("1:4", "users", 0, 2, None, None)
    up_to = TRANSACTIONS_BEHIND + 3
    later = Part("1:99", "users", 1, 2, up_to + 1, up_to + 1)
    (found,) = state.judge_transactions([short, whole, single, recent, unseen, later], up_to, repeats=False)
    assert (found.kind, found.seq, found.space) == ("transaction", 5, "users")
    assert state.transactions == [recent, unseen, later]
    assert not State().judge_transactions([Part("1:5", "users", 3, 2, 5, 6)], up_to, repeats=True)
    # One whose events of two spaces aren't all there yet waits as a whole.
    both = [Part("1:5", "users", 1, 2, 5, 5), Part("1:5", "orders", 1, 1, 5, up_to + 1)]
    assert not State().judge_transactions(both, up_to, repeats=False)


def test_a_snapshot_is_judged_if_it_says_all_rows() -> None:
    state = State()
    for snapshot_id, started, sweep_seq, came in (("1", 0, 0, 2), ("2", 10, 0, 1), ("3", 20, 20, 3), ("4", 30, 30, 1)):
        state.note_snapshot(record("STARTED", snapshot_id, started))
        state.count_rows(snapshot_id, "users", came)
        state.note_snapshot(record("COMPLETED", snapshot_id, started + 5, rows=3, sweep_seq=sweep_seq))
    assert [finding.seq for finding in state.judge_snapshots(34, None, repeats=False)] == [0]
    assert [finding.seq for finding in state.judge_snapshots(35, {"orders"}, repeats=False)] == []
    assert state.floors == {512: [(20, 25), (30, 35)]}


def test_a_request_that_was_cut_off_is_not_judged() -> None:
    state = State()
    state.note_snapshot(record("STARTED", "1", 0))
    state.count_rows("1", "users", 2)
    state.note_snapshot({"snapshot_id": "1", "status": "ABORTED", "vclock": {}, "seq": 2, "spaces": [], "ts_ms": 7})
    assert state.judge_snapshots(35, None, repeats=True) == []
    assert not state.floors


def test_it_stays_small() -> None:
    state = State()
    for number in range(3 * FLOORS_MAX):
        state.add_floor(512, number, number)
        state.note_snapshot(record("STARTED", str(number), number))
    state.forget_floors()
    assert (len(state.floors[512]), len(state.snapshots)) == (FLOORS_MAX, SNAPSHOTS_MAX)
    parts = [Part(f"1:{number}", "users", 1, 2, number, number) for number in range(TRANSACTIONS_MAX + 1, 0, -1)]
    assert state.judge_transactions(parts, 0, repeats=False) == []
    assert (len(state.transactions), state.judged_from) == (TRANSACTIONS_MAX, 1)


def test_what_is_missing_waits_from_when_it_was_known() -> None:
    state = State()
    state.numbers.add(0, 0b1011)  # 0, 1 and 3
    assert state.waited_for(100, 60) is None
    state.numbers.add(0, 1 << 9)
    assert state.waited_for(159, 60) is None
    # Not what has been missing since the tenth second alone.
    assert State.from_json(state.to_json()).waited_for(160, 60) == 3
    assert state.waited_for(160, 60) == 3
    assert state.waited_for(161, 60) is None
    assert state.waited_for(161, 0) == 9
    assert State().waited_for(0, 0) is None


def test_records_of_snapshots_beside_the_events_are_noted_once() -> None:
    state = State()
    started = {"status": "STARTED", "snapshot_id": "1", "seq": 0}
    ended = {"status": "COMPLETED", "snapshot_id": "1", "seq": 3, "spaces": []}
    state.note_snapshots([(4, started)])
    state.note_snapshots([(4, started), (7, ended)])
    assert state.judge_snapshots(3, None, repeats=False) == []
    state = State.from_json(state.to_json())
    state.note_snapshots([(4, started), (7, ended)])
    assert (state.snapshots, state.told_up_to) == ({}, 7)


def test_ends_without_events_take_no_room_from_transactions_with_events() -> None:
    """As where retention has taken the events, and not yet their counts."""
    gone = [Part(f"1:{number}", "users", 0, 1, None, None) for number in range(TRANSACTIONS_MAX)]
    state = State()
    (found,) = state.judge_transactions([Part("2:99", "users", 1, 2, 99, 99), *gone], 99, repeats=False)
    assert (found.kind, found.seq, state.judged_from) == ("transaction", 99, 0)


def test_rows_of_a_snapshot_that_come_again_are_none_too_many() -> None:
    for repeats, came, kinds in ((True, 4, []), (True, 2, ["snapshot"]), (False, 4, ["snapshot"]), (False, 3, [])):
        state = State()
        state.note_snapshot(record("STARTED", "1", 0))
        state.count_rows("1", "users", came)
        state.note_snapshot(record("COMPLETED", "1", 5, rows=3))
        assert [finding.kind for finding in state.judge_snapshots(5, None, repeats=repeats)] == kinds


@pytest.mark.parametrize(
    ("earlier", "later", "is_one"),
    [
        ({"lsn": 7, "total_order": 1}, {"lsn": 7, "total_order": 2}, True),
        ({"lsn": 7, "total_order": 2}, {"lsn": 7, "total_order": 2}, False),  # published twice
        ({"lsn": 7, "total_order": 2}, {"lsn": 7, "total_order": 1}, False),
        ({"lsn": 7, "total_order": 1}, {"lsn": 6, "total_order": 2}, False),
        ({"lsn": 7}, {"lsn": 7, "total_order": 2}, False),
        ({"lsn": 7, "total_order": None}, {"lsn": 7, "total_order": None}, False),
    ],
)
def test_events_of_one_row(earlier: dict[str, Any], later: dict[str, Any], is_one: bool) -> None:
    assert State.are_of_one_row(earlier, later) is is_one
