"""When it is looked whether readers reach what was committed; what comes of it is in test_publisher."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from cdc.errors import ConnectionLostError
from cdc.kafka.delivery import Delivery
from cdc.kafka.hanging import Place
from cdc.kafka.readability import DOUBT_SECONDS, INTERVAL_SECONDS, QUIET_SECONDS, SLOW_COMMIT_SECONDS, Readability
from cdc.kafka.readers_view import ReadersView
from tests.fakes.deliveries import OpenDelivery


class View:
    """What Kafka answers, look by look."""

    def __init__(self, *answers: dict[Place, int] | ConnectionLostError) -> None:
        self.answers = list(answers)

    def still_open(self) -> dict[Place, int]:
        """The next."""
        answer = self.answers.pop(0)
        if isinstance(answer, ConnectionLostError):
            raise answer
        return answer


@pytest.fixture
def delivery() -> Delivery:
    return OpenDelivery()


def readability(view: View) -> Readability:
    return Readability("x", "shop", cast(ReadersView, view), threading.Event())


def test_nothing_is_looked_at_before_a_commit() -> None:
    assert not readability(View()).is_look_due(1e9, is_idle=True)


def test_a_quick_commit_is_looked_at_when_it_is_quiet(delivery: Delivery) -> None:
    found = readability(View({}))
    found.committed(100.0, 100.1, has_events=True)
    assert not found.is_look_due(100.1, is_idle=False)
    assert not found.is_look_due(100.2, is_idle=True)
    assert not found.is_look_due(100.1 + QUIET_SECONDS, is_idle=False)
    assert found.is_look_due(100.1 + QUIET_SECONDS, is_idle=True)
    found.look(delivery)
    assert not found.is_look_due(1e9, is_idle=True)
    found.committed(200.0, 200.1, has_events=False)
    assert not found.is_look_due(1e9, is_idle=True), "the position alone was committed"


@pytest.mark.parametrize("why", ["slow", "complaint"])
def test_every_commit_is_looked_at_for_a_while_after_trouble(delivery: Delivery, why: str) -> None:
    found = readability(View({}, {}))
    if why == "slow":
        found.committed(1e9, 1e9 + SLOW_COMMIT_SECONDS, has_events=True)
    else:
        found.complained(1e9 + SLOW_COMMIT_SECONDS)
        found.committed(1e9 + 1, 1e9 + 1.1, has_events=True)
    for step in (1.0, 2.0):
        now = 1e9 + SLOW_COMMIT_SECONDS + step
        found.committed(now, now + 0.1, has_events=True)
        assert found.is_look_due(now + 0.1, is_idle=False)
        found.look(delivery)
        assert not found.is_look_due(now + 0.2, is_idle=False), "it has just been looked at"
    later = 1e9 + SLOW_COMMIT_SECONDS + DOUBT_SECONDS + 1
    found.committed(later, later + 0.1, has_events=True)
    assert not found.is_look_due(later + 0.1, is_idle=False)


def test_a_partition_that_does_not_answer_is_asked_rarely(delivery: Delivery) -> None:
    found = readability(View(ConnectionLostError("no leader")))
    found.complained(1e9)
    found.committed(0.0, 0.1, has_events=True)
    assert found.is_look_due(1.0, is_idle=False)
    found.look(delivery)
    assert not found.is_look_due(1.0 + INTERVAL_SECONDS / 2, is_idle=True)
    assert found.is_look_due(1e8, is_idle=False)


def test_what_stays_open_after_the_own_end_is_another_producers(delivery: Delivery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.kafka.readability.END_SECONDS", 0.0)
    place: dict[Place, int] = {("shop.checkpoint", 0): 7}
    found = readability(View(place, place, {}))
    found.committed(0.0, 0.1, has_events=True)
    found.await_end(delivery)
    assert "another producer's transaction is open in topics of shop" in (found.unreadable or "")
