"""Looking whether readers reach what was committed, look by look; what comes of it is in test_publisher."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import cast

import pytest
from structlog.testing import capture_logs

from cdc.errors import CdcError, ConnectionLostError, PublishAborted
from cdc.kafka import readers_view
from cdc.kafka.delivery import Delivery
from cdc.kafka.ends import Ends
from cdc.kafka.hanging import Place
from cdc.kafka.readability import FILLERS_MAX, PAUSES_SECONDS, TROUBLED_SECONDS, Readability
from cdc.kafka.readers_view import ReadersView
from tests.fakes.deliveries import OpenDelivery

PLACE: Place = ("shop.things", 0)


class Ended(OpenDelivery):
    """Notes what was ended."""

    def __init__(self, error: CdcError | None = None) -> None:
        super().__init__()
        self.ended: list[set[Place]] = []
        self._error = error

    def end_hanging(self, partitions: Iterable[Place], *, commit: bool) -> None:
        """Note it."""
        assert commit
        self.ended.append(set(partitions))
        if self._error is not None:
            raise self._error


class FakeEnds:
    """One partition that ends at 9 at first, and how far readers get in it, look by look."""

    def __init__(self, *reached: int | None) -> None:
        self._reached = list(reached)
        self.forgotten = 0
        self.is_missing = False
        self.end = 9

    def written(self, _: Iterable[str]) -> tuple[dict[Place, int], list[str]]:
        """The end."""
        return ({}, [PLACE[0]]) if self.is_missing else ({PLACE: self.end}, [])

    def committed(self, places: Collection[Place]) -> dict[Place, int]:
        """The next."""
        if not places:
            return {}
        offset = self._reached.pop(0) if len(self._reached) > 1 else self._reached[0]
        if offset is None:
            raise ConnectionLostError("no leader")
        return {PLACE: offset}

    def reset_clients(self) -> None:
        """Count."""
        self.forgotten += 1


class View:
    """Tells whose partitions are."""

    def __init__(self, *, is_own: bool = True) -> None:
        self._is_own = is_own

    def own(self, open_: Mapping[Place, int]) -> dict[Place, int]:
        """All or nothing."""
        return dict(open_) if self._is_own else {}


def readability(ends: FakeEnds, *, is_own: bool = True) -> Readability:
    view = cast(ReadersView, View(is_own=is_own))
    found = Readability("x", "shop", view, cast(Ends, ends), threading.Event())
    found.committed([PLACE[0]], 0.0)
    return found


def looks(found: Readability, delivery: Delivery, count: int) -> list[float | None]:
    return [found.check(delivery) for _ in range(count)]


def test_the_first_look_mostly_suffices() -> None:
    found, delivery = readability(FakeEnds(9)), Ended()
    assert not found.is_seen
    assert found.check(delivery) is None
    assert (found.is_seen, delivery.ended) == (True, [])


@pytest.mark.parametrize("has_co_writers", [True, False])
def test_what_others_write_after_the_commit(*, has_co_writers: bool) -> None:
    """Where they write, too, it isn't waited for: they would wait for this daemon's next transaction, in turns."""
    ends, delivery = FakeEnds(9), Ended()
    found = Readability(
        "x", "shop", cast(ReadersView, View()), cast(Ends, ends), threading.Event(), has_co_writers=has_co_writers
    )
    delivery.open = [(PLACE[0], b"key", b"value")]
    found.before_commit(delivery)
    ends.end = 12
    found.committed([PLACE[0]], 0.0)
    assert (found.check(delivery) is None) == has_co_writers
    ends.end = 9
    found.check(delivery)
    found.committed([PLACE[0]], 0.0)
    ends.end = 12
    assert found.check(delivery) is not None, "the end is of the commit that it was asked for"


def test_what_is_open_for_less_than_markers_take_is_waited_for_at_growing_pauses() -> None:
    ends, delivery = FakeEnds(*[3] * 7, 9), Ended()
    found = readability(ends)
    assert looks(found, delivery, 8) == [*PAUSES_SECONDS, PAUSES_SECONDS[-1], None]
    assert (delivery.ended, ends.forgotten) == ([], 1), "when it takes long, other connections are asked"


def test_what_stays_open_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.0)
    found, delivery = readability(FakeEnds(3, 9)), Ended()
    assert looks(found, delivery, 2) == [PAUSES_SECONDS[0], None]
    assert delivery.ended == [{PLACE}]


def test_nothing_is_ended_before_its_partition_has_had_a_leader_for_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("cdc.kafka.readability.time.monotonic", lambda: now[0])
    ends, delivery = FakeEnds(3, None, 3, 3, 9), Ended()
    found = readability(ends)
    assert found.check(delivery) == PAUSES_SECONDS[0]
    now[0] += readers_view.MARKERS_SECONDS
    troubles = []
    for pause in (TROUBLED_SECONDS, PAUSES_SECONDS[1]):
        assert found.check(delivery) == pause
        troubles.append(found.trouble)
    assert troubles == ["no leader", None]
    assert ends.forgotten == 1, "another connection is asked"
    assert not delivery.ended
    now[0] += readers_view.MARKERS_SECONDS
    found.check(delivery)
    assert delivery.ended == [{PLACE}]
    assert found.check(delivery) is None


@pytest.mark.parametrize("is_own", [True, False])
def test_anothers_transaction_holds_nobody_up_for_ever(monkeypatch: pytest.MonkeyPatch, *, is_own: bool) -> None:
    """Also where this daemon's events are behind it, so that it can't be told whose it is."""
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.0)
    found, delivery = readability(FakeEnds(3), is_own=is_own), Ended()
    with capture_logs() as lines:
        while found.check(delivery) is not None:
            pass
    assert len(delivery.ended) == (FILLERS_MAX if is_own else 0)
    assert ["another producer's transaction is open" in line["event"] for line in lines][-1]
    assert lines[-1]["partitions"] == ["shop.things-0"]
    found.committed([PLACE[0]], 0.0)
    assert found.check(delivery) is None, "it is where it was"


def test_a_topic_that_was_deleted_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("cdc.kafka.readability.time.monotonic", lambda: now[0])
    ends, delivery = FakeEnds(9), Ended()
    ends.is_missing = True
    found = readability(ends)
    assert found.check(delivery) == TROUBLED_SECONDS
    assert found.trouble == "Kafka doesn't show the topic shop.things"
    now[0] += readers_view.GONE_SECONDS
    assert found.check(delivery) is None


def test_after_a_slow_commit_or_a_complaint_other_connections_are_asked() -> None:
    ends, delivery = FakeEnds(9), Ended()
    found = readability(ends)
    found.committed([PLACE[0]], 2.0)
    found.check(delivery)
    found.complained()
    found.committed([PLACE[0]], 0.0)
    found.check(delivery)
    assert ends.forgotten == 2


def test_an_end_that_fails_says_what_may_be_lost_and_what_brings_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.0)
    found = readability(FakeEnds(3))
    with capture_logs() as lines, pytest.raises(PublishAborted):
        found.check(Ended(PublishAborted("a Kafka transaction can't be committed")))
    assert (lines[-1]["log_level"], lines[-1]["partitions"]) == ("error", ["shop.things-0"])
    assert "tarantool-cdc snapshot --config FILE things" in lines[-1]["remedy"]


def test_an_end_without_waiting_says_so_as_well() -> None:
    found = readability(FakeEnds(3))
    assert "has not written all markers" in (found.unreadable or "")
    found.check(Ended())
    assert found.unreadable is not None
    found = readability(FakeEnds(9))
    found.check(Ended())
    assert found.unreadable is None


def test_the_end_notes_what_it_can_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.kafka.readability.END_SECONDS", 0.0)
    found = readability(FakeEnds(None))
    found.await_end(Ended())
    assert found.unreadable == "no leader"
    found = readability(FakeEnds(3))
    found.await_end(Ended())
    assert "has not written all markers" in (found.unreadable or "")
    found = readability(FakeEnds(9))
    found.await_end(Ended())
    assert found.unreadable is None


def test_the_end_notes_why_what_hangs_can_not_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_view, "MARKERS_SECONDS", 0.0)
    found = readability(FakeEnds(3))
    found.await_end(Ended(PublishAborted("a Kafka transaction can't be committed")))
    assert found.unreadable == "a Kafka transaction can't be committed"


def test_after_trouble_the_ends_are_asked_for_again() -> None:
    """The topic may have been made anew meanwhile."""
    ends = FakeEnds(None, 4)
    found = readability(ends)
    assert found.check(Ended()) == TROUBLED_SECONDS
    ends.end = 4
    assert found.check(Ended()) is None
