"""Free TCP ports on 127.0.0.1, each assigned to one process at a time.

A port on which nothing listens isn't necessarily free: its server may not have been started yet, or may be down between a kill
and the restart. So a process that gets a port locks a byte of a file that all processes of this user share. The system releases
the lock when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import threading
from pathlib import Path

from cdc.local.errors import LocalServerError

# Below the range that systems use for outgoing connections: so a client's socket can't take the port of a server that is
# down for a moment, between a kill and the restart.
_FIRST_PORT = 10_000
_LAST_PORT = 32_000

_LOCKS = Path(f"/tmp/tarantool-cdc-ports-{os.getuid()}")  # noqa: S108 - the same for all, whatever TMPDIR says; it has no content
_handed_out: set[int] = set()
_handed_out_lock = threading.Lock()
_random = random.SystemRandom()  # processes that run at the same time start their search at different places


def free_port() -> int:
    """Return a port on which nothing listens now, and that no running process, including this one, has been assigned.

    A program that doesn't use this function may still take the port before the caller binds it: a server that can't bind must be
    started on another. Raises `LocalServerError` if no port is free.
    """
    with _handed_out_lock:
        locks = _open_locks()
        start = _random.randrange(_FIRST_PORT, _LAST_PORT)
        for offset in range(_LAST_PORT - _FIRST_PORT):
            port = _FIRST_PORT + (start - _FIRST_PORT + offset) % (_LAST_PORT - _FIRST_PORT)
            if port not in _handed_out and _can_lock(locks, port) and _can_bind(port):
                _handed_out.add(port)
                return port
    raise LocalServerError(
        f"No TCP port of 127.0.0.1 between {_FIRST_PORT} and {_LAST_PORT} is free.", "End servers that are left over."
    )


@functools.cache  # a process loses all its locks of a file when it closes the file once
def _open_locks() -> int:
    return os.open(_LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _can_lock(locks: int, port: int) -> bool:
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
