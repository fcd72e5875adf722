"""A process that doesn't answer: what the system says of it, and what is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.ops.silence import Silence, fleet_process_of, process_state, silence_in, silence_of


def test_a_process_that_a_signal_has_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        os.kill(child.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 60
        while process_state(child.pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = silence_of(child.pid, 12.3, None, "The fleet kills it.")
        child.kill()
    assert found.sentence == f"its process {child.pid} has answered nothing for 12 s: a signal, or a debugger, has stopped it"
    assert found.remedy.startswith(f"`kill -CONT {child.pid}` lets it go on")
    assert found.remedy.endswith(". The fleet kills it.")


@pytest.mark.parametrize(
    ("stat", "state"), [("7 (a) T (b)) D 1 2", "D"), ("7 (cdc) S 1", "S"), ("", None), (None, None)], ids=repr
)
def test_what_the_system_says(tmp_path: Path, stat: str | None, state: str | None) -> None:
    """The name of a program may contain anything; a process may be gone."""
    if stat is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "stat").write_text(stat)
    assert process_state(7, tmp_path) == state


def test_a_daemon_of_a_fleets_process(tmp_path: Path) -> None:
    """That one has the address, and may be the one that is frozen."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b) S 42 7 7")
    assert fleet_process_of(7, tmp_path) is None
    for arguments, fleet in ((b"python\0run\0--shard\0s1\0", None), (b"python\0run\0--shard\0s1\0--supervised\0005\0", 42)):
        (tmp_path / "7" / "cmdline").write_bytes(arguments)
        assert fleet_process_of(7, tmp_path) == fleet


def test_what_it_says_itself() -> None:
    assert silence_of(os.getpid(), 9, "its thread is busy", "Wait.") == Silence(
        f"its process {os.getpid()} can't go on: its thread is busy", "Wait.", is_complete=False
    )


def test_as_json() -> None:
    told = Silence("it is silent", "Look.")
    assert silence_in(told.to_json()) == told
    assert [silence_in(other) for other in (None, {}, {"sentence": "it"}, {"sentence": 1, "remedy": "a"})] == [None] * 4
