"""State shared by all clients' streams: the newest changes in memory, one reader of the topics, one view of the store at a time.

The reader's thread is at most a few batches ahead of the event loop. A client that is behind the ring reads the topics through
its own reader; only a few clients do so at a time. A client that was in the ring and falls behind it is too slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

import structlog

from cdc.config import Config
from cdc.errors import CdcError, Remedy
from cdc.feeds.tap.catching_up import AHEAD, CatchingUp, call_soon
from cdc.feeds.tap.changes import Change, Changes, Renaming, SpaceNames
from cdc.feeds.tap.controls import FeedControlEvents
from cdc.feeds.tap.keeper import StoreUpdater
from cdc.feeds.tap.live import ExpiredError, LiveReader, Topics
from cdc.feeds.tap.merging import Batch, Ring, Selection
from cdc.feeds.tap.rows import BusyError, Rows, RowStore
from cdc.feeds.tap.session import ControlPosition, Cursor, Session
from cdc.feeds.tap.stream import SlowError
from cdc.feeds.tap.topic_store import TopicStore
from cdc.feeds.tap.views import DaemonStore

_Found = TypeVar("_Found")

_STORE_SECONDS: Final = 0.1
"""Interval at which the store's position is checked while clients wait for the store to reach a seq, in seconds."""
_START_RETRY_SECONDS: Final = 1.0
_ROWS: Final = 2_000
_ROWS_BYTES: Final = 256 * 1024
_SHARED_BYTES: Final = 64 * 1024 * 1024
_SHARE_BYTES_MIN: Final = 16 * 1024
_SHARE_BYTES_MAX: Final = 512 * 1024
_LOOKING_MAX: Final = 2
"""Number of topic lookups for single clients at a time. The few available threads must also close views and read rows."""
_FORMER_KEYS_BYTES: Final = 64 * 1024 * 1024
_FORMER_KEYS: Final = 4
_GATHER_SECONDS: Final = 0.0001
"""Time to gather changes per following client, in seconds: a thousand clients get the changes ten times a second."""
_HOLD_SECONDS: Final = 5.0
"""Maximum time that reading waits so that a change stays in the ring for following clients that haven't had it, in seconds."""
_HOLD_RETRY_SECONDS: Final = 0.02


