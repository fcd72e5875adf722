"""The session's state machine: every request and every arrival in every state, and what each arrival means.

The table is checked against the diagram in the module's docstring, and the session against the table: what it doesn't hold
must be refused, a request of ours as a mistake of the caller's, an arrival as the server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import UUID

import pytest

import cdc.protocol.states as module
from cdc.errors import CdcError, ConnectionLostError, ProtocolError, Remedy, ServerError, UnsupportedRowError
from cdc.positions.vclock import VClock
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.constants import Type
from cdc.protocol.session import (
    Greeted,
    Heartbeat,
    Identified,
    Joined,
    Registered,
    Selected,
    Session,
    SnapshotFinished,
    SnapshotRows,
    SnapshotStarted,
    StreamRows,
    Subscribed,
    Voted,
)
from cdc.protocol.states import TRANSITIONS, Input, State
from tests.fakes import wire
from tests.fakes.master import REPLICASET, Master, MasterConnection

OURS = UUID(int=7)
GREETING = MasterConnection(Master()).data_to_send()
ROW = wire.frame({0: Type.INSERT, 1: 1, 2: 1, 3: 5, 4: 1.0}, {0x10: 512, 0x21: [1]})

REQUESTS: dict[Input, Callable[[Session], None]] = {
    Input.AUTHENTICATE: lambda session: session.authenticate("cdc", "secret"),
    Input.IDENTIFY: lambda session: session.identify(),
    Input.VOTE: lambda session: session.vote(),
    Input.SELECT: lambda session: session.select(320, 1, [str(OURS)]),
    Input.DELETE: lambda session: session.delete(320, 0, [2]),
    Input.JOIN: lambda session: session.join(),
    Input.REGISTER: lambda session: session.register(VClock({1: 5})),
    Input.FETCH_SNAPSHOT: lambda session: session.fetch_snapshot(),
    Input.SUBSCRIBE: lambda session: session.subscribe(REPLICASET, VClock({1: 5})),
}

# An answer that every state that takes one can read.
OK = wire.frame({0: 0, 1: 1, 2: 1}, {0x26: {1: 5}, 0x29: {2: {}, 3: {}, 6: True}, 0x30: [[2, "u"]], 0x54: 4, 0x55: [0, 1]})
ARRIVALS: dict[Input, bytes] = {
    Input.OK: OK,
    Input.META: wire.frame({0: Type.JOIN_META, 1: 1}),
    Input.META_END: wire.frame({0: Type.JOIN_SNAPSHOT, 1: 1}),
    Input.ROW: ROW,
    Input.RAFT: wire.frame({0: Type.RAFT, 7: 1}, {0: 3, 2: 1}),
}

TO: dict[State, list[Callable[[Session], object]]] = {
    State.GREETING: [],
    State.READY: [],
    State.AUTHENTICATING: [REQUESTS[Input.AUTHENTICATE]],
    State.IDENTIFYING: [REQUESTS[Input.IDENTIFY]],
    State.VOTING: [REQUESTS[Input.VOTE]],
    State.SELECTING: [REQUESTS[Input.SELECT]],
    State.DELETING: [REQUESTS[Input.DELETE]],
    State.FETCHING: [REQUESTS[Input.FETCH_SNAPSHOT]],
    State.SNAPSHOT: [REQUESTS[Input.FETCH_SNAPSHOT], lambda session: session.receive_data(OK)],
    State.META: [
        REQUESTS[Input.FETCH_SNAPSHOT],
        lambda session: session.receive_data(OK),
        lambda session: session.receive_data(ARRIVALS[Input.META]),
    ],
    State.JOINING: [REQUESTS[Input.JOIN]],
    State.JOIN_SNAPSHOT: [REQUESTS[Input.JOIN], lambda session: session.receive_data(OK)],
    State.JOIN_META: [
        REQUESTS[Input.JOIN],
        lambda session: session.receive_data(OK),
        lambda session: session.receive_data(ARRIVALS[Input.META]),
    ],
    State.JOIN_FINAL: [
        REQUESTS[Input.JOIN],
        lambda session: session.receive_data(OK),
        lambda session: session.receive_data(OK),
    ],
    State.REGISTERING: [REQUESTS[Input.REGISTER]],
    State.SUBSCRIBING: [REQUESTS[Input.SUBSCRIBE]],
    State.STREAMING: [REQUESTS[Input.SUBSCRIBE], lambda session: session.receive_data(OK)],
    State.CLOSED: [lambda session: session.receive_end()],
}


def session_in(state: State) -> Session:
    """A session that came to this state the ordinary way."""
    session = Session(OURS)
    if state is not State.GREETING:
        session.receive_data(GREETING)
    for step in TO[state]:
        step(session)
    session.data_to_send()
    assert session.state is state
    return session


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(State) == set(TO)
    assert set(REQUESTS) | set(ARRIVALS) | {Input.GREETING} == set(Input)


def test_the_table_is_the_protocol() -> None:
    """Said again in short, so that no move comes in by accident."""
    moves = {f"{state.name} {given.name} {to.name}" for state, row in TRANSITIONS.items() for given, to in row.items()}
    assert moves == {
        "GREETING GREETING READY",
        "READY AUTHENTICATE AUTHENTICATING",
        "READY IDENTIFY IDENTIFYING",
        "READY VOTE VOTING",
        "READY SELECT SELECTING",
        "READY DELETE DELETING",
        "READY JOIN JOINING",
        "READY REGISTER REGISTERING",
        "READY FETCH_SNAPSHOT FETCHING",
        "READY SUBSCRIBE SUBSCRIBING",
        "AUTHENTICATING OK READY",
        "IDENTIFYING OK READY",
        "VOTING OK READY",
        "FETCHING OK SNAPSHOT",
        "SNAPSHOT ROW SNAPSHOT",
        "SNAPSHOT META META",
        "SNAPSHOT OK READY",
        "SELECTING OK READY",
        "DELETING OK READY",
        "META ROW META",
        "META RAFT META",
        "META META_END SNAPSHOT",
        "JOINING OK JOIN_SNAPSHOT",
        "JOIN_SNAPSHOT ROW JOIN_SNAPSHOT",
        "JOIN_SNAPSHOT META JOIN_META",
        "JOIN_SNAPSHOT OK JOIN_FINAL",
        "JOIN_META ROW JOIN_META",
        "JOIN_META RAFT JOIN_META",
        "JOIN_META META_END JOIN_SNAPSHOT",
        "JOIN_FINAL ROW JOIN_FINAL",
        "JOIN_FINAL OK READY",
        "REGISTERING ROW REGISTERING",
        "REGISTERING OK READY",
        "SUBSCRIBING OK STREAMING",
        "STREAMING RAFT STREAMING",
        "STREAMING ROW STREAMING",
        "STREAMING OK STREAMING",
    }


PAIRS = [(state, given) for state in State for given in Input if given is not Input.GREETING]


@pytest.mark.parametrize(("state", "given"), PAIRS, ids=[f"{state.name}-{given.name}" for state, given in PAIRS])
def test_every_pair(state: State, given: Input) -> None:
    session = session_in(state)
    following = TRANSITIONS[state].get(given)
    if given in REQUESTS:
        if following is None:
            with pytest.raises(RuntimeError, match=f"{given.name} in state {state.name}"):
                REQUESTS[given](session)
            assert session.state is state
            assert session.data_to_send() == b""
        else:
            REQUESTS[given](session)
            assert session.state is following
            assert session.data_to_send()
        return
    data = ARRIVALS[given]
    if state is State.GREETING:
        data = GREETING + data  # it can't arrive before
    if state is State.CLOSED:
        assert session.receive_data(data) == []
    elif state in (State.META, State.JOIN_META) and given is Input.ROW:
        with pytest.raises(UnsupportedRowError, match="META stage has a row of type 2"):
            session.receive_data(data)
        following = State.CLOSED
    elif following is None:
        at = State.READY if state is State.GREETING else state
        with pytest.raises(ProtocolError, match=f"the server sent {given.name} in state {at.name}"):
            session.receive_data(data)
        following = State.CLOSED
    else:
        session.receive_data(data)
    assert session.state is (following or state)


def test_the_diagram_shows_the_table() -> None:
    """Names of states, and each arrow of a request and of the answer to it."""
    assert module.__doc__ is not None
    named = set(re.findall(r"\b[A-Z_]{4,}\b", module.__doc__))
    assert {state.name for state in State} <= named
    flat = module.__doc__.replace("\n", " ")
    for given, following in TRANSITIONS[State.READY].items():
        assert re.search(rf"──{given.name.lower()}──▶ {following.name} ──ok──▶", flat), given
    assert "GREETING ──greeting──▶ READY" in flat
    for state in (State.AUTHENTICATING, State.IDENTIFYING, State.VOTING, State.SELECTING, State.DELETING):
        assert TRANSITIONS[state] == {Input.OK: State.READY}
        assert f"{state.name} ──ok──▶ READY" in flat
    assert TRANSITIONS[State.CLOSED] == {}


@pytest.mark.parametrize("state", [state for state in State if state not in (State.GREETING, State.CLOSED)])
def test_error_packet_closes_from_any_state(state: State) -> None:
    session = session_in(state)
    packet = wire.frame({0: Type.ERROR | 42, 1: 1}, {0x31: "Read access to universe '' is denied"})
    with pytest.raises(ServerError, match=r"Read access .* \(error 42\)\. Grant it") as caught:
        session.receive_data(packet)
    assert caught.value.code == 42
    assert session.state is State.CLOSED
    assert session.receive_data(ROW) == []


@pytest.mark.parametrize("state", list(State))
def test_end_of_stream_says_where(state: State) -> None:
    session = session_in(state)
    error = session.receive_end()
    assert isinstance(error, ConnectionLostError)
    assert error.remedy is Remedy.WAIT
    assert ("before its greeting" if state is State.GREETING else state.name.lower()) in str(error)
    assert session.state is State.CLOSED


@pytest.mark.parametrize("state", list(State))
def test_only_a_stream_is_acknowledged(state: State) -> None:
    session = session_in(state)
    if state is State.STREAMING:
        assert session.acknowledgement(VClock({1: 5}))
        return
    if state is State.CLOSED:
        assert session.acknowledgement(VClock({1: 5})) == b"", "the thread that sends ACKs hasn't heard of it yet"
        return
    with pytest.raises(RuntimeError, match=f"an ACK in state {state.name}"):
        session.acknowledgement(VClock({1: 5}))


def test_each_request_has_the_next_sync() -> None:
    session = session_in(State.READY)
    for number in range(1, 4):
        session.vote()
        assert session.data_to_send() == wire.frame({0: Type.VOTE, 1: number})
        session.receive_data(OK)


def test_what_is_to_be_sent_is_given_once() -> None:
    session = session_in(State.READY)
    session.vote()
    assert session.data_to_send()
    assert session.data_to_send() == b""


# What arrivals mean.


def one_event(state: State, data: bytes) -> object:
    (event,) = session_in(state).receive_data(data)
    return event


def answer(body: dict[int, object], **header: object) -> bytes:
    return wire.frame({0: 0, 1: 1, **{int(key[1:]): value for key, value in header.items()}}, body)


def test_identified() -> None:
    assert one_event(State.IDENTIFYING, answer({0x54: 10, 0x55: [0, 1, 12], 0x5B: "chap-sha1"})) == Identified(10, (0, 1, 12))


@pytest.mark.parametrize("body", [{}, {0x54: 4}, {0x54: "4", 0x55: []}, {0x54: 4, 0x55: 1}, {0x54: True, 0x55: []}])
def test_answer_to_identify_that_cannot_be_read(body: dict[int, object]) -> None:
    with pytest.raises(ProtocolError, match="answer to ID"):
        one_event(State.IDENTIFYING, answer(body))


@pytest.mark.parametrize(
    ("read_only", "loading", "is_ready"),
    [(False, False, True), (False, True, False), (True, True, True)],
    ids=["writable", "still loading", "read-only, and loading as far as it tells"],
)
def test_ballot_of_26(read_only: bool, loading: bool, is_ready: bool) -> None:
    event = one_event(State.VOTING, answer({0x29: {1: read_only, 2: {0: 9, 1: 150}, 3: {1: 7}, 4: loading}}))
    assert isinstance(event, Voted)
    ballot = event.ballot
    assert (ballot.vclock, ballot.gc_vclock) == (VClock({1: 150}), VClock({1: 7}))
    assert (ballot.is_read_only, ballot.is_ready, ballot.is_anonymous) == (read_only, is_ready, False)


def test_ballot_of_later_versions() -> None:
    """Key 1 is only the configuration there, and key 4 what 2.6 calls 1."""
    event = one_event(State.VOTING, answer({0x29: {1: True, 2: {1: 1}, 3: {}, 4: False, 5: True, 6: True, 7: False}}))
    assert isinstance(event, Voted)
    assert (event.ballot.is_read_only, event.ballot.is_ready, event.ballot.is_anonymous) == (False, True, True)
    event = one_event(State.VOTING, answer({0x29: {1: False, 2: {}, 3: {}, 4: True, 5: False, 6: False}}))
    assert isinstance(event, Voted)
    assert (event.ballot.is_read_only, event.ballot.is_ready, event.ballot.is_anonymous) == (True, False, False)


@pytest.mark.parametrize("ballot", [None, [], "x", {2: 5}, {2: {1: -1}}, {2: {32: 1}}, {3: {"1": 1}}, {2: {1: 1.5}}])
def test_ballot_that_cannot_be_read(ballot: object) -> None:
    with pytest.raises(ProtocolError, match=r"ballot|vclock"):
        one_event(State.VOTING, answer({0x29: ballot}))


def test_snapshot_and_its_position() -> None:
    session = session_in(State.FETCHING)
    data = answer({0x26: {0: 3, 1: 8}}) + ROW + ROW + answer({0x26: {1: 9}})
    started, rows, finished = session.receive_data(data)
    assert started == SnapshotStarted(VClock({1: 8}))
    assert isinstance(rows, SnapshotRows)
    assert len(rows.frames) == 2
    assert finished == SnapshotFinished(VClock({1: 9}))
    assert session.state is State.READY


_WITH_VCLOCK = [
    State.FETCHING,
    State.SNAPSHOT,
    State.JOINING,
    State.JOIN_SNAPSHOT,
    State.JOIN_FINAL,
    State.REGISTERING,
    State.SUBSCRIBING,
]


def test_join_and_its_positions() -> None:
    """Rows with an lsn follow the contents; where they lead is what they say, not what any of the vclocks does."""
    session = session_in(State.JOINING)
    meta = ARRIVALS[Input.META] + ARRIVALS[Input.RAFT] + ARRIVALS[Input.META_END]
    data = answer({0x26: {0: 3, 1: 8}}) + meta + ROW + ROW + answer({0x26: {1: 10}}) + ROW + answer({0x26: {1: 12}})
    started, rows, finished, final, joined = session.receive_data(data)
    assert started == SnapshotStarted(VClock({1: 8}))
    assert isinstance(rows, SnapshotRows)
    assert len(rows.frames) == 2
    assert finished == SnapshotFinished(VClock({1: 10}))
    assert isinstance(final, StreamRows)
    assert len(final.frames) == 1
    assert joined == Joined(VClock({1: 12}))
    assert session.state is State.READY
    assert session.term == 3


def test_registration() -> None:
    session = session_in(State.REGISTERING)
    rows, registered = session.receive_data(ROW + ROW + answer({0x26: {1: 9}}))
    assert isinstance(rows, StreamRows)
    assert len(rows.frames) == 2
    assert registered == Registered(VClock({1: 9}))
    assert session.state is State.READY


@pytest.mark.parametrize("state", [State.SELECTING, State.DELETING])
def test_found_tuples(state: State) -> None:
    assert one_event(state, answer({0x30: [[3, str(OURS)]]})) == Selected([[3, str(OURS)]])
    assert one_event(state, answer({0x30: []})) == Selected([])
    bodies: list[dict[int, object]] = [{}, {0x30: None}, {0x30: 1}, {0x30: [1]}, {0x30: {1: 2}}]
    for body in bodies:
        with pytest.raises(ProtocolError, match="SELECT or DELETE"):
            one_event(state, answer(body))


NAMED: list[Callable[[Session], None]] = [
    lambda session: session.join("reader"),
    lambda session: session.register(VClock({1: 5}), "reader"),
    lambda session: session.subscribe(REPLICASET, VClock({1: 5}), is_anonymous=False, instance_name="reader"),
]


@pytest.mark.parametrize("request_", NAMED)
def test_a_name_goes_to_servers_that_know_names(request_: Callable[[Session], None]) -> None:
    for version in ("2.11", "3.3"):
        session = Session(OURS)
        session.receive_data(MasterConnection(Master(version)).data_to_send())
        request_(session)
        (body,) = FrameDecoder().feed(session.data_to_send()).bodies
        assert body.get(0x5D) == ("reader" if version == "3.3" else None)


def test_an_anonymous_replica_says_so_and_a_registered_one_does_not() -> None:
    for is_anonymous in (True, False):
        session = session_in(State.READY)
        session.subscribe(REPLICASET, VClock({1: 5}), is_anonymous=is_anonymous)
        (body,) = FrameDecoder().feed(session.data_to_send()).bodies
        assert body[0x50] is is_anonymous
        assert body[0x06]


@pytest.mark.parametrize("body", [{}, {0x26: None}, {0x26: [1]}, {0x26: {1: "x"}}, {0x26: {99: 1}}])
@pytest.mark.parametrize("state", _WITH_VCLOCK)
def test_vclock_that_cannot_be_read(state: State, body: dict[int, object]) -> None:
    with pytest.raises(ProtocolError, match="vclock"):
        one_event(state, answer(body))


def test_subscribed() -> None:
    event = one_event(State.SUBSCRIBING, answer({0x26: {0: 2, 1: 5}, 0x25: str(REPLICASET), 0x5C: "name"}, _2=3))
    assert event == Subscribed(3, VClock({1: 5}), REPLICASET)
    assert one_event(State.SUBSCRIBING, answer({0x26: {}})) == Subscribed(0, VClock(), None)


@pytest.mark.parametrize("uuid", ["", "x", 5, b"x", [], "bbbbbbbb-0000-4000-8000-00000000000"])
def test_replica_set_that_cannot_be_read(uuid: object) -> None:
    with pytest.raises(ProtocolError, match="isn't a UUID"):
        one_event(State.SUBSCRIBING, answer({0x26: {}, 0x25: uuid}))


def test_own_id_that_cannot_be_read() -> None:
    with pytest.raises(ProtocolError, match="own id"):
        one_event(State.SUBSCRIBING, answer({0x26: {}}, _2="1"))


def test_rows_and_heartbeats_keep_their_order() -> None:
    session = session_in(State.STREAMING)
    beat = answer({0x5A: 4}, _4=12.5)
    events = session.receive_data(ROW + ROW + beat + ROW + beat + beat)
    assert [type(event).__name__ for event in events] == ["StreamRows", "Heartbeat", "StreamRows", "Heartbeat", "Heartbeat"]
    assert [len(event.frames) for event in events if isinstance(event, StreamRows)] == [2, 1]
    assert events[1] == Heartbeat(12.5)


def test_the_state_of_raft_ends_in_the_session() -> None:
    """Between rows of one piece: what is left is their order and the highest term."""
    session = session_in(State.STREAMING)
    confirm = wire.frame({0: Type.RAFT_CONFIRM, 1: 1, 2: 1, 3: 6, 4: 1.0}, {2: 1, 3: 5})
    raft = [wire.frame({0: Type.RAFT, 7: 1}, {0: term, 2: 1}) for term in (5, 9, 7)]
    events = session.receive_data(ROW + raft[0] + confirm + ROW + raft[1] + raft[2] + ROW)
    assert [type(event).__name__ for event in events] == ["StreamRows"] * 3
    kinds = [header[0] for event in events if isinstance(event, StreamRows) for header in event.frames.headers]
    assert kinds == [Type.INSERT, Type.RAFT_CONFIRM, Type.INSERT, Type.INSERT]
    assert b"".join(event.frames.data for event in events if isinstance(event, StreamRows)) == ROW + confirm + ROW + ROW
    assert session.term == 9
    assert session.acknowledgement(VClock({1: 5})) == wire.frame({0: 0, 2: 0}, {0x26: {1: 5}, 0x53: 9})


@pytest.mark.parametrize("term", ["1", -1, None, 1.0, True])
def test_term_in_the_stream_that_cannot_be_one(term: object) -> None:
    with pytest.raises(ProtocolError, match="Raft term"):
        session_in(State.STREAMING).receive_data(ROW + wire.frame({0: Type.RAFT}, {0: term}))


def test_heartbeat_without_a_time() -> None:
    assert one_event(State.STREAMING, wire.frame({0: 0, 1: 1, 2: 1})) == Heartbeat(0.0)


@pytest.mark.parametrize(("header", "body"), [({4: "now"}, {}), ({4: [1]}, {}), ({}, {0x5A: "1"}), ({}, {0x5A: 1.0})])
def test_heartbeat_that_cannot_be_read(header: dict[int, object], body: dict[int, object]) -> None:
    with pytest.raises(ProtocolError, match="heartbeat"):
        one_event(State.STREAMING, wire.frame({0: 0, **header}, body))


def test_acknowledgement_echoes_the_last_vclock_sync() -> None:
    session = session_in(State.STREAMING)
    session.receive_data(answer({0x5A: 4}) + answer({0x5A: 5}) + wire.frame({0: 0}))
    assert session.acknowledgement(VClock({1: 5}), 1.5) == wire.frame({0: 0, 2: 0, 4: 1.5}, {0x26: {1: 5}, 0x53: 0, 0x5A: 5})


def test_term_is_the_highest_that_the_server_told() -> None:
    session = session_in(State.META)
    assert session.term == 0
    for term in (4, 2):
        session.receive_data(wire.frame({0: Type.RAFT}, {0: term}))
        assert session.term == 4
    session.receive_data(wire.frame({0: Type.RAFT_PROMOTE}, {2: 1, 3: 0, 0x53: 6}))
    session.receive_data(wire.frame({0: Type.RAFT_PROMOTE}, {2: 1, 3: 0}))
    assert session.term == 6
    assert session.receive_data(ARRIVALS[Input.META_END]) == []


@pytest.mark.parametrize("term", ["1", -1, None, 1.0, True])
def test_term_that_cannot_be_one(term: object) -> None:
    with pytest.raises(ProtocolError, match="Raft term"):
        session_in(State.META).receive_data(wire.frame({0: Type.RAFT}, {0: term}))


@pytest.mark.parametrize("kind", [1, 13, 16, 19, 74, 99, 0x7FFF])
@pytest.mark.parametrize("state", [State.STREAMING, State.SNAPSHOT, State.READY])
def test_row_of_an_unknown_kind_is_shown(state: State, kind: int) -> None:
    """It may be a change: passing over it would lose it."""
    with pytest.raises(UnsupportedRowError, match=rf"row of type {kind} .*'xyz'"):
        session_in(state).receive_data(ROW[:0] + wire.frame({0: kind, 3: 9}, {0x36: "xyz"}))


@pytest.mark.parametrize("kind", [None, "2", [2], {}, 2.5, True, b"\x02"])
def test_type_that_is_no_number(kind: object) -> None:
    with pytest.raises(CdcError, match=r"type"):
        session_in(State.STREAMING).receive_data(wire.frame({0: kind}, {}))


def test_packet_without_a_type() -> None:
    with pytest.raises(ProtocolError, match="no valid type: None"):
        session_in(State.STREAMING).receive_data(wire.frame({1: 1}, {}))


def test_server_of_a_version_that_nobody_has_tried() -> None:
    """It is told the newest version that was: it may send a newer one what this program has never seen."""
    session = Session(OURS)
    session.receive_data(GREETING.replace(b"2.11.5 (", b"4.10.9 ("))
    session.fetch_snapshot()
    assert wire.pack(3 << 16 | 8 << 8) in session.data_to_send()


def test_greeting_and_more_in_one_piece() -> None:
    session = Session(OURS)
    greeted, *rest = [*session.receive_data(GREETING[:50]), *session.receive_data(GREETING[50:])]
    assert isinstance(greeted, Greeted)
    assert rest == []
