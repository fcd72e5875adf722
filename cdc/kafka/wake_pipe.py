"""A pipe by which one thread wakes another that polls descriptors. Writing never waits: one byte is as good as many."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress


class WakePipe:
    """Its descriptors are given back once nobody holds it any more: neither who polls it nor a thread that may still wake."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self._read, self._write)

    def fileno(self) -> int:
        """What to poll: readable after `wake`, until `clear`."""
        return self._read

    def wake(self) -> None:
        """Wake whoever polls."""
        with suppress(BlockingIOError):  # it is full: they have been woken
            os.write(self._write, b"\0")

    def clear(self) -> None:
        """Whoever polls is awake."""
        with suppress(BlockingIOError):  # the pipe is empty then
            while os.read(self._read, 4096):
                pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
