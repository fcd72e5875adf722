"""Whatever the daemon has to wait for, the master goes on hearing ACKs: each thing is made to wait until many have come.

A real follower, publisher, store and socket; the master and Kafka are fakes. Nothing here depends on how long something takes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cdc.config import Config, parse
from cdc.daemon.beginning import Beginning, Goal, RunContext
from cdc.daemon.follower import Follower
from cdc.daemon.runner import PipelineRunner
from cdc.daemon.start import known_before
from cdc.kafka.publisher import Publisher
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.protocol.session import Event
from cdc.sources.handshake import greet, vote
from cdc.store.spool import FileSpool
from cdc.store.store import StateStore
from cdc.store.writer import StateWriter
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.upstream.start import plan
from tests.fakes.deliveries import OpenDelivery
from tests.fakes.kafka import Cluster, clients
from tests.fakes.master import Master, MasterConnection
from tests.live.waiting import wait_for

ENOUGH = 20
LARGE = 2_000
"""Rows of a transaction that is too large for memory."""


class ServedMaster:
    """A master at a port, for one replica."""

    def __init__(self) -> None:
        self.master = Master("2.11")
        self.master.create_space("users", ["id", "name"])
        self._lock = threading.Lock()
        self._connection: MasterConnection | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def acks(self) -> list[VClock]:
        """What has been acknowledged."""
        with self._lock:
            return [] if self._connection is None else [VClock(ack.vclock) for ack in self._connection.acks]

    def write(self, row_count: int) -> None:
        """One transaction."""
        with self._lock:
            self.master.begin()
            for number in range(row_count):
                self.master.replace("users", number, "x" * 100)
            self.master.commit()

    def close(self) -> None:
        """Nobody is served any more."""
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            replica, _ = self._listener.accept()
            with self._lock:
                self._connection = MasterConnection(self.master)
            while True:
                with self._lock:
                    if self._connection.is_streaming:
                        self._connection.relay()
                    data = self._connection.data_to_send()
                replica.settimeout(60)
                replica.sendall(data)
                replica.settimeout(0.005)
                with contextlib.suppress(TimeoutError):
                    data = replica.recv(4096)
                    if not data:
                        return
                    with self._lock:
                        self._connection.receive_data(data)


class Blocked:
    """A call that doesn't return before it is released."""

    def __init__(self) -> None:
        self.is_waiting = threading.Event()
        self.is_released = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> None:
        self.is_waiting.set()
        assert self.is_released.wait(60)


@pytest.fixture
def served() -> Iterator[ServedMaster]:
    """A master."""
    served = ServedMaster()
    yield served
    served.close()


@pytest.fixture
def config(tmp_path: Path, served: ServedMaster) -> Config:
    """Small buffers, and an ACK every 10 ms."""
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop", "queue_bytes_max": 2048, "commit_interval_ms": 1}
    source = {
        "uris": [f"{served.master.user}:{served.master.password}@127.0.0.1:{served.port}"],
        "transaction_bytes_max": 10_000,
        "ack_interval_ms": 10,
        "replication_timeout_ms": 12_000,
    }
    return parse({"name": "x", "source": source, "kafka": kafka, "state": {"path": str(tmp_path)}}, "the test")


class Running:
    """A follower in a thread, behind its snapshot."""

    def __init__(self, config: Config, delivery: OpenDelivery, monkeypatch: pytest.MonkeyPatch) -> None:
        delivery.gate.set()
        self.publisher = Publisher("x", config.kafka, Writer("w", has_store=True), clients(Cluster()))
        monkeypatch.setattr(self.publisher._loop, "started", delivery)
        monkeypatch.setattr(self.publisher._topic_admin, "ensure", lambda *_: None)
        self.publisher._thread.start()
        self.status = Status("x")
        self.writer = StateWriter(config.state.path / "images", "x", 0.0)
        self.is_stopping = threading.Event()
        self.connection = greet(config.source.members()[0], uuid4(), frame_bytes_max=config.source.frame_bytes_max)
        checkpoint, ballot = Checkpoint(), vote(self.connection)
        known = known_before(config, checkpoint, self.writer)
        beginning = Beginning(known, checkpoint, self.publisher, self.writer, Goal(until_caught_up=False))
        context = RunContext(config, self.status, self.is_stopping)
        self.follower = Follower(context, beginning, self.connection, plan(known, ballot), ballot)
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.follower.run()
        except BaseException as error:  # the test says what it was
            self.errors.append(error)
            raise

    def close(self) -> None:
        """Let go of everything."""
        self.is_stopping.set()
        self.thread.join(60)
        self.connection.close()
        self.publisher.stop(20)
        self.writer.close()


