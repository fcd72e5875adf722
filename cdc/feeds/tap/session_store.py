"""Sessions on this machine's disk, so that clients may resume after the server was restarted.

Each change is written within a second. If the server is killed before that, the client gets again the messages that it
acknowledged in that time.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

import lmdb
import msgspec
import structlog

from cdc.errors import StateError
from cdc.feeds.tap.directory import open_locked
from cdc.feeds.tap.session import ControlPosition, Session
from cdc.store.files import DIRECTORY_MODE

_MAP_BYTES: Final = 1 << 30
_CONTROL_KEY: Final = bytes(300)
"""Key of the control state. No client has it: clients' keys have less than 256 bytes, or 288."""
_encode: Final = msgspec.json.Encoder().encode


class SessionStore:
    """Sessions of one server, in LMDB."""

    def __init__(self, path: Path) -> None:
        """Open or create the store. Raises ConfigurationError if another server has it, or the directory can't be written."""
        self._path = path
        self._lock, self._environment = open_locked("tap.path", path, lambda: _opened(path / "sessions"))
        self._saving = threading.Lock()
        self._written: dict[str, bytes] = {}
        self.control: ControlPosition | None = None
        """Control state as it was written; None if it never was, or before `load`."""

    def load(self) -> list[Session]:
        """Return all stored sessions. A session that can't be read is logged and forgotten.

        Without a readable control state, the server fills all clients again. Raises StateError if the file is damaged.
        """
        found = []
        try:
            with self._environment.begin() as txn:
                entries = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        except lmdb.Error as error:
            raise StateError(
                f"the sessions in {self._path} can't be read: {error}",
                "Restore the directory, or remove it: all clients are then treated as new. They should discard their keys.",
            ) from error
        log = structlog.get_logger()
        for key, value in entries:
            try:
                if key == _CONTROL_KEY:
                    self.control = msgspec.json.decode(value, type=ControlPosition)
                    continue
                session = Session.from_json(json.loads(value))
            except msgspec.MsgspecError as error:
                log.warning("the state beside the sessions can't be read: all clients are filled again", why=str(error))
                continue
            except (ValueError, LookupError, TypeError) as error:
                name = key.decode(errors="replace")
                log.warning("a session can't be read: its client is treated as new", name=name, why=str(error))
                continue
            self._written[session.name] = value
            found.append(session)
        return found

    def has(self, session: Session) -> bool:
        """Whether the session was written in its current state."""
        return self._written.get(session.name) == encoded(session)

    def save(self, sessions: Collection[Session], control: ControlPosition) -> None:
        """Store these sessions, and delete all others; only changed ones are written.

        For any thread. Raises StateError if the write fails.
        """
        with self._saving:
            values = {session.name: encoded(session) for session in sessions}
            changed = [(_key(name), value) for name, value in values.items() if self._written.get(name) != value]
            gone = self._written.keys() - values.keys()
            if control != self.control:
                changed.append((_CONTROL_KEY, _encode(control)))
            if not changed and not gone:
                return
            try:
                with self._environment.begin(write=True) as txn:
                    for key, value in changed:
                        txn.put(key, value)
                    for name in gone:
                        txn.delete(_key(name))
            except lmdb.Error as error:
                raise StateError(f"sessions can't be written: {error}", "Make room on the disk of tap.path.") from error
            self._written, self.control = values, control

    def close(self) -> None:
        """Close the files."""
        self._environment.close()
        self._lock.close()


def _opened(directory: Path) -> lmdb.Environment:
    directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    return lmdb.open(str(directory), map_size=_MAP_BYTES, mode=0o600, meminit=False)


def _key(name: str) -> bytes:
    """Return the session's key in LMDB, which allows 511 bytes. Names may be longer."""
    key = name.encode("utf-8", "surrogateescape")
    if len(key) < 256:
        return key
    return key[:256] + hashlib.sha256(key).digest()


def encoded(session: Session) -> bytes:
    """Return a session in the form that `save` writes."""
    return _encode(session.to_json())
