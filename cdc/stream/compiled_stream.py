"""Routes a connection's rows through the compiled path, and those that it hands back through the Python path.

    frames ─▶ run ─▶ complete transactions, as many as it can ─▶ the batch
               ▲              │ the next one is uncommon: DDL, control rows, rows that can't be encoded …
               │              ▼
               └──────── the Python path: that transaction, and more at once where the compiled path makes no progress

All rows take the Python path while their events depend on more than the rows: the limbo isn't empty, the schema has changed and
the change isn't published yet, or the images are being brought up to the checkpoint. An unfinished transaction waits here as its
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cdc import native
from cdc.images.overlay import Images
from cdc.protocol.codec import Frames
from cdc.protocol.compiled_frames import CompiledFrames
from cdc.stream.assembler import Assembler
from cdc.stream.batch import Batch, BatchBuilder
from cdc.stream.stream_events import StreamEvents

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
        builder: BatchBuilder,
        events: StreamEvents,
        assembler: Assembler,
        images: Images | None,
        *,
        transaction_topic: str,
        open_bytes_max: int,
        may_run: Callable[[], bool],
        feed: Callable[[Frames, bytes], Iterator[Batch]],
        batch: Callable[[], Batch],
    ) -> None:
        """`may_run` says whether events depend on rows alone, `feed` is the Python path, `batch` returns the filled batch."""
        self._path = path
        self._builder = builder
        self._events = events
        self._assembler = assembler
        self._images = images
        self._transaction_topic = transaction_topic
        self._open_bytes_max = min(open_bytes_max, OPEN_BYTES_MAX)
        self._may_run = may_run
        self._feed = feed
        self._batch = batch
        # The received part of the unfinished transaction.
        self._open: list[CompiledFrames] = []
        self._open_byte_count = 0
        # Number of rows that the Python path gets at once.
        self._handed_back_count = 1

    @property
    def open_byte_count(self) -> int:
        """Size of the part of the unfinished transaction that waits here, in bytes."""
        return self._open_byte_count

    def close(self) -> None:
        """Discard the unfinished transaction."""
        self.take_open()

    def take_open(self) -> list[CompiledFrames]:
        """Return the part of the unfinished transaction that waits here, and give it up."""
        open_, self._open, self._open_byte_count = self._open, [], 0
        return open_

    def feed(self, frames: Frames, suffix: bytes) -> Iterator[Batch]:
        """Process rows; yield full batches. Raises the same errors as the Python path."""
        start, open_ = 0, self._open
        if open_ and isinstance(frames, CompiledFrames) and frames.rows.continues_open(open_[-1].rows):
            # Don't join these frames with the open ones: they may be a single row, and the open ones large.
            yield from self._keep(frames, suffix)
            return
        self.close()
        if not isinstance(frames, CompiledFrames):
            for part in open_:
                yield from self._feed(part, suffix)
            yield from self._feed(frames, suffix)
            return
        if open_:
            # Only the open transaction is read again, not the rest of the frames.
            start = frames.rows.end_of_open(0)
            yield from self._run(CompiledFrames.joined([*open_, frames.part(0, start)]), 0, suffix)
        if start < len(frames):
            yield from self._run(frames, start, suffix)

    def _run(self, frames: CompiledFrames, at: int, suffix: bytes) -> Iterator[Batch]:
        builder, rows, count = self._builder, frames.rows, len(frames)
        while at < count:
            if self._assembler.open_byte_count:
                # The Python path has the beginning of this transaction, so it gets the rest too.
                end = rows.end_of_open(at)
                yield from self._feed(frames.part(at, end), suffix)
                at = end
                continue
            progress = 0
            if self._may_run():
                start = at
                at, is_full = self._run_once(rows, at, suffix)
                progress = at - start
                if builder.is_full or (is_full and builder.row_count):
                    yield self._batch()
                    continue
                if at == count:
                    break
            handed_back_count = 1 if progress >= WORTH_A_RUN else self._handed_back_count
            self._handed_back_count = min(handed_back_count * 2, HANDED_BACK_MAX)
            end = rows.whole_until(at, handed_back_count)
            if end == at:
                yield from self._keep(frames.part(at, count), suffix)
                break
            yield from self._feed(frames.part(at, end), suffix)
            at = end

    def _run_once(self, rows: native.Rows, at: int, suffix: bytes) -> tuple[int, bool]:
        """Run until the compiled path stops; return where, and whether it stopped because the next transaction didn't fit."""
        builder, events = self._builder, self._events
        images = self._images.reading if self._images is not None else None
        run = self._path.run(rows, at, suffix, list(events.vclock.items()), builder.seq, builder.byte_count, images)
        if run.at > at:
            if len(run.messages):
                builder.parts.append(run.messages)
            builder.seq, builder.byte_count, builder.timestamp = run.seq, run.byte_count, run.timestamp
            builder.row_count += run.row_count
            events.jump(run.vclock, is_whole=True)
            if run.has_records:
                builder.announce(self._transaction_topic)
        return run.at, run.is_full

    def _keep(self, rest: CompiledFrames, suffix: bytes) -> Iterator[Batch]:
        """Keep a transaction's received part until later frames complete it; hand it to the Python path once it is too large."""
        self._open.append(rest)
        self._open_byte_count += len(rest.data)
        if self._open_byte_count > self._open_bytes_max:
            for part in self.take_open():
                yield from self._feed(part, suffix)
