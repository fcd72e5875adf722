"""A master with rows to publish: (unsigned, string of 16 characters, unsigned), written in the two ways that matter.

Transactions of 500 rows share what a transaction costs and are compressed in the log; single rows pay for everything each.
The space exists before the master's snapshot and is empty in it, so that its rows come by the stream.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from cdc.local.interface import TarantoolServer
from cdc.local.options import TarantoolOptions
from cdc.local.servers import LocalServers

SPACE: Final = "bench"
_FILL_TIMEOUT_SECONDS: Final = 1200.0

_CREATE: Final = """
local is_sync = ...
local format = {{'id', 'unsigned'}, {'name', 'string'}, {'value', 'unsigned'}}
local space = box.schema.space.create('bench', {format = format, is_sync = is_sync})
space:create_index('primary', {parts = {'id'}})
box.snapshot()
"""

# What every chunk below begins with. Not compressible beyond what hexadecimal digits are.
_ROW: Final = """
local fiber, clock, bit, random = require('fiber'), require('clock'), require('bit'), math.random
local space = box.space.bench
local function insert(id)
    space:insert{id, bit.tohex(random(0, 0x7fffffff)) .. bit.tohex(random(0, 0x7fffffff)), random(0, 1000000)}
end
"""

# Many fibers, so that the log takes many transactions with one write, as it does under concurrent clients.
_FILL: Final = (
    _ROW
    + """
local first, last, size = ...
local next_id = first
bench_working, bench_error = 64, nil
local function work()
    while next_id <= last do
        local from = next_id
        local to = math.min(from + size - 1, last)
        next_id = to + 1
        if size == 1 then
            insert(from)
        else
            box.begin()
            for id = from, to do insert(id) end
            box.commit()
        end
    end
end
for _ = 1, 64 do
    fiber.create(function()
        fiber.yield()
        local ok, err = pcall(work)
        if not ok then bench_error = tostring(err) end
        bench_working = bench_working - 1
    end)
end
"""
)

# Random keys of those that are there; what the update is has little to do with what it costs.
_UPDATE: Final = """
local rows, count, size = ...
local fiber, space, random = require('fiber'), box.space.bench, math.random
local left = count
bench_working, bench_error = 64, nil
local function work()
    while left > 0 do
        local now = math.min(size, left)
        left = left - now
        box.begin()
        for _ = 1, now do space:update(random(rows), {{'+', 3, 1}}) end
        box.commit()
    end
end
for _ = 1, 64 do
    fiber.create(function()
        fiber.yield()
        local ok, err = pcall(work)
        if not ok then bench_error = tostring(err) end
        bench_working = bench_working - 1
    end)
end
"""

# One transaction every millisecond or so, with the rows that are due by the clock.
_LOAD: Final = (
    _ROW
    + """
local first, rate, seconds = ...
bench_working, bench_error, bench_written, bench_delay = 1, nil, 0, 0
local function work()
    local started, written = clock.monotonic(), 0
    while true do
        local elapsed = clock.monotonic() - started
        local due = math.floor(math.min(elapsed, seconds) * rate) - written
        if due == 0 and elapsed >= seconds then break end
        bench_delay = math.max(bench_delay, due / rate)
        if due > 0 then
            due = math.min(due, 200)
            box.begin()
            for id = first + written, first + written + due - 1 do insert(id) end
            box.commit()
            written = written + due
            bench_written = written
        end
        fiber.sleep(0.001)
    end
end
fiber.create(function()
    fiber.yield()
    local ok, err = pcall(work)
    if not ok then bench_error = tostring(err) end
    bench_working = 0
end)
"""
)


@dataclass(frozen=True)
class Load:
    """What a steady load came to: rows, and how late the latest batch was."""

    rows: int
    delay_seconds: float


class Master:
    """A master whose space `bench` is empty at first."""

    def __init__(self, server: TarantoolServer) -> None:
        self.server = server

    @property
    def lsn(self) -> int:
        """The last lsn of the master's own log."""
        return self.server.vclock().get(1, 0)

    def fill(self, rows: int, *, rows_per_transaction: int, first: int = 1) -> None:
        """Insert `rows` rows with ids from `first` on, and return when all are in the log."""
        self.server.eval(_FILL, first, first + rows - 1, rows_per_transaction)
        self._wait(_FILL_TIMEOUT_SECONDS)

    def update(self, rows: int, count: int, *, rows_per_transaction: int) -> None:
        """Update `count` random ones of the rows with ids up to `rows`."""
        self.server.eval(_UPDATE, rows, count, rows_per_transaction)
        self._wait(_FILL_TIMEOUT_SECONDS)

    def empty(self) -> None:
        """Let the space have no rows."""
        self.server.eval("box.space.bench:truncate()")

    def start_load(self, *, first: int, rate: int, seconds: float) -> None:
        """Begin to insert `rate` rows a second, evenly, with ids from `first` on."""
        self.server.eval(_LOAD, first, rate, seconds)

    def finish_load(self, seconds: float) -> Load:
        """Wait until the load is over; at most `seconds`."""
        self._wait(seconds)
        rows, delay = self.server.eval("return bench_written, bench_delay")
        return Load(rows, delay)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            working, error = self.server.eval("return bench_working, bench_error")
            if error is not None:
                raise RuntimeError(f"the master can't be filled: {error}")
            if working == 0:
                return
            time.sleep(0.05)
        raise TimeoutError(f"the master wasn't done in {seconds:.0f} s")


def start_master(servers: LocalServers, name: str, rows: int, *, is_sync: bool = False) -> Master:
    """A running master with room for `rows` rows, its space empty and its snapshot taken.

    If the space is synchronous, the quorum is the master alone: each transaction is confirmed by a row of its own right after it.
    """
    options = TarantoolOptions(
        memtx_memory=max(256 * 1024 * 1024, rows * 320),
        wal_max_size=16 * 1024**3,
        # A reader that is slow because the machine is busy isn't to be dropped.
        replication_timeout=10,
        # What a daemon skips on its way to the first row.
        box={"log_level": 4},
    )
    server = servers.start_tarantool(name, options)
    server.eval(_CREATE, is_sync)
    return Master(server)
