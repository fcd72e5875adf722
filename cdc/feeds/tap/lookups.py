"""Lookups in the topics for single clients: a few at a time, repeated while Kafka is unavailable."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from cdc.errors import CdcError, Remedy
from cdc.feeds.tap.changes import Change, Changes
from cdc.feeds.tap.live import Topics

_Found = TypeVar("_Found")

_LOOKING_MAX: Final = 2
"""Number of lookups at a time. The few available threads must also close views and read rows."""
_FORMER_KEYS_BYTES: Final = 64 * 1024 * 1024
_FORMER_KEYS: Final = 4
RETRY_SECONDS: Final = 1.0
"""Pause before Kafka is asked again."""


class TopicLookups:
    """What the topics say when they are asked. All methods must be called on the event loop's thread."""

    def __init__(self, topics: Callable[[], Topics], changes: Changes) -> None:
        self._topics = topics
        self._changes = changes
        self._log = structlog.get_logger()
        self._looking = asyncio.Semaphore(_LOOKING_MAX)
        self._former_keys: OrderedDict[int, asyncio.Task[list[tuple[bytes, int]] | None]] = OrderedDict()
        self._asking_newest: asyncio.Task[int] | None = None

    async def since(self, date: int) -> int | None:
        """Return the seq after which all changes are newer than a date, or None if the topics don't go back that far."""
        return await self._retry(
            lambda: self._topics().since(date * 1000),
            "Kafka can't be asked for the changes since a date: a client waits, retrying",
        )

    async def newest_seq(self) -> int:
        """Return the seq at which the topics end. One answer serves all clients that ask meanwhile."""
        if self._asking_newest is None or self._asking_newest.done():
            self._asking_newest = asyncio.create_task(
                self._retry(lambda: self._topics().newest_seq(), "Kafka can't be asked for the topics' ends, retrying")
            )
        return await asyncio.shield(self._asking_newest)

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        """Return the keys that a TRUNCATE removed, with their vbuckets, or None if they are too many."""
        task = self._former_keys.get(change.seq)
        if task is None:
            task = self._former_keys[change.seq] = asyncio.create_task(self._look_for_keys(change))
            while len(self._former_keys) > _FORMER_KEYS:
                self._former_keys.popitem(last=False)
        return await asyncio.shield(task)

    async def _look_for_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        try:
            return await self._retry(
                lambda: self._topics().former_keys(self._changes, change.space, change.seq, _FORMER_KEYS_BYTES),
                "the keys that a space had can't be read from its topic, retrying",
                space=change.space,
            )
        except CdcError:
            self._former_keys.pop(change.seq, None)
            raise

    async def _retry(self, look: Callable[[], _Found], trouble: str, **about: str) -> _Found:
        """Return the result of a lookup. Retry while Kafka is unavailable, as all readers of the topics do."""
        is_told = False
        while True:
            try:
                async with self._looking:
                    return await asyncio.to_thread(look)
            except CdcError as error:
                if error.remedy is not Remedy.WAIT:
                    raise
                if not is_told:
                    is_told = True
                    self._log.warning(trouble, why=str(error), **about)
            await asyncio.sleep(RETRY_SECONDS)  # Kafka doesn't notify when it is available again
