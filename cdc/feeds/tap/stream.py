"""One client's feed from its position on: rows of the store until the client is filled, then changes.

    view of the store at S1 ──▶ rows │ changes up to S2 │ rows of a view at S2, after the last one │ … │ changes, as they arrive

So a client never gets an older value after a newer one: rows of a later view follow the changes that lead to it. The stream
leaves out those of these rows that such a change has already sent; it remembers their keys, up to a limit.

The stream prepares no data for a client that doesn't read it. It waits for the socket and for ACKs, and the waiting changes stay
in the ring that all clients share, or on the topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from cdc.errors import CdcError
from cdc.feeds.tap import wire
from cdc.feeds.tap.changes import Change
from cdc.feeds.tap.live import ExpiredError
from cdc.feeds.tap.merging import Batch, Selection
from cdc.feeds.tap.rows import FILL_OPAQUE, Rows
from cdc.feeds.tap.session import ClientPosition, Cursor, Session
from cdc.feeds.tap.window import AckWindow
from cdc.feeds.tap.wire import EngineMessage, VBucketState

_PIECE_MESSAGES: Final = 1_000
"""Number of messages sent at a time to clients that don't acknowledge."""
_CHANGED_BYTES_MAX: Final = 32 * 1024 * 1024
_CHANGED_SHARES: Final = 64
_KEY_BYTES: Final = 100
NEW: Final = -1
"""Seq of a position that has no view of the store yet."""


class StalledError(CdcError):
    """The client reads or acknowledges nothing."""


class SlowError(CdcError):
    """The client is so far behind that the changes it needs are no longer kept for it."""


class Source(Protocol):
    """State that all clients' streams share; implemented by cdc.feeds.tap.feed.Feed."""

    def needs_refill(self, session: Session) -> bool:
        """Whether the client has removed keys that no event names: it must be filled again."""

    def is_new_enough(self, rows: Rows, seq: int) -> bool:
        """Whether rows are from a store that has reached this seq, and the last unnamed removal of keys."""

    @property
    def swept_offset(self) -> int:
        """Offset after the last record that reported removed keys without naming them."""

    async def wait_stored(self, seq: int) -> None:
        """Wait until the store has reached this seq, and the last unnamed removal of keys."""

    async def wait_read(self, seq: int) -> None:
        """Wait until the topics have been read up to a seq. Raises ExpiredError if the topics end before it."""

    @property
    def last(self) -> int:
        """Seq of the newest change."""

    def selection(self, session: Session) -> Selection:
        """Return the current selection of changes for a client."""

    def is_alone(self, session: Session, space: str) -> bool:
        """Whether this space is the only one that the client gets."""

    def batches(self, session: Session, after: int) -> AsyncGenerator[Batch, None]:
        """Yield the changes after `after`, without end."""

    async def read(self, cursor: Cursor, selection: Selection) -> Rows:
        """Return rows of the store; wait while the store can't be read."""

    def check_turn(self, session: Session) -> None:
        """Raise SlowError if other clients wait for the reader that this client has kept past its turn."""

    async def former_keys(self, change: Change) -> list[tuple[bytes, int]] | None:
        """Return the keys that a TRUNCATE removed, with their vbuckets, or None if they can't be determined."""

    @property
    def all_vbuckets(self) -> frozenset[int]:
        """All vbuckets."""

    @property
    def share_bytes(self) -> int:
        """Maximum size of what one client is sent at a time, in bytes; a single message may be larger."""


class Sessions(Protocol):
    """Owner of the sessions."""

    def take_over(self, session: Session, vbuckets: frozenset[int]) -> None:
        """Reserve these vbuckets for the session's client."""

    async def keep(self, session: Session) -> None:
        """Return once the session is on disk in its current state."""


@dataclass(slots=True)
class _ChangedKeys:
    """Keys of the changes that a client was sent during its backfill; empty once there are too many."""

    keys: set[bytes] = field(default_factory=set)
    _byte_count: int = 0
    _is_full: bool = False

    def add(self, keys: Iterable[bytes], bytes_max: int) -> None:
        """Remember these keys too, unless that makes them too many."""
        if self._is_full:
            return
        for key in keys:
            if key not in self.keys:
                self.keys.add(key)
                self._byte_count += len(key) + _KEY_BYTES
        if self._byte_count > bytes_max:
            self._is_full = True
            self.keys = set()


