"""A source that ends within a transaction that is being published: nothing of it stays, and nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cdc.config import Config, parse
from cdc.daemon.beginning import Beginning, Goal, Observations, RunContext
from cdc.daemon.runner import PipelineRunner, Server
from cdc.daemon.start import known_before
from cdc.errors import CdcError, ConnectionLostError, PublishAborted, SchemaError
from cdc.kafka.publisher import Publisher
from cdc.ops.status import Status
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position, SnapshotState
from cdc.positions.vclock import VClock
from cdc.protocol.constants import Flag, Key, Type
from cdc.schema.forms import StoredSpace
from cdc.store.numbers_file import NumbersFile
from cdc.stream.batches.batch import Broadcast
from cdc.stream.commits.checkpoint import Checkpoint, Writer
from cdc.upstream.start import StartPlan
from tests.fakes import wire
from tests.fakes.deliveries import OpenDelivery
from tests.fakes.kafka import Cluster, clients
from tests.fakes.master import SERVER
from tests.fakes.pipelines import frames_of

COUNT = 400
SPACE = StoredSpace(
    512,
    [512, 1, "users", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}]],
    {0: [512, 0, "pk", "tree", {}, [[0, "unsigned"]]]},
    1,
)
OTHER = UUID("aaaaaaaa-0000-4000-8000-000000000002")
BEGIN = Position(VClock({1: 10}), 0, 1, SERVER, SERVER, SnapshotState(1, is_complete=True))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Buffers so small that a transaction comes in many pieces, and the queue is full after the first."""
    monkeypatch.setattr("cdc.store.spool.CHUNK_BYTES", 10_000)
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop", "queue_bytes_max": 1024, "commit_interval_ms": 1}
    source = {"uris": ["a@127.0.0.1:1"], "transaction_bytes_max": 1024, "ack_interval_ms": 10}
    state = {"path": str(tmp_path), "images": "none"}
    return parse({"name": "x", "source": source, "kafka": kafka, "state": state}, "the test")


@pytest.fixture
def delivery() -> OpenDelivery:
    """Closed at first."""
    return OpenDelivery()


