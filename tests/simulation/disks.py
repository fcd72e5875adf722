"""What the machines' disks have when the power comes back.

A file is there as it was at its last fsync, or as it was written since: the system writes it by itself some time, each file by
itself. Of the store's own file single pages may be missing then; the store's condition says so beforehand, and is always synced.

A disk that lies about syncs has each file as it was when the lying began, or as it was written since. The store's file is whole
either way: docs/guarantees.md says what comes of pages that are missing although the disk said that it had them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

DATA: Final = "data.mdb"
CONDITION: Final = "condition"
_LOCKS: Final = ("owner.lock", "lock.mdb")
"""What they say counts for running processes only."""


class Disks:
    """The files of all state directories of one world."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_watching = False
        """Whether the power will fail: otherwise nobody asks what was synced."""
        self._synced: dict[Path, bytes] = {}
        # As of the moment from which on a disk has lied.
        self._before: dict[Path, bytes] | None = None
        self.has_lied = False
        """Whether an operator has to decide what the state is worth."""

    def fsync(self, descriptor: int) -> None:
        """os.fsync."""
        self.synced(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def synced(self, path: Path) -> None:
        """All of a file is on the disk."""
        if self.is_watching:
            self._synced[path] = path.read_bytes()

    def lose(self, state: Path) -> None:
        """The machine has stopped: what wasn't synced is gone, or not."""
        kept = {path for path in self._synced if state in path.parents}
        for path in sorted(_files(state).keys() | kept):
            if path.name not in (DATA, CONDITION, *_LOCKS) and self._rng.random() < 0.5:
                _put(path, self._synced.get(path))

    def begin_to_lie(self, state: Path) -> None:
        """From here on nothing is synced, whatever the disk says."""
        self._before = _files(state)

    def lose_all(self, state: Path) -> None:
        """The machine has stopped, and each file may be what it was when the lying began."""
        before, self._before = self._before or {}, None
        self.has_lied = True
        for path in sorted(_files(state).keys() | before.keys()):
            if path.name not in _LOCKS and self._rng.random() < 0.5:
                _put(path, before.get(path))
            if path.exists():
                self.synced(path)
            else:
                self._synced.pop(path, None)


def _files(state: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}


def _put(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)
