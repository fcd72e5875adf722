"""Caches that the job `cache_invalidation` uses: invalidation of many keys at once, and of all keys of a template.

When a call returns, the cache has answered for each key.
"""

from __future__ import annotations

import math
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from spark_jobs.errors import JobError
from spark_jobs.feeds.bulk import delays
from spark_jobs.feeds.fill import LEASE_SUFFIX, MARK, memcached_key, redis_lease
from spark_jobs.feeds.keys import Template
from spark_jobs.feeds.needs import needs

HOLD: Final = "hold"
"""Lease that no filler owns."""

_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_LOGIN: Final = "--user, --password and the certificates (--ca-file, --certificate-file). "
_BATCH: Final = 1000
_SCAN_COUNT: Final = 10_000
_QUIET_ANSWERS: Final = frozenset({b"", b"HD", b"NF"})
"""Responses for a removed key and a missing key, which some versions suppress."""
_FLUSH_AGAIN_SECONDS: Final = 2
_CLOCK_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Address:
    """Address and credentials of the cache. Spark's workers get a copy."""

    url: str
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    hold_seconds: float = 0
    timeout_seconds: float = 60
    patience_seconds: float = 300

    @property
    def shown(self) -> str:
        """The URL without the login that may be in it, for messages."""
        head, _, tail = self.url.rpartition("@")
        return f"{head.partition('//')[0]}//{tail}" if "//" in head else tail

    def connect(self) -> Cache:
        """Connect to the cache. Raises JobError."""
        scheme = urlsplit(self.url).scheme
        if scheme in ("redis", "rediss", "unix"):
            return RedisCache(self)
        if scheme in ("memcached", "memcacheds"):
            return MemcachedCache(self)
        raise JobError(
            f"--to {self.shown}: it must begin with redis://, rediss://, unix://, memcached://, memcacheds:// or kafka://."
        )


class Cache(ABC):
    """A cache to invalidate."""

    def __init__(
        self,
        kind: str,
        address: Address,
        passing: tuple[type[Exception], ...],
        lasting: tuple[type[Exception], ...],
        denied: tuple[type[Exception], ...] = (),
    ) -> None:
        """`passing` are the errors of a temporarily unavailable cache, `lasting` all errors that end a call.

        `denied` are those of a cache that refuses the job: waiting wouldn't help.
        """
        self._kind = kind
        self._address = address
        self._passing = passing
        self._lasting = lasting
        self._denied = denied

    def invalidate(self, keys: Sequence[str]) -> None:
        """Remove values and leases, and leave a hold if it is configured. Raises JobError."""
        for some in _batches(keys):
            self._patiently(partial(self._invalidate, some))

    @property
    def loses_holds(self) -> bool:
        """Whether `empty` removes the holds, too."""
        return False

    def empty(self, template: Template) -> None:
        """Remove all values and leases whose keys match the template, including values that are being written.

        Raises JobError.
        """
        self._patiently(partial(self._empty, template))

    @abstractmethod
    def close(self) -> None:
        """Close the connections; the next call opens them again."""

    @abstractmethod
    def _invalidate(self, keys: list[str]) -> None: ...

    @abstractmethod
    def _empty(self, template: Template) -> None: ...

    def _patiently(self, step: Callable[[], None]) -> None:
        """Retry a repeatable step until it succeeds."""
        waits = delays(self._address.patience_seconds)
        while True:
            try:
                step()
                return
            except self._lasting as error:
                if isinstance(error, self._denied) or _UNTRUSTED in str(error):
                    raise self._trouble(error, f"Check {_LOGIN}") from error
                delay = next(waits, None) if isinstance(error, self._passing) else None
                if delay is None:
                    raise self._trouble(error) from error
                self.close()
                time.sleep(delay)

    def _trouble(self, error: object, remedy: str = "") -> JobError:
        return JobError(
            f"{self._kind} at {self._address.shown} doesn't accept invalidations: {str(error).rstrip('.')}. {remedy}Nothing is"
            " lost: start the job again when it does, and the job resumes here."
        )


