"""The TAP server in this process, over rows and changes that a test makes up: no Kafka, no store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cdc import config
from cdc.feeds.tap import wire
from cdc.feeds.tap.changes import Change, Kind, Renaming
from cdc.feeds.tap.feed import Feed
from cdc.feeds.tap.keys import vbucket_of
from cdc.feeds.tap.merging import Batch, Selection
from cdc.feeds.tap.rows import Rows
from cdc.feeds.tap.server import TapServer
from cdc.feeds.tap.session import Cursor, Session
from tests.feeds.tap.broker import Broker
from tests.feeds.tap.client import TapClient

_MASK = 1023
_ROWS = 100


def change(seq: int, key: str, value: bytes | None, space: str = "users") -> Change:
    """A key has this value, or is gone."""
    name = f"{space}:{key}".encode()
    vbucket = vbucket_of(name, _MASK)
    if value is None:
        return Change(seq, Kind.DELETE, space, name, vbucket, wire.delete(name, vbucket, seq, seq))
    return Change(seq, Kind.MUTATION, space, name, vbucket, wire.mutation(name, value, vbucket, seq, seq))


class MadeUpFeed(Feed):
    """Rows by their names, and what a test says that has changed."""

    rows: Mapping[str, bytes]
    version = 0
    known: frozenset[str] = frozenset({"users"})
    """Spaces that there are."""
    former: list[tuple[bytes, int]] | None = None
    """What a space had that was emptied."""

    async def start(self, stopping: asyncio.Event, known_version: int = 0) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """The first change will be 1."""
        return True

    async def stop(self) -> None:
        """There is nothing to end."""

    async def wait_until_at_end(self) -> None:
        """It always is."""

    async def read(self, cursor: Cursor, selection: Selection) -> Rows:
        """A hundred rows at a time; the cursor's space counts them."""
        part = list(self.rows.items())[cursor.space : cursor.space + _ROWS]
        changes = [change(self.last, name.split(":")[1], value) for name, value in part]
        found = Batch(0, self.last, changes, 0).select(selection, -1, self.last)
        is_end = cursor.space + _ROWS >= len(self.rows)
        wanted = range(_MASK + 1) if selection.vbuckets is None else selection.vbuckets
        keys = [one.key for one in changes if one.vbucket in wanted and one.vbucket not in selection.lost]
        return Rows(self.last, self.version, found.frames, keys, None if is_end else Cursor(cursor.space + _ROWS))

    def is_alone(self, session: Session, space: str) -> bool:  # noqa: ARG002 - all clients get all spaces
        return self.known <= {space}

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:  # noqa: ARG002 - there is one
        return self.former

    def rename(self, version: int, rows: Mapping[str, bytes]) -> None:
        """With this version of the schema a space has another name. For the loop's thread."""
        self.rows, self.version = rows, version
        self.removals.renamed(Renaming(version, self.last, "users", "people"))

    async def wait_stored(self, seq: int) -> None:
        """The rows are always there."""

    def tell(self, changes: list[Change]) -> None:
        """These come next. For the loop's thread."""
        first = changes[0].seq
        self.newest.ring.append(Batch(first, changes[-1].seq, changes, sum(len(one.frame) for one in changes)))
        self.newest.wake()


class Served:
    """A server on a thread of its own, as long as the context lasts."""

    def __init__(
        self,
        directory: Path,
        rows: Mapping[str, bytes] | None = None,
        *,
        sink: int = 0,
        broker: Broker | None = None,
        **settings: Any,
    ) -> None:
        """`sink` is the port of a memcached to keep filled.

        With a `broker` nothing is made up but that: rows and changes are what its topics have, through a store of the server's
        own.
        """
        if broker is not None:
            settings = {"store_path": directory / "rows", **settings}
        self._broker = broker
        self._sink = ("127.0.0.1", sink) if sink else None
        self.values = {
            "name": "shop",
            "source": {"uris": ["cdc@127.0.0.1:1"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "topic_prefix": "shop"},
            "tap": {"listen": "127.0.0.1:0", "path": directory / "tap", "http": "", **settings},
        }
        self._rows = rows or {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None
        self._seq = 0
        self._created = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._created.wait(30)
        assert self.server.is_listening.wait(30), self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def connect(self) -> TapClient:
        """A connection."""
        return TapClient(self.server.port)

    def tell(self, *pairs: tuple[str, bytes | None], space: str = "users") -> None:
        """Keys of the space have these values now, or are gone."""
        changes = []
        for key, value in pairs:
            self._seq += 1
            changes.append(change(self._seq, key, value, space))
        self._loop.call_soon_threadsafe(self.feed.tell, changes)

    def truncate(self, space: str = "users") -> None:
        """The space is empty."""
        self._seq += 1
        self._loop.call_soon_threadsafe(self.feed.tell, [Change(self._seq, Kind.TRUNCATE, space, b"", 0, b"")])

    def rename(self, version: int, rows: Mapping[str, bytes]) -> None:
        """A space has another name, and these are the rows now."""
        self._loop.call_soon_threadsafe(self.feed.rename, version, rows)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where the context ends
            self._failure = error
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self.server = TapServer(config.parse(self.values, "the test"), self._sink)
        if self._broker is not None:
            self.server.feed._topics = self._broker.topics()
        else:
            self.feed = MadeUpFeed(config.parse(self.values, "the test"), lambda _: None)
            self.feed.rows = self._rows
            self.server.feed = self.feed
        self._created.set()
        await self.server.run()
