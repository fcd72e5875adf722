"""When everybody is asked, and when the followed member is left: a table of moments."""

from __future__ import annotations

import math

import pytest

from cdc.upstream.selection import Answer
from cdc.upstream.watch import TURN_SECONDS, Link, Phase, Watch
from tests.upstream.test_selection import BEHIND, GOOD, NEEDED, answer

BEGIN = 1000.0


def watch(member_count: int = 2, *, survey_seconds: float = 0.0) -> Watch:
    """Silence is suspicious after 2 s, in a snapshot after 20."""
    return Watch(member_count, BEGIN, survey_seconds=survey_seconds, probe_after_seconds=2.0, silence_seconds=20.0)


def link(phase: Phase = Phase.STREAMING, heard_at: float = BEGIN) -> Link:
    return Link(0, phase, heard_at)


def answers(*texts: str) -> list[Answer]:
    return [answer(text, place) for place, text in enumerate(texts)]


def test_regular_surveys() -> None:
    regular = watch(survey_seconds=30)
    assert regular.pause(BEGIN, None) == 0
    assert regular.is_due(BEGIN, None)
    assert not regular.is_lost(BEGIN + 1, None, answers(GOOD, GOOD), NEEDED)
    assert regular.pause(BEGIN + 1, None) == TURN_SECONDS, "a connection may begin any time"
    assert not regular.is_due(BEGIN + 30.9, None)
    assert regular.is_due(BEGIN + 31, None)


def test_everybody_is_asked_when_the_stream_begins() -> None:
    regular = watch(survey_seconds=30)
    assert regular.is_due(BEGIN, link(Phase.SNAPSHOT))
    regular.is_lost(BEGIN, link(Phase.SNAPSHOT), answers(GOOD, GOOD), NEEDED)
    assert not regular.is_due(BEGIN + 1, link(Phase.SNAPSHOT))
    assert regular.is_due(BEGIN + 1, link())
    regular.is_lost(BEGIN + 1, link(), answers(GOOD, GOOD), NEEDED)
    assert not regular.is_due(BEGIN + 1.5, link(heard_at=BEGIN + 1.5)), "once"


def test_nobody_is_asked_where_there_are_no_regular_surveys() -> None:
    assert not watch().is_due(BEGIN + 1, link())
    assert watch().pause(BEGIN, None) == TURN_SECONDS


@pytest.mark.parametrize(("phase", "seconds"), [(Phase.STREAMING, 2.0), (Phase.SNAPSHOT, 20.0), (Phase.CONNECTING, math.inf)])
def test_silence_becomes_suspicious(phase: Phase, seconds: float) -> None:
    assert not watch().is_due(BEGIN + min(seconds, 1e6) - 0.1, link(phase))
    assert watch().is_due(BEGIN + min(seconds, 1e6), link(phase)) is (seconds < math.inf)
    assert not watch(1).is_due(BEGIN + 1e6, link(phase)), "one alone is not probed"


@pytest.mark.parametrize(
    ("texts", "heard_at", "is_lost"),
    [
        (("away", GOOD), BEGIN, True),
        (("away", BEHIND), BEGIN, False),  # nobody else would do
        ((GOOD, GOOD), BEGIN, False),  # it scans its log, say
        (("away", GOOD), BEGIN + 2.5, False),  # it was heard meanwhile
    ],
)
def test_who_is_left(texts: tuple[str, str], heard_at: float, *, is_lost: bool) -> None:
    one = watch()
    assert one.is_due(BEGIN + 2, link())
    assert one.is_lost(BEGIN + 3, link(heard_at=heard_at), answers(*texts), NEEDED) is is_lost


def test_a_silent_one_is_asked_again_and_again_but_not_all_the_time() -> None:
    one = watch()
    assert one.is_due(BEGIN + 2, link())
    assert not one.is_lost(BEGIN + 3, link(), answers(GOOD, GOOD), NEEDED)
    assert not one.is_due(BEGIN + 4.9, link())
    assert one.is_due(BEGIN + 5, link())


def test_a_regular_survey_does_as_well() -> None:
    regular = watch(survey_seconds=30)
    assert regular.is_due(BEGIN, link(heard_at=BEGIN - 1))
    assert regular.is_lost(BEGIN + 1.5, link(heard_at=BEGIN - 1), answers("away", GOOD), NEEDED)


def test_nobody_is_left_once_the_connection_is_over() -> None:
    one = watch()
    assert one.is_due(BEGIN + 2, link())
    assert not one.is_lost(BEGIN + 3, None, answers("away", GOOD), NEEDED)
