"""Asking members: each in its own bounded time, whatever the others do; what is shown and said, and who is found lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
import structlog

from cdc.config import Config, parse
from cdc.config.source import Member, SourceSection
from cdc.config.timeouts import Timeouts
from cdc.daemon.monitor import UpstreamMonitor, ask
from cdc.errors import ConnectionLostError, ProtocolError
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.upstream.selection import Needed, Standing, standing
from cdc.upstream.watch import Phase
from tests.fakes.master import Master, MasterConnection
from tests.live.waiting import wait_for

TIMEOUT_SECONDS = 0.3
SLACK_SECONDS = 2.0
"""For a machine that others use: what is held is that nobody waits for each of several in turn, or for ever."""

Serve = Callable[[socket.socket], None]


def silent(connection: socket.socket) -> None:
    """As a stopped process, whose system accepts: nothing is ever said."""
    while connection.recv(100):
        pass


def closing(connection: socket.socket) -> None:
    """As a proxy without a server behind it."""


def other(connection: socket.socket) -> None:
    """Another program, which speaks first."""
    connection.sendall(b"220 mail.example.com ESMTP ready and waiting for your letters\r\n" * 4)


def slow(connection: socket.socket) -> None:
    """The greeting, and then nothing."""
    connection.sendall(MasterConnection(Master()).data_to_send())
    silent(connection)


def serving(master: Master, is_paused: threading.Event | None = None) -> Serve:
    """A member; while `is_paused` is set, it accepts and says nothing."""

    def serve(connection: socket.socket) -> None:
        if is_paused is not None and is_paused.is_set():
            silent(connection)
            return
        server = MasterConnection(master)
        connection.sendall(server.data_to_send())
        while data := connection.recv(4096):
            server.receive_data(data)
            connection.sendall(server.data_to_send())

    return serve


class Listener:
    """A port, and how it treats each connection."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connection_count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connection_count += 1
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


