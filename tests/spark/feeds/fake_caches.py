"""Stand-ins for the clients of Redis and memcached: the commands that fill.py and caches.py use, one process, no clock."""

from __future__ import annotations

from typing import Any

from spark_jobs.feeds import fill


class FakeRedis:
    """Commands are carried out one after another, as Redis does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: str | bytes, *, nx: bool = False, px: int | None = None) -> bool | None:
        assert px is None or px > 0
        if nx and key in self.values:
            return None
        self.values[key] = value if isinstance(value, bytes) else value.encode()
        return True

    def eval(self, script: str, count: int, key: str, lease: str, token: str, value: bytes, px: int) -> int:
        assert script == fill.FILL
        assert (count, px > 0) == (2, True)
        if self.values.get(lease) != token.encode():
            return 0
        self.values[key] = value
        del self.values[lease]
        return 1

    def invalidate(self, key: str) -> None:
        """What the job does."""
        self.values.pop(fill.redis_lease(key), None)
        self.values.pop(key, None)

    def empty(self) -> None:
        """What the job does at a truncation."""
        for key in list(self.values):
            if key.endswith(fill.LEASE_SUFFIX):
                del self.values[key]
        self.values.clear()


class FakeMemcached:
    """Each item has a number that no other one ever had."""

    def __init__(self) -> None:
        self.values: dict[bytes, tuple[bytes, int]] = {}
        self._number = 0

    def get(self, key: bytes) -> bytes | None:
        return self.values.get(key, (None, 0))[0]

    def gets(self, key: bytes) -> tuple[bytes | None, Any]:
        return self.values.get(key, (None, None))

    def add(self, key: bytes, value: bytes, *, expire: int, noreply: bool) -> bool:
        assert expire > 0
        assert not noreply
        if key in self.values:
            return False
        self._put(key, value)
        return True

    def cas(self, key: bytes, value: bytes, cas: int, *, expire: int, noreply: bool) -> bool | None:
        assert expire > 0
        assert not noreply
        if key not in self.values:
            return None
        if self.values[key][1] != cas:
            return False
        self._put(key, value)
        return True

    def set(self, key: bytes, value: bytes) -> None:
        self._put(key, value)

    def invalidate(self, key: str) -> None:
        """What the job does."""
        self.values.pop(fill.memcached_key(key), None)

    def empty(self) -> None:
        """What the job does at a truncation."""
        self.values.clear()

    def _put(self, key: bytes, value: bytes) -> None:
        self._number += 1
        self.values[key] = (value, self._number)
