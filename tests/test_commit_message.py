"""Messages of commits: what the hook refuses, and that the project's own have the form that it asks for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commit_message import main, mistakes

ROOT = Path(__file__).parent.parent
BEGIN = "8923bf35e352"
"""The last commit from before the form was asked for."""


@pytest.mark.parametrize(
    "message",
    [
        "stream: read a batch at once\n",
        "images, protocol: read a request's body in one way\n\nBoth had a reader of their own.\n",
        "search_index: feed pages in their order",
        "Merge branch 'main'",
        'Revert "stream: read a batch at once"',
        "docs: name all keys\n# Please enter the commit message\n",
    ],
)
def test_messages_that_have_the_form(message: str) -> None:
    assert mistakes(message) == []


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("", "`area: imperative`"),
        ("read a batch at once", "`area: imperative`"),
        ("Stream: read a batch", "`area: imperative`"),
        ("stream:read a batch", "`area: imperative`"),
        ("stream: Read a batch", "'Read' in lower case"),
        ("stream: added a batch", "'added' is no imperative"),
        ("stream: reading a batch", "'reading' is no imperative"),
        ("stream: read a batch.", "without a full stop"),
        (f"stream: read {'x' * 60}", "73 characters; 72 are allowed"),
        ("stream: read a batch\nas it comes", "An empty line must follow"),
    ],
)
def test_messages_that_are_refused(message: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(message)
    assert main([str(path)]) == 1
    assert sentence in capsys.readouterr().err


def test_the_projects_own_messages_have_it() -> None:
    """All since the form is asked for; in a clone that doesn't reach so far back, the newest."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--verify", "HEAD").returncode:
        pytest.skip("the sources aren't a git repository")
    is_deep = git("merge-base", "--is-ancestor", BEGIN, "HEAD").returncode == 0
    said = git("log", "--no-merges", "-z", "--format=%B", *([f"{BEGIN}..HEAD"] if is_deep else ["-1"]))
    found = {message.splitlines()[0]: wrong for message in said.stdout.split("\0") if message and (wrong := mistakes(message))}
    assert found == {}
