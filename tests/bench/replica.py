"""How fast a real replica catches up: the same stream, applied to a space and written to a log."""

from __future__ import annotations

import time
from typing import Final

from cdc.local.interface import TarantoolServer
from cdc.local.options import TarantoolOptions
from cdc.local.servers import LocalServers
from tests.bench.workload import Master

_TIMEOUT_SECONDS: Final = 600.0

_DETACH: Final = "box.cfg{replication = {}}"

# The clock starts when the replica is told its master, and stops within a millisecond of the last row.
_ATTACH: Final = """
local uri, lsn = ...
local fiber, clock = require('fiber'), require('clock')
bench_seconds = nil
fiber.create(function()
    fiber.yield()
    local started = clock.monotonic()
    fiber.create(function() box.cfg{replication = {uri}} end)
    while (box.info.vclock[1] or 0) < lsn do fiber.sleep(0.001) end
    bench_seconds = clock.monotonic() - started
end)
"""


class Replica:
    """A replica that has joined while the master was empty, and was then cut off."""

    def __init__(self, servers: LocalServers, name: str, master: Master, rows: int) -> None:
        self._master = master
        options = TarantoolOptions(
            replication=(master.server.uri,),
            read_only=True,
            memtx_memory=max(256 * 1024 * 1024, rows * 320),
            wal_max_size=16 * 1024**3,
            replication_timeout=10,
            box={"log_level": 4},
        )
        self._server: TarantoolServer = servers.start_tarantool(name, options)
        self._server.eval(_DETACH)

    def catch_up(self, lsn: int) -> float:
        """Attach it to the master again; the seconds until it has `lsn` of origin 1."""
        self._server.eval(_ATTACH, self._master.server.uri, lsn)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            (seconds,) = self._server.eval("return bench_seconds")
            if seconds is not None:
                return float(seconds)
            time.sleep(0.05)
        raise TimeoutError(f"the replica didn't catch up in {_TIMEOUT_SECONDS:.0f} s:\n{self._server.log_tail()}")

    def count(self) -> int:
        """Rows of its space."""
        return int(self._server.eval("return box.space.bench:count()")[0])

    def close(self) -> None:
        """Stop it."""
        self._server.close()
