"""Sessions on this machine's disk, so that clients may come back after the server was started anew.

Each change is written within a second; a client whose server is killed meanwhile gets again what it acknowledged in that time.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

import lmdb
import msgspec
import structlog

from cdc.errors import ConfigurationError, StateError
from cdc.feeds.tap.session import Session
from cdc.store.files import DIRECTORY_MODE, lock

_MAP_BYTES: Final = 1 << 30
_encode: Final = msgspec.json.Encoder().encode


class SessionStore:
    """One server's."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError if another server has it, or the disk doesn't take it."""
        directory = path / "sessions"
        try:
            self._lock = lock(path)
            try:
                directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
                self._environment = lmdb.open(str(directory), map_size=_MAP_BYTES, mode=0o600, meminit=False)
            except BaseException:
                os.close(self._lock)
                raise
        except (StateError, OSError, lmdb.Error) as error:
            raise ConfigurationError(
                f"tap.path = {path} can't be used: {error.message if isinstance(error, StateError) else error}",
                "One TAP server can use it at a time; give this one another, that it may write to.",
            ) from error
        self._written: dict[str, bytes] = {}

    def load(self) -> list[Session]:
        """All sessions that are there. One that can't be read is said and forgotten."""
        found = []
        with self._environment.begin() as txn:
            entries = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        for key, value in entries:
            try:
                session = Session.from_json(json.loads(value))
            except (ValueError, KeyError, TypeError) as error:
                structlog.get_logger().warning(
                    "a session can't be read, its client begins anew", name=key.decode(), why=str(error)
                )
                continue
            self._written[session.name] = value
            found.append(session)
        return found

    def save(self, sessions: dict[str, bytes]) -> None:
        """Keep these and no others: what differs is written. Raises StateError if the disk doesn't take it."""
        changed = [(name, value) for name, value in sessions.items() if self._written.get(name) != value]
        gone = self._written.keys() - sessions.keys()
        if not changed and not gone:
            return
        try:
            with self._environment.begin(write=True) as txn:
                for name, value in changed:
                    txn.put(_key(name), value)
                for name in gone:
                    txn.delete(_key(name))
        except lmdb.Error as error:
            raise StateError(f"sessions can't be written: {error}", "Make room on the disk of tap.path.") from error
        self._written = dict(sessions)

    def close(self) -> None:
        """Let go of the files."""
        self._environment.close()
        os.close(self._lock)


def _key(name: str) -> bytes:
    """LMDB takes 511 bytes, and names may be longer."""
    key = name.encode("utf-8", "surrogateescape")
    if len(key) < 256:
        return key
    return key[:256] + hashlib.sha256(key).digest()


def encoded(session: Session) -> bytes:
    """A session as `save` takes it."""
    return _encode(session.to_json())
