"""What the packages import is what pyproject.toml has pip install with them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS: Final = metadata.packages_distributions()
BY_THE_WAY: Final = {"py4j": "pyspark"}
"""What comes with a dependency, as a part of it."""


def named(requirements: list[str]) -> set[str]:
    """The distributions' names."""
    return {re.split(r"[\s<>=!~;\[]", requirement)[0].lower() for requirement in requirements}


def imports(path: Path) -> Iterator[str]:
    """The top-level modules of others that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in ("cdc", "spark_jobs"):
                yield top


def distributions(*folders: str) -> dict[str, set[str]]:
    """What these folders import, by distribution, with the files that do; servers for the tests aren't installed."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith("cdc/local/"):
            for top in imports(path):
                (distribution,) = {BY_THE_WAY.get(top, one.lower()).replace("_", "-") for one in DISTRIBUTIONS.get(top, [top])}
                found.setdefault(distribution, set()).add(name)
    return found


def test_the_daemon_needs_no_more_than_its_dependencies() -> None:
    """But for what its configuration asks for: extras of these names."""
    found = distributions("cdc")
    assert found.pop("openlineage-python") == {"cdc/ops/lineage.py", "cdc/ops/lineage_events.py"}
    assert named(PROJECT["optional-dependencies"]["lineage"]) == {"openlineage-python"}
    assert found.pop("cel-expr-python") == {"cdc/events/row_filter.py"}
    assert named(PROJECT["optional-dependencies"]["filter"]) == {"cel-expr-python"}
    needed = named(PROJECT["dependencies"])
    assert {name: files for name, files in found.items() if name not in needed} == {}
    assert needed <= found.keys(), "nothing imports these"


def test_the_jobs_need_no_more_than_their_extras() -> None:
    extras = set().union(*(named(PROJECT["optional-dependencies"][name]) for name in ("spark", "avro", "feeds", "lineage")))
    found = distributions("spark_jobs")
    assert {name: files for name, files in found.items() if name not in extras | named(PROJECT["dependencies"])} == {}
