"""Listening to the checkpoint topic for a daemon that is at work: a partition, and clocks that do as they like."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import ConnectionLostError
from cdc.kafka import reach, sign_of_life
from cdc.kafka.sign_of_life import SignOfLife, listen
from cdc.stream.commits.checkpoint import Sign, sign_record
from cdc.stream.commits.ownership import SIGN_SECONDS, SILENCE_SECONDS
from tests.fakes.kafka import Cluster, clients
from tests.live.waiting import wait_for


class Partition:
    """A consumer of one partition, to which a daemon writes a sign every SIGN_SECONDS until `ends_at`."""

    def __init__(self, their_clock: Iterator[int], ends_at: float) -> None:
        self._their_clock = their_clock
        self._ends_at = ends_at
        self._next_sign = 0.5
        self._offset = 0
        self.now = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[..., Any]] = {
            "list_topics": lambda *_: None,
            "assign": lambda _: None,
            "close": lambda: None,
            "get_watermark_offsets": lambda *_, **__: (0, self._offset),
            "consumer": lambda *_, **__: self,
            "admin": lambda: self,
        }
        return answers[name]

    def poll(self, timeout_seconds: float) -> Any:
        """A sign, if there is one by then."""
        assert self.now < 60, "still listening"
        self.now += timeout_seconds
        if not self._next_sign <= self.now or self.now > self._ends_at:
            return None
        self._next_sign += SIGN_SECONDS
        key, value = sign_record("shop", Sign("writer", "there", 7, next(self._their_clock)))
        offset, self._offset = self._offset, self._offset + 1
        return SimpleNamespace(error=lambda: None, offset=lambda: offset, key=lambda: key, value=lambda: value)


@pytest.mark.parametrize(
    "their_clock",
    [
        pytest.param(itertools.count(10**12, 2000), id="goes"),
        pytest.param(itertools.chain([10**12], itertools.count(10**9, 2000)), id="is set back"),
        pytest.param(itertools.count(10**12, -2000), id="is set back again and again"),
        pytest.param(itertools.repeat(10**12), id="stands"),
    ],
)
def test_whoever_gives_signs_is_found_whatever_his_clock_does(
    monkeypatch: pytest.MonkeyPatch, their_clock: Iterator[int]
) -> None:
    partition: Any = Partition(their_clock, ends_at=1e9)
    monkeypatch.setattr(sign_of_life, "time", SimpleNamespace(monotonic=lambda: partition.now, time=time.time))
    found = listen(partition, "shop.checkpoint", "shop", lambda: False)
    assert found is not None
    assert (found.host, found.process_id) == ("there", 7)
    assert partition.now < SILENCE_SECONDS


class BusyPartition(Partition):
    """Another daemon of the topic writes signs, and each of them is fetched only one look after the leader has it."""

    def __init__(self, delay_seconds: float) -> None:
        super().__init__(itertools.repeat(0), ends_at=1e9)
        self._delay_seconds = delay_seconds

    def poll(self, timeout_seconds: float) -> Any:
        """A sign, if one has been there for long enough."""
        assert self.now < 60, "still listening"
        self.now += timeout_seconds
        if self.now < self._next_sign:
            return None
        self._offset = round(self._next_sign + 0.5)  # what the leader has
        if self.now < self._next_sign + self._delay_seconds:
            return None
        self._next_sign += SIGN_SECONDS
        key, value = sign_record("another", Sign("other", "there", 8, 0))
        return SimpleNamespace(error=lambda: None, offset=lambda: self._offset - 1, key=lambda: key, value=lambda: value)


@pytest.mark.parametrize(("delay_seconds", "is_told"), [(0.3, True), (30.0, False)])
def test_records_of_others_that_come_late_are_no_outage(
    monkeypatch: pytest.MonkeyPatch, delay_seconds: float, is_told: bool
) -> None:
    partition: Any = BusyPartition(delay_seconds)
    monkeypatch.setattr(sign_of_life, "time", SimpleNamespace(monotonic=lambda: partition.now, time=time.time))
    monkeypatch.setattr(sign_of_life, "Reach", lambda *_: SimpleNamespace(check=lambda: None))
    assert listen(partition, "shop.checkpoint", "shop", lambda: partition.now > 25) is None
    assert (partition.now < SILENCE_SECONDS + 3) is is_told


def test_a_topic_that_was_made_again_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end says nothing about what was read of the former one: a daemon that writes there would seem to be silent."""
    partition: Any = Partition(itertools.repeat(0), ends_at=1.0)
    partition._offset = 3000
    monkeypatch.setattr(sign_of_life, "time", SimpleNamespace(monotonic=lambda: partition.now, time=time.time))

    def is_stopping() -> bool:
        if partition.now > 2:
            partition._offset = 20
        return False

    with pytest.raises(ConnectionLostError, match="made again"):
        listen(partition, "shop.checkpoint", "shop", is_stopping)
    assert partition.now < 3


def test_signs_go_on_when_their_producer_finds_no_broker_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_of_life, "SIGN_SECONDS", 0.01)
    monkeypatch.setattr(reach, "LOOK_SECONDS", 0.1)
    cluster = Cluster({"shop.checkpoint": 1})
    life = SignOfLife(clients(cluster), "shop.checkpoint", "shop", "writer")
    life.start()
    wait_for("a sign of life", lambda: cluster.records)
    cluster.strand()
    count = len(cluster.records)
    wait_for("another", lambda: len(cluster.records) > count)
    life.close(is_clean=True)
    sign = sign_of_life._sign_in("shop", cluster.records[0][2] or b"", cluster.records[0][3])
    assert sign is not None
    last = sign_of_life._sign_in("shop", cluster.records[-1][2] or b"", cluster.records[-1][3])
    assert last is not None
    assert (sign.writer, sign.is_last, last.is_last) == ("writer", False, True)


def test_who_listens_ends_where_only_others_find_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOOK_SECONDS", 0.1)
    cluster = Cluster({"shop.checkpoint": 1})
    made = clients(cluster)
    consumer = made.consumer("read_uncommitted")
    cluster.strand()
    monkeypatch.setattr(made, "consumer", lambda *_, **__: consumer)
    with pytest.raises(ConnectionLostError, match="a new one does"):
        listen(made, "shop.checkpoint", "shop", lambda: False)


def test_whoever_is_silent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    partition: Any = Partition(itertools.count(10**12), ends_at=1.0)
    monkeypatch.setattr(sign_of_life, "time", SimpleNamespace(monotonic=lambda: partition.now, time=time.time))
    assert listen(partition, "shop.checkpoint", "shop", lambda: False) is None
    assert SILENCE_SECONDS <= partition.now < SILENCE_SECONDS + 2
