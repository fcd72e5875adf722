"""Buckets that move between two replica sets as vshard moves them, under a random load through a router of this test's own.

Moves fail half-way, and go on after kills of either master. Either daemon is killed, stands still, or lags meanwhile. Consumers
of the shared topics must see, for each key of the cluster, exactly the changes that the router made, in its order.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from tests.conftest import TarantoolFactory
from tests.live.test_fleet import SHARDS, SPACES, Fleet
from tests.live.waiting import wait_for

BUCKETS: Final = 12
KEYS: Final = 120
SCHEMA: Final = (
    SPACES
    + """
    local first, count = ...
    for bucket = first, first + count - 1 do buckets:insert{bucket, 'active'} end
"""
)
STATE: Final = (
    "local id, status, peer, generation = ... return box.space._bucket:replace{id, status, peer, {generation = generation}}"
)
ROWS: Final = "return box.space.orders.index.bucket_id:select(...)"
COPY: Final = "box.begin() for _, row in ipairs(...) do box.space.orders:insert(row) end box.commit()"
COLLECT: Final = """
    local id = ...
    box.space._bucket:update(id, {{'=', 2, 'garbage'}})
    box.begin()
    for _, row in ipairs(box.space.orders.index.bucket_id:select(id)) do box.space.orders:delete(row.id) end
    box.commit()
    box.space._bucket:delete(id)
"""
UPSERT: Final = "box.space.orders:replace{...}"
UPDATE: Final = "local id, n = ... box.space.orders:update(id, {{'=', 'n', n}})"
DELETE: Final = "box.space.orders:delete(...)"
Change = tuple[str, Any, Any]


class Router:
    """Who owns each bucket, what users have done, and the moves."""

    def __init__(self, masters: dict[str, TarantoolServer], chance: random.Random) -> None:
        self._masters, self._chance = masters, chance
        self._uuids = {name: master.replicaset_uuid for name, master in masters.items()}
        self._owner = {bucket: SHARDS[bucket > BUCKETS // 2] for bucket in range(1, BUCKETS + 1)}
        self._generation = dict.fromkeys(self._owner, 0)
        self._rows: dict[int, list[int]] = {}
        self._n = 0
        self.changes: dict[int, list[Change]] = defaultdict(list)
        self.outcomes: dict[str, int] = defaultdict(int)

    def write(self, count: int, *, but: int | None = None) -> None:
        """Users change rows, but not of the bucket that is on its way."""
        for _ in range(count):
            key = self._chance.randrange(KEYS)
            bucket = key % BUCKETS + 1
            if bucket == but:
                continue
            master, before, self._n = self._masters[self._owner[bucket]], self._rows.get(key), self._n + 1
            kind = self._chance.choice(("replace", "update", "delete"))
            if kind == "replace" or before is None:
                after: list[int] | None = [key, bucket, self._n]
                master.eval(UPSERT, *[key, bucket, self._n])
            elif kind == "update":
                after = [key, bucket, self._n]
                master.eval(UPDATE, key, self._n)
            else:
                after = None
                master.eval(DELETE, key)
            self.changes[key].append(("d" if after is None else "c" if before is None else "u", before, after))
            if after is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = after

    def move(self) -> None:
        """Move a bucket, or fail to, as users go on elsewhere."""
        chance = self._chance
        bucket = chance.choice(list(self._owner))
        source = self._owner[bucket]
        destination = SHARDS[source == SHARDS[0]]
        here, there, generation = self._masters[source], self._masters[destination], self._generation[bucket] + 1
        before, self._generation[bucket] = self._generation[bucket], generation
        outcome = chance.choice(("moved", "moved", "moved", "failed early", "failed late", "collected first"))
        self.outcomes[outcome] += 1
        here.eval(STATE, bucket, "readonly", None, before)
        here.eval(STATE, bucket, "sending", self._uuids[destination], generation)
        there.eval(STATE, bucket, "receiving", self._uuids[source], generation)
        rows = here.eval(ROWS, bucket)[0]
        if outcome == "failed early":
            rows = rows[: len(rows) // 2]
        for row in rows:
            self._kill_sometimes()
            there.eval(COPY, [row])
            self.write(1, but=bucket)
        if outcome.startswith("failed"):
            here.eval(STATE, bucket, "active", None, generation)
            self.write(3)
            self._kill_sometimes()
            there.eval(COLLECT, bucket)
            return
        here.eval(STATE, bucket, "sent", self._uuids[destination], generation)
        self._kill_sometimes()
        if outcome == "collected first":
            here.eval(COLLECT, bucket)
        there.eval(STATE, bucket, "active", None, generation)
        self._owner[bucket] = destination
        self.write(3)
        if outcome != "collected first":
            here.eval(COLLECT, bucket)

    def _kill_sometimes(self) -> None:
        if self._chance.random() < 0.01:
            master = self._masters[self._chance.choice(SHARDS)]
            master.kill()
            master.start()
            self.outcomes["kills of masters"] += 1


class Trouble:
    """What happens to the daemons."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self._fleet, self._chance = fleet, chance
        self._stopped: dict[int, float] = {}
        self.count: dict[str, int] = defaultdict(int)

    def sometimes(self) -> None:
        """Kill a daemon, let it stand still, or let it go on."""
        now = time.monotonic()
        for process, until in list(self._stopped.items()):
            if now >= until:
                self._go_on(process)
        if self._chance.random() < 0.6:
            return
        state = self._fleet.statuses().get(self._chance.choice(SHARDS), {})
        process = state.get("process_id")
        if process is None or process in self._stopped:
            return
        if self._chance.random() < 0.5:
            self.count["killed"] += self._signal(process, signal.SIGKILL)
        elif self._signal(process, signal.SIGSTOP):
            self._stopped[process] = now + self._chance.uniform(0.5, 15)
            self.count["stood still"] += 1

    def end(self) -> None:
        """Let all go on."""
        for process in list(self._stopped):
            self._go_on(process)

    def _go_on(self, process: int) -> None:
        del self._stopped[process]
        self._signal(process, signal.SIGCONT)

    @staticmethod
    def _signal(process: int, number: signal.Signals) -> bool:
        """Send a signal; return whether the process still ran."""
        try:
            os.kill(process, number)
        except ProcessLookupError:
            return False
        return True


