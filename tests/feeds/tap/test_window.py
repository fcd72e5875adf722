"""How often a client is asked, and what its answers say; and what is kept of it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import lmdb
import pytest

from cdc.errors import StateError
from cdc.feeds.tap.session import ClientPosition, ControlPosition, Cursor, Session
from cdc.feeds.tap.session_store import SessionStore, _key, encoded
from cdc.feeds.tap.window import INTERVAL_MAX, INTERVAL_MIN, AckWindow
from cdc.feeds.tap.wire import TapRequest


def test_answers_that_come_soon_make_questions_rare() -> None:
    window, intervals = AckWindow(1_000_000), []
    for number in range(12):
        window.asked(number, ClientPosition(number, None), 1, 100, now=float(number))
        assert window.answered(number, number + 0.01) == ClientPosition(number, None)
        intervals.append(window.interval)
    assert intervals[0] == 2 * INTERVAL_MIN
    assert intervals[-1] == INTERVAL_MAX
    window.asked(99, ClientPosition(99, None), 1, 100, now=100.0)
    window.answered(99, now=103.0)
    assert window.interval == INTERVAL_MAX // 2


def test_an_answer_answers_what_came_before() -> None:
    window = AckWindow(1_000_000)
    for number in (1, 2, 3):
        window.asked(number, ClientPosition(number, None), 10, 100, now=0.0)
    assert window.answered(2, now=1.0) == ClientPosition(2, None)
    assert (window.unacked_bytes, window.unacked_messages) == (100, 10)
    assert window.answered(1, now=1.0) is None, "it was answered"
    assert window.answered(77, now=1.0) is None, "nobody asked that"
    assert window.answered(3, now=1.0) == ClientPosition(3, None)
    assert (window.unacked_bytes, window.unacked_messages) == (0, 0)


def test_what_is_not_answered_is_bounded() -> None:
    window = AckWindow(1_000)
    rooms = [window.has_room]
    window.asked(1, ClientPosition(1, None), 1, 5_000, now=0.0)
    rooms.append(window.has_room)
    assert rooms == [True, False], "one message may be larger, two may not"
    window.answered(1, now=0.0)
    for number in range(4):
        rooms.append(window.has_room)
        window.asked(number, ClientPosition(number, None), 1, 1, now=0.0)
    assert [*rooms[2:], window.has_room] == [True, True, True, True, False]


SESSIONS = [
    Session(TapRequest("a"), ClientPosition(7, None), 1.0, 2.0),
    Session(
        TapRequest("n" * 900, 5, has_acks=True, vbuckets=frozenset({1, 9}), is_keys_only=True, is_takeover=True),
        ClientPosition(-1, Cursor(513, b"\0\xff")),
        1.5,
        2.5,
        frozenset({9}),
        frozenset({1}),
        begun_seq=3,
        begun_version=4,
        begun_offset=5,
        is_reset=True,
        is_replaying=True,
        is_ended=True,
    ),
]


def test_all_that_a_session_has_is_among_the_examples() -> None:
    """Else a field could be left out of what is kept, and nobody would see it."""
    plain, full = SESSIONS
    assert not [field.name for field in fields(Session) if getattr(plain, field.name) == getattr(full, field.name)]


@pytest.mark.parametrize("session", SESSIONS)
def test_a_session_is_what_was_kept(session: Session, tmp_path: Path) -> None:
    assert Session.from_json(json.loads(encoded(session))) == session
    store = SessionStore(tmp_path)
    store.save([session], ControlPosition(7, 9))
    store.close()
    store = SessionStore(tmp_path)
    assert store.load() == [session]
    assert store.has(session)
    assert store.control == ControlPosition(7, 9)
    store.save([], ControlPosition())
    store.close()
    assert SessionStore(tmp_path).load() == []


def _spoil(path: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(path / "sessions"), map_size=1 << 30) as environment, environment.begin(write=True) as txn:
        txn.put(key, value)


@pytest.mark.parametrize("name", ["a", "é" * 200])
@pytest.mark.parametrize("value", [b"{}", b"[]", b"{", b"\xff"])
def test_a_session_that_cannot_be_read_is_forgotten(tmp_path: Path, name: str, value: bytes) -> None:
    store = SessionStore(tmp_path)
    others = Session(TapRequest("other"), ClientPosition(1, None), 0, 0)
    store.save([Session(TapRequest(name), ClientPosition(1, None), 0, 0), others], ControlPosition(7, 9))
    store.close()
    _spoil(tmp_path, _key(name), value)
    store = SessionStore(tmp_path)
    assert store.load() == [others]
    assert store.control == ControlPosition(7, 9)
    store.close()


@pytest.mark.parametrize("value", [b"{}", b"[1", b"\xff"])
def test_a_control_state_that_cannot_be_read_is_none(tmp_path: Path, value: bytes) -> None:
    store = SessionStore(tmp_path)
    session = Session(TapRequest("a"), ClientPosition(1, None), 0, 0)
    store.save([session], ControlPosition(7, 9))
    store.close()
    _spoil(tmp_path, bytes(300), value)
    store = SessionStore(tmp_path)
    assert store.load() == [session]
    assert store.control is None
    store.close()


def test_a_damaged_file_of_sessions_is_named(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.save([Session(TapRequest(str(number)), ClientPosition(1, None), 0, 0) for number in range(200)], ControlPosition(7, 9))
    store.close()
    data = tmp_path / "sessions" / "data.mdb"
    kept = data.read_bytes()[: 2 * 4096]
    data.write_bytes(kept + b"\xee" * (data.stat().st_size - len(kept)))
    store = SessionStore(tmp_path)
    with pytest.raises(StateError, match="can't be read") as raised:
        store.load()
    assert str(tmp_path) in str(raised.value)
    store.close()


def test_a_session_goes_on_for_the_same_wish_alone() -> None:
    session = SESSIONS[0]
    assert session.can_resume(TapRequest("a", has_acks=True, is_keys_only=True))
    assert not session.can_resume(TapRequest("a", vbuckets=frozenset({1})))
    assert not session.can_resume(TapRequest("a", is_dump=True))
    assert not Session(TapRequest("a", is_keys_only=True), ClientPosition(1, None), 0, 0).can_resume(TapRequest("a")), (
        "it lacks the values"
    )
