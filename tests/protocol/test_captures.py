"""What a Session makes of recorded servers, and that our requests say what the recorded clients' said.

The golden files hold every event; the same events must come out however the bytes are cut.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.positions.vclock import VClock
from cdc.protocol import requests
from cdc.protocol.codec import FrameDecoder
from cdc.protocol.constants import Key, Type, version_id
from cdc.protocol.greeting import parse_greeting
from cdc.protocol.session import Event, Heartbeat, Joined, Session, SnapshotFinished, SnapshotStarted, StreamRows
from cdc.protocol.states import State
from cdc.protocol.system_spaces import CLUSTER_SPACE
from tests.fakes import captures, shown
from tests.fakes.captures import VERSIONS, Capture
from tests.fakes.golden import ROOT, Golden, line
from tests.fakes.profiles import FEW

GOLDEN = ROOT / "golden" / "protocol"
SYNCHRONOUS = "sync-confirm"
PLAIN = ("control", "badauth", "fetch_snapshot", "fetch_snapshot_noversion")
ALL = [(version, name) for version in VERSIONS for name in captures.names(version)]
SUBSCRIBED = [(version, name) for version, name in ALL if name.startswith("subscribe_")]
PLAYED = [(version, name) for version, name in ALL if name != "subscribe"]
REGISTERED = ("join", "register", "subscribe_registered", "subscribe_unregistered")


def end_of(capture: Capture) -> str:
    """How far a capture is played: the long one up to its first synchronous transaction."""
    return SYNCHRONOUS if capture.name == "subscribe" else ""


def result(capture: Capture, feed: captures.Feed = captures.framewise) -> list[str]:
    """Everything that came out, in lines."""
    played = captures.play(capture, feed, until_marker=end_of(capture))
    lines = shown.lines(shown.events(played.events))
    if played.error is not None:
        error = played.error
        lines.append(line({"error": type(error).__name__, "remedy": error.remedy.value, "says": str(error)}))
    lines.append(line({"state": played.session.state.name}))
    return lines


@pytest.mark.parametrize(("version", "name"), [*PLAYED, *((version, "subscribe") for version in VERSIONS)])
def test_events_are_the_golden_ones(version: str, name: str, golden: Golden) -> None:
    golden.check_lines(GOLDEN / version / f"{name}.jsonl", result(captures.load(version, name)))


@pytest.mark.parametrize(("version", "name"), PLAYED)
def test_byte_by_byte(version: str, name: str) -> None:
    capture = captures.load(version, name)
    assert result(capture, captures.singly) == result(capture)


@pytest.mark.parametrize("version", VERSIONS)
def test_stream_byte_by_byte(version: str) -> None:
    capture = captures.load(version, "subscribe")
    # Up to the tuple of a megabyte, which only takes time.
    by_bytes = captures.play(capture, captures.singly, until_marker="big-tuple")
    at_once = captures.play(capture, until_marker="big-tuple")
    assert list(shown.events(by_bytes.events)) == list(shown.events(at_once.events))


@functools.cache
def frame_by_frame(version: str, name: str) -> tuple[captures.Played, list[shown.Item]]:
    capture = captures.load(version, name)
    played = captures.play(capture, until_marker=end_of(capture))
    return played, list(shown.events(played.events))


SIZES = st.lists(st.one_of(st.integers(1, 7), st.integers(1, 300), st.integers(1, 40_000)), max_size=60)


@FEW
@pytest.mark.parametrize("version", VERSIONS)
@given(sizes=SIZES)
def test_any_pieces(version: str, sizes: list[int]) -> None:
    for name in ("control", "fetch_snapshot", "subscribe", "subscribe_xlog_gap", *REGISTERED):
        capture = captures.load(version, name)
        cut = captures.play(capture, captures.pieces(sizes), until_marker=end_of(capture))
        expected, all_of_it = frame_by_frame(version, name)
        found = list(shown.events(cut.events))
        # An error packet takes those events with it that came in the same piece.
        assert found == all_of_it[: len(found)] if expected.error else found == all_of_it
        assert repr(cut.error) == repr(expected.error)
        assert cut.session.state == expected.session.state


@pytest.mark.parametrize("version", VERSIONS)
def test_unfinished_frame_behind_whole_ones(version: str) -> None:
    stream = captures.load(version, "subscribe").stream("txn-big")
    beyond = captures.load(version, "subscribe").stream("types")[len(stream) :]
    alone = _subscribed(version)
    expected = shown.lines(shown.events(alone.receive_data(stream)))
    for extra in (1, 4, 5, 6, 20, 30):
        session = _subscribed(version)
        assert shown.lines(shown.events(session.receive_data(stream + beyond[:extra]))) == expected, extra


def _subscribed(version: str) -> Session:
    """A session that waits for the answer to the recorded SUBSCRIBE."""
    capture = captures.load(version, "subscribe")
    session = Session(captures.instance_uuid(capture))
    session.receive_data(capture.greeting)
    for exchange in capture.exchanges():
        captures.ask(session, exchange.request, capture.name)
        session.data_to_send()
        if exchange.request.kind != Type.SUBSCRIBE:
            session.receive_data(exchange.answer)
    assert session.state is State.SUBSCRIBING
    return session


@pytest.mark.parametrize("version", VERSIONS)
def test_identify_at_a_server_that_does_not_know_it(version: str) -> None:
    """The captured answer of 2.6 to ID is why a session has `can_identify`."""
    capture = captures.load(version, "control")
    session = Session(captures.instance_uuid(capture))
    session.receive_data(capture.greeting)
    assert session.can_identify == (version != "2.6")


# Our own bytes.


@pytest.mark.parametrize(("version", "name"), ALL)
def test_scramble_is_the_recorded_one(version: str, name: str) -> None:
    capture = captures.load(version, name)
    recorded = [packet for packet in capture.requests if packet.kind == Type.AUTH]
    password = captures.WRONG_PASSWORD if name == "badauth" else captures.PASSWORD
    salt = parse_greeting(capture.greeting).salt
    for packet in recorded:
        assert requests.scramble(password, salt) == packet.body[Key.TUPLE][1]
        assert requests.authenticate(packet.header[Key.SYNC], "cdc", password, salt) == packet.data
    assert bool(recorded) == (name != "subscribe_denied_guest")


@pytest.mark.parametrize(("version", "name"), [*SUBSCRIBED, *((version, "subscribe") for version in VERSIONS)])
def test_subscribe_says_what_the_recorded_one_said(version: str, name: str, golden: Golden) -> None:
    capture = captures.load(version, name)
    sent = [(request, data) for request, data in captures.play(capture).sent if request.kind == Type.SUBSCRIBE]
    ((recorded, data),) = sent
    ((header, body),) = _decoded(data)
    expected = dict(recorded.body)
    # What our session adds: it always says whether it is anonymous, and always tells a version.
    expected.setdefault(Key.REPLICA_ANON, False)
    expected[Key.SERVER_VERSION] = version_id(parse_greeting(capture.greeting).version)
    # Component 0 and components of 0 say nothing.
    expected[Key.VCLOCK] = dict(VClock(expected[Key.VCLOCK]))
    assert body == expected
    assert header == {Key.REQUEST_TYPE: Type.SUBSCRIBE, Key.SYNC: header[Key.SYNC]}
    if name == "subscribe":
        golden.check(GOLDEN / version / "subscribe_request.hex", data.hex(" ") + "\n")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["fetch_snapshot", "fetch_snapshot_noversion"])
def test_fetch_snapshot_always_tells_version_and_uuid(version: str, name: str) -> None:
    capture = captures.load(version, name)
    ((_, data),) = [(request, data) for request, data in captures.play(capture).sent if request.kind == Type.FETCH_SNAPSHOT]
    ((_, body),) = _decoded(data)
    uuid = str(captures.instance_uuid(capture))
    assert body == {Key.SERVER_VERSION: version_id(parse_greeting(capture.greeting).version), Key.INSTANCE_UUID: uuid}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "kind"), [("join", Type.JOIN), ("register", Type.REGISTER)])
def test_the_registered_way_byte_by_byte(version: str, name: str, kind: int) -> None:
    capture = captures.load(version, name)
    ((recorded, data),) = [(request, data) for request, data in captures.play(capture).sent if request.kind == kind]
    ours, theirs = _decoded(data), _decoded(recorded.data)
    assert ours == theirs
    assert data == recorded.data


@pytest.mark.parametrize("version", VERSIONS)
def test_join_gives_contents_and_then_the_log(version: str) -> None:
    """The first rows have no lsn, the last ones have; among them is the one with our id."""
    capture = captures.load(version, "join")
    played = captures.play(capture)
    assert played.error is None
    assert played.session.state is State.READY
    started, _, joined = (event for event in played.events if isinstance(event, SnapshotStarted | SnapshotFinished | Joined))
    assert isinstance(started, SnapshotStarted)
    assert isinstance(joined, Joined)
    (final,) = (event.frames for event in played.events if isinstance(event, StreamRows))
    ((header, body),) = zip(final.headers, final.bodies, strict=True)
    assert body == {Key.SPACE_ID: CLUSTER_SPACE, Key.TUPLE: [2, str(captures.instance_uuid(capture))]}
    assert joined.vclock == VClock({**started.vclock, header[Key.REPLICA_ID]: header[Key.LSN]})


def test_rows_of_26_after_register_do_not_follow_its_vclock() -> None:
    """REGISTER said {1: 150}; 151 was in the log and didn't come: these rows can't be taken for the stream's."""
    played = captures.play(captures.load("2.6", "register"))
    (rows,) = (event.frames for event in played.events if isinstance(event, StreamRows))
    assert [header[Key.LSN] for header in rows.headers] == [152]
    assert played.session.state is State.READY


