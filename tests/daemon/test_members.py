"""A replica set as the daemon's source: a real follower, publisher, store and socket. The master and Kafka are fakes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import SecretStr

import cdc.sources.log_end
from cdc.commands.verify import verify
from cdc.config import Config, parse
from cdc.daemon.beginning import Beginning, Goal, Observations, RunContext
from cdc.daemon.members import Members
from cdc.daemon.start import known_before
from cdc.errors import CdcError, ConnectionLostError, ForeignServerError, OtherHistoryError, Remedy, ServerError
from cdc.kafka.publisher import Publisher
from cdc.local.ports import free_port
from cdc.ops.request_queue import RequestQueue
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.protocol.failure import LogDamagedError
from cdc.store.writer import StateWriter
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.stream.snapshots.orders import Execute
from cdc.upstream.selection import NobodyError
from tests.daemon.test_ack_intervals import ServedMaster
from tests.daemon.test_monitor import Listener, Serve, serving
from tests.fakes.deliveries import OpenDelivery
from tests.fakes.kafka import Cluster, clients
from tests.fakes.master import REPLICASET, SCHEMA, Master, MasterConnection
from tests.live.waiting import wait_for


class Scene:
    """One daemon's members and what their rows go into."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        delivery = OpenDelivery()
        delivery.gate.set()
        self.config = config
        self.delivery = delivery
        self.publisher = Publisher("x", config.kafka, Writer("w", has_store=True), clients(Cluster()))
        monkeypatch.setattr(self.publisher._loop, "started", delivery)
        monkeypatch.setattr(self.publisher._topic_admin, "ensure", lambda *_: None)
        self.publisher._thread.start()
        self.writer = StateWriter(config.state.path / "images", "x", 0.0)
        self.checkpoint = Checkpoint()
        self.status, self.requests, self.is_stopping = Status("x"), RequestQueue(), threading.Event()
        self.members = Members(RunContext(config, self.status, self.is_stopping), self.requests)
        self.observations = Observations()

    def beginning(self, *, until_caught_up: bool) -> Beginning:
        """From the checkpoint, which the streams before have brought on."""
        known = known_before(self.config, self.checkpoint, self.writer)
        return Beginning(known, self.checkpoint, self.publisher, self.writer, Goal(until_caught_up=until_caught_up))

    def topics(self) -> list[str]:
        """Of the messages that are committed, in order."""
        return [message[0] for message in self.delivery.committed if isinstance(message, tuple)]


@pytest.fixture
def served() -> Iterator[ServedMaster]:
    """A master with two rows."""
    served = ServedMaster()
    served.write(2)
    yield served
    served.close()


