"""Routes a connection's rows through the compiled path, and those that it hands back through the Python path.

    frames ─▶ run ─▶ complete transactions, as many as it can ─▶ the batch
               ▲              │ the next one is uncommon: DDL, control rows, rows that can't be encoded …
               │              ▼
               └──────── the Python path: that transaction, and more at once where the compiled path makes no progress

All rows take the Python path while their events depend on more than the rows: the schema has changed and the change isn't
published yet, the images are being brought up to the checkpoint, or something waits in the limbo's queues.

Synchronous transactions and their CONFIRMs usually arrive together. The limbo then decides about all of them at once, and those
that are certain are run as if they had never waited. The others are held as they are until a CONFIRM arrives for them:

    frames      45 sync   46 sync   47 CONFIRM 45   48 sync ║ 49 CONFIRM 48       50 sync   51 async
                  run     └────────── held ─────────────────╫──▶ run, and then      └──── held ───┘
                                                            ║    49 is passed over

What the limbo can't decide by the highest confirmed lsn alone (ROLLBACK, PROMOTE, several origins, DDL behind what waits), and a
transaction without its last row, which only a later row ends, go to its queues by the Python path, and everything held before.

An unfinished transaction waits here as its bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from cdc import native
from cdc.events import topics
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.stream.batches.batch import Batch
from cdc.stream.batches.event_context import EventContext
from cdc.stream.boundaries import Boundaries
from cdc.stream.python_stream import PythonStream
from cdc.stream.stream_events import StreamEvents
from cdc.stream.transactions import held
from cdc.stream.transactions.limbo import Limbo

OPEN_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of an unfinished transaction kept here, in bytes. A longer one goes to the Python path, which may spool it."""

HANDED_BACK_MAX: Final = 1024
WORTH_A_RUN: Final = 64
"""Number of rows that makes up for the cost of changing from one path to the other. If runs are shorter, more and more rows
take the Python path at once, up to HANDED_BACK_MAX."""


