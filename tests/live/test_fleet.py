"""A fleet of two replica sets: a daemon for each, one status, and what consumers of shared and of per-shard topics see."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.request
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.local.interface import KafkaServer, TarantoolServer
from cdc.local.ports import free_port
from tests.conftest import TarantoolFactory
from tests.live.commands import FLEET, commands
from tests.live.forked import CdcProcess, run_command
from tests.live.topics import TopicReader
from tests.live.waiting import wait_for

SHARDS = ("s1", "s2")
ROWS = 20
SPACES = """
    local states = {{'id', 'unsigned'}, {'status', 'string'}, {'destination', 'string', is_nullable = true},
        {'opts', 'map', is_nullable = true}}
    local buckets = box.schema.space.create('_bucket', {format = states})
    buckets:create_index('pk')
    local form = {{'id', 'unsigned'}, {'bucket_id', 'unsigned'}, {'n', 'unsigned'}}
    local orders = box.schema.space.create('orders', {format = form})
    orders:create_index('pk')
    orders:create_index('bucket_id', {unique = false, parts = {'bucket_id'}})
"""
SCHEMA = (
    SPACES
    + """
    local first = ...
    for bucket = first, first + 4 do buckets:insert{bucket, 'active'} end
    for id = first * 100, first * 100 + 19 do orders:insert{id, first + id % 5, 0} end
"""
)
CHANGES = """
    local first, n, count = ...
    for i = 0, count - 1 do box.space.orders:update(first * 100 + i % 20, {{'=', 'n', n + i}}) end
"""


LEAVES = """
    local bucket, destination = ...
    box.space._bucket:replace{bucket, 'sending', destination, {generation = 1}}
    box.space._bucket:replace{bucket, 'sent', destination, {generation = 1}}
    box.space._bucket:update(bucket, {{'=', 2, 'garbage'}})
    local rows = box.space.orders.index.bucket_id:select(bucket)
    box.begin()
    for _, row in ipairs(rows) do box.space.orders:delete(row.id) end
    box.commit()
    box.space._bucket:delete(bucket)
    return rows
"""
ARRIVES = """
    local bucket, source, rows = ...
    box.space._bucket:insert{bucket, 'receiving', source, {generation = 1}}
    box.begin()
    for _, row in ipairs(rows) do box.space.orders:insert(row) end
    box.commit()
    box.space._bucket:replace{bucket, 'active', nil, {generation = 1}}
    box.space.orders:update(rows[1][1], {{'=', 'n', 77}})
