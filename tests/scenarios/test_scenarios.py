"""Every transcript beside this file comes to what it says; `--update-golden` writes down what it comes to now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.golden import Golden
from tests.scenarios.play import MARK, play, steps

HERE = Path(__file__).resolve().parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_transcript(path: Path, golden: Golden) -> None:
    golden.check(path, play(path.read_text()))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 10


def test_a_transcript_that_says_something_else_is_noticed() -> None:
    path = HERE / "row.txt"
    text = path.read_text()
    assert play(text) == text
    changed = text.replace('"name":"three"', '"name":"four"')
    assert changed != text
    assert play(changed) == text
    assert [step.text for step in steps(text)] == [line for line in text.splitlines() if not line.startswith(MARK.rstrip())]
