"""Waiting for an event of the event loop, for a limited time."""

from __future__ import annotations

import asyncio
import contextlib


async def some_time(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most `seconds`. asyncio.wait_for would lose a cancellation that arrives together with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