class RedisCache(Cache):
    """One Redis, or a compatible server (Valkey, KeyDB). A lease has a key of its own beside its value."""

    def __init__(self, address: Address) -> None:
        """Create the client; it connects on first use."""
        with needs("redis"):
            import redis
            from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
            from redis.exceptions import ConnectionError as LostError
            from redis.exceptions import TimeoutError as SilentError
        tls: dict[str, Any] = {}
        if address.url.startswith("rediss:"):
            files = {
                "ssl_ca_certs": address.ca_file,
                "ssl_certfile": address.certificate_file,
                "ssl_keyfile": address.key_file,
            }
            tls = {name: value for name, value in files.items() if value}
        login = {"username": address.user, "password": address.password}
        self._client = redis.Redis.from_url(
            address.url,
            socket_timeout=address.timeout_seconds,
            **{name: value for name, value in login.items() if value},
            **tls,
        )
        super().__init__("Redis", address, (LostError, SilentError), (RedisError,), (AuthenticationError, AuthorizationError))
        self._hold_ms = round(address.hold_seconds * 1000)

    def _invalidate(self, keys: list[str]) -> None:
        # Remove the lease first: once it is gone, no filler writes an old value.
        with self._client.pipeline(transaction=False) as pipeline:
            if self._hold_ms:
                for key in keys:
                    pipeline.set(redis_lease(key), HOLD, px=self._hold_ms)
            else:
                pipeline.unlink(*map(redis_lease, keys))
            pipeline.unlink(*keys)
            pipeline.execute()

    def _empty(self, template: Template) -> None:
        """Remove all leases but holds, and then all values.

        If a lease existed when this began, either the first pass removes it, or its value was written before that pass ended and
        the second pass finds the value: SCAN finds every key that exists from its beginning to its end. Leases that are taken
        meanwhile belong to fillers that read after the truncation.
        """
        for glob in (f"{{{template.glob}}}{LEASE_SUFFIX}", f"{template.glob}{LEASE_SUFFIX}"):
            self._remove(glob, template, is_lease=True)
        self._remove(template.glob, template, is_lease=False)

    def close(self) -> None:
        """See `Cache.close`."""
        self._client.close()

    def _remove(self, glob: str, template: Template, *, is_lease: bool) -> None:
        found = (key.decode("utf-8", "surrogateescape") for key in self._client.scan_iter(match=glob, count=_SCAN_COUNT))
        matching = (key for key in found if any(map(template.matches, _leased(key) if is_lease else (key,))))
        for some in _batches(matching):
            keys = [key.encode("utf-8", "surrogateescape") for key in some]
            if is_lease:
                # Holds stay: no filler may fill the keys of changes that the job has processed.
                keys = [key for key, value in zip(keys, self._client.mget(keys), strict=True) if value != HOLD.encode()]
            if keys:
                self._client.unlink(*keys)


class MemcachedCache(Cache):
    """One or several memcached (1.6 or newer). A lease has the key of its value.

    Each key is invalidated in all servers, because only the application knows how it distributes the keys.
    """

    def __init__(self, address: Address) -> None:
        """Create the clients; they connect on first use."""
        with needs("pymemcache"):
            from pymemcache.client.base import Client
            from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError
        parts = urlsplit(address.url)
        context = None
        if parts.scheme == "memcacheds":
            context = ssl.create_default_context(cafile=address.ca_file)
            if address.certificate_file:
                context.load_cert_chain(address.certificate_file, address.key_file)
        if address.password:
            raise JobError(
                "memcached's text protocol has no passwords: use certificates (memcacheds://), or restrict the network."
            )
        self._clients = [
            Client(
                server if ":" in server else f"{server}:11211",
                connect_timeout=address.timeout_seconds,
                timeout=address.timeout_seconds,
                no_delay=True,
                tls_context=context,
            )
            for server in parts.netloc.split(",")
        ]
        super().__init__("memcached", address, (OSError, MemcacheUnexpectedCloseError), (MemcacheError, OSError))
        # memcached counts the ticks of its clock, one per second, and the first tick may come immediately.
        self._hold = f"T{math.ceil(address.hold_seconds) + 1}".encode() if address.hold_seconds else b""

    def _invalidate(self, keys: list[str]) -> None:
        """Send quiet commands, followed by one that is answered once all the others are done."""
        if self._hold:
            value = MARK + HOLD.encode()
            form = b"ms %b " + str(len(value)).encode() + b" " + self._hold + b" q\r\n" + value + b"\r\n"
        else:
            form = b"md %b q\r\n"
        command = b"".join(form % memcached_key(key) for key in keys) + b"mn"
        for client in self._clients:
            answers = client.raw_command(command, b"MN\r\n").split(b"\r\n")
            if wrong := set(answers) - _QUIET_ANSWERS:
                raise self._trouble(f"it answers {min(wrong)!r}")

    @property
    def loses_holds(self) -> bool:
        """See `Cache.loses_holds`."""
        return bool(self._hold)

    def _empty(self, template: Template) -> None:  # noqa: ARG002 - its keys can't be listed
        """Flush all items, twice.

        memcached knows the time of an item only to the second, so the first flush may miss items that were written in the same
        second. The second flush follows once memcached's clock has advanced.
        """
        for client in self._clients:
            began = self._flush(client)
            while self._time(client) < began + _FLUSH_AGAIN_SECONDS:
                time.sleep(_CLOCK_POLL_SECONDS)
            self._flush(client)

    def close(self) -> None:
        """See `Cache.close`."""
        for client in self._clients:
            client.close()

    def _flush(self, client: Any) -> int:
        """Flush memcached, and return its clock afterwards, in seconds."""
        if not client.flush_all(noreply=False):
            raise self._trouble("it refuses flush_all, which a truncation needs")
        return self._time(client)

    @staticmethod
    def _time(client: Any) -> int:
        return int(client.stats()[b"time"])


def _leased(lease: str) -> list[str]:
    """Return the keys that a lease may belong to: `{u:1}:lease` may be the lease of `u:1` or of `{u:1}`."""
    key = lease.removesuffix(LEASE_SUFFIX)
    return [one for one in (key, key[1:-1]) if redis_lease(one) == lease]


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(keys)
    while some := list(islice(iterator, _BATCH)):
        yield some
