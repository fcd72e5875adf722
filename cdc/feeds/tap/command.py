"""`tarantool-cdc tap`: the server, until it is told to stop. SIGTERM and SIGINT stop it cleanly."""

from __future__ import annotations

import asyncio
import signal

from cdc.config import Config
from cdc.feeds.tap.server import TapServer


def tap(config: Config) -> None:
    """Serve. Raises the error that an operator must see."""
    asyncio.run(_serve(config))


async def _serve(config: Config) -> None:
    server = TapServer(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.run()
