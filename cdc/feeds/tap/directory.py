"""Directories that belong to one TAP server at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import lmdb

from cdc.errors import ConfigurationError, StateError
from cdc.store.files import DirectoryLock, lock

_Opened = TypeVar("_Opened")


def open_locked(setting: str, path: Path, open_: Callable[[], _Opened]) -> tuple[DirectoryLock, _Opened]:
    """Lock a directory and open its contents. The lock lasts until the first result is closed.

    Raises ConfigurationError, which names the setting, if another server has the directory or the directory can't be written.
    """
    try:
        held = lock(path, "a TAP server")
        try:
            return held, open_()
        except BaseException:
            held.close()
            raise
    except (StateError, OSError, lmdb.Error) as error:
        reason = error.message.replace(f"the state store {path}", "it", 1) if isinstance(error, StateError) else error
        raise ConfigurationError(
            f"{setting} = {path} can't be used: {reason}",
            "Only one TAP server can use the directory at a time. Give this server another directory that it may write to.",
        ) from error
