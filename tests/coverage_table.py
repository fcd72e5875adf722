"""`make coverage` ends with this: what the tests without servers run of the code, by package, and the modules with the most left.

Lines and branches are counted together, as they are by coverage itself. What only Spark or servers run isn't in it: a low figure
of a shell says where its tests are, a low one of what decides that tests are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MODULES_SHOWN: Final = 20
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Count:
    """Lines and branches of something, and how many of them were run."""

    name: str
    total: int
    run: int

    @property
    def share(self) -> float:
        """In percent; of nothing it is all."""
        return 100 * self.run / self.total if self.total else 100.0


def modules(report: Mapping[str, Any]) -> list[Count]:
    """Each module of a report, as `coverage json` writes it."""
    found = []
    for name, file in report["files"].items():
        summary = file["summary"]
        total = summary["num_statements"] + summary["num_branches"]
        found.append(Count(name, total, summary["covered_lines"] + summary["covered_branches"]))
    return found


def package(module: str) -> str:
    """`cdc/feeds/tap/wire.py` is counted with `cdc/feeds`, `cdc/cli.py` with `cdc`."""
    return "/".join(module.split("/")[:-1][:2])


def by_package(counts: Iterable[Count]) -> list[Count]:
    """The sums of the packages, and behind them that of all."""
    sums: dict[str, list[Count]] = {}
    for count in counts:
        sums.setdefault(package(count.name), []).append(count)
    found = [_sum(name, sums[name]) for name in sorted(sums)]
    return [*found, _sum(ALL, found)]


def _sum(name: str, counts: Iterable[Count]) -> Count:
    listed = list(counts)
    return Count(name, sum(count.total for count in listed), sum(count.run for count in listed))


def lines(counts: Sequence[Count]) -> Iterator[str]:
    """The table."""
    width = max(len(count.name) for count in counts)
    for count in counts:
        yield f"{count.name:<{width}}  {count.total:>6}  {count.share:>5.1f} %"


def main(path: str) -> None:
    """Print it."""
    found = modules(json.loads(Path(path).read_text()))
    print("lines and branches, and how many of them the tests without servers run:\n")
    print(*lines(by_package(found)), sep="\n")
    print("\nthe modules with the most left:\n")
    print(*lines(sorted(found, key=lambda count: count.run - count.total)[:MODULES_SHOWN]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
