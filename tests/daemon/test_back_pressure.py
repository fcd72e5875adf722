"""What is queued, and what the store has yet to get, is bounded, whatever there is to hand over. A real publisher and store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.config import Config, parse
from cdc.daemon.beginning import Beginning, Goal, Observations, RunContext
from cdc.daemon.runner import PipelineRunner, Server
from cdc.daemon.snapshot_loader import SnapshotIntake
from cdc.daemon.start import known_before
from cdc.errors import PublishAborted
from cdc.kafka.publisher import Publisher
from cdc.ops.status import Status
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.ballot import Ballot
from cdc.protocol.constants import Key, Type
from cdc.schema.forms import StoredSpace
from cdc.store.writer import StateWriter
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.batches.options import PipelineOptions
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.upstream.start import plan
from tests.fakes import wire
from tests.fakes.captures import REPLICASET
from tests.fakes.deliveries import OpenDelivery
from tests.fakes.kafka import Cluster, clients
from tests.fakes.master import SERVER
from tests.fakes.pipelines import frames_of
from tests.fakes.tuples import changes_of
from tests.live.waiting import wait_for

MEBIBYTE = 1024 * 1024
COUNT = 100_000
SPACE = StoredSpace(
    512,
    [512, 1, "users", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]],
    {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
    1,
)
BEGIN = Position(VClock({1: 10}), 0, 1, REPLICASET, SERVER, SnapshotState(1, is_complete=True))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A queue of 1 MiB."""
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop", "queue_bytes_max": MEBIBYTE, "commit_interval_ms": 1}
    source = {"uris": ["a@127.0.0.1:1"], "ack_interval_ms": 10}
    return parse({"name": "x", "source": source, "kafka": kafka, "state": {"path": str(tmp_path)}}, "the test")


