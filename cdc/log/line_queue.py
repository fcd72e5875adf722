"""Bounded queue of the log's lines, and the thread that writes them to stderr.

Only this thread waits for whoever reads stderr. Everybody else puts a line into the queue and goes on, whatever happens at its
other end: nobody reads the pipe, its reader is gone, the disk is full, the terminal is closed. A line that can't be written is
dropped and counted. When writing works again, a line of the log says how many are missing.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

STDERR: Final = 2
"""File descriptor of stderr."""

QUEUE_BYTES_MAX: Final = 4 << 20
"""Maximum size of the lines that wait, in bytes. Errors may use twice as much, so that the last one isn't dropped for its
predecessors."""


class LineQueue:
    """Queue and thread for one descriptor. Safe in any thread, and in a signal handler."""

    def __init__(
        self, tell_loss: Callable[[int, int], None], *, encoding: str = "utf-8", errors: str = "replace", descriptor: int = STDERR
    ) -> None:
        """Start the thread.

        When writing works again, it calls `tell_loss` with the number of lost lines: those since the last call, and all.
        """
        self._tell_loss = tell_loss
        self.encoding: Final = encoding
        self._errors = errors
        self._descriptor = descriptor
        # The first element is being written. The condition's lock is reentrant: a signal handler may interrupt `put`.
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self.lost_count = 0
        """Number of lines that couldn't be written."""
        self._told_count = 0
        self._is_torn = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def put(self, text: str, *, is_error: bool = False) -> None:
        """Append text, or count it as lost if too much is waiting."""
        data = text.encode(self.encoding, self._errors)
        with self._changed:
            limit = QUEUE_BYTES_MAX * 2 if is_error else QUEUE_BYTES_MAX
            if self._waiting and self._waiting_bytes + len(data) > limit:
                self.lost_count += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing is waiting. Return False if the time was too short."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting[0]
            is_written = self._write(line)
            with self._changed:
                if is_written and self.lost_count > self._told_count:
                    # Before the line leaves the queue, so that `flush` waits for this one too.
                    count, self._told_count = self.lost_count - self._told_count, self.lost_count
                    self._tell_loss(count, self.lost_count)
                self._waiting.popleft()
                self._waiting_bytes -= len(line)
                self.lost_count += not is_written
                self._changed.notify_all()

    def _write(self, line: bytes) -> bool:
        """Write one line. Return False if that is impossible now."""
        # After a line that was written in part, the next one begins a new line.
        left = memoryview(b"\n" + line if self._is_torn else line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
                self._is_torn = True
            except BlockingIOError:
                # Somebody who shares the pipe or the terminal has made it non-blocking.
                select.select((), (self._descriptor,), ())
            except OSError:
                return False
        self._is_torn = False
        return True
