"""Output of `watch`: writes batches to a file descriptor, in the place of Kafka's publisher.

A batch counts as durable once it is written. While the reader is slow, the daemon's thread waits here, and the acknowledger keeps
the connection to the master.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from cdc.commands.watch_lines import refused_rows
from cdc.errors import CdcError, ConfigurationError, PublishAborted
from cdc.kafka.wake_pipe import WakePipe
from cdc.positions.numbers import Numbers
from cdc.positions.position import Position
from cdc.stream.batches.batch import Batch

_CHUNK_BYTES: Final = select.PIPE_BUF
"""What a pipe that has room takes without blocking, in bytes."""
_TURN_MS: Final = 200

Render = Callable[[Batch], bytes]


class OutputError(CdcError):
    """The output can't be written, though it has a reader."""


class EventOutput:
    """`EventSink` that writes to a terminal, a pipe or a file."""

    def __init__(
        self,
        descriptor: int,
        render: Render,
        is_stopping: threading.Event,
        *,
        on_turn: Callable[[], None],
        tell: Callable[[str], object],
    ) -> None:
        """`on_turn` is called on each turn of the daemon's loop. If the reader ends, `is_stopping` is set.

        `tell` is called with a sentence for each row that can't be shown.
        """
        self._descriptor = descriptor
        self._render = render
        self._is_stopping = is_stopping
        self._on_turn = on_turn
        self._tell = tell
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._wake_pipe = WakePipe()
        self._settled: list[Position] = []
        self._numbers = Numbers()
        self._abandoned: str | None = None
        self.row_work_lock: AbstractContextManager[object] = nullcontext()
        self.event_count = 0
        """Number of events that were written."""

    @property
    def wake_fd(self) -> int:
        """See `EventSink.wake_fd`."""
        return self._wake_pipe.fileno()

    @property
    def queued_bytes(self) -> int:
        """See `EventSink.queued_bytes`: nothing is queued."""
        return 0

    @property
    def wanted_in_seconds(self) -> float:
        """See `EventSink.wanted_in_seconds`."""
        return 0.0

    @property
    def has_room(self) -> bool:
        """See `EventSink.has_room`. Also notices that the reader has ended."""
        self._on_turn()
        if not self._is_file and self._poll(0, 0) & (select.POLLERR | select.POLLHUP):
            self._is_stopping.set()
        return True

    def wait_for_room(self, timeout_seconds: float) -> bool:  # noqa: ARG002 - there is always room
        """See `EventSink.wait_for_room`."""
        return True

    def submit(self, batch: Batch) -> None:
        """Write a batch. Raises PublishAborted if the reader ends, or a stop is requested while it doesn't read; OutputError."""
        for sentence in refused_rows(batch.each()):
            self._tell(sentence)
        self._write(self._render(batch))
        self.event_count += batch.event_count
        self._numbers |= Numbers.of(batch.position)
        if batch.is_boundary:
            self._settled.append(batch.position)
            self._wake_pipe.wake()

    def collect(self) -> list[Position]:
        """See `EventSink.collect`."""
        self._wake_pipe.clear()
        settled, self._settled = self._settled, []
        if not settled and self._abandoned is not None:
            reason, self._abandoned = self._abandoned, None
            raise PublishAborted(reason)
        return settled

    def abandon(self, reason: str) -> None:
        """See `EventSink.abandon`. What was written stays written."""
        self._abandoned = reason

    def newest_numbers(self) -> Numbers:
        """See `EventSink.newest_numbers`."""
        return self._numbers

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._is_file and not self._poll(select.POLLOUT, _TURN_MS):
                if self._is_stopping.is_set():
                    raise PublishAborted("stopped while nobody read the output")
                continue
            try:
                rest = rest[os.write(self._descriptor, rest if self._is_file else rest[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                self._is_stopping.set()
                raise PublishAborted("the output's reader has ended") from error
            except OSError as error:
                raise OutputError(f"the output is incomplete, as it can't be written: {error.strerror}") from error

    def _poll(self, events: int, timeout_ms: int) -> int:
        poller = select.poll()
        poller.register(self._descriptor, events)
        return next((found for _, found in poller.poll(timeout_ms)), 0)


def open_file(path: Path) -> int:
    """Open a file to append lines to, and return its descriptor. Raises ConfigurationError.

    If its last line has no end, as a killed process leaves it, that line is ended: the next one isn't a part of it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written: {error.strerror}", "Name another file with --output.") from error
    return descriptor
