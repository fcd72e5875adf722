"""State shared by all clients' streams: the newest changes in memory, one reader of the topics, one view of the store at a time.

The reader's thread is at most a few batches ahead of the event loop. A client that is behind the ring reads the topics through
its own reader; only a few clients do so at a time. A client that was in the ring and falls behind it is too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, Callable
from typing import Final

import structlog

from cdc.config import Config
from cdc.errors import CdcError
from cdc.events.columns import ColumnRules
from cdc.feeds.tap.catching_up import CatchingUp, call_soon
from cdc.feeds.tap.changes import Change, Changes, SpaceNames
from cdc.feeds.tap.keeper import StoreUpdater
from cdc.feeds.tap.live import ExpiredError, LiveReader, Topics
from cdc.feeds.tap.lookups import RETRY_SECONDS, TopicLookups
from cdc.feeds.tap.merging import Batch, Ring, Selection
from cdc.feeds.tap.newest import NewestChanges
from cdc.feeds.tap.removals import ControlEvents, ServedSpaces, UnnamedRemovals
from cdc.feeds.tap.rows import BusyError, Rows, RowStore
from cdc.feeds.tap.session import Cursor, Session
from cdc.feeds.tap.stored import StoredRows
from cdc.feeds.tap.stream import SlowError
from cdc.feeds.tap.topic_store import TopicStore
from cdc.feeds.tap.views import DaemonStore
from cdc.feeds.tap.waiting import some_time

_SHARED_BYTES: Final = 64 * 1024 * 1024
_SHARE_BYTES_MIN: Final = 16 * 1024
_SHARE_BYTES_MAX: Final = 512 * 1024


class Feed:
    """One daemon's changes and rows, for any number of clients. All methods must be called on the event loop's thread."""

    def __init__(self, config: Config, fail: Callable[[CdcError], None], forget: Callable[[], None] = lambda: None) -> None:
        """`fail` is called with the error that ended the reading, `forget` when all clients' keys have become unknown."""
        tap = config.tap
        self._config = tap
        self._columns = config.columns
        self._fail = fail
        self._log = structlog.get_logger()
        self._patterns = [re.compile(pattern) for pattern in tap.spaces]
        self._wanted_by = [(re.compile(client.name), SpaceNames(client.spaces)) for client in tap.clients]
        self._left_out: set[tuple[str, str]] = set()
        self._changes = Changes(
            config.kafka.topic_prefix,
            tap.key,
            tap.vbuckets,
            self._is_wanted,
            is_packed=tap.value == "msgpack",
            on_missing=self._log_left_out,
        )
        self._topics = Topics(config.name, config.kafka)
        self._catching_up = CatchingUp(lambda: self._topics, self._changes)
        self._lookups = TopicLookups(lambda: self._topics, self._changes)
        template, view_seconds_max = self._changes.template, tap.view_ms_max / 1000
        store: RowStore
        self.own_store: TopicStore | None = None
        """Store that the server keeps itself; None if it reads the daemon's (see tap.store_path)."""
        if tap.store_path is None:
            columns = ColumnRules(self._columns.rules, self._columns.secret())
            path = config.state.path / "images"
            store = DaemonStore(path, config.name, template, tap.vbuckets, view_seconds_max, columns)
        else:
            store = self.own_store = TopicStore(
                tap.store_path, config.kafka.topic_prefix, tap.spaces, template, tap.vbuckets, view_seconds_max
            )
        self.stored = StoredRows(store, is_packed=tap.value == "msgpack")
        self.store_updater: StoreUpdater | None = None
        self.newest = NewestChanges(tap.buffer_bytes_max)
        self.removals = UnnamedRemovals(
            ServedSpaces(self._is_wanted, self._spaces_of),
            self._keys_were_removed,
            forget,
            has_own_store=self.own_store is not None,
        )
        self.client_count = 0
        """Number of open connections."""
        self._reader: LiveReader | None = None
        self._keeps_all = config.snapshot.mode != "never"

    async def start(self, stopping: asyncio.Event, known_version: int = 0) -> bool:
        """Start reading; return False if `stopping` was set first. `known_version` is the highest that a session began with."""
        loop = asyncio.get_running_loop()
        if self.own_store is not None:
            await self._start_store_updater(self.own_store, known_version, loop)
        after = await self._first_seq(stopping)
        if after is None:
            return False
        self.newest.begin(after)
        reader = self._reader = LiveReader(
            self._topics,
            self._changes,
            after,
            lambda batch: self.newest.bring(loop, batch, lambda: reader.is_stopping),
            control_events=ControlEvents(self.removals, loop, self._topics.snapshots),
            on_end=lambda failure: call_soon(loop, self._reader_ended, failure),
        )
        reader.start()
        return True

    async def _start_store_updater(self, store: TopicStore, known_version: int, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.to_thread(store.open, known_version)
        self.removals.renamed_version = store.position.epoch
        self.store_updater = StoreUpdater(
            self._topics,
            store,
            self._is_wanted,
            on_reset=lambda epoch: call_soon(loop, self.removals.store_was_reset, epoch),
            on_end=lambda failure: call_soon(loop, self._reader_ended, failure),
        )
        self.store_updater.start()

    async def stop(self) -> None:
        """Stop reading, and close the store."""
        if self.store_updater is not None:
            self.store_updater.stop()
            await asyncio.to_thread(self.store_updater.join)
        if self._reader is not None:
            self._reader.stop()
            await asyncio.to_thread(self._reader.join)
        await asyncio.to_thread(self.stored.store.close)

    def close_old_view(self) -> None:
        """Release a view that has expired. For any thread."""
        self.stored.store.close_old_view()

    async def since(self, date: int) -> int | None:
        """Return the seq after which all changes are newer than a date, or None if the topics don't go back that far."""
        seq = await self._lookups.since(date)
        # The changes don't show which spaces have been renamed since the date.
        return seq if seq is not None and seq > self.removals.renamed_seq else None

    @property
    def served(self) -> str:
        """Hash of the configuration that determines keys and values, and of which store's seqs tell their age."""
        tap = self._config
        clients = [[client.name, client.spaces] for client in tap.clients]
        parts: list[object] = [
            self._topics.prefix,
            tap.spaces,
            tap.key,
            tap.value,
            tap.vbuckets,
            clients,
            self.own_store is not None,
        ]
        if self._columns.rules:
            parts += [self._columns.model_dump(exclude={"salt", "salt_file"}), self._columns.secret()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def ring(self) -> Ring:
        """Newest changes, in memory."""
        return self.newest.ring

    @property
    def last(self) -> int:
        """Seq of the newest change."""
        return self.newest.ring.last

    @property
    def reader(self) -> LiveReader | None:
        """Reader of the topics; None before the start."""
        return self._reader

    async def _first_seq(self, stopping: asyncio.Event) -> int | None:
        """Return the seq to read the topics from: the store's, or the topics' end. Return None if `stopping` was set first."""
        while not stopping.is_set():
            try:
                if self.own_store is None:  # the server's own store may be far behind
                    return await asyncio.to_thread(self.stored.store.seq)
            except BusyError as error:
                self._log.info("the daemon's store can't be read yet", why=str(error))
            try:
                return await asyncio.to_thread(self._topics.newest_seq)
            except CdcError as error:
                self._log.warning("Kafka can't be asked for the topics' ends, retrying", why=str(error))
            await some_time(stopping, RETRY_SECONDS)
        return None

    def _keys_were_removed(self) -> None:
        self.stored.outdate_view()
        self.newest.wake()

    def _reader_ended(self, failure: CdcError | None) -> None:
        if failure is not None:
            self._fail(failure)

    def _log_left_out(self, space: str, field: str) -> None:
        """Log a row without a key, once per space and field. For any thread."""
        if (space, field) not in self._left_out:
            self._left_out.add((space, field))
            self._log.warning(
                "rows that lack a field of tap.key are left out: use a field that all rows have, or exclude the "
                "space from tap.spaces",
                space=space,
                field=field,
                key=self._config.key,
            )

    # What a client gets.

    @property
    def all_vbuckets(self) -> frozenset[int]:
        """All vbuckets."""
        return frozenset(range(self._config.vbuckets))

    @property
    def share_bytes(self) -> int:
        """Maximum of bytes sent to, or read for, one client at a time. It shrinks with the number of clients: all may stall."""
        return max(_SHARE_BYTES_MIN, min(_SHARE_BYTES_MAX, _SHARED_BYTES // max(1, self.client_count)))

    def _is_wanted(self, space: str) -> bool:
        return any(pattern.fullmatch(space) for pattern in self._patterns)

    def _spaces_of(self, name: str) -> SpaceNames | None:
        """Return the spaces that a client of this name gets, or None if it gets all."""
        return next((spaces for pattern, spaces in self._wanted_by if pattern.fullmatch(name)), None)

    def selection(self, session: Session) -> Selection:
        """Return the current selection of changes for a client."""
        request = session.request
        return Selection(self._spaces_of(session.name), request.vbuckets, session.lost, request.is_keys_only)

    def is_alone(self, session: Session, space: str) -> bool:
        """Whether this space is the only one that the client gets."""
        wanted = self._spaces_of(session.name)
        stored = self.stored.store.names()  # without them, the client may have rows of any space
        known = self._changes.spaces.union(stored or ())
        return stored is not None and {name for name in known if wanted is None or name in wanted} <= {space}

    def needs_refill(self, session: Session) -> bool:
        """Whether the client has removed keys that no event names: it must be filled again."""
        return self.removals.needs_refill(session)

    @property
    def swept_offset(self) -> int:
        """Offset after the last record that reported removed keys without naming them."""
        return self.removals.control.swept_offset

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        """Return the keys that a TRUNCATE removed, with their vbuckets, or None if they can't be determined."""
        if not self._keeps_all:
            return None  # the space's rows may never have been on the topics
        return await self._lookups.former_keys(change)

    # Rows.

    def is_new_enough(self, rows: Rows, seq: int) -> bool:
        """Whether rows are from a store that has reached this seq, and the last unnamed removal of keys."""
        return self.stored.is_new_enough(rows, seq, self.removals)

    async def wait_stored(self, seq: int) -> None:
        """Wait until the store has reached this seq, and the last unnamed removal of keys."""
        await self.stored.wait(seq, self.removals)

    async def read(self, cursor: Cursor, selection: Selection) -> Rows:
        """Return rows of the store; wait while the store can't be read."""
        return await self.stored.read(cursor, selection, self.share_bytes)

    # Changes.

    async def batches(self, session: Session, after: int) -> AsyncGenerator[Batch, None]:
        """Yield the changes after `after`, without end."""
        with self.newest.follower() as follower:
            async with contextlib.aclosing(self._batches(session, after, follower)) as batches:
                async for batch in batches:
                    yield batch

    async def _batches(self, session: Session, after: int, follower: object) -> AsyncGenerator[Batch, None]:
        newest = self.newest
        ring, has_followed = newest.ring, False
        while True:
            if not ring.has(after):
                if after > ring.last:
                    await self._wait_for_end(after)
                    continue
                if has_followed:
                    raise SlowError(f"the client is {ring.last - after} changes behind, more than tap.buffer_bytes_max keeps")
                async with contextlib.aclosing(self._catching_up.batches(session, after)) as batches:
                    async for batch in batches:
                        after = batch.last
                        yield batch
                        if ring.has(after):
                            break
                continue
            grown = newest.grown
            found = ring.next(after)
            has_followed = True
            newest.follows(follower, after)
            if found is None:
                if self.needs_refill(session):
                    raise ExpiredError("keys were removed that no event names")
                await grown.wait()
                continue
            after = found.last
            newest.follows(follower, after)
            yield found

    def check_turn(self, session: Session) -> None:
        """Raise SlowError if other clients wait and this client has kept its reader past its turn."""
        self._catching_up.check_turn(session)

    async def wait_read(self, seq: int) -> None:
        """Wait until the topics have been read up to a seq. Raises ExpiredError if the topics end before it."""
        while seq > self.last:
            await self._wait_for_end(seq)

    async def _wait_for_end(self, after: int) -> None:
        """Wait while a client is ahead of the reader. Raises ExpiredError if the topics end before its seq."""
        assert self._reader is not None
        grown = self.newest.grown
        if self._reader.is_at_end and after > self.last:
            # A thousand clients may be filled from a store that is ahead of the topics.
            newest = await self._lookups.newest_seq()
            if after > newest:
                raise ExpiredError(f"the client is at seq {after}, but the topics end at {newest}")
        await some_time(grown, 1.0)

    async def wait_until_at_end(self) -> None:
        """Wait until all messages that are on the topics have been read and are in the ring."""
        assert self._reader is not None
        while not self._reader.is_at_end or self.last < self._reader.seq:
            await some_time(self.newest.grown, 0.1)
