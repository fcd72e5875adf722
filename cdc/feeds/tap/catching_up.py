"""Separate topic readers for clients that are behind the ring: a few at a time, in turns while others wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Final

from cdc.errors import CdcError
from cdc.feeds.tap.changes import Changes
from cdc.feeds.tap.live import LiveReader, Topics
from cdc.feeds.tap.merging import Batch
from cdc.feeds.tap.session import Session
from cdc.feeds.tap.stream import SlowError

_PLACES: Final = 4
"""Number of clients that read the topics at the same time; further clients wait for their turn."""
_TURN_SECONDS: Final = 10.0
"""Length of a client's turn while others wait, and then the client's time to take the batches already read; in seconds."""
AHEAD: Final = 4
"""Number of batches that a reader's thread may be ahead of the event loop."""


class _Turn:
    """One client's time with its own reader of the topics."""

    is_over = False


class CatchingUp:
    """All clients that read the topics through readers of their own."""

    def __init__(self, topics: Callable[[], Topics], changes: Changes) -> None:
        """Create it without readers. All methods must be called on the event loop's thread."""
        self._topics = topics
        self._changes = changes
        self._places = asyncio.Semaphore(_PLACES)
        self._turns_wanted = 0
        self._overdue: set[str] = set()

    async def batches(self, session: Session, after: int) -> AsyncGenerator[Batch, None]:
        """Yield the changes after `after` from the topics, for one client that is behind the ring, until its turn is over."""
        loop = asyncio.get_running_loop()
        self._turns_wanted += 1
        try:
            await self._places.acquire()
        finally:
            self._turns_wanted -= 1
        turn = _Turn()
        queue: asyncio.Queue[Batch | CdcError | None] = asyncio.Queue()
        ahead = threading.Semaphore(AHEAD)

        def hand_over(batch: Batch) -> None:
            while not ahead.acquire(timeout=0.2):
                if reader.is_stopping:
                    return
            call_soon(loop, queue.put_nowait, batch)

        def ended(failure: CdcError | None) -> None:
            # Release the place only here: while Kafka is unavailable a thread ends late, and otherwise each client that connects
            # and disconnects would leave one more thread.
            self._places.release()
            queue.put_nowait(failure)

        reader = LiveReader(
            self._topics(),
            self._changes,
            after,
            hand_over,
            on_end=lambda failure: call_soon(loop, ended, failure),
        )
        reader.start()
        ending = asyncio.create_task(self._end_turn(turn, session, reader, queue))
        try:
            while isinstance(found := await queue.get(), Batch):
                ahead.release()
                yield found
                if turn.is_over:
                    return
            if found is not None:
                raise found
        finally:
            reader.stop()
            ending.cancel()
            self._overdue.discard(session.name)

    async def _end_turn(
        self, turn: _Turn, session: Session, reader: LiveReader, queue: asyncio.Queue[Batch | CdcError | None]
    ) -> None:
        """End the turn once others wait: a client that takes its batches queues again, a client that doesn't loses its place."""
        await asyncio.sleep(_TURN_SECONDS)
        while not self._turns_wanted:
            await asyncio.sleep(_TURN_SECONDS)
        turn.is_over = True
        if queue.empty():
            queue.put_nowait(None)  # the queue is empty, so no batch would wake the client
        await asyncio.sleep(_TURN_SECONDS)
        self._overdue.add(session.name)
        reader.stop()

    def check_turn(self, session: Session) -> None:
        """Raise SlowError if other clients wait and this client has kept its reader past its turn."""
        if session.name in self._overdue:
            raise SlowError("the client reads too slowly, and others wait for their turn to read the topics")


def call_soon(loop: asyncio.AbstractEventLoop, function: object, *arguments: object) -> None:
    """Call a function on the loop from another thread. Do nothing if the loop has already ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]  # a function, with its arguments