class Way:
    """A settlement with all that is behind it; remembers how much has been queued at most."""

    def __init__(self, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delivery = OpenDelivery()
        self.publisher = Publisher("x", config.kafka, Writer("w", has_store=True), clients(Cluster()))
        monkeypatch.setattr(self.publisher._loop, "started", self.delivery)
        monkeypatch.setattr(self.publisher._topic_admin, "ensure", lambda *_: None)
        self.publisher._thread.start()
        self.writer = StateWriter(config.state.path / "images", "x", 0.01)
        self.status = Status("x")
        self.is_stopping = threading.Event()
        self.checkpoint = Checkpoint(BEGIN, {512: SPACE})
        self.config = config
        self.observations = Observations()
        self.queued: list[int] = []
        submit = self.publisher.submit

        def watched(batch: Batch) -> None:
            submit(batch)
            self.queued.append(self.publisher.queued_bytes)

        monkeypatch.setattr(self.publisher, "submit", watched)
        self.waits_for_room = threading.Event()
        wait = self.publisher.wait_for_room

        def waited_for(timeout_seconds: float) -> bool:
            self.waits_for_room.set()
            return wait(timeout_seconds)

        monkeypatch.setattr(self.publisher, "wait_for_room", waited_for)

    def runner(self) -> PipelineRunner:
        """Begins at the checkpoint."""
        assert self.checkpoint.position is not None
        ballot = Ballot(self.checkpoint.position.vclock, VClock(), is_read_only=False, is_ready=True)
        known, goal = known_before(self.config, self.checkpoint, self.writer), Goal(until_caught_up=False)
        beginning = Beginning(known, self.checkpoint, self.publisher, self.writer, goal, self.observations)
        context = RunContext(self.config, self.status, self.is_stopping)
        return PipelineRunner(context, beginning, plan(known, ballot), Server(SERVER, (2, 6, 0), "m"))

    def fill(self, count: int) -> None:
        """The store has so many rows, as of BEGIN."""
        self.writer.begin((), (2, 6))
        changes: list[tuple[bytes, bytes | None]] = [
            (bytes.fromhex("00000200") + number.to_bytes(9, "big"), bytes.fromhex("91ce") + number.to_bytes(4, "big"))
            for number in range(count)
        ]
        self.writer.submit(Batch([], 0, 0, 0, BEGIN, True, {512: SPACE}, [], 0.0, changes_of(changes), True))
        self.writer.mark_committed(BEGIN)
        self.writer.flush(is_forced=True)


@pytest.fixture
def way(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Kafka takes nothing at first."""
    way = Way(config, monkeypatch)
    yield way
    way.delivery.gate.set()
    way.publisher.stop(20)
    way.writer.close()


def rows(first: int, count: int) -> bytes:
    return b"".join(
        wire.frame(
            {Key.REQUEST_TYPE: Type.INSERT, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.0},
            {Key.SPACE_ID: 512, Key.TUPLE: [lsn, "x" * 500]},
        )
        for lsn in range(first, first + count)
    )


def in_thread(work: threading.Thread) -> threading.Thread:
    work.start()
    return work


def test_deletes_of_what_a_snapshot_lacks(way: Way) -> None:
    way.fill(COUNT)
    runner = way.runner()
    intake = SnapshotIntake(runner, way.checkpoint, way.status, runner._log, publish=True)
    bodies = [{16: 272, 33: ["cluster", str(REPLICASET)]}, {16: 280, 33: SPACE.space_row}, {16: 288, 33: SPACE.index_rows[0]}]

    def take() -> None:
        with intake:
            intake.begin(VClock({1: 20}))
            intake.rows(frames_of(b"".join(wire.frame({0: 2, 1: 1}, body) for body in bodies)))
            intake.end()
            intake.wait_until_durable()

    taking = in_thread(threading.Thread(target=take))
    assert way.waits_for_room.wait(120), f"it doesn't wait, with {way.publisher.queued_bytes:,} bytes in the queue"
    way.delivery.gate.set()
    taking.join(120)
    assert not taking.is_alive()
    values = [message[2] for message in way.delivery.committed if not isinstance(message, Broadcast)]
    assert sum(1 for value in values if value and b'"op":"d"' in value) == COUNT
    assert way.writer.store.row_count == 0
    # Up to the bound, and the batch that went over it, which itself goes over its bound by one event.
    assert max(way.queued) <= MEBIBYTE + PipelineOptions("", [], []).batch_bytes_max + 1000, f"{max(way.queued):,} bytes"


def test_what_the_store_has_yet_to_get(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose events are small against what the images keep of them: no more of them are taken than memory may hold."""
    bound = 200_000
    monkeypatch.setattr("cdc.daemon.runner.UNWRITTEN_BYTES_MAX", bound)
    way.delivery.gate.set()
    monkeypatch.setattr(way.delivery, "commit", held := Held(way.delivery.commit))
    runner, most = way.runner(), list[int]()

    def take() -> None:
        for first in range(11, 3011, 100):
            runner.submit_all(runner.pipeline.feed(frames_of(rows(first, 100)), 1))
            most.append(way.writer.unwritten_bytes)
        runner.wait_until_settled()

    taking = in_thread(threading.Thread(target=take))
    wait_for("it to wait for the store", lambda: way.status.unwritten_bytes >= bound and not runner.has_room)
    assert taking.is_alive()
    held.is_released.set()
    taking.join(120)
    assert max(most) <= bound + 100 * 1000
    assert (way.writer.store.row_count, way.writer.unwritten_bytes) == (3000, 0)


class Held:
    """A call that waits until it is released."""

    def __init__(self, call: object) -> None:
        self._call = call
        self.is_released = threading.Event()

    def __call__(self, *arguments: object) -> object:
        assert self.is_released.wait(60)
        assert callable(self._call)
        return self._call(*arguments)


def test_a_stop_ends_the_wait(way: Way) -> None:
    runner = way.runner()
    errors = list[Exception]()

    def take() -> None:
        try:
            for first in range(11, 100_000, 100):
                runner.submit_all(runner.pipeline.feed(frames_of(rows(first, 100)), 1))
        except PublishAborted as error:
            errors.append(error)

    taking = in_thread(threading.Thread(target=take))
    wait_for("a full queue", lambda: not way.publisher.has_room)
    way.is_stopping.set()
    taking.join(60)
    assert [str(error) for error in errors] == ["stopped while Kafka had no room for more"]
