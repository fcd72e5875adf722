"""When a standby takes the name: what the signs of the other daemon tell, and what they don't."""

from __future__ import annotations

import pytest

from cdc.stream.commits.checkpoint import Sign
from cdc.stream.commits.ownership import APART_SECONDS, SIGN_SECONDS, SILENCE_SECONDS
from cdc.stream.commits.standby import SILENT_SECONDS, Vigil


def sign(writer: str = "first", *, is_last: bool = False) -> Sign:
    return Sign(writer, "there", 7, 0, is_last)


def heard(vigil: Vigil, until: float, writer: str = "first", since: float = 0.0) -> None:
    """Signs at their interval."""
    now = since
    while now <= until:
        vigil.record_sign(sign(writer), now)
        now += SIGN_SECONDS


def test_the_limits_fit_together() -> None:
    assert SILENT_SECONDS > 2 * SIGN_SECONDS, "one lost sign is no death"
    assert SILENT_SECONDS - SIGN_SECONDS >= 1.75, "nor is a late one, of a process that is busy"
    assert SILENT_SECONDS <= 2.25, "of the 5 s that are promised, the claim needs some"
    assert SILENCE_SECONDS < 12


def test_a_silence_after_regular_signs_is_short() -> None:
    vigil = Vigil(0.0, "first")
    heard(vigil, 5.0)
    assert vigil.is_steady
    vigil.record_quiet(5.0 + SILENT_SECONDS - 0.1)
    assert not vigil.is_gone
    vigil.record_quiet(5.0 + SILENT_SECONDS)
    assert vigil.is_gone


@pytest.mark.parametrize("signs", [(), (0.5,), (0.5, 0.625, 0.75)])
def test_who_was_not_heard_regularly_gets_more_time(signs: tuple[float, ...]) -> None:
    """What a killed daemon had sent may arrive together, later."""
    vigil = Vigil(0.0, "first")
    for now in signs:
        vigil.record_sign(sign(), now)
    last = max(signs, default=0.0)
    assert not vigil.is_steady
    vigil.record_quiet(last + SILENCE_SECONDS - 0.1)
    assert not vigil.is_gone
    vigil.record_quiet(last + SILENCE_SECONDS)
    assert vigil.is_gone


def test_time_alone_says_nothing() -> None:
    """Only a leader that has nothing more tells a silence of the daemon from one of Kafka."""
    vigil = Vigil(0.0, "first")
    heard(vigil, 5.0)
    vigil.record_outage(60.0)
    assert not vigil.is_gone
    vigil.record_quiet(60.0 + SILENT_SECONDS)
    assert not vigil.is_gone, "the daemon, too, needs time to find its broker again"
    heard(vigil, 70.0, since=60.0 + APART_SECONDS)
    vigil.record_quiet(70.0 + SILENT_SECONDS)
    assert vigil.is_gone


def test_an_outage_of_kafka_takes_the_verdict_back() -> None:
    vigil = Vigil(0.0, "first", has_ended=True)
    vigil.record_outage(1.0)
    assert not vigil.is_gone


def test_a_frozen_daemon_that_wakes_up_is_not_gone() -> None:
    vigil = Vigil(0.0, "first")
    heard(vigil, 5.0)
    vigil.record_quiet(20.0)
    assert vigil.is_gone
    vigil.record_sign(sign(), 20.1)
    assert not vigil.is_gone


def test_a_last_sign_frees_the_name_at_once() -> None:
    vigil = Vigil(0.0, "first")
    heard(vigil, 5.0)
    vigil.record_sign(sign(is_last=True), 5.1)
    assert vigil.is_gone


def test_the_last_sign_of_another_frees_nothing() -> None:
    """Its successor has the name."""
    vigil = Vigil(0.0, "first")
    heard(vigil, 5.0)
    heard(vigil, 8.0, "second", since=6.0)
    vigil.record_sign(sign("first", is_last=True), 8.1)
    assert (vigil.is_gone, vigil.writer) == (False, "second")


def test_a_sign_that_another_client_read_and_this_one_did_not_was_missed() -> None:
    before = sign("before")
    vigil = Vigil(0.0, "before", sign=before)
    assert not vigil.has_missed(None), "the topic was made again, and has no sign"
    assert not vigil.has_missed(before)
    assert vigil.has_missed(sign())
    vigil.record_sign(sign(), 1.0)
    vigil.record_sign(Sign("first", "", 0, 5), 1.1)  # a position
    assert not vigil.has_missed(sign())
    vigil.record_sign(sign(is_last=True), 2.0)
    assert not vigil.has_missed(sign(is_last=True))