class CompiledStream:
    """Router of one connection's rows, where the compiled path is available."""

    def __init__(
        self,
        path: native.CompiledRowPath,
        python: PythonStream,
        limbo: Limbo,
        context: EventContext,
        events: StreamEvents,
        boundaries: Boundaries,
    ) -> None:
        self._path = path
        self._python = python
        self._limbo = limbo
        self._context = context
        self._builder = context.builder
        self._events = events
        self._boundaries = boundaries
        self._transaction_topic = context.builder.names.control(topics.TRANSACTION)
        self._open_bytes_max = min(context.options.transaction_bytes_max, OPEN_BYTES_MAX)
        self._held_bytes_max = min(context.options.transaction_bytes_max, held.BYTES_MAX)
        # The received part of the unfinished transaction.
        self._open: list[CompiledFrames] = []
        self._open_byte_count = 0
        # Size of what the Python path has got since something held was given up, in bytes.
        self._handed_back_byte_count = 0
        # Number of rows that the Python path gets at once.
        self._handed_back_count = 1

    @property
    def open_byte_count(self) -> int:
        """Size of the unfinished transaction, in bytes."""
        return self._open_byte_count + self._python.open_byte_count

    def close(self) -> None:
        """Discard the unfinished transaction."""
        self._take_open()
        self._python.close()

    def end_open(self, suffix: bytes) -> Iterator[Batch]:
        """Process the unfinished transaction, as no row of it follows."""
        yield from self._give_up(suffix)
        yield from self._python.end_open(suffix)

    def _give_up(self, suffix: bytes) -> Iterator[Batch]:
        """Hand everything that waits here to the Python path: what is held, and the unfinished transaction."""
        yield from self._give_up_held(suffix)
        for part in self._take_open():
            yield from self._python.feed(part, suffix)

    def feed(self, frames: Frames, suffix: bytes) -> Iterator[Batch]:
        """Process rows; yield full batches. Raises the same errors as the Python path."""
        start, open_ = 0, self._open
        if not isinstance(frames, CompiledFrames):
            yield from self._give_up(suffix)
            yield from self._python.feed(frames, suffix)
            return
        if open_ and frames.rows.continues_open(open_[-1].rows):
            # Don't join these frames with the open ones: they may be a single row, and the open ones large.
            yield from self._keep(frames, suffix)
            return
        self._take_open()
        if open_:
            # Only the open transaction is read again, not the rest of the frames.
            start = frames.rows.end_of_open(0)
            yield from self._process(CompiledFrames.joined([*open_, frames.part(0, start)]), 0, suffix)
        if start < len(frames):
            yield from self._process(frames, start, suffix)

    def _depends_on_rows_alone(self) -> bool:
        """Return whether events depend on rows and the limbo alone: no catch-up that will end, no unpublished schema change."""
        catch_up = self._python.catch_up
        return (catch_up is None or catch_up.is_endless) and not self._context.spaces.schema.is_touched

    def _process(self, frames: CompiledFrames, at: int, suffix: bytes) -> Iterator[Batch]:
        rows, count = frames.rows, len(frames)
        while at < count:
            if self._python.open_byte_count:
                # The Python path has the beginning of this transaction, so it gets the rest too.
                end = rows.end_of_open(at)
                yield from self._python.feed(frames.part(at, end), suffix)
                at = end
                continue
            progress, may_run = 0, self._depends_on_rows_alone()
            if may_run and self._limbo.has_queues:
                # Not more than has gone by the Python path since it was given up, as it may soon be given up again.
                self._limbo.hold_again(min(self._handed_back_byte_count, self._held_bytes_max // 4))
            if may_run and not self._limbo.has_queues:
                start = at
                at = yield from self._run(frames, at, suffix)
                progress = at - start
                if at == count:
                    break
            end = rows.whole_until(at, self._count_to_hand_back(progress))
            if end == at:
                yield from self._keep(frames.part(at, count), suffix)
                break
            yield from self._give_up_held(suffix)
            part = frames.part(at, end)
            self._handed_back_byte_count += len(part.data)
            yield from self._python.feed(part, suffix)
            at = end

    def _run(self, frames: CompiledFrames, at: int, suffix: bytes) -> Generator[Batch, None, int]:
        """Run rows, or hold them; return the index of the first one that must be handed back."""
        rows, count, limbo = frames.rows, len(frames), self._limbo
        while at < count:
            arrivals = limbo.look_at(rows, at, self._events.vclock) if limbo.is_likely else None
            if arrivals is None and not limbo.held:
                at = yield from self._run_until(rows, at, count, suffix)
                if at == count:
                    break
                arrivals = limbo.look_at(rows, at, self._events.vclock)
            if arrivals is None:
                break
            yield from self._run_held(arrivals.confirmed, suffix)
            stop = at
            if not limbo.held:
                stop = limbo.certain_until(rows.origin(at), arrivals, arrivals.confirmed)
                yield from self._run_certain(frames, at, stop, suffix, arrivals)
            if stop < arrivals.end:
                limbo.held.put(frames.part(stop, arrivals.end), arrivals.after(stop), self._events.now_us)
            at = arrivals.end
            if limbo.held.byte_count > self._held_bytes_max:
                yield from self._give_up_held(suffix)
                break
        return at

    def _run_held(self, confirmed: int, suffix: bytes) -> Iterator[Batch]:
        """Run what is held up to this lsn."""
        waiting = self._limbo.held
        while waiting:
            part = waiting.head
            stop = self._limbo.certain_until(waiting.origin, part.arrivals, confirmed)
            if stop <= part.at:
                break
            yield from self._run_certain(part.frames, part.at, stop, suffix, part.arrivals)
            waiting.move(stop)

    def _run_certain(
        self, frames: CompiledFrames, at: int, stop: int, suffix: bytes, arrivals: native.Arrivals
    ) -> Iterator[Batch]:
        """Run all rows until `stop`, the uncommon ones by the Python path."""
        while at < stop:
            start = at
            at = yield from self._run_until(frames.rows, at, stop, suffix, arrivals)
            if at < stop:
                end = frames.rows.whole_until(at, self._count_to_hand_back(at - start))
                end = min(end, arrivals.plain_until(at), stop)
                yield from self._python.feed(frames.part(at, end), suffix, are_certain=True)
                at = end

    def _count_to_hand_back(self, progress: int) -> int:
        """Return how many rows the Python path gets after a run of so many: one after a long run, else ever more."""
        count = 1 if progress >= WORTH_A_RUN else self._handed_back_count
        self._handed_back_count = min(count * 2, HANDED_BACK_MAX)
        return count

    def _run_until(
        self, rows: native.Rows, at: int, stop: int, suffix: bytes, certain: native.Arrivals | None = None
    ) -> Generator[Batch, None, int]:
        """Run until `stop`, or until the compiled path stops; return where. Yields full batches. For `certain` see `run`."""
        builder, events, images = self._builder, self._events, self._context.images
        while at < stop:
            reading = images.reading if images is not None else None
            position = list(events.vclock.items()), builder.seq, builder.byte_count
            run = self._path.run(rows, at, stop, certain, suffix, *position, reading)
            if run.at > at:
                at = run.at
                if len(run.messages):
                    builder.parts.append(run.messages)
                builder.seq, builder.byte_count, builder.timestamp = run.seq, run.byte_count, run.timestamp
                builder.row_count += run.row_count
                builder.native_row_count += run.row_count
                events.jump(run.vclock, is_whole=True)
                if run.has_records:
                    builder.announce(self._transaction_topic)
            if not (builder.is_full or (run.is_full and builder.row_count)):
                break
            catch_up = self._python.catch_up
            yield self._boundaries.take_batch() if catch_up is None else catch_up.take_batch()
        return at

    def _give_up_held(self, suffix: bytes) -> Iterator[Batch]:
        """Hand what is held to the Python path."""
        if not self._limbo.held:
            return
        self._handed_back_byte_count = 0
        events, now_us = self._events, self._events.now_us
        for part in self._limbo.take_held():
            events.now_us = part.received_us  # it has been waiting since then
            yield from self._python.feed(part.frames.part(part.at, len(part.frames)), suffix)
        events.now_us = now_us

    def _keep(self, rest: CompiledFrames, suffix: bytes) -> Iterator[Batch]:
        """Keep a transaction's received part until later frames complete it; hand it to the Python path once it is too large."""
        self._open.append(rest)
        self._open_byte_count += len(rest.data)
        if self._open_byte_count > self._open_bytes_max:
            yield from self._give_up(suffix)

    def _take_open(self) -> list[CompiledFrames]:
        open_, self._open, self._open_byte_count = self._open, [], 0
        return open_
