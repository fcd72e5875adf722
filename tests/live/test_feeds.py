"""From Tarantool through the daemon and Kafka into an index and two caches, with fillers that race, and jobs that are killed."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from opensearchpy import OpenSearch as Client
from opensearchpy.exceptions import TransportError
from pymemcache.client.base import Client as MemcachedClient

from cdc.local.caches import Memcached, Redis
from cdc.local.interface import TarantoolServer
from cdc.local.jars import SPARK, jar_folder
from cdc.local.opensearch import OpenSearch
from cdc.local.process import ChildProcess
from cdc.local.spark import spark_environment
from spark_jobs.feeds import fill
from tests.live import feeds_process
from tests.live.scene import Scene
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

IDS = 60
_JOBS_SECONDS = 400
_FILL_EVERY_SECONDS = 0.003

SPACE = """
local users = box.schema.space.create('users', {format = {{'id', 'unsigned'}, {'code', 'unsigned'}, {'name', 'string'}}})
users:create_index('pk', {parts = {'id'}})
box.schema.space.create('orders', {format = {{'id', 'unsigned'}, {'name', 'string'}}}):create_index('pk')
"""
ROWS = (
    "local rows = {} for _, row in box.space[...]:pairs() do table.insert(rows, row:tomap({names_only = true})) end return rows"
)


class Filler(threading.Thread):
    """Reads rows through a cache, all the time: `user:<id>`."""

    def __init__(
        self, fetch: Callable[..., bytes | None], client: Any, tarantool: TarantoolServer, prefix: str, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._fetch = fetch
        self._client = client
        self._tarantool = tarantool
        self._prefix = prefix
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(_FILL_EVERY_SECONDS):
                number = self._random.randrange(IDS)
                self._fetch(self._client, f"{self._prefix}:{number}", lambda number=number: self._row(number), ttl_seconds=3600)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.trouble = error

    def _row(self, number: int) -> bytes | None:
        row = current(self._tarantool, "users").get(number)
        return None if row is None else encoded(row)

    def end(self) -> None:
        self._ended.set()
        self.join(60)
        assert not self.is_alive()
        if self.trouble is not None:
            raise self.trouble


def encoded(row: dict[str, Any]) -> bytes:
    return json.dumps(row, sort_keys=True).encode()


def current(tarantool: TarantoolServer, space: str) -> dict[int, dict[str, Any]]:
    (rows,) = tarantool.eval(ROWS, space)
    return {row["id"]: row for row in rows}


def change(tarantool: TarantoolServer, random_: random.Random, count: int) -> None:
    """So many changes, one transaction each."""
    for _ in range(count):
        number, name = random_.randrange(IDS), f"n{random_.randrange(10**6)}"
        action = random_.random()
        if action < 0.25:
            tarantool.eval(
                "for _, row in box.space.users.index.pk:pairs() do "
                "if row.id == ... then box.space.users:delete({row[box.space.users.index.pk.parts[1].fieldno]}) end end",
                number,
            )
        elif action < 0.99:
            tarantool.eval(
                "local id, name = ... box.space.users:replace({id, id + 1000, name}) box.space.orders:replace({id, name})",
                number,
                name,
            )
        else:
            tarantool.eval("box.space[...]:truncate()", random_.choice(["users", "orders"]))


@pytest.fixture
def jobs(
    scene: Scene, opensearch: OpenSearch, redis_server: Redis, memcached_server: Memcached, tmp_path: Path
) -> Iterator[Callable[[], ChildProcess]]:
    """Starts the three jobs over what there is now, in one process, from where they were."""
    started: list[ChildProcess] = []
    source = ["--bootstrap-servers", scene.kafka.bootstrap_servers, "--prefix", scene.prefix, "--available-now"]
    key = ["--key", f"users={scene.prefix}:{{id}}", "--spaces", "users"]

    def start() -> ChildProcess:
        commands = [
            ["search_index", "--to", opensearch.url, "--bulk-documents", "20", "--checkpoint", str(tmp_path / "index")],
            ["cache_invalidation", "--to", redis_server.url, *key, "--checkpoint", str(tmp_path / "redis")],
            [
                "cache_invalidation",
                "--to",
                f"memcached://{memcached_server.address}",
                *key,
                "--checkpoint",
                str(tmp_path / "memcached"),
            ],
        ]
        words = [word for command in commands for word in (*command, *source, "then")]
        started.append(
            ChildProcess(
                "the jobs",
                [sys.executable, "-m", feeds_process.__name__, str(jar_folder(SPARK)), *words],
                log_file=tmp_path / "jobs.log",
                working_directory=Path(__file__).parents[2],
                environment=spark_environment(),
            )
        )
        return started[-1]

    yield start
    for run in started:
        run.kill()


@pytest.mark.one_of_these("Spark at length", seconds=90)
def test_the_index_and_the_caches_end_as_the_master(
    scene: Scene,
    jobs: Callable[[], ChildProcess],
    opensearch: OpenSearch,
    redis_server: Redis,
    memcached_server: Memcached,
    tmp_path: Path,
    seed: int,
) -> None:
    random_, tarantool = random.Random(seed), scene.tarantool
    tarantool.eval(SPACE)
    index = Client([opensearch.url])
    in_redis, in_memcached = redis.Redis.from_url(redis_server.url), MemcachedClient(memcached_server.address)
    scene.daemon.start()
    scene.daemon.wait_until_streaming()
    ways: list[tuple[Callable[..., bytes | None], Any]] = [(fill.from_redis, in_redis), (fill.from_memcached, in_memcached)]
    fillers = [Filler(fetch, client, tarantool, scene.prefix, seed) for fetch, client in ways]
    for filler in fillers:
        filler.start()
    change(tarantool, random_, 300)
    # Another primary key: every document has another id.
    tarantool.eval("box.space.users.index.pk:alter({parts = {'code'}})")
    change(tarantool, random_, 100)
    scene.catch_up()

    def written() -> int:
        try:
            return int(index.count(index=f"{scene.prefix}-space-*", params={"allow_no_indices": "true"})["count"])
        except TransportError as error:
            if error.status_code != 503:  # an index is being made
                raise
            return 0

    first = jobs()
    wait_for("documents", lambda: first.exit_status() is not None or written(), _JOBS_SECONDS)
    assert first.exit_status() is None, first.log_tail()
    assert not (tmp_path / "index" / "commits" / "0").exists(), "it was to be killed in the middle of the first batch"
    first.kill()

    change(tarantool, random_, 100)
    scene.catch_up()
    second = jobs()
    assert second.exit_status(wait_seconds=_JOBS_SECONDS) == 0, second.log_tail()
    users = current(tarantool, "users")
    names = {number: f"{scene.prefix}:{number}" for number in range(IDS)}

    # The fillers' clients are their threads' own.
    redis_view, memcached_view = redis.Redis.from_url(redis_server.url), MemcachedClient(memcached_server.address)

    def kept_in_caches() -> list[dict[int, bytes]]:
        found = [
            {number: redis_view.get(name) for number, name in names.items()},
            {number: memcached_view.get(fill.memcached_key(name)) for number, name in names.items()},
        ]
        return [
            {number: value for number, value in each.items() if value is not None and not value.startswith(fill.MARK)}
            for each in found
        ]

    # What changed last is kept out for a while, and how often a key is asked for depends on what else the machine does.
    wait_for("most rows are in the caches", lambda: all(len(kept) > len(users) // 2 for kept in kept_in_caches()))
    for filler in fillers:
        filler.end()

    for space in ("users", "orders"):
        alias = f"{scene.prefix}-{space}"
        index.indices.refresh(index=alias)
        hits = index.search(index=alias, body={"size": 1000})["hits"]["hits"]
        found = {hit["_source"].pop("id"): hit["_source"] for hit in hits}
        for row in found.values():
            del row["_cdc"]
        assert found == {number: {n: v for n, v in row.items() if n != "id"} for number, row in current(tarantool, space).items()}
        assert len(hits) == len(found)

    for kept in kept_in_caches():
        assert kept == {number: encoded(users[number]) for number in kept if number in users}
    index.close()