class Feed:
    """One daemon's changes and rows, for any number of clients. All methods must be called on the event loop's thread."""

    def __init__(self, config: Config, fail: Callable[[CdcError], None], forget: Callable[[], None] = lambda: None) -> None:
        """`fail` is called with the error that ended the reading, `forget` when all clients' keys have become unknown."""
        tap = config.tap
        self._config = tap
        self._fail = fail
        self._forget = forget
        self._log = structlog.get_logger()
        self._patterns = [re.compile(pattern) for pattern in tap.spaces]
        self._changes = Changes(
            config.kafka.topic_prefix,
            tap.key,
            tap.vbuckets,
            self._is_wanted,
            is_packed=tap.value == "msgpack",
            on_missing=self._log_left_out,
        )
        self._left_out: set[tuple[str, str]] = set()
        self._topics = Topics(config.name, config.kafka)
        self._catching_up = CatchingUp(lambda: self._topics, self._changes)
        template, view_seconds_max = self._changes.template, tap.view_ms_max / 1000
        self._store: RowStore
        self.own_store: TopicStore | None = None
        """Store that the server keeps itself; None if it reads the daemon's (see tap.store_path)."""
        if tap.store_path is None:
            self._store = DaemonStore(config.state.path / "images", config.name, template, tap.vbuckets, view_seconds_max)
        else:
            self._store = self.own_store = TopicStore(
                tap.store_path, config.kafka.topic_prefix, tap.spaces, template, tap.vbuckets, view_seconds_max
            )
        self.store_updater: StoreUpdater | None = None
        self._ring = Ring(0, tap.buffer_bytes_max)
        self._grown = asyncio.Event()
        self.client_count = 0
        """Number of open connections."""
        self._coming: list[Batch] = []
        """Batches that wait to be appended to the ring."""
        self._appended_at = 0.0
        self._follower_count = 0
        self._followed: dict[object, int] = {}
        """Last change that each client in the ring has had."""
        self._reader: LiveReader | None = None
        self._ahead = threading.Semaphore(AHEAD)
        self._former_keys: OrderedDict[int, asyncio.Task[list[tuple[bytes, int]] | None]] = OrderedDict()
        self._looking = asyncio.Semaphore(_LOOKING_MAX)
        self._wanted_by = [(re.compile(client.name), SpaceNames(client.spaces)) for client in tap.clients]
        self._is_view_old = False
        self.control = ControlPosition()
        self.renamed_version = 0
        """Version of the last renaming or reset. Clients filled from older rows (Rows.version) have keys that no event names."""
        self._renamings: list[Renaming] = []
        self._renamed_seq = -1
        self._stored: tuple[int, int] | None = None
        """Seq and version of the store when they were last read."""
        self._looking_at_store: asyncio.Task[None] | None = None
        self._asking_end: asyncio.Task[int] | None = None
        self._keeps_all = config.snapshot.mode != "never"

    async def start(self, stopping: asyncio.Event, known_version: int = 0) -> bool:
        """Start reading; return False if `stopping` was set first. `known_version` is the highest that a session began with."""
        loop = asyncio.get_running_loop()
        if self.own_store is not None:
            await self._start_store_updater(self.own_store, known_version, loop)
        after = await self._first_seq(stopping)
        if after is None:
            return False
        self._ring = Ring(after, self._config.buffer_bytes_max)
        self._reader = LiveReader(
            self._topics,
            self._changes,
            after,
            lambda batch: self._hand_over(loop, batch),
            control_events=FeedControlEvents(self, loop),
            on_end=lambda failure: call_soon(loop, self._reader_ended, failure),
        )
        self._reader.start()
        return True

    async def _start_store_updater(self, store: TopicStore, known_version: int, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.to_thread(store.open, known_version)
        self.renamed_version = store.position.epoch
        self.store_updater = StoreUpdater(
            self._topics,
            store,
            self._is_wanted,
            on_reset=lambda epoch: call_soon(loop, self._store_was_reset, epoch),
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
        await asyncio.to_thread(self._store.close)

    def close_old_view(self) -> None:
        """Release a view that has expired. For any thread."""
        self._store.close_old_view()

    async def since(self, date: int) -> int | None:
        """Return the seq after which all changes are newer than a date, or None if the topics don't go back that far."""
        seq = await self._retry_lookup(
            lambda: self._topics.since(date * 1000), "Kafka can't be asked for the changes since a date: a client waits, retrying"
        )
        # The changes don't show which spaces have been renamed since the date.
        return seq if seq is not None and seq > self._renamed_seq else None

    @property
    def served(self) -> str:
        """Hash of the configuration that determines keys and values, and of which store's seqs tell their age."""
        tap = self._config
        clients = [[client.name, client.spaces] for client in tap.clients]
        parts = [self._topics.prefix, tap.spaces, tap.key, tap.value, tap.vbuckets, clients, self.own_store is not None]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def ring(self) -> Ring:
        """Newest changes, in memory."""
        return self._ring

    @property
    def reader(self) -> LiveReader | None:
        """Reader of the topics; None before the start."""
        return self._reader

    async def _first_seq(self, stopping: asyncio.Event) -> int | None:
        """Return the seq to read the topics from: the store's, or the topics' end. Return None if `stopping` was set first."""
        while not stopping.is_set():
            try:
                if self.own_store is None:  # the server's own store may be far behind
                    return await asyncio.to_thread(self._store.seq)
            except BusyError as error:
                self._log.info("the daemon's store can't be read yet", why=str(error))
            try:
                return await asyncio.to_thread(self._topics.newest_seq)
            except CdcError as error:
                self._log.warning("Kafka can't be asked for the topics' ends, retrying", why=str(error))
            await _some_time(stopping, _START_RETRY_SECONDS)
        return None

    # Batches from the reader's thread.

    def _hand_over(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """On the reader's thread: deliver a batch to the loop, at most a few batches ahead of it."""
        assert self._reader is not None
        while not self._ahead.acquire(timeout=0.2):
            if self._reader.is_stopping:
                return
        call_soon(loop, self._append, batch)

    def _append(self, batch: Batch) -> None:
        self._coming.append(batch)
        if len(self._coming) == 1:
            # Each batch wakes all clients: the more clients follow, the longer batches are gathered.
            loop = asyncio.get_running_loop()
            loop.call_at(self._appended_at + self._follower_count * _GATHER_SECONDS, self._append_all)

    def _append_all(self) -> None:
        """Append the gathered batches to the ring; the reader continues once they are there.

        After an outage of Kafka more batches arrive than the ring holds, and clients need a chance to read each of them.
        """
        loop, ring, coming = asyncio.get_running_loop(), self._ring, self._coming
        now = self._appended_at = loop.time()
        while coming:
            batch = coming[0]
            if self._is_held(ring.leaving(batch), now):
                loop.call_at(now + _HOLD_RETRY_SECONDS, self._append_all)
                break
            self._ahead.release()
            if len(coming) > 1 and (joined := batch.joined(coming[1])) is not None:
                coming[:2] = [joined]
                continue
            ring.append(coming.pop(0), now)
        self._wake_followers()

    def _is_held(self, leaving: Batch | None, now: float) -> bool:
        """Whether a batch, and older ones, must stay in the ring for now because some clients haven't had it."""
        if leaving is None or now - leaving.appended_at > _HOLD_SECONDS:
            return False
        first = self._ring.first - 1
        return any(first <= after < leaving.last for after in self._followed.values())

    def _wake_followers(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    def was_swept(self, seq: int, offset: int) -> None:
        """Record that keys up to `seq` may have been removed unnamed, as reported by the record before `offset`."""
        control = self.control
        # The server's own store reports when it has processed the record. All records are read again at each start.
        if self.own_store is None and (seq, offset) > (control.swept_seq, control.swept_offset):
            self.control = control._replace(swept_seq=seq, swept_offset=offset)
            self._is_view_old = True
            self._wake_followers()

    def was_lost(self, seq: int) -> None:
        """Record that changes up to `seq` are on no topic; the daemon's store has their results."""
        if self.own_store is None:
            self._log.warning(
                "changes are missing on all topics: clients that were filled before are filled again from the daemon's store",
                seq=seq,
            )
            self.was_swept(seq, 0)

    def snapshots_read(self, offset: int) -> None:
        """Record that `was_swept` was called for all sweeps up to `offset`."""
        self.control = self.control._replace(offset=offset)

    def snapshots_missed(self) -> None:
        """Handle sweeps that may have been missed."""
        if self.own_store is None:
            self._log.warning(
                "snapshot records expired or were deleted before they were read: earlier clients are filled again, "
                "because some of their keys may have been removed",
                topic=self._topics.snapshots,
            )
            self._forget()
            self._wake_followers()

    def was_renamed(self, renaming: Renaming) -> None:
        """Handle a renamed space."""
        if renaming in self._renamings or not (self._is_wanted(renaming.former) or self._is_wanted(renaming.name)):
            return
        self._renamings.append(renaming)
        self._renamed_seq = max(self._renamed_seq, renaming.seq)
        if self.own_store is None:
            self.renamed_version = max(self.renamed_version, renaming.version)
            self._wake_followers()

    def _store_was_reset(self, epoch: int) -> None:
        """Handle keys that the server's own store removed and that no event names."""
        self.renamed_version = max(self.renamed_version, epoch)
        self._is_view_old = True
        self._wake_followers()

    def _reader_ended(self, failure: CdcError | None) -> None:
        if failure is not None:
            self._fail(failure)

    # State shared by the clients' streams.

    @property
    def last(self) -> int:
        """Seq of the newest change."""
        return self._ring.last

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

    def needs_refill(self, session: Session) -> bool:
        """Whether the client has removed keys that no event names: it must be filled again."""
        control = self.control
        if session.is_reset or session.begun_seq < control.swept_seq:
            return True
        if session.begun_seq == control.swept_seq and session.begun_offset != control.swept_offset:
            return True
        return session.begun_version < self.renamed_version and self._has_other_names(session)

    def _has_other_names(self, session: Session) -> bool:
        """Whether a space that the client gets, or got, was renamed since the client was filled."""
        wanted = self._spaces_of(session.name)
        if wanted is None or self.own_store is not None:  # the own store's versions aren't the schema's
            return True
        return any(
            one.version > session.begun_version and (one.former in wanted or one.name in wanted) for one in self._renamings
        )

    def is_new_enough(self, rows: Rows, seq: int) -> bool:
        """Whether rows are from a store that has reached this seq, and the last unnamed removal of keys.

        If they aren't, the next read opens a new view.
        """
        if self._is_new_enough(rows.seq, rows.version, seq):
            return True
        self._is_view_old = True
        self._stored = None  # the store may have been replaced by an older one
        return False

    def _is_new_enough(self, stored: int, version: int, seq: int) -> bool:
        return stored >= max(seq, self.control.swept_seq) and version >= self.renamed_version

    @property
    def swept_offset(self) -> int:
        """Offset after the last record that reported removed keys without naming them."""
        return self.control.swept_offset

    async def wait_stored(self, seq: int) -> None:
        """Wait until the store has reached this seq, and the last unnamed removal of keys."""
        while (stored := self._stored) is None or not self._is_new_enough(*stored, seq):
            await self._look_together()

    async def _wait_readable(self) -> None:
        """Wait until the store can be read."""
        self._stored = None
        while self._stored is None:
            await self._look_together()

    async def _look_together(self) -> None:
        if self._looking_at_store is None or self._looking_at_store.done():
            self._looking_at_store = asyncio.create_task(self._look_at_store())
        await asyncio.shield(self._looking_at_store)

    async def _look_at_store(self) -> None:
        """Read the store's position once, after a pause, for all waiting clients: the store doesn't notify."""
        await asyncio.sleep(_STORE_SECONDS)
        try:
            self._stored = await asyncio.to_thread(self._store.refresh_position)
        except BusyError as error:
            self._log.debug("clients wait for the store", why=str(error))

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

    def is_alone(self, session: Session, space: str) -> bool:
        """Whether this space is the only one that the client gets."""
        wanted = self._spaces_of(session.name)
        stored = self._store.names()  # without them, the client may have rows of any space
        known = self._changes.spaces.union(stored or ())
        return stored is not None and {name for name in known if wanted is None or name in wanted} <= {space}

    async def batches(self, session: Session, after: int) -> AsyncGenerator[Batch, None]:
        """Yield the changes after `after`, without end."""
        self._follower_count += 1
        follower = object()
        try:
            async with contextlib.aclosing(self._batches(session, after, follower)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._follower_count -= 1
            self._followed.pop(follower, None)

    async def _batches(self, session: Session, after: int, follower: object) -> AsyncGenerator[Batch, None]:
        ring = self._ring
        has_followed = False
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
            grown = self._grown
            found = ring.next(after)
            has_followed = True
            self._followed[follower] = after
            if found is None:
                if self.needs_refill(session):
                    raise ExpiredError("keys were removed that no event names")
                await grown.wait()
                continue
            after = self._followed[follower] = found.last
            yield found

    async def wait_read(self, seq: int) -> None:
        """Wait until the topics have been read up to a seq. Raises ExpiredError if the topics end before it."""
        while seq > self._ring.last:
            await self._wait_for_end(seq)

    async def _wait_for_end(self, after: int) -> None:
        """Wait while a client is ahead of the reader. Raises ExpiredError if the topics end before its seq."""
        assert self._reader is not None
        grown = self._grown
        if self._reader.is_at_end and after > self._ring.last:
            # One answer serves all clients that ask meanwhile: a thousand may be filled from a store that is ahead of the topics.
            if self._asking_end is None or self._asking_end.done():
                self._asking_end = asyncio.create_task(
                    self._retry_lookup(self._topics.newest_seq, "Kafka can't be asked for the topics' ends, retrying")
                )
            newest = await asyncio.shield(self._asking_end)
            if after > newest:
                raise ExpiredError(f"the client is at seq {after}, but the topics end at {newest}")
        await _some_time(grown, 1.0)

    def check_turn(self, session: Session) -> None:
        """Raise SlowError if other clients wait and this client has kept its reader past its turn."""
        self._catching_up.check_turn(session)

    async def read(self, cursor: Cursor, selection: Selection) -> Rows:
        """Return rows of the store; wait while the store can't be read."""
        is_told = False
        while True:
            try:
                if self._is_view_old:
                    self._is_view_old = False
                    await asyncio.to_thread(self._store.seq)
                return await asyncio.to_thread(
                    self._store.read,
                    cursor,
                    selection,
                    is_packed=self._config.value == "msgpack",
                    count_max=_ROWS,
                    bytes_max=min(_ROWS_BYTES, self.share_bytes),
                )
            except BusyError as error:
                if not is_told:
                    is_told = True
                    self._log.info("clients wait for the store", why=str(error))
                await self._wait_readable()

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        """Return the keys that a TRUNCATE removed, with their vbuckets, or None if they can't be determined."""
        if not self._keeps_all:
            return None  # the space's rows may never have been on the topics
        task = self._former_keys.get(change.seq)
        if task is None:
            task = self._former_keys[change.seq] = asyncio.create_task(self._look_for_keys(change))
            while len(self._former_keys) > _FORMER_KEYS:
                self._former_keys.popitem(last=False)
        return await asyncio.shield(task)

    async def _look_for_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        try:
            return await self._retry_lookup(
                lambda: self._topics.former_keys(self._changes, change.space, change.seq, _FORMER_KEYS_BYTES),
                "the keys that a space had can't be read from its topic, retrying",
                space=change.space,
            )
        except CdcError:
            self._former_keys.pop(change.seq, None)
            raise

    async def _retry_lookup(self, look: Callable[[], _Found], trouble: str, **about: str) -> _Found:
        """Return the result of a topic lookup. Retry while Kafka is unavailable, as all readers of the topics do."""
        is_told = False
        while True:
            try:
                return await self._run_lookup(look)
            except CdcError as error:
                if error.remedy is not Remedy.WAIT:
                    raise
                if not is_told:
                    is_told = True
                    self._log.warning(trouble, why=str(error), **about)
            await asyncio.sleep(_START_RETRY_SECONDS)  # Kafka doesn't notify when it is available again

    async def _run_lookup(self, look: Callable[[], _Found]) -> _Found:
        """Return the result of a topic lookup. Lookups may take long; their number is limited to leave threads for the store."""
        async with self._looking:
            return await asyncio.to_thread(look)

    async def wait_until_at_end(self) -> None:
        """Wait until all messages that are on the topics have been read and are in the ring."""
        assert self._reader is not None
        while not self._reader.is_at_end or self._ring.last < self._reader.seq:
            await _some_time(self._grown, 0.1)


async def _some_time(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most `seconds`. asyncio.wait_for would lose a cancellation that arrives together with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
