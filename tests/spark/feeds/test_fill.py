"""Fillers and invalidations in every order of their steps: against stand-ins, and against the real caches."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from pymemcache.client.base import Client

from cdc.local.caches import Memcached, Redis
from spark_jobs.errors import JobError
from spark_jobs.feeds import fill
from spark_jobs.feeds.caches import Address, Cache
from spark_jobs.feeds.keys import Template
from tests.spark.feeds.fake_caches import FakeMemcached, FakeRedis

Step = Callable[[], object]


@dataclass
class Side:
    """A cache as an application and as the job see it."""

    client: Any
    fetch: Callable[..., bytes | None]
    invalidate: Callable[[str], None]
    empty: Step
    has_quick_empty: bool = True
    is_real: bool = True

    def shown(self, key: str) -> bytes | None:
        """What a reader finds."""
        if self.fetch is fill.from_redis:
            value: bytes | None = self.client.get(key)
            return value
        found: bytes | None = self.client.get(fill.memcached_key(key))
        return None if found is not None and found.startswith(fill.MARK) else found


@pytest.fixture(
    params=[
        *("fake redis", "fake memcached"),
        *(pytest.param(kind, marks=pytest.mark.live) for kind in ("redis", "memcached")),
    ]
)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    template = Template.parsed("k:{id}").of("k")
    if request.param == "fake redis":
        fake = FakeRedis()
        yield Side(fake, fill.from_redis, fake.invalidate, fake.empty, is_real=False)
    elif request.param == "fake memcached":
        fake_memcached = FakeMemcached()
        yield Side(fake_memcached, fill.from_memcached, fake_memcached.invalidate, fake_memcached.empty, is_real=False)
    elif request.param == "redis":
        server: Redis = request.getfixturevalue("redis_server")
        client = redis.Redis.from_url(server.url)
        cache: Cache = Address(server.url).connect()
        yield Side(client, fill.from_redis, lambda key: cache.invalidate([key]), lambda: cache.empty(template))
        cache.close()
        client.close()
    else:
        memcached: Memcached = request.getfixturevalue("memcached_server")
        plain = Client(memcached.address)
        cache = Address(f"memcached://{memcached.address}").connect()
        yield Side(
            plain, fill.from_memcached, lambda key: cache.invalidate([key]), lambda: cache.empty(template), has_quick_empty=False
        )
        cache.close()
        plain.close()


class Interrupted:
    """A client whose commands are numbered; before some of them something else happens."""

    def __init__(self, client: Any, happens: dict[int, list[Step]]) -> None:
        self._client = client
        self._happens = happens
        self._number = 0

    def step(self) -> None:
        for action in self._happens.pop(self._number, ()):
            action()
        self._number += 1

    def __getattr__(self, name: str) -> Any:
        command = getattr(self._client, name)

        def numbered(*arguments: Any, **options: Any) -> Any:
            self.step()
            return command(*arguments, **options)

        return numbered

    def end(self) -> None:
        for number in sorted(self._happens):
            for action in self._happens[number]:
                action()


STEPS = 5
"""As many as either filler has, and the load."""

ORDERS = [order for order in itertools.product(range(STEPS + 1), repeat=3) if order[0] <= order[1]]
"""When the row is changed, when it is removed from the cache, and when another filler comes: before which of a filler's steps."""


@pytest.fixture
def orders(side: Side, seed: int) -> list[tuple[int, ...]]:
    """All; of those against a real cache, which show that the stand-in is like it, some by chance."""
    return random.Random(seed).sample(ORDERS, 30) if side.is_real else ORDERS


def stale_cases(
    side: Side, orders: list[tuple[int, ...]], fetch: Callable[..., bytes | None], remove: Callable[[str], object]
) -> Iterator[tuple[int, ...]]:
    """The orders after which the cache has an old row for good."""
    for changed, removed, other in orders:
        key, row = f"k:{uuid.uuid4().hex}", [b"old"]

        def load(row: list[bytes] = row) -> bytes:
            return row[0]

        happens: dict[int, list[Step]] = {}
        happens.setdefault(changed, []).append(lambda row=row: row.__setitem__(0, b"new"))  # type: ignore[misc]
        happens.setdefault(removed, []).append(lambda key=key: remove(key))  # type: ignore[misc]
        happens.setdefault(other, []).append(lambda key=key, load=load: fetch(side.client, key, load, ttl_seconds=60))  # type: ignore[misc]
        client = Interrupted(side.client, happens)

        def step_and_load(client: Interrupted = client, load: Callable[[], bytes] = load) -> bytes:
            client.step()
            return load()

        fetch(client, key, step_and_load, ttl_seconds=60)
        client.end()
        if side.shown(key) not in (None, b"new"):
            yield changed, removed, other


def test_no_order_of_steps_leaves_an_old_row(side: Side, orders: list[tuple[int, ...]]) -> None:
    assert list(stale_cases(side, orders, side.fetch, side.invalidate)) == []


def test_no_order_of_steps_leaves_an_old_row_after_a_truncation(side: Side, orders: list[tuple[int, ...]]) -> None:
    if side.has_quick_empty:
        assert list(stale_cases(side, orders, side.fetch, lambda _: side.empty())) == []
        return
    # It takes seconds: only while the filler reads, whose lease stands there then, and with a value there.
    key = f"k:{uuid.uuid4().hex}"

    def load() -> bytes:
        side.fetch(side.client, f"{key}:other", lambda: b"old", ttl_seconds=60)
        side.empty()
        return b"old"

    assert side.fetch(side.client, key, load, ttl_seconds=60) == b"old"
    assert side.shown(key) is None
    assert side.shown(f"{key}:other") is None