"""


class Fleet:
    """A fleet of these masters in this layout, through any number of runs."""

    def __init__(self, folder: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer], topics: str) -> None:
        self.prefix = f"fleet-{uuid.uuid4().hex[:12]}"
        self.kafka, self.masters, self.topics = kafka, masters, topics
        self.port = free_port()
        self.file, self._log = folder / "fleet.toml", folder / "fleet.log"
        shards = "\n".join(f'[fleet.shards.{name}]\nuris = ["{master.uri}"]' for name, master in masters.items())
        self.file.write_text(f"""
            name = "{self.prefix}"
            [fleet]
            topics = "{topics}"
            {shards}
            [source]
            replication_timeout_ms = 500
            [kafka]
            bootstrap_servers = "{kafka.bootstrap_servers}"
            topic_prefix = "{self.prefix}"
            partitions = 2
            properties = {{"transaction.timeout.ms" = 15000}}
            [http]
            listen = "127.0.0.1:{self.port}"
            [log]
            format = "console"
        """)
        self._runs: list[CdcProcess] = []
        self.in_order: list[dict[str, Any]] = []
        """The values of the orders that `events` read last, in the order of each partition."""
        self.typed: list[list[str]] = []
        """The commands, as words, without the program."""

    def start(self, *options: str) -> CdcProcess:
        """Start the fleet's process."""
        self.typed.append(["run", "--config", self.file.name, *options])
        self._runs.append(CdcProcess("fleet", ["run", "--config", str(self.file), *options], log_file=self._log))
        return self._runs[-1]

    def command(self, name: str, *options: str) -> str:
        """What a command prints, which must succeed."""
        self.typed.append([name, "--config", self.file.name, *options])
        ended = run_command(name, "--config", str(self.file), *options, timeout_seconds=120)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        return ended.stdout

    def page(self, path: str) -> str:
        """A page of the fleet's process."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
            found: bytes = answer.read()
            return found.decode()

    def statuses(self) -> dict[str, Any]:
        """The shards' states and statuses."""
        try:
            found: dict[str, Any] = json.loads(self.page("/status"))["shards"]
        except OSError:
            return {}
        return found

    def caught_up(self) -> bool:
        """Whether the daemons' checkpoints are at the masters' positions."""
        found = self.statuses()
        for name, master in self.masters.items():
            status = found.get(name, {}).get("status")
            if status is None or status["state"] != "streaming":
                return False
            reached = status["position"]["checkpoint"]
            if any(reached.get(str(origin), 0) < lsn for origin, lsn in master.vclock().items() if origin):
                return False
        return True

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """The values of the spaces' topics, by topic without the prefix, each shard's in the order of seq."""
        with TopicReader(self.kafka.bootstrap_servers, self.prefix) as reader:
            reader.look_at_rest()
            found: dict[str, list[dict[str, Any]]] = defaultdict(list)
            self.in_order = [
                json.loads(record.value)
                for (topic, _), records in sorted(reader.records.items())
                for record in records
                if topic.endswith("orders") and record.value is not None
            ]
            for (topic, _), records in reader.records.items():
                if topic.endswith(("orders", "_bucket")):
                    values = [json.loads(record.value) for record in records if record.value is not None]
                    found[topic.removeprefix(f"{self.prefix}.")] += values
        for values in found.values():
            values.sort(key=lambda value: (value["source"]["shard"], value["source"]["seq"]))
        return dict(found)

    def check(self) -> None:
        """Hold that each shard's events are there once, and that all events make the masters' rows: by key in shared topics,
        in which moves aren't seen, else by shard and key."""
        found = self.events()
        is_shared = self.topics == "shared"
        assert set(found) == {f"{name}._bucket" for name in SHARDS} | (
            {"orders"} if is_shared else {f"{name}.orders" for name in SHARDS}
        )
        for name, master in self.masters.items():
            own = [value for values in found.values() for value in values if value["source"]["shard"] == name]
            assert {value["source"]["name"] for value in own} == {self.prefix if is_shared else f"{self.prefix}.{name}"}
            assert sorted(value["source"]["seq"] for value in own) == list(range(1, len(own) + 1))
            if not is_shared:
                assert _fold(found[f"{name}.orders"]) == master.eval("return box.space.orders:select()")[0]
        if is_shared:
            rows = [row for master in self.masters.values() for row in master.eval("return box.space.orders:select()")[0]]
            assert _fold(self.in_order) == sorted(rows)

    def close(self) -> None:
        """Leave nothing running."""
        for run in self._runs:
            run.kill()
        for line in self._log.read_text().splitlines() if self._log.exists() else ():
            if "the daemon of a shard is started" in line:
                with_process = dict(part.split("=", 1) for part in line.split() if "=" in part)
                _kill_quietly(int(with_process["process"]))


def _fold(events: list[dict[str, Any]]) -> list[list[Any]]:
    """The rows that these events make."""
    rows: dict[int, dict[str, Any]] = {}
    for value in events:
        if value["op"] == "d":
            del rows[value["before"]["id"]]
        else:
            rows[value["after"]["id"]] = value["after"]
    return [[*row.values()] for _, row in sorted(rows.items())]


