"""What joins the shards' records with a pipeline: news, answers to questions, and what operators are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from cdc.daemon import bucket_watch
from cdc.daemon.beginning import Observations, RunContext
from cdc.daemon.bucket_watch import DOUBLED_SECONDS, SETTLING_SECONDS, BucketWatch
from cdc.daemon.runner import PipelineRunner
from cdc.ops.status import Status
from cdc.positions.vclock import VClock
from cdc.stream.batches.batch import Batch
from cdc.stream.moves.records import BucketRecord, ShardRecord, bucket_key
from tests.fakes.moving import CAPTURES, Cluster, Daemon, pieces


class Watched:
    """A daemon's pipeline, whose shards' records the test writes, and whose clock it sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(bucket_watch.time, "monotonic", lambda: self.now)  # type: ignore[attr-defined]
        monkeypatch.setattr(bucket_watch, "now_us", lambda: round(self.now * 1e6))
        self.daemon = Daemon(Cluster(("a1", "b1")), "a1", pieces(CAPTURES / "e" / "a1"))
        self.surveyed: tuple[float, list[VClock]] = (0.0, [])
        self.batches: list[Batch] = []
        self.news: list[int | None] = []
        self.status = Status("shop.a1")
        source = SimpleNamespace(transaction_bytes_max=1000, bucket_alert_ms=5000, timeouts=SimpleNamespace(vote=1.0))
        config = SimpleNamespace(name="shop.a1", source=source)
        reader = SimpleNamespace(shards=self.daemon.shards, news=self._news)
        context = SimpleNamespace(config=config, buckets=reader, status=self.status)
        runner = SimpleNamespace(pipeline=self.daemon.pipeline, submit_all=self._submit_all, submit=self.batches.append)
        self.watch = BucketWatch(
            cast(RunContext, context), cast(PipelineRunner, runner), Observations(), surveyed=lambda: self.surveyed
        )

    def _news(self) -> list[int | None]:
        found, self.news = self.news, []
        return found

    def _submit_all(self, batches: Iterator[Batch]) -> None:
        self.batches += batches

    def write(self, bucket: int | None, value: bytes) -> None:
        """The other shard's daemon commits a record."""
        self.news.append(self.daemon.shards.fold("b1", bucket_key(bucket), value))

    @property
    def records(self) -> list[Any]:
        """What was written since the last look of its buckets."""
        found = [message[1:] for batch in self.batches for message in batch.messages if message[0].endswith(".buckets")]  # type: ignore[index]
        self.batches.clear()
        return found


def test_a_question_is_answered_by_what_a_later_survey_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.write(99, BucketRecord("receiving", 3, "a", asks="a1").to_json())
    here = watched.daemon.pipeline.position.vclock
    watched.surveyed = 101.0, [here]
    watched.watch.look()
    assert watched.watch.is_asked
    assert watched.records == [], "that survey may have begun before the question"
    watched.now, watched.surveyed = 102.0, (101.5, [here, VClock({1: here[1] + 1})])
    watched.watch.look()
    assert watched.records == [], "a member has more"
    watched.surveyed = 103.0, []
    watched.watch.look()
    assert watched.records == [], "no member has answered"
    watched.surveyed = 104.0, [here]
    watched.watch.look()
    assert watched.records == [(bucket_key(99), BucketRecord(None, 3, first=4).to_json())]
    assert not watched.watch.is_asked


def test_what_operators_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    watched.write(1, BucketRecord("active").to_json())
    watched.daemon.shards.fold("a1", bucket_key(1), BucketRecord("active").to_json())
    with structlog.testing.capture_logs() as logs:
        watched.watch.look()
        assert watched.watch.state.doubled == {}, "it may be so for a moment"
        watched.now += DOUBLED_SECONDS + 1
        watched.watch.look()
        watched.watch.look()
    assert watched.watch.state.doubled == {1: ["a1", "b1"]}
    assert [line["event"] for line in logs] == ["buckets have two owners: their rows' order isn't defined"]
    daemon = watched.daemon
    daemon.read(10_000)
    assert daemon.waits
    with structlog.testing.capture_logs() as logs:
        watched.watch.look()
        watched.now += 10**10
        watched.watch.look()
        watched.watch.look()
    assert [line["event"] for line in logs] == ["rows of a bucket wait"]
    assert watched.watch.waits
    assert watched.status.buckets is watched.watch.state
    assert not watched.watch.has_room


def test_another_daemon_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is seen by what a later survey covers, too. For a while it is expected to see this one."""
    watched = Watched(monkeypatch)
    here = watched.daemon.pipeline.position.vclock
    assert watched.watch.is_settling
    watched.write(None, ShardRecord("b", 7).to_json())
    watched.watch.look()
    assert watched.watch.is_asked
    watched.surveyed = 104.0, [here]
    watched.watch.look()
    (_, record), *others = watched.records
    assert (json.loads(record)["seen"], others) == ({"b1": 7}, [])
    assert (watched.watch.is_asked, watched.watch.is_settling, watched.status.buckets.awaits) == (False, True, ("b1",))  # type: ignore[union-attr]
    own = watched.daemon.moves.queues.beginnings.record
    watched.write(None, ShardRecord("b", 7, {"a1": own.began_us}).to_json())
    assert watched.watch.is_settling, "the conclusion isn't drawn yet"
    watched.watch.look()
    ((_, record),) = watched.records
    assert (json.loads(record)["is_settled"], watched.watch.is_settling) == (True, False)
    watched.now = 105.0
    watched.write(None, ShardRecord("b", 8, {"a1": own.began_us}).to_json())
    watched.watch.look()
    assert watched.watch.is_asked, "it has begun again"


def test_others_are_awaited_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    assert watched.watch.is_settling
    watched.now += SETTLING_SECONDS
    assert not watched.watch.is_settling