def test_a_filler_without_a_lease_would_leave_old_rows(side: Side) -> None:
    def careless(client: Any, key: str, load: Callable[[], bytes], *, ttl_seconds: int) -> bytes:  # noqa: ARG001
        is_redis = side.fetch is fill.from_redis
        value: bytes | None = client.get(key if is_redis else fill.memcached_key(key))
        if value is None:
            value = load()
            client.set(key if is_redis else fill.memcached_key(key), value)
        return value

    assert any(stale_cases(side, ORDERS, careless, side.invalidate))


def test_a_value_is_kept_and_found_again(side: Side) -> None:
    key = f"k:{uuid.uuid4().hex}:" + "x y" * 100
    loads = iter([b"first", b"second"])
    assert [side.fetch(side.client, key, lambda: next(loads), ttl_seconds=60) for _ in range(3)] == [b"first"] * 3
    side.invalidate(key)
    assert side.fetch(side.client, key, lambda: next(loads), ttl_seconds=60) == b"second"
    assert side.fetch(side.client, f"{key}2", lambda: None, ttl_seconds=60) is None
    assert side.shown(f"{key}2") is None


@pytest.mark.live
@pytest.mark.parametrize("kind", ["redis_server", "memcached_server"])
def test_during_a_hold_nothing_is_kept(kind: str, request: pytest.FixtureRequest) -> None:
    server: Redis | Memcached = request.getfixturevalue(kind)
    scheme, fetch = ("redis", fill.from_redis) if isinstance(server, Redis) else ("memcached", fill.from_memcached)
    client: Any = redis.Redis.from_url(server.url) if isinstance(server, Redis) else Client(server.address)
    held = Address(f"{scheme}://{server.address}", hold_seconds=60).connect()
    key = f"k:{uuid.uuid4().hex}"
    held.invalidate([key])
    # It was read from a replica that lags.
    assert fetch(client, key, lambda: b"old", ttl_seconds=60) == b"old"
    side = Side(client, fetch, lambda _: None, lambda: None)
    assert side.shown(key) is None
    Address(f"{scheme}://{server.address}").connect().invalidate([key])
    fetch(client, key, lambda: b"new", ttl_seconds=60)
    assert side.shown(key) == b"new"


@pytest.mark.live
def test_a_hold_of_memcached_is_not_shorter_than_asked(memcached_server: Memcached) -> None:
    client = Client(memcached_server.address)
    held = Address(f"memcached://{memcached_server.address}", hold_seconds=1).connect()
    for moment in range(3):  # of the second that its clock is in
        time.sleep(0.3 * (moment > 0))
        key = f"k:{uuid.uuid4().hex}"
        began = time.monotonic()
        held.invalidate([key])
        while not client.add(fill.memcached_key(key), b"lease", expire=10, noreply=False):
            time.sleep(0.01)
        assert time.monotonic() - began >= 1


@pytest.mark.live
@pytest.mark.parametrize("text", ["{{k:{id}}}", "{{k:{id}", "k:{id}}}", "k:{{{id}}}", "{{k}}:{id}"])
def test_a_truncation_removes_leases_whatever_braces_keys_have(redis_server: Redis, text: str) -> None:
    template = Template.parsed(text.replace("k", uuid.uuid4().hex)).of("users")
    client = redis.Redis.from_url(redis_server.url)
    cache = Address(redis_server.url).connect()
    for value in ("5", "{x}", "}", "{", "", "a b"):
        key = template.render({"id": value}, {})
        assert key is not None

        def load() -> bytes:
            cache.empty(template)
            return b"old"

        fill.from_redis(client, key, load, ttl_seconds=60)
        assert client.get(key) is None


def test_leases_stand_where_their_keys_stand_in_a_cluster() -> None:
    assert fill.redis_lease("user:5") == "{user:5}:lease"
    assert fill.redis_lease("{user}:5") == "{user}:5:lease"
    assert fill.redis_lease("a{}b") == "{a{}b}:lease"


def test_keys_that_memcached_would_refuse_are_hashed() -> None:
    assert fill.memcached_key("user:é") == "user:é".encode()
    for key in ("", "a b", "a\n", "\x7f", "x" * 251, "é" * 126):
        assert fill.memcached_key(key).startswith(b"sha256:")
    assert len(fill.memcached_key("x" * 250)) == 250


def test_a_cache_that_is_away_is_awaited_and_then_told() -> None:
    with pytest.raises(JobError, match=r"Redis at redis://127.0.0.1:1/0 doesn't accept invalidations.*Nothing is lost"):
        Address("redis://:hidden@127.0.0.1:1/0", patience_seconds=0.2).connect().invalidate(["a"])
    with pytest.raises(JobError, match=r"memcached at memcached://127.0.0.1:1 doesn't accept"):
        Address("memcached://127.0.0.1:1", patience_seconds=0.2).connect().invalidate(["a"])
    for url in ("http://x", "x", "amqp://x"):
        with pytest.raises(JobError, match="must begin with"):
            Address(url).connect()