def _kill_quietly(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def masters(tarantool_factory: TarantoolFactory) -> dict[str, TarantoolServer]:
    found = {name: tarantool_factory(name=name) for name in SHARDS}
    for number, master in enumerate(found.values()):
        master.eval(SCHEMA, 1 + 5 * number)
    return found


@pytest.fixture(params=["shared", "per_shard"])
def fleet(
    tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer], request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    made = Fleet(tmp_path, kafka, masters, request.param)
    yield made
    made.close()


@pytest.mark.one_of_these
@pytest.mark.timeout(600)
def test_two_shards(fleet: Fleet) -> None:
    """Caught up once; then one daemon is killed while the other goes on; all pages; a stop; nothing lost, nothing twice."""
    first = fleet.start("--until-caught-up")
    assert first.exit_status(wait_seconds=180) == 0, first.log_text()
    fleet.check()

    run = fleet.start()
    wait_for("both stream", fleet.caught_up)
    source, destination = (master.eval("return box.info.cluster.uuid")[0] for master in fleet.masters.values())
    rows = fleet.masters["s1"].eval(LEAVES, 2, destination)[0]
    fleet.masters["s2"].eval(ARRIVES, 2, source, rows)
    victim = fleet.statuses()["s1"]["process_id"]
    os.kill(victim, signal.SIGKILL)
    for number, master in enumerate(fleet.masters.values()):
        master.eval(CHANGES, 1 + 5 * number, 1000, 200)
    wait_for("the killed one runs again, and has caught up, as the other", fleet.caught_up)
    states = fleet.statuses()
    assert (states["s1"]["restarts"], states["s2"]["restarts"]) == (1, 0)
    assert states["s1"]["process_id"] != victim

    assert f"name         {fleet.prefix}.s2" in fleet.command("status", "--shard", "s2")
    metrics = fleet.page("/metrics")
    assert all(f'tarantool_cdc_ready{{shard="{name}"}} 1.0' in metrics for name in SHARDS)
    assert 'tarantool_cdc_shard_restarts_total{shard="s1"} 1' in metrics
    assert fleet.page("/ready").count("streaming") == len(SHARDS)
    fleet.command("snapshot", "--shard", "s1", "orders")
    wait_for("its rows again", lambda: _republished(fleet) == {"s1"})
    _check_marks(fleet, len(rows))

    assert run.terminate(120) == 0, run.log_text()
    wait_for("both daemons have ended", lambda: not any(_runs(state["process_id"]) for state in states.values()))
    fleet.check()


@pytest.mark.timeout(600)
def test_the_fleets_process_is_killed(tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer]) -> None:
    """Its daemons stop in order; one of them can go on alone. Meanwhile each command of the documentation is typed."""
    fleet = Fleet(tmp_path, kafka, masters, "shared")
    try:
        run = fleet.start()
        wait_for("both stream", fleet.caught_up)
        assert all(f"shard        {name}" in fleet.command("status") for name in SHARDS)
        assert "no failure in 2 shards" in fleet.command("check")
        processes = [state["process_id"] for state in fleet.statuses().values()]
        run.kill()
        wait_for("both daemons have ended", lambda: not any(_runs(process) for process in processes))
        for number, master in enumerate(masters.values()):
            master.eval(CHANGES, 1 + 5 * number, 7, 5)
        alone = fleet.start("--shard", "s1", "--until-caught-up")
        assert alone.exit_status(wait_seconds=180) == 0, alone.log_text()
        rest = fleet.start("--until-caught-up")
        assert rest.exit_status(wait_seconds=180) == 0, rest.log_text()
        fleet.check()
        assert fleet.command("check", "--shard", "s1").splitlines()[-1] == "run would start"
        for command in commands(FLEET):
            words = command.partition("#")[0].split()[1:]
            assert any(typed[: len(words)] == words for typed in fleet.typed), command
    finally:
        fleet.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_daemon_that_is_frozen(tmp_path: Path, kafka: KafkaServer, masters: dict[str, TarantoolServer]) -> None:
    """Every command names its process and what to do; then the fleet kills it, and all changes come."""
    fleet = Fleet(tmp_path, kafka, masters, "shared")
    fleet.file.write_text(fleet.file.read_text().replace("[fleet]\n", "[fleet]\nwatchdog_ms = 45000\n"))
    try:
        fleet.start()
        wait_for("both stream", fleet.caught_up)
        process = fleet.statuses()["s1"]["process_id"]
        os.kill(process, signal.SIGSTOP)
        wait_for("it is told", lambda: fleet.statuses()["s1"]["silence"] is not None)
        for command in (["status"], ["status", "--shard", "s1"], ["check", "--shard", "s1"], ["doctor", "--shard", "s1"]):
            ended = run_command(*command, "--config", str(fleet.file), timeout_seconds=120)
            said = ended.stdout + ended.stderr
            assert f"its process {process} has answered nothing for" in said, said
            assert f"kill -CONT {process}" in said
            assert ended.returncode == (0 if command == ["status"] else 1), said
        masters["s1"].eval(CHANGES, 1, 7, 5)
        wait_for("it is started again", lambda: fleet.statuses()["s1"]["restarts"] == 1, 90)
        wait_for("both stream", fleet.caught_up)
        assert "killed by the fleet's watchdog" in fleet.statuses()["s1"]["error"]
        fleet.check()
    finally:
        fleet.close()


def _check_marks(fleet: Fleet, count: int) -> None:
    """In per-shard topics the moved rows are marked where they were and where they are, and nothing else is."""
    marks = Counter(
        (
            value["source"]["shard"],
            value["op"],
            value["source"]["move"],
            value["source"]["bucket_id"],
            value["source"]["generation"],
        )
        for values in fleet.events().values()
        for value in values
        if "move" in value["source"]
    )
    assert marks == ({("s1", "d", "gc", 2, 1): count, ("s2", "c", "in", 2, 1): count} if fleet.topics == "per_shard" else {})


def _republished(fleet: Fleet) -> set[str]:
    """The shards whose rows of orders are there a second time as `r`."""
    counts = Counter(
        value["source"]["shard"]
        for topic, values in fleet.events().items()
        for value in values
        if topic.endswith("orders") and value["op"] == "r"
    )
    return {name for name, count in counts.items() if count > ROWS}


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
