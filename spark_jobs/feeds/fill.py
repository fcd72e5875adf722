"""Fill a cache so that no row older than the master's stays in it: the application's part, beside the job `cache_invalidation`.

An application may copy this file, because it imports only the standard library. A cache is stale permanently if a fill that has
read the old row comes after the invalidation by the new one:

    master        row is A ──────── row is B ─────────────────────────────────────────▶
    job                                  └─ (a moment) ── invalidates ── done
    filler             miss ─ reads A ──────────── (a pause) ─────────────── writes A    stale: nothing ever removes A

Therefore a filler that misses first takes a lease, a token of its own that it stores in the cache. The invalidation removes the
lease, and a filler writes its value only while its lease is still there:

    master        row is A ──────── row is B ─────────────────────────────────────────▶
    job                                  └─ (a moment) ── removes value and lease
    filler       miss ─ takes lease ─ reads A ──── (a pause) ─────────────── writes A? no: the lease is gone
    next one                                                        miss ─ takes lease ─ reads B ─ writes B

If the lease is taken after the invalidation, the row is read after it, and the master has B by then. If A is written before
the invalidation, the invalidation removes it. There is no third case, whatever the clocks say: an expired lease is gone
too. Comparing seqs instead would need the `seq` of the row that the filler has read, which a filler that reads from
Tarantool doesn't know.

The row must be read from the master. A filler that reads from a replica may read A after the invalidation. For such fillers the
job leaves a hold (`--hold-seconds`, longer than the replicas' lag), a lease that no filler owns.
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
"""Redis script that writes the value if the lease is still the filler's."""

MARK = b"\0lease:"
"""Prefix of a memcached value that is a lease or a hold."""

_KEY_BYTES_MAX = 250


def redis_lease(key: str) -> str:
    """Return the key of a key's lease in Redis; in a cluster both keys have the same slot."""
    return f"{key}{LEASE_SUFFIX}" if _HASH_TAG.search(key) else f"{{{key}}}{LEASE_SUFFIX}"


def memcached_key(key: str) -> bytes:
    """Return a key as memcached accepts it: unchanged, or its SHA-256 if it is too long or has spaces or control characters."""
    data = key.encode()
    if 0 < len(data) <= _KEY_BYTES_MAX and not any(byte <= 0x20 or byte == 0x7F for byte in data):
        return data
    return b"sha256:" + hashlib.sha256(data).hexdigest().encode()


def from_redis(
    client: Any, key: str, load: Callable[[], bytes | None], *, ttl_seconds: float, lease_seconds: float = 10
) -> bytes | None:
    """Return a key's value. On a miss, `load` reads it from the master, and it is written to the cache unless that isn't safe.

    `client` is a redis.Redis without decode_responses. Only one filler at a time has the lease; the others load without writing.
    If `load` returns None, nothing is written.
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
    """Do the same for memcached. `client` is a pymemcache client without a serde. Values must not begin with `MARK`."""
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