@pytest.fixture
def publisher(config: Config, delivery: OpenDelivery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Its thread runs, without a broker."""
    publisher = Publisher("x", config.kafka, Writer("w", has_store=False), clients(Cluster()))
    monkeypatch.setattr(publisher._loop, "started", delivery)
    monkeypatch.setattr(publisher._topic_admin, "ensure", lambda *_: None)
    publisher._thread.start()
    yield publisher
    delivery.gate.set()
    publisher.stop(20)


def row(lsn: int, tsn: int, flags: int = 0, *, is_bad: bool = False) -> bytes:
    header = {Key.REQUEST_TYPE: Type.INSERT, Key.REPLICA_ID: 1, Key.LSN: lsn, Key.TIMESTAMP: 2.0, Key.TSN: lsn - tsn}
    return wire.frame(
        header | ({Key.FLAGS: flags} if flags else {}), {Key.SPACE_ID: 512, Key.TUPLE: [] if is_bad else [lsn, "x" * 300]}
    )


def follow(source: PipelineRunner, *, is_bad: bool = False) -> None:
    """Feed one transaction that waits on disk for its end."""
    last = 10 + COUNT
    rows = [row(lsn, 11, Flag.COMMIT if lsn == last else 0, is_bad=is_bad and lsn == last - 1) for lsn in range(11, last + 1)]
    for start in range(0, COUNT, 100):
        source.submit_all(source.pipeline.feed(frames_of(b"".join(rows[start : start + 100])), 1))


def follow_singles(source: PipelineRunner) -> None:
    """Feed transactions of one row each."""
    for lsn in range(11, 11 + COUNT):
        source.submit_all(source.pipeline.feed(frames_of(row(lsn, lsn, Flag.COMMIT)), 1))


def runner(config: Config, publisher: Publisher, *, is_cut: bool = False) -> PipelineRunner:
    def cut() -> None:
        if is_cut:
            raise ConnectionLostError("the connection broke while sending")

    server, stored = Server(SERVER, (2, 6, 0), "m"), Checkpoint(BEGIN, {512: SPACE})
    plan = StartPlan(BEGIN)
    return runner_of(config, publisher, stored, plan, server, while_waiting=cut)


def runner_of(
    config: Config,
    publisher: Publisher,
    stored: Checkpoint,
    plan: StartPlan,
    server: Server,
    *,
    observations: Observations | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> PipelineRunner:
    known, goal = known_before(config, stored, None), Goal(until_caught_up=False)
    beginning = Beginning(known, stored, publisher, None, goal, observations or Observations())
    context = RunContext(config, Status("x"), threading.Event())
    return PipelineRunner(context, beginning, plan, server, while_waiting=while_waiting)


@pytest.mark.parametrize(
    ("delivery_mode", "is_open", "uris", "follows", "seq"),
    [
        ("at_least_once", False, 1, SERVER, 5),
        ("at_least_once", True, 1, SERVER, 57),
        ("at_least_once", False, 2, SERVER, 57),
        ("at_least_once", False, 1, OTHER, 57),
        ("exactly_once", True, 2, OTHER, 5),
    ],
)
def test_what_comes_now_is_behind_what_may_be_seen_unless_it_is_the_same_once_more(
    config: Config,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    delivery_mode: str,
    uris: int,
    follows: UUID,
    seq: int,
    *,
    is_open: bool,
) -> None:
    """Rows of a request, and another member's order of the origins, take seqs that were out already."""
    monkeypatch.setattr(publisher, "newest_numbers", lambda: Numbers(57))
    kafka = config.kafka.model_copy(update={"delivery": delivery_mode})
    source = config.source.model_copy(update={"uris": config.source.uris * uris})
    config = config.model_copy(update={"kafka": kafka, "source": source})
    state = SnapshotState(2, is_complete=True, request_count=1, open_request=2 if is_open else 0)
    begin = replace(BEGIN, seq=5, snapshot=state)
    server, stored = Server(follows, (2, 6, 0), "m"), Checkpoint(Position.from_json(begin.to_json()), {512: SPACE})
    found = runner_of(config, publisher, stored, StartPlan(begin), server).pipeline.position
    assert (found.seq, found.vclock) == (seq, begin.vclock)
    assert found.snapshot == state


@pytest.mark.parametrize(
    ("former", "delivery_mode", "excluded", "seq"),
    [
        ("at_least_once", "exactly_once", [], 5),
        ("at_least_once", "exactly_once", ["users"], 57),
        ("at_least_once", "at_least_once", ["users"], 57),
        ("exactly_once", "exactly_once", ["users"], 5),
    ],
)
def test_other_spaces_and_another_delivery_than_in_the_run_before(
    config: Config,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    former: str,
    delivery_mode: str,
    excluded: list[str],
    seq: int,
) -> None:
    """The same rows don't get the same seqs if fewer spaces are published, and new ones would be below those seen already."""
    monkeypatch.setattr(publisher, "newest_numbers", lambda: Numbers(57))
    kafka = config.kafka.model_copy(update={"delivery": delivery_mode})
    spaces = config.spaces.model_copy(update={"exclude": excluded})
    config = config.model_copy(update={"kafka": kafka, "spaces": spaces})
    begin = replace(BEGIN, seq=5, snapshot=SnapshotState(1, is_complete=True))
    numbers = NumbersFile(tmp_path / "numbers", "shop", "shop")
    numbers.begin(None, former)
    server, stored = Server(SERVER, (2, 6, 0), "m"), Checkpoint(begin, {512: SPACE})
    found = runner_of(
        config,
        publisher,
        stored,
        StartPlan(begin),
        server,
        observations=Observations(numbers=numbers),
    ).pipeline.position
    assert found.seq == seq


@pytest.mark.parametrize(("is_bad", "error"), [(False, ConnectionLostError), (True, SchemaError)])
def test_source_that_ends_within_a_transaction(
    config: Config, publisher: Publisher, delivery: OpenDelivery, error: type[CdcError], *, is_bad: bool
) -> None:
    if is_bad:
        delivery.gate.set()
    cut = runner(config, publisher, is_cut=not is_bad)
    with pytest.raises(error):
        follow(cut, is_bad=is_bad)
    cut.pipeline.close()
    delivery.gate.set()
    with pytest.raises(PublishAborted, match="within a transaction"):
        cut.wait_until_settled()
    assert (delivery.open, delivery.committed) == ([], [])

    publisher.reset()
    again = runner(config, publisher)
    follow(again)
    assert again.wait_until_settled()
    events = [message for message in delivery.committed if not isinstance(message, Broadcast) and message[0] == "shop.users"]
    assert [msgspec.json.decode(key or b"")["id"] for _, key, _ in events] == list(range(11, 11 + COUNT))


@pytest.mark.timeout(60)
def test_source_that_ends_while_a_transaction_waits_for_room(
    config: Config, publisher: Publisher, delivery: OpenDelivery
) -> None:
    """That transaction comes again over the next connection. It was never handed over, so nobody settles it."""
    cut = runner(config, publisher, is_cut=True)
    with pytest.raises(ConnectionLostError):
        follow_singles(cut)
    cut.pipeline.close()
    delivery.gate.set()
    assert cut.wait_until_settled()
    position = cut._checkpoint.position
    assert position is not None
    assert BEGIN.vclock[1] < position.vclock[1] < 10 + COUNT
    assert cut.pipeline.ledger.published == position.vclock == cut.published
