"""ClickHouse in a process of its own, as chDB brings an allocator, threads and signal handlers along."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

IS_THERE = importlib.util.find_spec("chdb") is not None
"""Whether chDB is installed: `make test` installs it."""
TIMEOUT_SECONDS = 120


class ClickHouseError(Exception):
    """What ClickHouse answered to a statement that it refused."""


def run(statements: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Run statements in a new, empty ClickHouse; return the rows of each.

    Raises ClickHouseError with the answer to the first statement that is refused.
    """
    # Without the tests' warnings filter: what the module does at its end isn't ours.
    process = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps(list(statements)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if process.returncode:
        *_, last = [f"it ended with status {process.returncode}", *process.stderr.strip().splitlines()]
        raise ClickHouseError(last)
    answers = json.loads(process.stdout)
    return [[json.loads(line) for line in answer.splitlines()] for answer in answers]


def _serve() -> None:
    # Imported here: only this process may load it.
    session = importlib.import_module("chdb.session").Session()
    session.query("SET output_format_json_quote_64bit_integers = 0, output_format_json_quote_decimals = 1")
    print(json.dumps([str(session.query(statement, "JSONEachRow")) for statement in json.load(sys.stdin)]))


if __name__ == "__main__":
    _serve()
