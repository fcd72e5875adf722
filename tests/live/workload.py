"""A seeded random workload that runs inside the master, in fibers, while the test does other things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdc.local.interface import TarantoolServer
from tests.live.waiting import wait_for

_LUA = Path(__file__).with_name("workload.lua").read_text()


class Workload:
    """What a master has to do. After a restart of the master it must be started again, and goes on with the rows there are."""

    def __init__(self, tarantool: TarantoolServer, seed: int) -> None:
        self._tarantool = tarantool
        self._seed = seed
        self._start_count = 0
        self.row_count = 60
        """How many different rows a space has: few, so that changes meet."""

    def create(self, fill_rows: int = 0) -> None:
        """Make the spaces, and put rows into some of them."""
        self._load()
        self._tarantool.eval("workload.create()")
        if fill_rows:
            self._tarantool.eval("workload.fill(...)", fill_rows, self._seed)

    def start(self, *, steps: int | None = None, fibers: int = 4, pause: float = 0.002, rows_max: int = 2000) -> None:
        """Begin, for so many steps of each fiber, or until it is stopped."""
        self._load()
        self._start_count += 1
        options: dict[str, Any] = {
            "seed": (self._seed + self._start_count * 10_000) % 2**31,
            "fibers": fibers,
            "pause": pause,
            "row_count": self.row_count,
            "rows_max": rows_max,
        }
        if steps is not None:
            options["steps"] = steps
        self._tarantool.eval("workload.start(...)", options)

    def wait(self, timeout_seconds: float = 120) -> None:
        """Wait until all fibers have done their steps."""
        wait_for("the workload's end", lambda: self._tarantool.eval("return workload.running") == [0], timeout_seconds)

    def stop(self) -> None:
        """End it, and wait until nothing is written any more."""
        self._tarantool.eval("workload.stop()")
        self.wait()

    def counts(self) -> dict[str, int]:
        """What was done since the master's start, by kind."""
        (counts,) = self._tarantool.eval("return setmetatable(workload.stats, {__serialize = 'map'})")
        return dict(counts)

    def errors(self) -> dict[str, int]:
        """What the master refused since its start."""
        (errors,) = self._tarantool.eval("return setmetatable(workload.errors, {__serialize = 'map'})")
        return dict(errors)

    def _load(self) -> None:
        if self._tarantool.eval("return rawget(_G, 'workload') == nil") == [True]:
            self._tarantool.eval(_LUA)
