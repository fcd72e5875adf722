"""Rows of the store for clients: waiting until the store can be read and is new enough, one look for all of them."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from cdc.feeds.tap.merging import Selection
from cdc.feeds.tap.removals import UnnamedRemovals
from cdc.feeds.tap.rows import BusyError, Rows, RowStore
from cdc.feeds.tap.session import Cursor

STORE_SECONDS: Final = 0.1
"""Interval at which the store's position is checked while clients wait for the store to reach a seq, in seconds."""
_ROWS: Final = 2_000
_ROWS_BYTES: Final = 256 * 1024


class StoredRows:
    """Reader of a store, shared by all clients. All methods must be called on the event loop's thread."""

    def __init__(self, store: RowStore, *, is_packed: bool) -> None:
        self.store = store
        self._is_packed = is_packed
        self._log = structlog.get_logger()
        self._is_view_old = False
        self._position: tuple[int, int] | None = None
        """Seq and version of the store when they were last read."""
        self._looking: asyncio.Task[None] | None = None

    def outdate_view(self) -> None:
        """Let the next read open a new view of the store."""
        self._is_view_old = True

    def is_new_enough(self, rows: Rows, seq: int, removals: UnnamedRemovals) -> bool:
        """Whether rows are from a store that has reached this seq, and the last unnamed removal of keys.

        If they aren't, the next read opens a new view.
        """
        if _is_new_enough(rows.seq, rows.version, seq, removals):
            return True
        self._is_view_old = True
        self._position = None  # the store may have been replaced by an older one
        return False

    async def wait(self, seq: int, removals: UnnamedRemovals) -> None:
        """Wait until the store has reached this seq, and the last unnamed removal of keys."""
        while (position := self._position) is None or not _is_new_enough(*position, seq, removals):
            await self._look_together()

    async def read(self, cursor: Cursor, selection: Selection, bytes_max: int) -> Rows:
        """Return rows of the store; wait while the store can't be read."""
        is_told = False
        while True:
            try:
                if self._is_view_old:
                    self._is_view_old = False
                    await asyncio.to_thread(self.store.seq)
                return await asyncio.to_thread(
                    self.store.read,
                    cursor,
                    selection,
                    is_packed=self._is_packed,
                    count_max=_ROWS,
                    bytes_max=min(_ROWS_BYTES, bytes_max),
                )
            except BusyError as error:
                if not is_told:
                    is_told = True
                    self._log.info("clients wait for the store", why=str(error))
                await self._wait_readable()

    async def _wait_readable(self) -> None:
        self._position = None
        while self._position is None:
            await self._look_together()

    async def _look_together(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        """Read the store's position once, after a pause, for all waiting clients: the store doesn't notify."""
        await asyncio.sleep(STORE_SECONDS)
        try:
            self._position = await asyncio.to_thread(self.store.refresh_position)
        except BusyError as error:
            self._log.debug("clients wait for the store", why=str(error))


def _is_new_enough(stored: int, version: int, seq: int, removals: UnnamedRemovals) -> bool:
    return stored >= max(seq, removals.control.swept_seq) and version >= removals.renamed_version