def sharded_masters(factory: TarantoolFactory) -> dict[str, TarantoolServer]:
    """The master of each shard, with its half of the buckets."""
    found = {name: factory(name=name) for name in SHARDS}
    for number, master in enumerate(found.values()):
        master.eval(SCHEMA, 1 + number * BUCKETS // 2, BUCKETS // 2)
    return found


@pytest.fixture
def masters(tarantool_factory: TarantoolFactory) -> dict[str, TarantoolServer]:
    return sharded_masters(tarantool_factory)


@pytest.fixture
def fleet(tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer]) -> Iterator[Fleet]:
    made = Fleet(tmp_path, kafka, masters, "shared")
    yield made
    made.close()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("moves", "is_troubled"), [(6, False), pytest.param(int(os.environ.get("MOVES", "200")), True, marks=pytest.mark.soak)]
)
def test_consumers_see_nothing_of_moves(
    fleet: Fleet, masters: dict[str, TarantoolServer], moves: int, *, is_troubled: bool
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    router, trouble = Router(masters, chance), Trouble(fleet, chance)
    router.write(KEYS)
    first = fleet.start("--until-caught-up")
    assert first.exit_status(wait_seconds=180) == 0, first.log_text()
    run = fleet.start()
    wait_for("both stream", fleet.caught_up)
    wait_for("each has seen the other begin", lambda: all(is_settled(state) for state in fleet.statuses().values()))
    for _ in range(moves):
        router.write(5)
        if is_troubled:
            trouble.sometimes()
        router.move()
    trouble.end()
    wait_for("both have caught up", fleet.caught_up, 600)
    wait_for("no bucket waits", lambda: not any(is_waiting(state) for state in fleet.statuses().values()), 300)
    print(dict(router.outcomes), dict(trouble.count), sum(map(len, router.changes.values())), "changes")
    assert run.terminate(120) == 0, run.log_text()
    fleet.events()
    found: dict[int, list[Change]] = defaultdict(list)
    for event in fleet.in_order:
        before, after = (list(row.values()) if row is not None else None for row in (event["before"], event["after"]))
        found[(after or before or [0])[0]].append(("c" if event["op"] == "r" else event["op"], before, after))
    assert set(found) <= set(router.changes)
    for key, changes in router.changes.items():
        # The first snapshot shows what was there then, and nothing of what was before.
        seen = found.get(key, [])
        wanted = changes[len(changes) - len(seen) :] if seen else []
        if seen and seen[0][0] == "c" and wanted[0][0] != "c":
            wanted = [("c", None, wanted[0][2]), *wanted[1:]]
        assert seen == wanted, (seed, key)
        assert seen or changes[-1][2] is None, (seed, key)


def is_settled(state: dict[str, Any]) -> bool:
    """Whether a shard is past the beginnings, by its status."""
    status = state.get("status")
    return status is not None and status["buckets"] is not None and not status["buckets"]["awaits"]


def is_waiting(state: dict[str, Any]) -> bool:
    """Whether rows of a bucket wait in a shard, by its status."""
    status = state.get("status")
    return status is None or status["buckets"] is None or bool(status["buckets"]["waiting"])
