"""Temporary directory of `watch`, for its state store. What a killed process has left, the next one removes.

A directory is locked as long as its process lives, however it ends. So one that can be locked is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "tarantool-cdc-watch-"
_UNLOCKED_SECONDS: Final = 60.0
"""Age up to which a directory may be one that its process has just made, and is about to lock."""


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a new directory, which is removed at the end, and remove those that killed processes of this user have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as directory:
        descriptor = _opened(Path(directory))
        try:
            with contextlib.suppress(OSError):  # a file system without locks, where no directory is taken for left either
                _lock(descriptor)
            yield Path(directory)
        finally:
            os.close(descriptor)


def _remove_if_left(path: Path) -> None:
    """Raises OSError if a process has the directory, or if it can't be removed."""
    descriptor = _opened(path)
    try:
        about = os.fstat(descriptor)
        if about.st_uid == os.geteuid() and time.time() - about.st_mtime > _UNLOCKED_SECONDS:
            _lock(descriptor)
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
