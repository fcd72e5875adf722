"""What a stream hands over when there is a state store: where the rows go, what is acknowledged, and what a stop leaves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cdc.config import Config, parse
from cdc.errors import ConnectionLostError, PublishAborted, StateError
from cdc.ops.troubles import current
from cdc.positions.numbers import Numbers
from cdc.positions.position import SnapshotState
from cdc.positions.vclock import VClock
from cdc.store.numbers_file import RESERVED_SEQS, NumbersFile, read
from cdc.stream.batches.batch import Batch, Broadcast
from cdc.stream.pipeline import Pipeline
from cdc.stream.transactions.limbo import LimboState
from tests.daemon.test_back_pressure import BEGIN, Way, rows
from tests.fakes.pipelines import frames_of


@pytest.fixture
def config(tmp_path: Path) -> Config:
    kafka = {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop", "commit_interval_ms": 1}
    source = {"uris": ["a@127.0.0.1:1"], "ack_interval_ms": 10}
    return parse({"name": "x", "source": source, "kafka": kafka, "state": {"path": str(tmp_path)}}, "the test")


@pytest.fixture
def way(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """Kafka takes nothing at first; the store has three rows, as of the checkpoint."""
    way = Way(config, monkeypatch)
    way.fill(3)
    yield way
    way.delivery.gate.set()
    way.publisher.stop(20)
    way.writer.close()


def ids(way: Way) -> list[int]:
    """Of the rows whose events are committed."""
    return [
        msgspec.json.decode(message[1] or b"")["id"]
        for message in way.delivery.committed
        if not isinstance(message, Broadcast) and message[0] == "shop.users"
    ]


def test_nothing_is_acknowledged_before_kafka_and_the_store_have_it(way: Way) -> None:
    runner = way.runner()
    runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 5)), 1))
    runner.collect_commits(is_forced=True)
    assert runner.published == way.status.published == VClock({1: 15})
    assert (runner.pipeline.ledger.acknowledged, runner.needed().logs_from) == (VClock({1: 10}), VClock({1: 10}))
    assert way.writer.store.row_count == 3
    way.delivery.gate.set()
    assert runner.wait_until_settled()
    assert ids(way) == [11, 12, 13, 14, 15]
    assert (runner.pipeline.ledger.acknowledged, runner.needed().logs_from) == (VClock({1: 15}), VClock({1: 15}))
    assert way.writer.store.row_count == way.status.state_rows == 8
    assert way.status.store_position == way.status.checkpoint == VClock({1: 15})


def test_what_lies_between_store_and_checkpoint_goes_to_the_store_alone(way: Way) -> None:
    way.checkpoint.position = replace(BEGIN, vclock=VClock({1: 20}), seq=10)
    runner = way.runner()
    assert (runner.needed().published, runner.needed().logs_from) == (VClock({1: 20}), VClock({1: 10}))
    way.delivery.gate.set()
    runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 15)), 1))
    assert runner.wait_until_settled()
    assert ids(way) == [21, 22, 23, 24, 25]
    assert way.writer.store.row_count == 18
    assert (way.status.row_count, way.status.seq) == (15, 15)


def test_a_stop_ends_between_batches_and_waits_for_nothing(way: Way) -> None:
    runner = way.runner()
    way.is_stopping.set()
    with pytest.raises(PublishAborted, match="stopped before all batches had been submitted"):
        runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 6000)), 1))
    assert runner.published.covers(VClock({1: 11}))
    assert not runner.published.covers(VClock({1: 6010}))
    assert not runner.wait_until_settled()
    with pytest.raises(PublishAborted, match="stopped while a space's rows"):
        runner.submit(Batch.pause(BEGIN))


@pytest.mark.parametrize(("former", "delivery"), [(None, "at_least_once"), ("at_least_once", "exactly_once")])
def test_with_events_beyond_the_checkpoint_a_snapshot_compares_with_nothing(
    way: Way, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, former: str | None, delivery: str
) -> None:
    answers: list[Numbers | ConnectionLostError] = [ConnectionLostError("Kafka is away"), Numbers(57, 9, 4)]
    way.config = way.config.model_copy(update={"kafka": way.config.kafka.model_copy(update={"delivery": delivery})})
    runner = way.runner()
    if former is not None:
        runner._observations.numbers = NumbersFile(tmp_path / "numbers", "shop", "shop")
        runner._observations.numbers.begin(None, former)

    def newest() -> Numbers:
        answer = answers.pop(0)
        if isinstance(answer, ConnectionLostError):
            raise answer
        return answer

    monkeypatch.setattr(way.publisher, "newest_numbers", newest)
    monkeypatch.setattr(way.is_stopping, "wait", lambda _: False)
    with capture_logs() as said:
        assert runner.prepare_snapshot() == Numbers(57, 9, 4)
    assert [line["event"] for line in said] == ["waiting", "refilling the state store from a snapshot"]
    assert way.writer.store.row_count == 0
    way.is_stopping.set()
    assert runner.prepare_snapshot().seq == 0  # nobody asks any more


def test_a_wait_for_a_quorum_is_told_once_however_many_streams_it_lasts(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = LimboState(1, 1, 100, 0, 1, 1, 45)
    monkeypatch.setattr(Pipeline, "limbo", property(lambda _: waiting))
    with capture_logs() as said:
        for _ in range(2):
            way.status.overdue_quorum = None  # what is shown decides nothing
            way.runner().update_status()
            assert way.status.overdue_quorum is not None
        waiting = LimboState()
        way.runner().update_status()
        way.runner().update_status()
    assert [line["event"] for line in said] == ["waiting for a quorum", "the wait for a quorum is over"]
    assert way.status.overdue_quorum is None


def test_beside_a_quiet_master_the_checkpoint_is_shown_and_not_the_stores_position(way: Way) -> None:
    """After a kill the store is behind, and nothing is submitted to Kafka until the master has news."""
    way.checkpoint.position = replace(
        BEGIN, vclock=VClock({1: 20}), seq=10, snapshot=SnapshotState(3, is_complete=True, request_count=2)
    )
    runner, status = way.runner(), way.status

    def shown() -> tuple[VClock, VClock, VClock, int, int]:
        runner.update_status()
        return status.received, status.published, status.checkpoint, status.seq, status.snapshot_id

    at_the_checkpoint = (VClock({1: 20}), VClock({1: 20}), VClock({1: 20}), 10, 3)
    assert (shown(), status.store_position) == (at_the_checkpoint, VClock({1: 10}))
    runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 4)), 1))
    assert shown() == at_the_checkpoint
    runner.submit_all(runner.pipeline.feed(frames_of(rows(15, 6)), 1))
    assert runner.wait_until_settled()
    assert (shown(), status.store_position) == (at_the_checkpoint, VClock({1: 20}))
    assert runner.pipeline.ledger.acknowledged == VClock({1: 20})


def test_seqs_are_reserved_on_disk_before_kafka_has_them(way: Way) -> None:
    way.observations.numbers = NumbersFile(way.config.state.path, "x", "shop")
    runner = way.runner()
    runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 5)), 1))
    kept = read(way.config.state.path, "x", "shop")
    assert (kept.reserved_seq, kept.committed) == (RESERVED_SEQS + 5, Numbers())
    way.delivery.gate.set()
    assert runner.wait_until_settled()
    assert read(way.config.state.path, "x", "shop").committed == Numbers(5, 1, 1)


def test_a_store_that_is_ahead_of_the_checkpoint_is_emptied_and_its_numbers_count(way: Way) -> None:
    """Kafka has lost the newest checkpoints. Which rows consumers have read in the meantime, nobody knows."""
    ahead = replace(BEGIN, vclock=VClock({1: 30}), seq=180, schema_version=4, snapshot=SnapshotState(3, is_complete=True))
    way.writer.submit(Batch([], 0, 0, 0, ahead, True, {}, [], 0.0, is_catch_up=True))
    way.writer.mark_committed(ahead)
    runner = way.runner()
    assert way.writer.store.row_count == 0
    assert runner.prepare_snapshot() == Numbers(180, 3, 4)


def test_a_store_whose_files_are_removed(way: Way) -> None:
    """Rows go on in the open file, so only a look at the directory tells; and that is told once."""
    runner = way.runner()
    runner.update_status()
    assert not way.status.is_store_removed
    with capture_logs() as logs:
        shutil.rmtree(runner._config.state.path)
        runner.update_status()
        runner.update_status()
    assert [entry["event"].split(":")[0] for entry in logs] == ["the state store's files were removed"]
    assert "its rows are lost once the daemon stops" in (way.status.shown_error or "")
    (found,) = [trouble for trouble in current(way.status) if trouble.place == "store"]
    assert (found.is_holding_up, found.is_urgent) == (False, True)
    way.delivery.gate.set()
    runner.submit_all(runner.pipeline.feed(frames_of(rows(11, 5)), 1))
    with pytest.raises(StateError, match=r"were removed while it was open.*--rebuild-state"):
        way.writer.close()
