"""The command `tarantool-cdc tap`: run the server until it is stopped. Signals: see cdc.ops.signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from typing import Final

import structlog

from cdc.config import Config
from cdc.config.member_uri import PORT_MAX
from cdc.errors import ConfigurationError
from cdc.feeds.tap.page import Page
from cdc.feeds.tap.server import TapServer
from cdc.ops import signals
from cdc.schema.forms import SPACE

_OTHER_DESCRIPTORS: Final = 500
"""Number of file descriptors for files and librdkafka's connections."""


def tap(config: Config, to: str | None) -> None:
    """Serve TAP clients, and keep the memcached at `to` filled. Raises the error that an operator must see."""
    wanted = {"key": "json", "value": "json", "envelope": "debezium", "source": "full"}
    for name, needed in wanted.items():
        if getattr(config.format, name) != needed:
            raise ConfigurationError(
                f'the TAP server needs format.{name} = "{needed}", and it is "{getattr(config.format, name)}"',
                f'Set format.{name} = "{needed}", or let a second daemon, with a prefix of its own, publish JSON for it.',
            )
    if config.kafka.shard is not None and config.kafka.shard.shares_topics:
        raise ConfigurationError(
            "the TAP server serves the rows of one daemon, and the shards of this fleet write the same topics",
            'Set fleet.topics = "per_shard", and serve each shard (--shard).',
        )
    if config.routing.rules or config.routing.topic != SPACE:
        raise ConfigurationError(
            "the TAP server reads each space's rows from the topic with the space's name, and the configuration has rules for "
            "topics ([routing])",
            "Leave [routing] out, or let a second daemon, with a prefix of its own and without such rules, publish for the TAP "
            "server.",
        )
    asyncio.run(_serve(config, _address(to) if to is not None else None))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ConfigurationError(f"--to {text} is no address", "Give host:port of a memcached, as in 127.0.0.1:11211.")
    return host.strip("[]"), int(port)


def _allow_connections(count: int) -> None:
    """Raise the limit of open files.

    Each connection takes a descriptor, and most systems allow a process 1,024 unless it asks for more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_DESCRIPTORS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        structlog.get_logger().warning(
            "the system's limit of open files is too low for tap.clients_max connections: raise its limit of open files",
            limit=hard,
            clients_max=count,
        )
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(config: Config, to: tuple[str, int] | None) -> None:
    # Changes are many and long-lived, and none is in a cycle: the garbage collector would search them in vain (as in the daemon).
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    _allow_connections(config.tap.clients_max)
    server = TapServer(config, to)
    address = config.tap.http_address
    page = Page(address, server, config.name, config.http.allowed_hosts) if address is not None else None
    loop = asyncio.get_running_loop()

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended, and the loop with it
            loop.call_soon_threadsafe(server.stop)

    # Not the loop's own handlers: they would take SIGUSR2 away.
    signals.heed(signals.handlers(stop))
    try:
        await server.run()
    finally:
        if page is not None:
            await asyncio.to_thread(page.close)