@pytest.fixture
def running(config: Config, monkeypatch: pytest.MonkeyPatch, delivery: OpenDelivery) -> Iterator[Running]:
    """It streams."""
    running = Running(config, delivery, monkeypatch)
    try:
        wait_for("the stream", lambda: running.status.state == "streaming" or running.errors)
        yield running
    finally:
        delivery.gate.set()
        running.close()


@pytest.fixture
def delivery() -> OpenDelivery:
    """Open at first."""
    return OpenDelivery()


@pytest.mark.parametrize("what", ["the store", "the spool", "room in the queue", "the settling", "the turn"])
def test_acks_go_on_while_the_daemon_waits(
    what: str, served: ServedMaster, running: Running, delivery: OpenDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked, turn = Blocked(), threading.Lock()
    match what:
        case "the store":
            monkeypatch.setattr(StateStore, "write", before(blocked, StateStore.write))
        case "the spool":
            monkeypatch.setattr(FileSpool, "append", before(blocked, FileSpool.append))
        case "room in the queue":
            delivery.gate.clear()
        case "the settling":
            monkeypatch.setattr(PipelineRunner, "collect_commits", before(blocked, PipelineRunner.collect_commits))
        case "the turn":
            turn.acquire()
            monkeypatch.setattr(running.publisher, "row_work_lock", turn)
    served.write(LARGE)
    if what == "room in the queue":
        wait_for("it to be full", lambda: not running.publisher.has_room)
    elif what != "the turn":
        assert blocked.is_waiting.wait(60), running.errors
    count = len(served.acks)
    wait_for(f"{ENOUGH} ACKs while {what} keeps it waiting", lambda: len(served.acks) >= count + ENOUGH or running.errors)
    assert not running.errors
    # Released, it goes on, and says so.
    blocked.is_released.set()
    delivery.gate.set()
    if what == "the turn":
        turn.release()
    wait_for("the ACK of everything", lambda: served.acks[-1:] == [VClock(served.master.vclock)] or running.errors)
    assert not running.errors


def test_what_kafka_has_not_committed_is_not_acknowledged(served: ServedMaster, running: Running, delivery: OpenDelivery) -> None:
    served.write(1)
    durable = VClock(served.master.vclock)
    wait_for("the ACK of everything", lambda: served.acks[-1:] == [durable] or running.errors)
    delivery.gate.clear()
    served.write(1)
    published = VClock(served.master.vclock)
    wait_for("it to be published", lambda: running.follower._pipeline.ledger.published == published or running.errors)
    count = len(served.acks)
    wait_for(f"{ENOUGH} ACKs", lambda: len(served.acks) >= count + ENOUGH or running.errors)
    assert all(ack == durable for ack in served.acks[count:])
    delivery.gate.set()
    wait_for("the ACK of everything", lambda: served.acks[-1:] == [published] or running.errors)
    assert not running.errors


def before(first: Blocked, then: Any) -> Any:
    """A method that waits before it does its work."""

    def method(*arguments: Any, **options: Any) -> Any:
        first()
        return then(*arguments, **options)

    return method


def test_rows_that_are_not_wanted_yet_are_no_silence(
    served: ServedMaster, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher wakes the follower before it wants rows, and the last look at them was long ago."""
    connection, is_asked, is_overdue = running.connection, threading.Event(), threading.Event()
    receive = connection.receive

    def woken(timeout_seconds: float, wake_fd: int = -1, **_: object) -> list[Event]:
        if wake_fd < 0:
            return receive(timeout_seconds)
        is_asked.set()
        connection.wait(0.005)
        with contextlib.suppress(BlockingIOError):
            if connection._socket.recv(1, socket.MSG_PEEK):
                running.follower.last_heard_at -= 1_000
                is_overdue.set()
        return []

    monkeypatch.setattr(connection, "receive", woken)
    assert is_asked.wait(60)
    before_them = running.status.row_count
    served.write(3)
    wait_for("the rows", lambda: running.errors or running.status.row_count >= before_them + 3)
    assert not running.errors
    assert is_overdue.is_set()