@pytest.fixture
def scene(tmp_path: Path, served: ServedMaster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop", "commit_interval_ms": 1}
    uri = f"{served.master.user}:{served.master.password}@127.0.0.1:{served.port}"
    values = {"name": "x", "source": {"uris": [uri]}, "kafka": kafka, "state": {"path": str(tmp_path)}}
    scene = Scene(parse(values, "the test"), monkeypatch)
    yield scene
    scene.publisher.stop(20)
    scene.writer.close()


def test_a_stream_ends_with_what_the_master_had(scene: Scene, served: ServedMaster) -> None:
    with scene.members.opened(scene.beginning(until_caught_up=True)) as stream:
        assert (stream.has_streamed, scene.requests.is_open) == (False, False)
        assert stream.run()
        assert stream.has_streamed
        assert scene.checkpoint.position is not None
        assert stream.published == scene.checkpoint.position.vclock == VClock(served.master.vclock)
    assert scene.topics().count("shop.users") == 2
    assert scene.writer.store.row_count == 2
    assert not scene.requests.is_open


def test_a_stream_ends_as_soon_as_all_is_durable(scene: Scene) -> None:
    """A commit is the last thing to happen: nothing else would end a further wait, here before a minute has passed."""
    master = Master("2.11")
    master.create_space("users", ["id", "name"])
    members = members_of(scene, [f"cdc:secret@127.0.0.1:{Listener(relaying(master)).port}"], source={"ack_interval_ms": 60_000})
    assert followed_again(scene, members)
    begun = time.monotonic()
    for number in range(1, 6):  # whether the commit comes before the wait or ends it varies
        master.insert("users", number, "streamed")
        assert followed_again(scene, members)
        assert scene.topics().count("shop.users") == number
    assert time.monotonic() - begun < 50


def test_rows_can_be_asked_for_while_the_stream_flows_and_not_after(scene: Scene, served: ServedMaster) -> None:
    errors: list[ConnectionLostError] = []

    def follow() -> None:
        with scene.members.opened(scene.beginning(until_caught_up=False)) as stream:
            try:
                stream.run()
            except ConnectionLostError as error:
                errors.append(error)
                scene.members.failed(error)
                stream.collect_submitted()

    following = threading.Thread(target=follow)
    following.start()
    wait_for("the stream", lambda: scene.status.state == "streaming")
    assert scene.requests.is_open
    scene.requests.submit(Execute("a", ("users",), exact=True))
    wait_for("the rows once more", lambda: scene.topics().count("shop.users") == 4)
    served.write(1)
    wait_for("a change", lambda: scene.topics().count("shop.users") == 5)
    scene.is_stopping.set()
    following.join(60)
    assert not following.is_alive()
    assert (scene.requests.is_open, errors) == (False, [])


def test_a_member_that_is_not_there_is_waited_for_longer_and_longer(scene: Scene) -> None:
    source = scene.config.source.model_copy(update={"uris": [SecretStr("cdc:secret@127.0.0.1:1")]})
    config = scene.config.model_copy(update={"source": source})
    members = Members(RunContext(config, scene.status, scene.is_stopping), scene.requests)
    delays = []
    for _ in range(3):
        with pytest.raises(ConnectionLostError) as caught, members.opened(scene.beginning(until_caught_up=True)):
            pass
        assert not members.try_fail_over(caught.value), "there is no other"
        delays.append(members.next_delay())
        members.delay_elapsed()
    assert delays == sorted(set(delays))
    members.succeeded()
    assert members.next_delay() == delays[0]


# A log that the server can't read.


def relaying(master: Master) -> Serve:
    """A member that also streams."""

    def serve(connection: socket.socket) -> None:
        server = MasterConnection(master)
        connection.settimeout(0.01)
        while not server.is_closed:
            if server.is_streaming:
                server.relay()
            connection.sendall(server.data_to_send())
            with contextlib.suppress(TimeoutError):
                data = connection.recv(4096)
                if not data:
                    return
                server.receive_data(data)
        connection.sendall(server.data_to_send())

    return serve


def followed_again(scene: Scene, members: Members, *, forced: str | None = None) -> bool:
    """One more connection up to what the master has; its error goes the way that the supervisor gives it."""
    writer = scene.writer if scene.config.state.images == "full" else None
    known = known_before(scene.config, scene.checkpoint, writer, forced=forced)
    goal = Goal(until_caught_up=True)
    beginning = Beginning(known, scene.checkpoint, scene.publisher, writer, goal, scene.observations)
    with members.opened(beginning) as stream:
        try:
            return stream.run()
        except CdcError as error:
            members.failed(error)
            stream.collect_submitted()
            if scene.observations.recognizes_rows:
                raise
    # The row before the position can't be had, which is no gap.
    return followed_again(scene, members)


@pytest.mark.parametrize("version", ["2.6", "2.11", "3.3"])
def test_a_damaged_log_is_a_gap_unless_it_is_the_present_one(scene: Scene, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.sources.log_end, "PATIENCE_SECONDS", 0.3)
    master = Master(version)
    master.create_space("users", ["id", "name"])
    listener = Listener(relaying(master))
    members = members_of(scene, [f"cdc:secret@127.0.0.1:{listener.port}"])
    assert followed_again(scene, members)
    master.insert("users", 1, "streamed")
    master.damaged_before = 10_000
    snapshot_id = scene.checkpoint.position
    with pytest.raises(LogDamagedError, match=r"can't read its own logs.*tx checksum mismatch.*on_gap") as caught:
        followed_again(scene, members)
    # The present log is the damaged one: a snapshot would be followed by the next.
    for _ in range(2):
        with pytest.raises(ServerError, match=r"the log that it is writing now.*box\.snapshot\(\)") as waits:
            followed_again(scene, members, forced=caught.value.message)
        assert waits.value.remedy is Remedy.WAIT
    assert scene.checkpoint.position == snapshot_id
    # With a new log the snapshot heals the gap.
    master.damaged_before = master.vclock[1]
    assert followed_again(scene, members, forced=caught.value.message)
    assert scene.checkpoint.position is not None
    assert scene.checkpoint.position.vclock == VClock(master.vclock)
    assert scene.checkpoint.position.snapshot is not None
    assert scene.checkpoint.position.snapshot.snapshot_id == 2
    assert scene.writer.store.row_count == 1
    master.insert("users", 2, "streamed")
    assert followed_again(scene, members), "and it isn't asked any more"
    listener.close()


# Another history with the same lsns.


@pytest.mark.parametrize("images", ["full", "none"])
@pytest.mark.parametrize("seen", ["in a snapshot", "in the stream"])
def test_another_history_with_the_same_lsns(scene: Scene, images: str, seen: str) -> None:
    """The master lost the end of its log, and is past our position by the time that we look."""
    master = Master("2.6")
    master.create_space("users", ["id", "name"])
    listener = Listener(relaying(master))
    members = members_of(scene, [f"cdc:secret@127.0.0.1:{listener.port}"], state={"images": images})
    if images == "none":
        scene.writer.close()
    if seen == "in the stream":
        assert followed_again(scene, members)
    log, before = list(master.log), master.vclock
    master.begin()
    master.insert("users", 1, "lost")
    master.insert("users", 2, "lost")
    master.commit()
    assert followed_again(scene, members)
    assert followed_again(scene, members), "the same history is followed on"
    committed = list(scene.delivery.committed)
    master.log, master._lsns = log, before
    for number in (101, 102, 103, 104):
        master.insert("users", number, "under a lost lsn")
    with pytest.raises(OtherHistoryError, match=r"row 1:15, .* isn't the one that was published.*on_divergence"):
        followed_again(scene, members)
    assert scene.delivery.committed == committed, "nothing of it is published"
    # The policy is to take a snapshot, which the supervisor asks for.
    assert followed_again(scene, members, forced="another history")
    assert followed_again(scene, members)
    listener.close()


def test_rows_that_a_master_wrote_anew_are_the_same_history(scene: Scene) -> None:
    """It got the lost rows back from another member: with new times, as its log has them since."""
    master = Master("2.6")
    master.create_space("users", ["id", "name"])
    listener = Listener(relaying(master))
    members = members_of(scene, [f"cdc:secret@127.0.0.1:{listener.port}"])
    assert followed_again(scene, members)
    master.insert("users", 1, "kept by another member")
    assert followed_again(scene, members)
    master.log[-1] = replace(master.log[-1], timestamp=master.log[-1].timestamp + 60)
    master.insert("users", 2, "new")
    assert followed_again(scene, members)
    assert scene.topics().count("shop.users") == 2
    listener.close()


# Servers of another replica set.

OTHER = UUID("cccccccc-0000-4000-8000-000000000001")


class Foreign:
    """A server of another replica set, with rows in a space of ours."""

    def __init__(self) -> None:
        self.master = Master("2.11")
        self.master.replicaset_uuid = OTHER
        self.master.replace(SCHEMA, "cluster", str(OTHER))
        self.master.create_space("users", ["id", "name"])
        for number in range(9):
            self.master.insert("users", number, "foreign")
        self.listener = Listener(serving(self.master))
        self.uri = f"{self.master.user}:{self.master.password}@127.0.0.1:{self.listener.port}"


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    made = Foreign()
    yield made
    made.listener.close()


def members_of(scene: Scene, uris: list[str], **sections: dict[str, Any]) -> Members:
    """Other members for the scene's daemon, with other settings."""
    source = scene.config.source.model_copy(update={"uris": list(map(SecretStr, uris))})
    config = scene.config.model_copy(update={"source": source})
    for name, values in sections.items():
        config = config.model_copy(update={name: getattr(config, name).model_copy(update=values)})
    scene.config = config
    return Members(RunContext(config, scene.status, scene.is_stopping), scene.requests)


@pytest.mark.parametrize(
    ("what", "sections"),
    [
        ("a gap", {}),
        ("a gap", {"source": {"mode": "registered"}}),
        ("behind", {"source": {"on_divergence": "resnapshot"}}),
        ("ahead", {"snapshot": {"mode": "always"}}),
        ("ahead", {"snapshot": {"mode": "when_needed"}}),
    ],
)
def test_nothing_of_another_replica_set_is_used(
    scene: Scene, foreign: Foreign, what: str, sections: dict[str, dict[str, Any]]
) -> None:
    """Its server has come behind our address, in a state for which the policy would be to take a snapshot."""
    with scene.members.opened(scene.beginning(until_caught_up=True)) as stream:
        assert stream.run()
    before, count = list(scene.delivery.committed), len(foreign.master.log)
    position = scene.checkpoint.position
    assert position is not None
    if what == "a gap":
        foreign.master.gc_vclock = foreign.master.vclock
    if what == "behind":
        scene.checkpoint.position = replace(position, vclock=VClock({1: 1000}))
    members = members_of(scene, [foreign.uri], **sections)
    with pytest.raises(ForeignServerError) as caught, members.opened(scene.beginning(until_caught_up=True)):
        pytest.fail("it is followed")
    assert f"127.0.0.1:{foreign.listener.port}: the server belongs to replica set {OTHER}" in str(caught.value)
    assert "resnapshot" not in str(caught.value)
    assert not members.try_fail_over(caught.value), "there is no other"
    assert scene.delivery.committed == before
    assert (len(foreign.master.log), foreign.master.consumers) == (count, {}), "nothing was asked of it either"


def test_a_wrong_second_address_is_not_taken_for_the_right_member(scene: Scene, foreign: Foreign) -> None:
    with scene.members.opened(scene.beginning(until_caught_up=True)) as stream:
        assert stream.run()
    away = f"cdc:secret@127.0.0.1:{free_port()}"
    foreign.master.gc_vclock = foreign.master.vclock
    members = members_of(scene, [away, foreign.uri], source={"divergence_wait_ms": 0, "on_divergence": "resnapshot"})
    for _ in range(3):
        beginning = scene.beginning(until_caught_up=True)
        with pytest.raises(NobodyError, match=f"belongs to replica set {OTHER}") as caught, members.opened(beginning):
            pytest.fail("it is followed")
        assert caught.value.remedy is Remedy.WAIT
        members.delay_elapsed()
    assert [one.state for one in scene.status.upstreams] == ["unreachable", "refused"]


def test_a_first_start_with_members_of_two_replica_sets(scene: Scene, foreign: Foreign) -> None:
    ours = Listener(serving(Master("2.11")))
    members = members_of(scene, [f"cdc:secret@127.0.0.1:{ours.port}", foreign.uri])
    beginning = scene.beginning(until_caught_up=True)
    with pytest.raises(ForeignServerError, match="2 replica sets") as caught, members.opened(beginning):
        pytest.fail("one of them is followed")
    ours.close()
    assert str(OTHER) in str(caught.value)
    assert str(REPLICASET) in str(caught.value)
    assert not members.try_fail_over(caught.value)
    assert not scene.delivery.committed


def test_verify_compares_nothing_with_another_replica_set(scene: Scene, foreign: Foreign) -> None:
    with scene.members.opened(scene.beginning(until_caught_up=True)) as stream:
        assert stream.run()
    scene.writer.flush(is_forced=True)
    scene.writer.close()
    foreign.master.gc_vclock = foreign.master.vclock
    members_of(scene, [foreign.uri])
    lines: list[str] = []
    with pytest.raises(ForeignServerError, match=f"belongs to replica set {OTHER}"):
        verify(scene.config.model_copy(update={"name": "x"}), lines.append)
    assert not lines
