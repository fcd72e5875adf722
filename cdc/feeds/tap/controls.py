"""Forwarding of snapshot and schema records from the reader's thread to the event loop, where the feed runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from cdc.feeds.tap.catching_up import call_soon
from cdc.feeds.tap.changes import Renaming

if TYPE_CHECKING:
    from cdc.feeds.tap.feed import Feed


class FeedControlEvents:
    """Forwarder of the reader thread's findings in the snapshot and schema topics to the feed."""

    def __init__(self, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        self._feed = feed
        self._loop = loop
        self.snapshots_offset = feed.control.offset

    def swept(self, seq: int, offset: int) -> None:
        call_soon(self._loop, self._feed.was_swept, seq, offset)

    def renamed(self, renaming: Renaming) -> None:
        call_soon(self._loop, self._feed.was_renamed, renaming)

    def lost(self, seq: int) -> None:
        call_soon(self._loop, self._feed.was_lost, seq)

    def snapshots_read(self, offset: int) -> None:
        self.snapshots_offset = offset
        call_soon(self._loop, self._feed.snapshots_read, offset)

    def snapshots_missed(self) -> None:
        call_soon(self._loop, self._feed.snapshots_missed)