@pytest.mark.parametrize("version", VERSIONS)
def test_state_of_raft_is_no_row_of_a_registered_stream(version: str) -> None:
    played = captures.play(captures.load(version, "subscribe_registered"))
    kinds = {header[Key.REQUEST_TYPE] for frames in captures.rows(played.events) for header in frames.headers}
    assert Type.RAFT not in kinds
    assert played.session.term == (0 if version == "2.6" else 1)
    recorded = {packet.kind for packet in captures.load(version, "subscribe_registered").answers}
    assert (Type.RAFT in recorded) == (version != "2.6")


ACKS = {
    "2.6": "ce 00 00 00 0c 82 00 00 02 00 81 26 81 01 cd 05 39",
    "2.11": "ce 00 00 00 1a 83 00 00 02 00 04 cb 3f f8 00 00 00 00 00 00 83 26 81 01 cd 05 39 53 %s 5a %s",
    "3.3": "ce 00 00 00 1a 83 00 00 02 00 04 cb 3f f8 00 00 00 00 00 00 83 26 81 01 cd 05 39 53 %s 5a %s",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgement_byte_by_byte(version: str) -> None:
    """Term and vclock_sync come from what the recorded server sent, and a 2.6 gets neither."""
    session = _subscribed(version)
    events = session.receive_data(captures.load(version, "subscribe").stream(SYNCHRONOUS))
    heartbeats = [event for event in events if isinstance(event, Heartbeat)]
    assert heartbeats
    data = session.acknowledgement(VClock({1: 1337}), 1.5)
    expected = ACKS[version]
    if version != "2.6":
        expected %= (f"{session.term:02x}", f"{len(heartbeats):02x}")  # this server counts its heartbeats
    assert data.hex(" ") == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgement_is_the_recorded_one_but_for_the_term(version: str) -> None:
    """The recorded client never told a term; ours tells the server's own."""
    recorded = captures.load(version, "subscribe").acks[-1]
    parsed = parse_greeting(captures.load(version, "subscribe").greeting)
    data = requests.acknowledge(
        VClock(recorded.body[Key.VCLOCK]),
        version=parsed.version,
        term=0,
        vclock_sync=recorded.body.get(Key.VCLOCK_SYNC),
    )
    ((header, body),) = _decoded(data)
    assert header == recorded.header
    assert {key: item for key, item in body.items() if key != Key.TERM} == recorded.body
    assert (Key.TERM in body) == (version != "2.6")
    if version == "2.6":
        assert data == recorded.data


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgement_before_any_heartbeat(version: str) -> None:
    session = _subscribed(version)
    answer = captures.packets(captures.load(version, "subscribe").stream())[0]
    session.receive_data(answer.data)
    ((header, body),) = _decoded(session.acknowledgement(VClock()))
    assert header == {Key.REQUEST_TYPE: Type.OK, Key.REPLICA_ID: 0}
    assert body == ({Key.VCLOCK: {}} if version == "2.6" else {Key.VCLOCK: {}, Key.TERM: session.term})


@pytest.mark.parametrize("version", VERSIONS)
def test_snapshot_tells_the_term_of_the_cluster(version: str) -> None:
    """Only 3.3 shows its Raft state to an anonymous replica; nobody's is invented."""
    played = captures.play(captures.load(version, "fetch_snapshot"))
    assert played.session.term == (1 if version == "3.3" else 0)


def _decoded(data: bytes) -> list[tuple[dict[int, Any], dict[int, Any]]]:
    frames = FrameDecoder().feed(data)
    return list(zip(frames.headers, frames.bodies, strict=True))


def _kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_connection_takes_a_snapshot_and_then_the_stream(version: str) -> None:
    snapshot, stream = captures.load(version, "fetch_snapshot"), captures.load(version, "subscribe")
    session = captures.play(snapshot).session
    assert session.state is State.READY
    request = stream.requests[-1]
    assert captures.ask(session, request, "subscribe")
    kinds = _kinds(session.receive_data(stream.stream(SYNCHRONOUS)))
    assert kinds[0] == "Subscribed"
    assert set(kinds[1:]) == {"Heartbeat", "StreamRows"}
