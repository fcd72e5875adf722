"""Pipe by which a thread wakes another thread that polls descriptors. Writing never blocks: one byte in the pipe is enough."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress


class WakePipe:
    """Wake-up pipe. Its descriptors are closed once neither the polling thread nor a waking thread references the object."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self._read, self._write)

    def fileno(self) -> int:
        """Return the descriptor to poll: readable after `wake`, until `clear`."""
        return self._read

    def wake(self) -> None:
        """Wake the polling thread."""
        with suppress(BlockingIOError):  # a full pipe has woken it already
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Empty the pipe, once the polling thread is awake."""
        with suppress(BlockingIOError):  # raised when the pipe is empty
            while os.read(self._read, 4096):
                pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