Listen = Callable[[Serve], Listener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    listeners: list[Listener] = []

    def start(serve: Serve) -> Listener:
        listeners.append(Listener(serve))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()


def source(*ports: int) -> SourceSection:
    values = {
        "name": "shop",
        "source": {"uris": [f"cdc:secret@127.0.0.1:{port}" for port in ports]},
        "kafka": {"bootstrap_servers": "k:9092", "topic_prefix": "shop"},
        "state": {"images": "none"},
    }
    config: Config = parse(values, "test")
    return config.source


def limits(**changed: float) -> Timeouts:
    """Short time limits for answers, and no other survey within a test, but for what is changed."""
    return replace(Timeouts(vote=TIMEOUT_SECONDS, probe_after=0.1, silence=60, survey=60, wait=60), **changed)


def member(port: int) -> Member:
    return source(port).members()[0]


@pytest.mark.parametrize("version", ["2.6", "2.11", "3.3"])
def test_a_member_that_answers(listen: Listen, version: str) -> None:
    master = Master(version)
    master.create_space("things")
    found = ask(member(listen(serving(master)).port), 5)
    assert found.error is None
    assert found.ballot is not None
    assert (found.ballot.vclock, found.ballot.gc_vclock) == (VClock(master.vclock), VClock(master.gc_vclock))
    assert found.replicaset_uuid == master.replicaset_uuid
    assert (found.uuid, found.version) == (master.uuid, ".".join(map(str, master.version)))


def test_a_member_that_loads(listen: Listen) -> None:
    master = Master("2.6")
    master.is_loading = True
    assert standing(ask(member(listen(serving(master)).port), 5), Needed()) is Standing.LOADING


@pytest.mark.parametrize(
    ("serve", "kind"),
    [(silent, ConnectionLostError), (slow, ConnectionLostError), (closing, ConnectionLostError), (other, ProtocolError)],
)
def test_a_member_that_does_not_answer(listen: Listen, serve: Serve, kind: type[Exception]) -> None:
    port = listen(serve).port
    began = time.monotonic()
    found = ask(member(port), TIMEOUT_SECONDS)
    assert time.monotonic() - began < TIMEOUT_SECONDS + SLACK_SECONDS
    assert isinstance(found.error, kind)


def test_nobody_holds_up_the_others(listen: Listen) -> None:
    good = serving(Master())
    ports = [listen(serve).port for serve in (silent, good, closing, slow, silent, other, good)]
    with socket.create_server(("127.0.0.1", 0)) as gone:
        ports.append(gone.getsockname()[1])
    survey = UpstreamMonitor(source(*ports), limits(), Status("shop"))
    began = time.monotonic()
    found = survey.ask_all()
    assert time.monotonic() - began < TIMEOUT_SECONDS + SLACK_SECONDS, "the limit is for all together"
    assert [answer.error is None for answer in found] == [False, True, False, False, False, False, True, False]
    assert [answer.address for answer in found] == [f"127.0.0.1:{port}" for port in ports]


def test_those_that_are_passed_over_are_not_asked(listen: Listen) -> None:
    listeners = [listen(silent), listen(serving(Master()))]
    survey = UpstreamMonitor(source(*(listener.port for listener in listeners)), limits(vote=30), Status("shop"))
    error = ConnectionLostError("it broke")
    found = survey.ask_all({0: error})
    assert (found[0].error, found[1].error) == (error, None)
    assert [listener.connection_count for listener in listeners] == [0, 1]


# The survey's own thread.


@dataclass
class Connection:
    """The one that is followed."""

    checkpoint: VClock
    phase: Phase = Phase.STREAMING
    last_heard_at: float = field(default_factory=time.monotonic)

    def needed(self) -> Needed:
        """What another must have."""
        return Needed(self.checkpoint, self.checkpoint)


class Scene:
    """A daemon that streams, among members of which each may stop."""

    def __init__(self, listen: Listen, count: int = 2, **changed: float) -> None:
        self.masters = [Master("2.6") for _ in range(count)]
        for master in self.masters:
            master.create_space("things")
        self.is_paused = [threading.Event() for _ in range(count)]
        self.listeners = [listen(serving(*pair)) for pair in zip(self.masters, self.is_paused, strict=True)]
        self.status = Status("shop")
        self.survey = UpstreamMonitor(source(*(listener.port for listener in self.listeners)), limits(**changed), self.status)

    def stream(self, place: int = 0) -> None:
        """The daemon has caught up with a member, and follows it."""
        self.connection = Connection(VClock(self.masters[place].vclock))
        self.survey.follow(place, self.connection)

    def hear(self) -> None:
        self.connection.last_heard_at = time.monotonic()


@pytest.fixture
def make_scene(listen: Listen) -> Iterator[Callable[..., Scene]]:
    scenes: list[Scene] = []

    def make(count: int = 2, **changed: float) -> Scene:
        scenes.append(Scene(listen, count, **changed))
        scenes[-1].survey.start()
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.survey.close()


def test_the_status_shows_all_members(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(survey=0.1)
    scene.masters[0].insert("things", 1)
    scene.masters[1].insert("things", 1)
    scene.stream()
    wait_for("the followed one", lambda: [one.state for one in scene.status.upstreams] == ["following", "standby"])
    wait_for("the headroom", lambda: [one.headroom_rows for one in scene.status.upstreams] == [3, 3])
    scene.masters[0].insert("things", 2)
    wait_for("the lag", lambda: [one.lag_rows for one in scene.status.upstreams] == [0, 1])
    scene.listeners[1].close()
    wait_for("the one that is away", lambda: scene.status.upstreams[1].state == "unreachable")
    shown = scene.status.to_json()["upstreams"]
    assert [one["address"] for one in shown] == [f"127.0.0.1:{listener.port}" for listener in scene.listeners]
    assert "can't connect" in shown[1]["error"]


def test_the_followed_one_stops(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.stream()
    scene.is_paused[0].set()
    wait_for("it is found lost", scene.survey.is_lost, 10)
    scene.hear()
    assert not scene.survey.is_lost(), "it was heard after all"


def test_the_followed_one_is_silent_and_answers(make_scene: Callable[..., Scene]) -> None:
    """It scans its log, say: it is asked again and again, and stays."""
    scene = make_scene()
    scene.stream()
    wait_for("several probes", lambda: scene.listeners[0].connection_count > 4, 20)
    assert not scene.survey.is_lost()


def test_the_followed_one_stops_and_nobody_else_would_do(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.masters[0].insert("things", 1)
    scene.stream()
    scene.is_paused[0].set()
    probes = scene.listeners[0].connection_count
    wait_for("several probes", lambda: scene.listeners[0].connection_count > probes + 3, 20)
    assert not scene.survey.is_lost(), "the other lacks what was published"
    scene.masters[1].insert("things", 1)
    wait_for("it is found lost", scene.survey.is_lost, 10)


def test_one_alone_is_not_probed(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(1)
    scene.stream()
    wait_for("the survey when it begins to stream", lambda: [one.state for one in scene.status.upstreams] == ["following"], 20)
    scene.is_paused[0].set()
    asked = scene.listeners[0].connection_count
    scene.connection.last_heard_at -= 10
    time.sleep(0.5)  # several times the time for a probe, in which nothing is to happen
    assert not scene.survey.is_lost()
    assert scene.listeners[0].connection_count == asked


def test_no_regular_surveys(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(survey=0, probe_after=0.4)
    scene.stream()
    time.sleep(0.2)  # in which a regular survey would have begun
    assert [listener.connection_count for listener in scene.listeners] == [0, 0]
    scene.is_paused[0].set()
    wait_for("it is found lost all the same", scene.survey.is_lost, 10)


def test_a_snapshot_is_not_broken_off_for_a_short_silence(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(silence=1.5)
    scene.stream()
    scene.connection.phase = Phase.SNAPSHOT
    scene.is_paused[0].set()
    began = time.monotonic()
    wait_for("it is found lost", scene.survey.is_lost, 10)
    assert time.monotonic() - began > 1.4


def test_a_gap_that_a_quiet_master_does_not_tell_of(make_scene: Callable[..., Scene]) -> None:
    with structlog.testing.capture_logs() as logs:
        scene = make_scene(survey=0.1)
        master = scene.masters[0]
        scene.stream()
        wait_for("it is followed", lambda: [one.state for one in scene.status.upstreams][:1] == ["following"])
        master.insert("things", 1)
        master.gc_vclock = master.vclock
        wait_for("the gap shows", lambda: scene.status.upstreams[0].headroom_rows == -1)
        said = [entry for entry in logs if "no longer keeps the logs" in entry["event"]]
        assert [(entry["log_level"], entry["upstream"]) for entry in said] == [("warning", scene.status.upstreams[0].address)]
    assert "has a gap" in (scene.status.upstreams[0].error or "")
    assert scene.status.upstreams[0].state == "following"


def test_a_password_that_is_changed_under_an_open_connection(make_scene: Callable[..., Scene]) -> None:
    """The stream goes on; the next connection would be refused, and that is said once, before it ends the daemon."""
    with structlog.testing.capture_logs() as logs:
        scene = make_scene(survey=0.1)
        scene.stream()
        wait_for("it is followed", lambda: [one.state for one in scene.status.upstreams][:1] == ["following"])
        assert not scene.status.upstreams[0].is_refused
        scene.masters[0].password = "another"
        wait_for("the refusal shows", lambda: scene.status.upstreams[0].is_refused)
        surveyed = scene.status.surveyed_at
        wait_for("another survey", lambda: (scene.status.surveyed_at or 0) > (surveyed or 0))
    said = [entry for entry in logs if "would refuse a new connection" in entry["event"]]
    assert [(entry["log_level"], entry["upstream"]) for entry in said] == [("warning", scene.status.upstreams[0].address)]
    assert "Incorrect password" in said[0]["reason"]
    assert scene.status.upstreams[0].state == "following"
