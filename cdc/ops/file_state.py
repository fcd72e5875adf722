"""Whether a file has changed since it was read."""

from __future__ import annotations

from pathlib import Path


def state_of(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None if it can't be looked at."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
