"""A replica set as the daemon's source: a real follower, publisher, store and socket. The master and Kafka are fakes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.config import Config, parse
from cdc.daemon.follower import Goal
from cdc.daemon.members import Members
from cdc.daemon.source import Beginning
from cdc.daemon.start import known_before
from cdc.errors import ConnectionLostError
from cdc.kafka.publisher import Publisher
from cdc.ops.backfill_queue import SnapshotRequests
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.store.writer import StateWriter
from cdc.stream.checkpoint import Checkpoint, Writer
from tests.daemon.test_ack_intervals import ServedMaster
from tests.fakes.deliveries import OpenDelivery
from tests.fakes.kafka import Cluster, clients
from tests.live.waiting import wait_for


class Scene:
    """One daemon's members and what their rows go into."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        delivery = OpenDelivery()
        delivery.gate.set()
        self.config = config
        self.delivery = delivery
        self.publisher = Publisher("x", config.kafka, Writer("w", has_store=True), clients(Cluster()))
        monkeypatch.setattr(self.publisher, "_started", delivery)
        monkeypatch.setattr(self.publisher._topic_admin, "ensure", lambda *_: None)
        self.publisher._thread.start()
        self.writer = StateWriter(config.state.path / "images", "x", 0.0)
        self.checkpoint = Checkpoint()
        self.status, self.requests, self.is_stopping = Status("x"), SnapshotRequests(), threading.Event()
        self.members = Members(config, self.status, self.is_stopping, self.requests)

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
    scene.requests.submit(["users"])
    wait_for("the rows once more", lambda: scene.topics().count("shop.users") == 4)
    served.write(1)
    wait_for("a change", lambda: scene.topics().count("shop.users") == 5)
    scene.is_stopping.set()
    following.join(60)
    assert not following.is_alive()
    assert (scene.requests.is_open, errors) == (False, [])


def test_a_member_that_is_not_there_is_waited_for_longer_and_longer(scene: Scene) -> None:
    source = scene.config.source.model_copy(update={"uris": [SecretStr("cdc:secret@127.0.0.1:1")]})
    members = Members(scene.config.model_copy(update={"source": source}), scene.status, scene.is_stopping, scene.requests)
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
