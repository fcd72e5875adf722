"""The Redis and memcached that tests start: they serve at their ports, and say why if they can't."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from pymemcache.client.base import Client

from cdc.local.caches import Redis
from cdc.local.errors import LocalServerError, PortTakenError
from cdc.local.servers import LocalServers


def test_redis_serves_at_its_port_and_forgets_all_when_it_ends(servers: LocalServers) -> None:
    server = servers.start_redis()
    client = redis.Redis.from_url(server.url)
    client.set("a", "b")
    assert client.get("a") == b"b"
    port = server.port
    server.kill()
    assert not server.is_running
    server.start()
    assert server.port == port
    assert client.get("a") is None


def test_memcached_serves_at_its_port(servers: LocalServers) -> None:
    server = servers.start_memcached()
    client = Client(server.address)
    client.set("a", b"b", noreply=False)
    assert client.get("a") == b"b"


def test_a_port_that_is_taken_is_told(servers: LocalServers, tmp_path: Path) -> None:
    taken = servers.start_redis()
    with pytest.raises(PortTakenError):
        Redis(tmp_path / "second", port=taken.port).start()


def test_a_program_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalServerError, match=r"no `redis-server` on PATH.*apt-get install redis-server"):
        Redis(tmp_path / "redis").start()
