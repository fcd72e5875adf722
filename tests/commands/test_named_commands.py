"""Commands that messages, docstrings and documentation name: they exist, and so do their options."""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc import cli
from tests.test_architecture import CDC, ROOT, SPARK, tree

pytestmark = pytest.mark.xdist_group("sources")

OURS: Final = re.compile(r"\btarantool-cdc ([a-z][a-z_-]*)((?: --[a-z-]+)*)")
JOBS: Final = re.compile(r"\bspark_jobs(?:/run\.py)? ([a-z_]+)\b")
PROSE: Final = frozenset({"is", "has", "keeps", "show"})
"""Words after the program's name that name no command: in sentences about it, and in the name of a Spark session."""


@functools.cache
def commands() -> dict[str, set[str]]:
    """The options of each command."""
    parser = cli._parser()
    (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: {option for action in sub._actions for option in action.option_strings} for name, sub in actions.choices.items()
    }


def texts() -> Iterator[tuple[str, str]]:
    """The strings of the programs, and the pages."""
    for name, path in (*CDC.items(), *SPARK.items()):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value
            elif isinstance(node, ast.JoinedStr):
                shown = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                yield f"{name}:{node.lineno}", shown
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*.yml"), ROOT / "Dockerfile"):
        if path.name != "CHANGELOG.md":  # it tells of what was once
            yield path.name, path.read_text()


def missing_in(text: str) -> list[str]:
    """What a text names and isn't there."""
    known = commands()
    found = []
    for name, options in OURS.findall(text):
        if name not in known and name not in PROSE:
            found.append(f"tarantool-cdc {name}")
        found += [f"{name} {option}" for option in options.split() if name in known and option not in known[name]]
    return found


def test_commands_exist() -> None:
    missing = {where: found for where, text in texts() if (found := missing_in(text))}
    assert not missing


def test_jobs_exist() -> None:
    pytest.importorskip("pyspark")
    from spark_jobs.run import JOBS as FOLLOWING
    from spark_jobs.run import TASKS

    known = {*FOLLOWING, *TASKS, "show"}
    missing = {where: found for where, text in texts() if (found := [name for name in JOBS.findall(text) if name not in known])}
    assert not missing


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`tarantool-cdc audit` lists them", ["tarantool-cdc audit"]),
        ("`tarantool-cdc run --rebuild-state`", []),
        ("`tarantool-cdc run --rebuild`", ["run --rebuild"]),
        ("`tarantool-cdc` is a program", []),
    ],
)
def test_the_check_above_can_fail(text: str, missing: list[str]) -> None:
    assert missing_in(text) == missing


def test_pages_are_looked_at() -> None:
    assert {"README.md", "operations.md", "spark.md"} <= {Path(where).name for where, _ in texts()}
