"""Failover as transcripts: what happens to the members, and what the daemon decides. `--update-golden` writes the decisions anew.

members COUNT [OPTION=VALUE …]    the configuration; what is published is at {1: 15, 2: 3}
after SECONDS                     time passes
choose ANSWER …                   every member says this, unless it is passed over
follow SECONDS                    a connection to the chosen one is followed for so long
connect SECONDS                   or it ends before changes come
fail KIND                         and this is how it ends
wait                              nobody can be followed
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.errors import CdcError, ConnectionLostError, PositionError, PublishAborted, SilenceError, UnsupportedRowError
from cdc.protocol.constants import ErrorCode
from cdc.protocol.failure import XlogGapError, parse_error
from cdc.upstream.failover import DELAY_FIRST_SECONDS, DELAY_MAX_SECONDS, BackOff, Failover
from cdc.upstream.selection import Answer, Rules
from tests.fakes.golden import Golden
from tests.scenarios.play import played
from tests.upstream.test_selection import BEHIND, FAR_BEHIND, FURTHER, GAP, GOOD, NEEDED, READ_ONLY, answer

HERE: Final = Path(__file__).resolve().parent / "failovers"
TRANSCRIPTS: Final = sorted(HERE.glob("*.txt"))

ANSWERS: Final = {
    "good": GOOD,
    "further": FURTHER,
    "read-only": READ_ONLY,
    "behind": BEHIND,
    "far-behind": FAR_BEHIND,
    "gap": GAP,
}
ERRORS: Final[dict[str, CdcError]] = {
    "closed": ConnectionLostError("it closed the connection"),
    "silent": SilenceError("it is silent"),
    "gap": XlogGapError("the master has removed logs that are needed"),
    "denied": parse_error({0: 0x8000 | ErrorCode.ACCESS_DENIED}, {0x31: "denied"}),
    "shutdown": parse_error({0: 0x8000 | ErrorCode.SHUTDOWN}, {0x31: "Server is shutting down"}),
    "row": UnsupportedRowError("a row that nobody can follow"),
    "other-replica-set": PositionError("it belongs to another replica set"),
    "kafka": PublishAborted("Kafka threw it away"),
}


class Stage:
    """One daemon's failover, and one method per command."""

    def __init__(self) -> None:
        self._failover = Failover(1, Rules())
        self._now = 1000.0

    def do(self, name: str, *arguments: str) -> Iterator[str]:
        """Carry out one command; what it came to."""
        command = getattr(self, f"do_{name}")
        try:
            yield from command(*arguments) or ()
        except CdcError as error:
            yield f"{type(error).__name__} ({error.remedy.value}): {error}"

    def do_members(self, count: str, *options: str) -> None:
        changed: dict[str, Any] = dict(option.split("=", 1) for option in options)
        if "wait_ms" in changed:
            changed["wait_ms"] = int(changed["wait_ms"])
        self._failover = Failover(int(count), Rules(**changed))

    def do_after(self, seconds: str) -> None:
        self._now += float(seconds)

    def do_choose(self, *said: str) -> Iterator[str]:
        passed_over = self._failover.passed_over
        answers = [
            Answer(f"m{place}:3301", error=passed_over[place]) if place in passed_over else answer(ANSWERS.get(text, text), place)
            for place, text in enumerate(said)
        ]
        choice = self._failover.choose(answers, NEEDED, self._now)
        snapshot = "; begins with a snapshot" if choice.snapshot is not None else ""
        yield f"m{choice.index}: {choice.reason}{snapshot}"

    def do_confirm(self, said: str) -> None:
        self._failover.confirm(answer(ANSWERS.get(said, said)), NEEDED)

    def do_follow(self, seconds: str) -> None:
        self._connected(seconds, has_streamed=True)

    def do_connect(self, seconds: str) -> None:
        self._connected(seconds, has_streamed=False)

    def _connected(self, seconds: str, *, has_streamed: bool) -> None:
        self._failover.connected(self._now)
        self._now += float(seconds)
        self._failover.ended(self._now, has_streamed=has_streamed)

    def do_fail(self, kind: str) -> Iterator[str]:
        place = self._failover.try_fail_over(ERRORS[kind])
        if place is None:
            yield "no other member would help"
            return
        passed_over = ", ".join(f"m{one}" for one in self._failover.passed_over) or "nobody"
        yield f"m{place} is left, another is looked for at once; passed over: {passed_over}"

    def do_wait(self) -> Iterator[str]:
        delay = self._failover.next_delay()
        self._now += delay
        self._failover.delay_elapsed()
        yield f"{delay:g} s"


def play(text: str) -> str:
    return played(text, Stage().do)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_transcript(path: Path, golden: Golden) -> None:
    golden.check(path, play(path.read_text()))


def test_there_are_transcripts_and_one_that_says_something_else_is_noticed() -> None:
    assert len(TRANSCRIPTS) >= 6
    text = (HERE / "one-fails.txt").read_text()
    assert play(text) == text
    changed = text.replace("m1: ", "m2: ", 1)
    assert changed != text
    assert play(changed) == text


def test_delays_grow_to_a_bound_until_something_works() -> None:
    delays = BackOff()
    found = [delays.next() for _ in range(10)]
    assert found[0] == DELAY_FIRST_SECONDS
    assert found == sorted(found)
    assert found[-1] == DELAY_MAX_SECONDS
    delays.reset()
    assert delays.next() == DELAY_FIRST_SECONDS


def test_what_works_makes_the_next_delay_short_again() -> None:
    failover = Failover(1, Rules())
    for _ in range(5):
        failover.next_delay()
    failover.succeeded()
    assert failover.next_delay() == DELAY_FIRST_SECONDS
