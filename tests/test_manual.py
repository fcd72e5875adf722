"""The man page and the completions in config/ are as the command line is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.fakes import manual
from tests.fakes.golden import Golden

CONFIG: Final = Path(__file__).resolve().parent.parent / "config"
COMPLETIONS: Final = {"bash": CONFIG / "completion" / "tarantool-cdc", "zsh": CONFIG / "completion" / "_tarantool-cdc"}
MANUAL: Final = CONFIG / "tarantool-cdc.1"


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_completions_are_current(shell: str, golden: Golden) -> None:
    golden.check(COMPLETIONS[shell], manual.completion(shell))


def test_the_manual_is_current(golden: Golden) -> None:
    golden.check_lines(MANUAL, manual.manual())


def test_bash_completes() -> None:
    """Commands, options of a command, and choices; what is hidden isn't offered."""
    script = f"""
        source {COMPLETIONS["bash"]}
        offered() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_tarantool_cdc; echo "${{COMPREPLY[*]}}"; }}
        offered tarantool-cdc po
        offered tarantool-cdc run --
        offered tarantool-cdc position ex
    """
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True)
    commands, options, choices = ran.stdout.splitlines()
    assert (commands, choices) == ("position", "export")
    assert {"--config", "--shard", "--take-over"} <= set(options.split())
    assert "--supervised" not in options


@pytest.mark.skipif(shutil.which("man") is None, reason="no man")
def test_man_shows_the_manual() -> None:
    ran = subprocess.run(["man", "--warnings", MANUAL], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stderr == ""
    assert "--until-caught-up" in ran.stdout
