"""`python -m tests.bench`: measure the daemon and its peers in one run on this machine, and print one table.

Figures of different runs don't compare unless the machine was idle in both; the ratios of one run do.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cdc import __version__
from cdc.local.servers import LocalServers, local_servers
from tests.bench.results import Result, compare, floors, line, show, write_json
from tests.bench.sections import SECTIONS, Bench

_QUICK_ROWS: Final = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, or 1 if --check is given and a floor isn't reached."""
    options = _parser().parse_args(arguments)
    # Where it is set, Python compiles all sources again at each start: a quarter of a second of CPU that no user's daemon spends.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # So that a terminated run cleans up, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="tarantool-cdc-bench-") as directory, local_servers(Path(directory)) as servers:
        results = measure(options, servers, Path(directory))
    return 1 if options.check and not all(floor.is_reached for floor in floors(results)) else 0


def measure(options: argparse.Namespace, servers: LocalServers, directory: Path) -> list[Result]:
    """Run the chosen sections, and show what they come to."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    machine = _machine()
    bench = Bench(
        servers=servers,
        # A run to see that it works is over before better code would come to use.
        kafka=servers.start_kafka(is_lasting=options.rows > _QUICK_ROWS),
        directory=directory,
        token=uuid.uuid4().hex[:8],
        rows=options.rows,
        rounds=options.rounds,
        rate=options.rate,
        latency_seconds=options.latency_seconds,
        backlog=options.backlog,
        properties=dict(options.kafka_property),
    )
    results: list[Result] = []
    for name in options.only:
        for result in SECTIONS[name](bench):
            console.print(line(result), highlight=False, soft_wrap=True)
            results.append(result)
    compare(results)
    machine["load_average_after"] = os.getloadavg()[0]
    console.print()
    show(results, console)
    console.print(
        f"{machine['processors']} processors, load average {machine['load_average_before']:.1f} before and"
        f" {machine['load_average_after']:.1f} after",
        highlight=False,
    )
    if options.json is not None:
        write_json(options.json, machine, results)
    return results


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, for `measure`."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000, metavar="N", help="rows of the throughput sections (default: %(default)s)")
    add("--rounds", type=int, default=1, metavar="N", help="how often the daemon is measured in each (default: %(default)s)")
    add("--only", type=_sections, default=list(SECTIONS), metavar="NAME,…", help=f"some of {', '.join(SECTIONS)}")
    add("--rate", type=int, default=20_000, metavar="N", help="rows a second for the latency (default: %(default)s)")
    add("--latency-seconds", type=float, default=20, metavar="S", help="how long it is measured (default: %(default)s)")
    add("--backlog", type=int, default=2_000_000, metavar="N", help="rows of the backlog (default: %(default)s)")
    add(
        "--kafka-property",
        action="append",
        default=[],
        type=_property,
        metavar="NAME=VALUE",
        help="for the daemon's kafka.properties; repeatable",
    )
    add("--quick", action=_Quick, nargs=0, help="a tenth of the rows, five seconds of latency: to see that it works")
    add("--json", type=Path, metavar="FILE", help="write all figures here")
    add("--check", action="store_true", help="exit status 1 if a floor isn't reached")
    return parser


class _Quick(argparse.Action):
    """Options behind it on the command line still win."""

    def __call__(self, _: argparse.ArgumentParser, namespace: argparse.Namespace, *__: Any) -> None:
        namespace.rows, namespace.latency_seconds, namespace.backlog = _QUICK_ROWS, 5.0, 200_000


def _sections(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return names


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} isn't NAME=VALUE")
    return name, value


def _machine() -> dict[str, Any]:
    return {
        "processors": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "tarantool_cdc": __version__,
        "load_average_before": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
