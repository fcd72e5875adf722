"""The temporary directory of `watch`: gone at the end, and whatever ended the process, before the next one's end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cdc.commands.watch_directory import temporary_directory

HOLDS = """
from cdc.commands.watch_directory import temporary_directory
with temporary_directory() as directory:
    (directory / "images").mkdir()
    print(directory, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_process_left_is_removed(place: Path) -> None:
    """And nothing that a process still has, or has just made, or that isn't a directory of ours."""
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        new, target, link = place / "tarantool-cdc-watch-new", place / "target", place / "tarantool-cdc-watch-link"
        new.mkdir()
        target.mkdir()
        link.symlink_to(target)
        for path in (held, target):
            os.utime(path, (1, 1))
        with temporary_directory() as own:
            assert {held, new, target, link, own} == set(place.iterdir())
        process.kill()
    os.utime(held, (1, 1))
    with temporary_directory():
        pass
    assert {new, target, link} == set(place.iterdir())
