"""Downloads that all checkouts of a machine share, in folders that are complete or not there: `<cache>/<kind>/<name>-<hash>`.

The cache is `$TARANTOOL_CDC_CACHE` or `~/.cache/tarantool-cdc`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of all that is fetched on this machine."""
    return Path(os.environ.get("TARANTOOL_CDC_CACHE") or Path.home() / ".cache" / "tarantool-cdc")


def cached_folder(kind: str, name: str, wanted: str, fetch: Callable[[Path], Path]) -> Path:
    """Return the folder with what the text `wanted` describes. The first call on this machine has it fetched.

    `fetch` gets an empty folder, and returns the folder in it that is to be kept. Processes that call this at the same time wait
    for the one that fetches.
    """
    cache = cache_folder() / kind
    folder = cache / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            # Renamed when it is complete: a folder of this name never lacks a file.
            with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
                fetch(Path(scratch)).rename(folder)
    return folder
