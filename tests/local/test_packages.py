"""Packages of PyPI that only a few tests need: fetched once, and with what pip said if that fails."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc.local.errors import LocalServerError
from cdc.local.packages import PackageSet, package_folder

_SET = PackageSet("example", ("first==1.0", "second==2.0"))

# Stands in for Python with its pip: writes down its arguments, and makes the folder that it is told to make.
_PYTHON = """#!/bin/sh
echo "$@" >> "{calls}"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/first"
echo 'the last words of pip'
exit {status}
"""


@pytest.fixture(params=[0])
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A file with one line per call of pip, which ends with a status."""
    python, found = tmp_path / "python", tmp_path / "calls"
    python.write_text(_PYTHON.format(calls=found, status=request.param))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("TARANTOOL_CDC_CACHE", str(tmp_path / "cache"))
    return found


def test_a_set_is_fetched_once_however_many_ask(calls: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(lambda _: package_folder(_SET), range(4)))
    (folder,) = folders
    assert folder.parent == tmp_path / "cache" / "packages"
    assert [file.name for file in folder.iterdir()] == ["first"]
    (line,) = calls.read_text().splitlines()
    assert line.endswith(" first==1.0 second==2.0")
    assert package_folder(PackageSet("example", ("first==1.1",))) != folder


@pytest.mark.parametrize("calls", [1], indirect=True)
def test_a_failure_shows_what_pip_said_and_leaves_nothing(calls: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match=r"packages of example \(exit status 1\)[^$]*the last words of pip"):
        package_folder(_SET)
    assert len(calls.read_text().splitlines()) == 1
    assert [file.name for file in (tmp_path / "cache" / "packages").iterdir()] == ["example.lock"]
