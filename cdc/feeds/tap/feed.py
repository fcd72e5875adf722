"""What all clients' streams share: the newest changes in memory, a reader of the topics, one view of the store at a time.

The reader's thread is a few batches ahead of the event loop and no more. A client that is behind the ring reads the topics by
itself, a few such at a time; one that has been in the ring and falls behind it is too slow.
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
from cdc.feeds.tap.controls import FeedControls
from cdc.feeds.tap.keeper import Keeper
from cdc.feeds.tap.live import ExpiredError, LiveReader, Topics
from cdc.feeds.tap.merging import Batch, Ring, Selection
from cdc.feeds.tap.rows import BusyError, Rows, RowStore
from cdc.feeds.tap.session import ControlPlace, Cursor, Session
from cdc.feeds.tap.stream import SlowError
from cdc.feeds.tap.topic_store import TopicStore
from cdc.feeds.tap.views import DaemonStore

_Found = TypeVar("_Found")

_RETRY_SECONDS: Final = 0.05
_STORE_SECONDS: Final = 0.1
"""How often the store is looked at while clients wait until it has come so far."""
_START_RETRY_SECONDS: Final = 1.0
_ROWS: Final = 2_000
_ROWS_BYTES: Final = 256 * 1024
_SHARED_BYTES: Final = 64 * 1024 * 1024
_SHARE_BYTES_MIN: Final = 16 * 1024
_SHARE_BYTES_MAX: Final = 512 * 1024
_LOOKING_MAX: Final = 2
"""Looks into the topics for one client at a time; of the few threads that there are, others must close views and read rows."""
_FORMER_KEYS_BYTES: Final = 64 * 1024 * 1024
_FORMER_KEYS: Final = 4
_GATHER_SECONDS: Final = 0.0001
"""For each client that follows: a thousand of them are told ten times a second what has changed."""
_HOLD_SECONDS: Final = 5.0
"""How long a change is kept at least for clients that follow and haven't had it, however much comes: reading waits so long."""
_HOLD_RETRY_SECONDS: Final = 0.02