class ClientStream:
    """Feed of one connection."""

    def __init__(
        self,
        session: Session,
        source: Source,
        sessions: Sessions,
        write: Callable[[list[bytes]], None],
        drain: Callable[[], Awaitable[None]],
        window: AckWindow | None,
        stall_seconds: float,
        taken: Callable[[], int] = lambda: 0,
    ) -> None:
        """Without a `window` the client doesn't acknowledge.

        `taken` returns the bytes that the client's machine has received, or 0 if unknown.
        """
        self.session = session
        self.window = window
        self.sent_bytes = 0
        self.sent_messages = 0
        self.sent_at = time.monotonic()
        self.seq = session.position.seq
        """Seq up to which everything has been sent."""
        self._source = source
        self._sessions = sessions
        self._write = write
        self._drain = drain
        self._stall_seconds = stall_seconds
        self._taken = taken
        self._is_waiting = False
        self._answered = asyncio.Event()
        self._opaque = 0
        self._position = session.position
        self._least_seq = 0
        """Minimum seq of the rows that the client is filled with: after a FLUSH it must get no older values than before."""

    @property
    def is_filling(self) -> bool:
        """Whether the client is still getting rows of the store."""
        return self._position.cursor is not None

    def answered(self, opaque: int) -> None:
        """Record that the client has acknowledged a message."""
        if self.window is None:
            return
        position = self.window.answered(opaque, time.monotonic())
        if position is not None:
            self.session.position = position
            self._answered.set()

    def noop(self) -> None:
        """Send a NOOP, unless the stream waits for the client: then the client's reading of the NOOP would look like progress."""
        if self._is_waiting:
            return
        self._opaque += 1
        self._write([wire.noop(FILL_OPAQUE | self._opaque)])
        self.sent_at = time.monotonic()

    async def run(self) -> None:
        """Send the feed, until a dump is complete. Raises StalledError and SlowError."""
        session, source = self.session, self._source
        while True:
            try:
                if session.is_reset:
                    # Don't empty a client before the store can be read.
                    self._least_seq = await self._wait_stored(max(0, self._position.seq))
                    # If the server is killed after the FLUSH, the client must not resume from the position before it.
                    await self._sessions.keep(session)
                    await self._send([wire.flush(self._next_opaque(), max(0, self._position.seq))], ClientPosition(NEW, Cursor()))
                    await self._settle()
                    session.is_reset = False
                if self._position.cursor is not None:
                    rows = await self._first_rows(self._position.cursor)
                    await self._message(EngineMessage.BEGIN_BACKFILL)
                    await self._fill(rows)
                    await self._message(EngineMessage.END_BACKFILL)
                elif session.is_replaying:
                    await self._message(EngineMessage.BEGIN_BACKFILL)
                    await self._follow(source.last)
                    session.is_replaying = False
                    await self._message(EngineMessage.END_BACKFILL)
                self._check_needs_refill()  # a client that gets a dump would never be told later
                if session.request.is_takeover and not session.owned:
                    await self._take_over()
                if session.request.is_dump:
                    await self._settle()
                    return
                await self._follow(None)
            except ExpiredError:
                pass  # the changes that the client lacks are gone: it is filled again
            session.is_reset = True

    # Rows.

    async def _first_rows(self, cursor: Cursor) -> Rows:
        """Return the next rows, from a view that isn't older than the client's changes. A new client gets its position here.

        The position is on disk before the client gets a row, so after any failure the client is sent the changes made since.
        """
        if self._position.seq != NEW:
            self._least_seq = self._position.seq
        try:
            await self._source.wait_read(self._least_seq)
        except ExpiredError:
            if self._position.seq != NEW:
                raise
            self._least_seq = 0
        offset = self._source.swept_offset
        rows = await self._source.read(cursor, self._selection)
        while not self._source.is_new_enough(rows, self._least_seq):
            await self._source.wait_stored(self._least_seq)
            offset = self._source.swept_offset
            rows = await self._source.read(cursor, self._selection)
        if self._position.seq == NEW:
            session = self.session
            self._position = session.position = ClientPosition(rows.seq, cursor)
            session.begun_seq, session.begun_version, session.begun_offset = rows.seq, rows.version, offset
            await self._sessions.keep(session)
        return rows

    async def _wait_stored(self, seq: int) -> int:
        """Wait until the store has rows that are no older than a seq. Return that seq, or 0 if the topics end before it."""
        try:
            await self._source.wait_read(seq)
        except ExpiredError:
            seq = 0
        await self._source.wait_stored(seq)
        return seq

    async def _fill(self, rows: Rows) -> None:
        changed = _ChangedKeys()
        while True:
            if rows.seq > self._position.seq:
                await self._follow_filling(rows.seq, changed)
            coming = None
            if rows.cursor is not None:
                coming = asyncio.ensure_future(self._source.read(rows.cursor, self._selection))
            try:
                frames = rows.frames
                if changed.keys:
                    pairs = zip(rows.keys, rows.frames, strict=True)
                    frames = [frame for key, frame in pairs if key not in changed.keys]
                await self._send(frames, ClientPosition(rows.seq, rows.cursor))
                if coming is None:
                    return
                rows = await coming
            finally:
                if coming is not None:
                    coming.cancel()

    async def _follow_filling(self, until: int, changed: _ChangedKeys) -> None:
        """Send the changes up to a view, and add their keys to `changed`."""
        cursor = self._position.cursor
        async with contextlib.aclosing(self._source.batches(self.session, self._position.seq)) as batches:
            async for batch in batches:
                after = self._position.seq  # rows with changes earlier in the batch are still to be sent
                await self._send_batch(batch, until, cursor)
                keys = (change.key for change in batch.changes if after < change.seq <= until)
                changed.add(keys, min(_CHANGED_BYTES_MAX, _CHANGED_SHARES * self._source.share_bytes))
                if self._position.seq >= until:
                    break

    # Changes.

    async def _follow(self, until: int | None) -> None:
        if until is not None and self._position.seq >= until:
            return
        async with contextlib.aclosing(self._source.batches(self.session, self._position.seq)) as batches:
            async for batch in batches:
                self._check_needs_refill()
                await self._send_batch(batch, until if until is not None else batch.last, None)
                if until is not None and self._position.seq >= until:
                    return

    def _check_needs_refill(self) -> None:
        if self._source.needs_refill(self.session):
            raise ExpiredError("keys were removed that no event names")

    async def _send_batch(self, batch: Batch, until: int, cursor: Cursor | None) -> None:
        last = min(batch.last, until)
        if batch.is_truncate and batch.first <= until:
            await self._truncate(batch.changes[0], cursor)
            return
        frames, seqs = batch.select(self._selection, self._position.seq, last)
        start, count = 0, len(frames)
        while start < count:
            end = min(start + self._piece, count)
            # Don't split the changes of one event.
            while end < count and seqs[end] == seqs[end - 1]:
                end += 1
            await self._send_piece(frames[start:end], ClientPosition(last if end == count else seqs[end - 1], cursor))
            start = end
        self._reached(ClientPosition(last, cursor))

    async def _truncate(self, change: Change, cursor: Cursor | None) -> None:
        selection, position = self._selection, ClientPosition(change.seq, cursor)
        if selection.spaces is not None and change.space not in selection.spaces:
            self._reached(position)
            return
        if self._source.is_alone(self.session, change.space):
            await self._send([wire.flush(self._next_opaque(), change.seq)], position)
            return
        keys = await self._source.former_keys(change)
        if keys is None:
            raise ExpiredError(f"the keys that space {change.space!r} had can't be determined")
        wanted = (
            (key, vbucket)
            for key, vbucket in keys
            if (selection.vbuckets is None or vbucket in selection.vbuckets) and vbucket not in selection.lost
        )
        # All clients delete the same keys at the same time, and each may be slow: make few frames at a time for each.
        piece = list(islice(wanted, _PIECE_MESSAGES))
        while piece:
            following = list(islice(wanted, _PIECE_MESSAGES))
            frames = [wire.delete(key, vbucket, self._next_opaque(), change.seq) for key, vbucket in piece]
            await self._send(frames, position if not following else self._position)
            await asyncio.sleep(0)  # to a fast client, everything would be sent before any other client's turn
            piece = following
        self._reached(position)

    # Vbuckets.

    async def _take_over(self) -> None:
        session = self.session
        wanted = session.request.vbuckets
        if wanted is None:
            wanted = self._source.all_vbuckets
        await self._follow(self._source.last)
        # This client has missed changes of vbuckets that another client has taken over, so it can't have them any more.
        pending = wanted - session.lost
        await self._set_vbuckets(pending, VBucketState.PENDING)
        await self._follow(self._source.last)
        active = pending - session.lost
        await self._set_vbuckets(active, VBucketState.ACTIVE)
        await self._settle()
        owned = active - session.lost
        self._sessions.take_over(session, owned)
        # Others were faster.
        await self._set_vbuckets(pending - owned, VBucketState.DEAD)

    async def _set_vbuckets(self, vbuckets: frozenset[int], state: VBucketState) -> None:
        frames = [wire.vbucket_set(vbucket, state, self._next_opaque()) for vbucket in sorted(vbuckets)]
        await self._send(frames, self._position)

    # Sending.

    @property
    def _selection(self) -> Selection:
        return self._source.selection(self.session)

    @property
    def _piece(self) -> int:
        return self.window.interval if self.window is not None else _PIECE_MESSAGES

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & (FILL_OPAQUE - 1)
        return FILL_OPAQUE | self._opaque

    async def _message(self, message: EngineMessage) -> None:
        vbuckets = self.session.request.vbuckets or (0,)
        await self._send(
            [wire.engine_message(message, vbucket, self._next_opaque()) for vbucket in sorted(vbuckets)], self._position
        )

    async def _send(self, frames: list[bytes], position: ClientPosition) -> None:
        """Send frames; the client is at `position` only after the last one."""
        start, count = 0, len(frames)
        while start < count:
            end = min(start + self._piece, count)
            await self._send_piece(frames[start:end], position if end == count else self._position)
            start = end
        self._reached(position)

    async def _send_piece(self, frames: list[bytes], position: ClientPosition) -> None:
        if len(frames) > 1 and sum(map(len, frames)) > self._source.share_bytes:
            middle = len(frames) // 2
            await self._send_piece(frames[:middle], self._position)
            await self._send_piece(frames[middle:], position)
            return
        self._source.check_turn(self.session)
        window = self.window
        if window is not None:
            await self._wait_for_room(window)
            last = wire.with_ack(frames[-1])
            size = sum(map(len, frames))
            window.asked(wire.opaque_of(last), position, len(frames), size, time.monotonic())
            frames = [*frames[:-1], last]
        else:
            size = sum(map(len, frames))
        self._write(frames)
        self.sent_bytes += size
        self.sent_messages += len(frames)
        self.sent_at = time.monotonic()
        await self._in_time(self._drain, "has taken nothing")
        self._position = position
        self.seq = position.seq
        if window is None:
            self.session.position = position

    def _reached(self, position: ClientPosition) -> None:
        """Record that everything up to `position` has been sent. Changes that the client doesn't get have no ACK to wait for."""
        self._position = position
        self.seq = position.seq
        if self.window is None or not self.window.unacked_messages:
            self.session.position = position

    async def _wait_for_room(self, window: AckWindow) -> None:
        while not window.has_room:
            self._answered.clear()
            await self._in_time(self._answered.wait, "has acknowledged nothing")

    async def _settle(self) -> None:
        """Wait until the client has acknowledged everything."""
        while self.window is not None and self.window.unacked_messages:
            self._answered.clear()
            await self._in_time(self._answered.wait, "has acknowledged nothing")

    async def _in_time(self, wait: Callable[[], Awaitable[object]], what: str) -> None:
        """Wait as long as the client's machine receives anything: the link may be slow, and a message large.

        Raises StalledError.
        """
        self._is_waiting = True
        try:
            while True:
                taken = self._taken()
                try:
                    async with asyncio.timeout(self._stall_seconds):
                        await wait()
                    return
                except TimeoutError:
                    if self._taken() == taken:
                        raise StalledError(f"the client {what} for {self._stall_seconds:g} s") from None
        finally:
            self._is_waiting = False
