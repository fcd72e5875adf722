"""No way past the seams: which modules of the daemon meet time, threads, the network or Kafka's library, and by which names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from tests.simulation.library import REPLACED

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("daemon", "kafka", "ops", "sources", "store")
WATCHED: Final = {"time", "threading", "select", "selectors", "socket", "random", "uuid", "gc", "asyncio", "multiprocessing"}
OUTSIDE: Final = {
    "cdc.daemon.fleet": "starts daemons as processes of their own; the world has its own processes",
    "cdc.daemon.supervised": "the side of such a process that talks to the fleet",
    "cdc.daemon.listener": "opens the HTTP server, which the world has none of",
    "cdc.ops.waiting_room": "connections of the same",
    "cdc.ops.fleet_page": "HTTP, and questions to the fleet's processes",
    "cdc.daemon.file_source": "reads a server's files: no connection, no ACK; the world has none",
    "cdc.kafka.by_batch": "hands messages to librdkafka in compiled code; the world's producers take them one by one",
    "cdc.kafka.wake_pipe": "replaced as a whole, where the exchange makes one",
    "cdc.ops.bounded_server": "HTTP, which the world doesn't ask",
    "cdc.ops.http": "the same",
    "cdc.ops.http_orders": "the same",
    "cdc.ops.streams": "the same",
    "cdc.ops.lineage": "tells a catalog over HTTP, if one is configured; the world has none",
    "cdc.ops.metrics": "what it shows over HTTP",
    "cdc.ops.asking": "asks another process over HTTP",
    "cdc.ops.signals": "signals of the process",
    "cdc.ops.service_manager": "tells systemd that the process is well",
}
"""What stays outside of the world, and why."""


def watched_names(path: Path) -> set[str]:
    """Names by which a module knows what is watched: `import time` is `time`; of uuid only what draws a number counts."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name for alias in node.names if alias.name in WATCHED}
        if isinstance(node, ast.ImportFrom) and node.module in WATCHED | {"concurrent.futures"}:
            found |= {alias.name for alias in node.names} - {"UUID", "Future"}
    return found


def test_every_module_that_meets_the_surroundings_is_replaced_or_named() -> None:
    missing = {}
    for package in PACKAGES:
        for path in sorted((ROOT / "cdc" / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            names = watched_names(path) - set(REPLACED.get(module, ()))
            if names and module not in OUTSIDE:
                missing[module] = sorted(names)
    assert not missing, "the simulation doesn't replace these: put them into REPLACED, or into OUTSIDE with the reason"


def test_no_default_keeps_the_real_thing() -> None:
    """`field(default_factory=time.time)` looks the function up once, before the world has replaced it."""
    found = []
    for module in REPLACED:
        for node in ast.walk(ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())):
            value = node.value if isinstance(node, ast.keyword) and node.arg == "default_factory" else None
            if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id in WATCHED:
                found.append(f"{module}: {ast.unparse(value)}")
    assert not found


def test_what_stays_outside_is_still_there() -> None:
    for module in OUTSIDE:
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
    for module in REPLACED:
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