class Feed:
    """One daemon's changes and rows, for any number of clients. Its methods are for the event loop's thread."""

    def __init__(self, config: Config, fail: Callable[[CdcError], None], forget: Callable[[], None] = lambda: None) -> None:
        """`fail` is told what ended the reading; `forget` is called when nobody knows any more what all clients' keys are."""
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
            on_missing=self._is_left_out,
        )
        self._left_out: set[tuple[str, str]] = set()
        self._topics = Topics(config.name, config.kafka)
        self._catching_up = CatchingUp(lambda: self._topics, self._changes)
        template, view_seconds_max = self._changes.template, tap.view_ms_max / 1000
        self._store: RowStore
        self.own_store: TopicStore | None = None
        """The store that the server keeps itself, if it does (tap.store_path)."""
        if tap.store_path is None:
            self._store = DaemonStore(config.state.path / "images", config.name, template, tap.vbuckets, view_seconds_max)
        else:
            self._store = self.own_store = TopicStore(
                tap.store_path, config.kafka.topic_prefix, tap.spaces, template, tap.vbuckets, view_seconds_max
            )
        self.keeper: Keeper | None = None
        self._ring = Ring(0, tap.buffer_bytes_max)
        self._grown = asyncio.Event()
        self.client_count = 0
        """Connections that there are."""
        self._coming: list[Batch] = []
        """Behind the ring's."""
        self._appended_at = 0.0
        self._follower_count = 0
        self._followed: dict[object, int] = {}
        """What those who are in the ring have had."""
        self._reader: LiveReader | None = None
        self._ahead = threading.Semaphore(AHEAD)
        self._former_keys: OrderedDict[int, asyncio.Task[list[tuple[bytes, int]] | None]] = OrderedDict()
        self._looking = asyncio.Semaphore(_LOOKING_MAX)
        self._wanted_by = [(re.compile(client.name), SpaceNames(client.spaces)) for client in tap.clients]
        self._is_view_old = False
        self.control = ControlPlace()
        self.renamed_version = 0
        """Clients that were filled from rows of an older version have keys that nobody can name (Rows.version)."""
        self._renamings: list[Renaming] = []
        self._renamed_seq = -1
        self._stored: tuple[int, int] | None = None
        """What the store had when it was looked at last."""
        self._looking_at_store: asyncio.Task[None] | None = None
        self._asking_end: asyncio.Task[int] | None = None
        self._keeps_all = config.snapshot.mode != "never"

    async def start(self, stopping: asyncio.Event, known_version: int = 0) -> bool:
        """Begin to read; whether there was still something to begin. `known_version` is the highest that a session began with."""
        loop = asyncio.get_running_loop()
        if self.own_store is not None:
            await self._start_keeping(self.own_store, known_version, loop)
        after = await self._first_seq(stopping)
        if after is None:
            return False
        self._ring = Ring(after, self._config.buffer_bytes_max)
        self._reader = LiveReader(
            self._topics,
            self._changes,
            after,
            lambda batch: self._hand_over(loop, batch),
            controls=FeedControls(self, loop),
            on_end=lambda failure: call_soon(loop, self._reader_ended, failure),
        )
        self._reader.start()
        return True

    async def _start_keeping(self, store: TopicStore, known_version: int, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.to_thread(store.open, known_version)
        self.renamed_version = store.position.epoch
        self.keeper = Keeper(
            self._topics,
            store,
            self._is_wanted,
            on_reset=lambda epoch: call_soon(loop, self._store_was_reset, epoch),
            on_end=lambda failure: call_soon(loop, self._reader_ended, failure),
        )
        self.keeper.start()

    async def stop(self) -> None:
        """End reading, and let go of the store."""
        if self.keeper is not None:
            self.keeper.stop()
            await asyncio.to_thread(self.keeper.join)
        if self._reader is not None:
            self._reader.stop()
            await asyncio.to_thread(self._reader.join)
        await asyncio.to_thread(self._store.close)

    def close_old_view(self) -> None:
        """Let go of a view that nobody has asked for lately. For any thread."""
        self._store.close_old_view()

    async def since(self, date: int) -> int | None:
        """The number behind which all changes are newer than a date; None if the topics don't go back so far."""
        seq = await self._answered(
            lambda: self._topics.since(date * 1000), "a client waits until Kafka can be asked what has changed since a date"
        )
        # Of what has got another name since, the changes don't tell.
        return seq if seq is not None and seq > self._renamed_seq else None

    @property
    def served(self) -> str:
        """What of the configuration makes keys and values, and which store's numbers tell how old they are."""
        tap = self._config
        clients = [[client.name, client.spaces] for client in tap.clients]
        parts = [self._topics.prefix, tap.spaces, tap.key, tap.value, tap.vbuckets, clients, self.own_store is not None]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def ring(self) -> Ring:
        """The newest changes."""
        return self._ring

    @property
    def reader(self) -> LiveReader | None:
        """Who reads the topics, once somebody does."""
        return self._reader

    async def _first_seq(self, stopping: asyncio.Event) -> int | None:
        """Where to begin to read the topics: where the store is, or at their end. None if there is nothing to begin any more."""
        while not stopping.is_set():
            try:
                if self.own_store is None:  # that one may be far behind
                    return await asyncio.to_thread(self._store.seq)
            except BusyError as error:
                self._log.info("the daemon's store can't be read yet", why=str(error))
            try:
                return await asyncio.to_thread(self._topics.newest_seq)
            except CdcError as error:
                self._log.warning("Kafka can't be asked for the topics' ends, trying again", why=str(error))
            await _some_time(stopping, _START_RETRY_SECONDS)
        return None

    # What the reader's thread hands over.

    def _hand_over(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """On the reader's thread: no more than a few batches ahead of the loop."""
        assert self._reader is not None
        while not self._ahead.acquire(timeout=0.2):
            if self._reader.is_stopping:
                return
        call_soon(loop, self._append, batch)

    def _append(self, batch: Batch) -> None:
        self._coming.append(batch)
        if len(self._coming) == 1:
            # Each batch wakes everybody: the more there are, the longer it is gathered.
            loop = asyncio.get_running_loop()
            loop.call_at(self._appended_at + self._follower_count * _GATHER_SECONDS, self._append_all)

    def _append_all(self) -> None:
        """Into the ring; the reader goes on when they are there.

        After a time without Kafka more comes at once than there is room for, and nobody must lose what they weren't told of.
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
        self._tell_all()

    def _is_held(self, leaving: Batch | None, now: float) -> bool:
        """Whether a batch, and what is older, may not leave the ring yet, because of clients that haven't had it."""
        if leaving is None or now - leaving.appended_at > _HOLD_SECONDS:
            return False
        first = self._ring.first - 1
        return any(first <= after < leaving.last for after in self._followed.values())

    def _tell_all(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    def was_swept(self, seq: int, offset: int) -> None:
        """Up to this number keys may be gone that nobody can name; told by the record before this offset."""
        control = self.control
        # The server's own store tells by itself when it has come so far. Records are read again at each start.
        if self.own_store is None and (seq, offset) > (control.swept_seq, control.swept_offset):
            self.control = control._replace(swept_seq=seq, swept_offset=offset)
            self._is_view_old = True
            self._tell_all()

    def was_lost(self, seq: int) -> None:
        """Changes up to this number are nowhere on the topics; the daemon's store has what they made."""
        if self.own_store is None:
            self._log.warning("clients that were filled before are filled again from the daemon's store", seq=seq)
            self.was_swept(seq, 0)

    def snapshots_read(self, offset: int) -> None:
        """Of all sweeps up to here `was_swept` was told."""
        self.control = self.control._replace(offset=offset)

    def snapshots_missed(self) -> None:
        """There may have been sweeps that nobody was told of."""
        if self.own_store is None:
            self._log.warning(
                "records of snapshots have expired or were deleted before they were read: clients that were here before are "
                "filled again, as keys of theirs may be gone",
                topic=self._topics.snapshots,
            )
            self._forget()
            self._tell_all()

    def was_renamed(self, renaming: Renaming) -> None:
        """A space has got another name."""
        if renaming in self._renamings or not (self._is_wanted(renaming.former) or self._is_wanted(renaming.name)):
            return
        self._renamings.append(renaming)
        self._renamed_seq = max(self._renamed_seq, renaming.seq)
        if self.own_store is None:
            self.renamed_version = max(self.renamed_version, renaming.version)
            self._tell_all()

    def _store_was_reset(self, epoch: int) -> None:
        """The server's own store has lost keys that nobody can name."""
        self.renamed_version = max(self.renamed_version, epoch)
        self._is_view_old = True
        self._tell_all()

    def _reader_ended(self, failure: CdcError | None) -> None:
        if failure is not None:
            self._fail(failure)

    # What clients' streams share.

    @property
    def last(self) -> int:
        """The number of the newest change."""
        return self._ring.last

    @property
    def all_vbuckets(self) -> frozenset[int]:
        """That there are."""
        return frozenset(range(self._config.vbuckets))

    @property
    def share_bytes(self) -> int:
        """What one client may be sent at a time, or be read for it: the less the more there are, as all may stand still."""
        return max(_SHARE_BYTES_MIN, min(_SHARE_BYTES_MAX, _SHARED_BYTES // max(1, self.client_count)))

    def _is_wanted(self, space: str) -> bool:
        return any(pattern.fullmatch(space) for pattern in self._patterns)

    def _spaces_of(self, name: str) -> SpaceNames | None:
        """The spaces that a client of this name gets; None if it gets all."""
        return next((spaces for pattern, spaces in self._wanted_by if pattern.fullmatch(name)), None)

    def selection(self, session: Session) -> Selection:
        """What a client gets, as things are."""
        wish = session.wish
        return Selection(self._spaces_of(session.name), wish.vbuckets, session.lost, wish.is_keys_only)

    def is_over(self, session: Session) -> bool:
        """Whether the client has keys that are gone and that nobody can name: it must be filled anew."""
        control = self.control
        if session.is_reset or session.begun_seq < control.swept_seq:
            return True
        if session.begun_seq == control.swept_seq and session.begun_offset != control.swept_offset:
            return True
        return session.begun_version < self.renamed_version and self._has_other_names(session)

    def _has_other_names(self, session: Session) -> bool:
        """Whether a space that the client gets, or got, has another name than when it was filled."""
        wanted = self._spaces_of(session.name)
        if wanted is None or self.own_store is not None:  # whose versions aren't the schema's
            return True
        return any(
            one.version > session.begun_version and (one.former in wanted or one.name in wanted) for one in self._renamings
        )

    def is_new_enough(self, rows: Rows, seq: int) -> bool:
        """Whether the store has come to this number, and to where keys were last lost sight of.

        If it hasn't, the next view is a new one.
        """
        if self._is_new_enough(rows.seq, rows.version, seq):
            return True
        self._is_view_old = True
        return False

    def _is_new_enough(self, stored: int, version: int, seq: int) -> bool:
        return stored >= max(seq, self.control.swept_seq) and version >= self.renamed_version

    @property
    def swept_offset(self) -> int:
        """Behind the last record that told of keys that nobody can name."""
        return self.control.swept_offset

    async def wait_stored(self, seq: int) -> None:
        """Until the store has come to this number, and to where keys were last lost sight of."""
        while (stored := self._stored) is None or not self._is_new_enough(*stored, seq):
            if self._looking_at_store is None or self._looking_at_store.done():
                self._looking_at_store = asyncio.create_task(self._look_at_store())
            await asyncio.shield(self._looking_at_store)

    async def _look_at_store(self) -> None:
        """One look serves all who wait, in a moment: nobody tells when the store has come so far."""
        await asyncio.sleep(_STORE_SECONDS)
        try:
            self._stored = await asyncio.to_thread(self._store.place)
        except BusyError as error:
            self._log.debug("clients wait for the store", why=str(error))

    def _is_left_out(self, space: str, field: str) -> None:
        """For any thread."""
        if (space, field) not in self._left_out:
            self._left_out.add((space, field))
            self._log.warning(
                "rows that lack a field of tap.key have no key, and are left out: name a field that all rows have, or leave the "
                "space out of tap.spaces",
                space=space,
                field=field,
                key=self._config.key,
            )

    def is_alone(self, session: Session, space: str) -> bool:
        """Whether this is the only space that the client gets."""
        wanted = self._spaces_of(session.name)
        known = self._changes.spaces.union(self._store.names())
        return {name for name in known if wanted is None or name in wanted} <= {space}

    async def batches(self, session: Session, after: int) -> AsyncGenerator[Batch, None]:
        """What follows a change, without an end."""
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
                if self.is_over(session):
                    raise ExpiredError("keys are gone that nobody can name")
                await grown.wait()
                continue
            after = self._followed[follower] = found.last
            yield found

    async def wait_read(self, seq: int) -> None:
        """Until the topics have been read up to a number. Raises ExpiredError if it is of another time."""
        while seq > self._ring.last:
            await self._wait_for_end(seq)

    async def _wait_for_end(self, after: int) -> None:
        """A client knows more than was read: read on, unless there is no more; then its number is of another time."""
        assert self._reader is not None
        grown = self._grown
        if self._reader.is_at_end and after > self._ring.last:
            # One answer serves all who ask meanwhile: a thousand clients are filled from a store that is ahead of the topics.
            if self._asking_end is None or self._asking_end.done():
                self._asking_end = asyncio.create_task(
                    self._answered(self._topics.newest_seq, "Kafka can't be asked for the topics' ends, trying again")
                )
            newest = await asyncio.shield(self._asking_end)
            if after > newest:
                raise ExpiredError(f"the client has come to {after}, and the topics end at {newest}")
        await _some_time(grown, 1.0)

    def check_turn(self, session: Session) -> None:
        """Raises SlowError if the client has kept a place to read the topics too long that others wait for."""
        self._catching_up.check_turn(session)

    async def read(self, cursor: Cursor, selection: Selection) -> Rows:
        """Rows of the store; waits while it can't be read."""
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
                await asyncio.sleep(_RETRY_SECONDS)  # nobody tells when it can be read

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        """What a TRUNCATE has removed; None if nobody knows."""
        if not self._keeps_all:
            return None  # its rows may never have been on the topics
        task = self._former_keys.get(change.seq)
        if task is None:
            task = self._former_keys[change.seq] = asyncio.create_task(self._look_for_keys(change))
            while len(self._former_keys) > _FORMER_KEYS:
                self._former_keys.popitem(last=False)
        return await asyncio.shield(task)

    async def _look_for_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        try:
            return await self._answered(
                lambda: self._topics.former_keys(self._changes, change.space, change.seq, _FORMER_KEYS_BYTES),
                "the keys that a space had can't be looked for, trying again",
                space=change.space,
            )
        except CdcError:
            self._former_keys.pop(change.seq, None)
            raise

    async def _answered(self, look: Callable[[], _Found], trouble: str, **about: str) -> _Found:
        """What a look into the topics finds. Waits while Kafka doesn't answer, as all do who read the topics."""
        is_told = False
        while True:
            try:
                return await self._looked(look)
            except CdcError as error:
                if error.remedy is not Remedy.WAIT:
                    raise
                if not is_told:
                    is_told = True
                    self._log.warning(trouble, why=str(error), **about)
            await asyncio.sleep(_START_RETRY_SECONDS)  # nobody tells when Kafka answers

    async def _looked(self, look: Callable[[], _Found]) -> _Found:
        """What a look into the topics finds. It may take long, so threads are left for those who read the store."""
        async with self._looking:
            return await asyncio.to_thread(look)

    async def wait_until_at_end(self) -> None:
        """Until everything has been read that there is, and is in the ring."""
        assert self._reader is not None
        while not self._reader.is_at_end or self._ring.last < self._reader.seq:
            await _some_time(self._grown, 0.1)


async def _some_time(event: asyncio.Event, seconds: float) -> None:
    """Until something has happened, or for so long. asyncio.wait_for would lose a cancellation that comes with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
