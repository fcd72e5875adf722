"""A standby's ear: what a daemon writes reaches the vigil, and a client that is lost is replaced, as an outage."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import ConnectionLostError, PublishError
from cdc.kafka import life_watch, sign_of_life
from cdc.kafka.life_watch import LifeWatch
from cdc.stream.commits.standby import SILENT_SECONDS, Vigil
from tests.fakes import kafka as fakes
from tests.fakes.kafka import Cluster, clients
from tests.kafka.test_sign_of_life import Partition

ENDS_AT = 10.0


class Heard(Partition):
    """A daemon that gives signs until ENDS_AT, and a watch that is closed once it is known to be gone."""

    def __init__(self) -> None:
        super().__init__(itertools.repeat(0), ENDS_AT)
        self.vigil = Vigil(0.0)
        self.watch = LifeWatch(self, "shop.checkpoint", "shop", self.vigil)  # type: ignore[arg-type]
        self.was_steady = False

    def poll(self, timeout_seconds: float) -> Any:
        """A sign, if there is one by then."""
        self.was_steady = self.was_steady or self.vigil.is_steady
        if self.vigil.is_gone:
            self.watch._is_stopping.set()
        return super().poll(timeout_seconds)


def test_a_daemon_is_heard_and_its_end_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    monkeypatch.setattr(sign_of_life, "time", SimpleNamespace(monotonic=lambda: heard.now, time=time.time))
    heard.watch.start()
    heard.watch._thread.join(30)
    assert (heard.was_steady, heard.vigil.is_gone, heard.vigil.writer) == (True, True, "writer")
    assert ENDS_AT - 1 + SILENT_SECONDS <= heard.now < ENDS_AT + SILENT_SECONDS + 1
    heard.watch.close()


def test_a_lost_client_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    vigil = Vigil(0.0, has_ended=True)
    watch = LifeWatch(None, "shop.checkpoint", "shop", vigil)  # type: ignore[arg-type]
    calls = []

    def observe(*_: object) -> None:
        calls.append(vigil.is_gone)
        if len(calls) > 1:
            watch._is_stopping.set()
            return
        raise ConnectionLostError("the client finds no broker, a new one does")

    monkeypatch.setattr(life_watch, "observe", observe)
    watch.start()
    watch._thread.join(30)
    assert calls == [True, False]


def test_what_ends_the_listening_is_told_to_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LifeWatch(None, "shop.checkpoint", "shop", Vigil(0.0))  # type: ignore[arg-type]

    def observe(*_: object) -> None:
        raise PublishError("the topic can't be read")

    monkeypatch.setattr(life_watch, "observe", observe)
    watch.check()
    watch.start()
    watch._thread.join(30)
    with pytest.raises(PublishError, match="the topic can't be read"):
        watch.check()


@pytest.mark.parametrize(
    ("topics", "is_away", "reason"),
    [({}, False, "was deleted"), ({}, True, "Kafka doesn't answer"), ({"shop.checkpoint": 1}, False, "None")],
)
def test_the_reason_of_an_outage_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, topics: dict[str, int], reason: str, *, is_away: bool
) -> None:
    monkeypatch.setattr(fakes, "SILENCE_SECONDS", 0.0)
    watch = LifeWatch(clients(Cluster(topics, is_silent=is_away)), "shop.checkpoint", "shop", Vigil(0.0))
    watch.record_outage(1.0)
    assert reason in str(watch.outage)
    watch.record_quiet(2.0)
    assert watch.outage is None
