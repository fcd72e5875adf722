"""A connection's rows through the compiled path, as far as it takes them, and through the Python path where it hands them back.

    frames ─▶ run ─▶ whole transactions, as many as it can ─▶ the batch
               ▲              │ the next one is uncommon: DDL, control rows, what can't be written …
               │              ▼
               └──────── the Python path: that transaction, and more at once where the compiled path gets nowhere

Where more has to be known than the row (the limbo isn't empty, the schema has changed and that hasn't been told, the images are
being brought up to the checkpoint), all goes the Python way. An unfinished transaction waits here as its bytes.
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
"""So much of an unfinished transaction is kept here; a longer one goes the Python way, past a bound to disk."""

HANDED_BACK_MAX: Final = 1024
WORTH_A_RUN: Final = 64
"""So many rows make up for what it costs to change from one path to the other. Where runs are shorter, ever more rows go the
Python way at once, up to HANDED_BACK_MAX."""


class CompiledStream:
    """The way of a connection's rows, where the compiled path runs."""

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
        """`may_run` tells whether rows are all that there is to know, `feed` is the Python path, `batch` takes what is filled."""
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
        # The beginning of a transaction, as it came.
        self._open: list[CompiledFrames] = []
        self._open_byte_count = 0
        # How many rows the Python path is given at once.
        self._handed_back_count = 1

    @property
    def open_byte_count(self) -> int:
        """Bytes of the unfinished transaction, as far as it waits here."""
        return self._open_byte_count

    def close(self) -> None:
        """Forget the unfinished transaction."""
        self._open = []
        self._open_byte_count = 0

    def feed(self, frames: Frames, suffix: bytes) -> Iterator[Batch]:
        """Take rows; yields batches that are full. Raises as the Python path does."""
        start, open_ = 0, self._open
        if open_ and isinstance(frames, CompiledFrames) and frames.rows.go_on(open_[-1].rows):
            # Looked at by itself: it may be one row, and what is open much.
            yield from self._keep(frames, suffix)
            return
        self.close()
        if not isinstance(frames, CompiledFrames):
            for part in open_:
                yield from self._feed(part, suffix)
            yield from self._feed(frames, suffix)
            return
        if open_:
            # Only the transaction that was open is read again.
            start = frames.rows.end_of_open(0)
            yield from self._run(CompiledFrames.joined([*open_, frames.part(0, start)]), 0, suffix)
        if start < len(frames):
            yield from self._run(frames, start, suffix)

    def _run(self, frames: CompiledFrames, at: int, suffix: bytes) -> Iterator[Batch]:
        builder, rows, count = self._builder, frames.rows, len(frames)
        while at < count:
            if self._assembler.open_byte_count:
                # The Python path has the beginning of this transaction, and is given the rest.
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
        """Run until something is to be done about it; returns where that is, and whether the next transaction didn't fit."""
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
        """The beginning of a transaction, or more of it, whose rest comes with the next frames."""
        self._open.append(rest)
        self._open_byte_count += len(rest.data)
        if self._open_byte_count > self._open_bytes_max:
            parts = self._open
            self.close()
            for part in parts:
                yield from self._feed(part, suffix)
