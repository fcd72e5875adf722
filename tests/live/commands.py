"""The commands on the pages, and a folder in which a reader could type them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cdc.local import jars
from cdc.local.process import ChildProcess
from cdc.local.spark import spark_environment
from spark_jobs.runner.session import JARS_DIRECTORY_VARIABLE
from tests.live import console_consumer

ROOT: Final = Path(__file__).resolve().parents[2]
FLEET: Final = ROOT / "docs" / "fleet.md"
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / ".github").glob("*.md")))

_TIMEOUT_SECONDS: Final = 300
_COMMAND: Final = re.compile(r"(\.venv/bin/\S+|[a-z][\w.-]*) \S")
_NO_COMMANDS: Final = frozenset({"architecture.md"})
"""Its blocks without a language are drawings."""


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in this language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for found, text in fenced if found == language]


def commands(page: Path) -> Iterator[str]:
    """The lines of its blocks without a language: each is a command for a shell, comment and all; a backslash continues it."""
    if page.name not in _NO_COMMANDS:
        for block in blocks(page):
            for line in re.sub(r" \\\n +", " ", block).splitlines():
                assert _COMMAND.match(line), f"{page.name} has a line that is no command: {line}"
                yield line


class Reader:
    """Somebody who types what a page says, in a folder with a `.venv`; only the servers' addresses are others."""

    def __init__(self, folder: Path, addresses: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """`addresses` are those of the pages, and what stands for them here."""
        self.folder = folder
        self._addresses = addresses
        tools = folder / "tools"
        tools.mkdir(parents=True)
        (folder / ".venv").symlink_to(sys.prefix)
        consumer = tools / "kafka-console-consumer.sh"
        consumer.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, console_consumer.__file__])} "$@"\n')
        consumer.chmod(0o755)
        self.environment = {
            **environment,
            **spark_environment(),
            JARS_DIRECTORY_VARIABLE: str(jars.jar_folder(jars.SPARK)),
            "PATH": f"{tools}:{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        }

    def text(self, text: str) -> str:
        """What a page says, with the addresses of here."""
        for theirs, ours in self._addresses.items():
            text = text.replace(theirs, ours)
        return text

    def run(self, command: str, status: int = 0) -> str:
        """Type a command and wait for its end; what it printed."""
        done = subprocess.run(
            ["bash", "-c", self.text(command)],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
        assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, command: str) -> ChildProcess:
        """Type a command that goes on until it is stopped."""
        name = _COMMAND.match(command)
        assert name is not None
        return ChildProcess(
            name[1],
            ["bash", "-c", self.text(command)],
            log_file=self.folder / f"{Path(name[1]).name}.log",
            working_directory=self.folder,
            environment=self.environment,
        )
