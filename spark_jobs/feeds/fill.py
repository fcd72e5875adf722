"""Fill a cache so that no row older than the master's stays in it: what an application does, beside `cache_invalidation`.

An application may copy this file: it imports nothing. A cache is stale for good where a fill that has read the old row comes
after the invalidation of the new one:

    master        row is A ──────── row is B ─────────────────────────────────────────▶
    job                                  └─ (a moment) ── invalidates ── done
    filler             miss ─ reads A ──────────── (a pause) ─────────────── writes A    stale: nothing ever removes A

So who misses takes a lease first, a token of its own that stands in the cache; the invalidation removes the lease, and a
value is only written by who still has its lease:

    master        row is A ──────── row is B ─────────────────────────────────────────▶
    job                                  └─ (a moment) ── removes value and lease
    filler       miss ─ takes lease ─ reads A ──── (a pause) ─────────────── writes A? no: the lease is gone
    next one                                                        miss ─ takes lease ─ reads B ─ writes B

If the lease is taken after the invalidation, the row is read after it, and the master has B by then. If A is written before
the invalidation, the invalidation removes it. There is no third case, whatever the clocks say: a lease that runs out is gone
too. Comparing numbers instead would need the filler to know the `seq` of the row that it has read, which who reads from
Tarantool doesn't.

The row must be read from the master. Who reads from a replica may read A after the invalidation: for these the job leaves a
hold (`--hold-seconds`, longer than replicas lag), a lease that nobody has.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Any

LEASE_SUFFIX = ":lease"
_HASH_TAG = re.compile(r"\{[^}]+\}")

FILL = """\
if redis.call('GET', KEYS[2]) == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    redis.call('DEL', KEYS[2])
    return 1
end
return 0
"""
"""For Redis: write the value if the lease is still the filler's."""

MARK = b"\0lease:"
"""For memcached: what begins so is no value, but a lease, or a hold."""

_KEY_BYTES_MAX = 250


def redis_lease(key: str) -> str:
    """Where the lease of a key stands in Redis: in a cluster, where the key stands."""
    return f"{key}{LEASE_SUFFIX}" if _HASH_TAG.search(key) else f"{{{key}}}{LEASE_SUFFIX}"


def memcached_key(key: str) -> bytes:
    """A key as memcached takes it: as it is, or its SHA-256 if it is too long, or has spaces or control characters."""
    data = key.encode()
    if 0 < len(data) <= _KEY_BYTES_MAX and not any(byte <= 0x20 or byte == 0x7F for byte in data):
        return data
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def from_redis(
    client: Any, key: str, load: Callable[[], bytes | None], *, ttl_seconds: float, lease_seconds: float = 10
) -> bytes | None:
    """The value of a key; on a miss what `load` reads from the master, which is then written unless that isn't safe.

    `client` is a redis.Redis without decode_responses. Only one at a time has the lease; others load for themselves. What
    `load` finds to be None isn't kept.
    """
    value: bytes | None = client.get(key)
    if value is not None:
        return value
    lease, token = redis_lease(key), secrets.token_hex(16)
    is_granted = client.set(lease, token, nx=True, px=round(lease_seconds * 1000))
    value = load()
    if is_granted and value is not None:
        client.eval(FILL, 2, key, lease, token, value, round(ttl_seconds * 1000))
    return value


def from_memcached(
    client: Any, key: str, load: Callable[[], bytes | None], *, ttl_seconds: int, lease_seconds: int = 10
) -> bytes | None:
    """The same for memcached; `client` is a pymemcache client without a serde. Values must not begin with `MARK`."""
    name = memcached_key(key)
    value: bytes | None = client.get(name)
    if value is not None and not value.startswith(MARK):
        return value
    lease, cas = MARK + secrets.token_hex(16).encode(), None
    if value is None and client.add(name, lease, expire=lease_seconds, noreply=False):
        found, cas = client.gets(name)
        if found != lease:  # it was invalidated already
            cas = None
    value = load()
    if cas is not None and value is not None:
        client.cas(name, value, cas, expire=ttl_seconds, noreply=False)
    return value
