"""Free TCP ports on 127.0.0.1."""

from __future__ import annotations

import random
import socket
import threading

from cdc.local.errors import LocalServerError

# Below the range that systems give to outgoing connections: a client's socket can't take the port of a server that is
# down for a moment, between a kill and the restart.
_FIRST_PORT = 10_000
_LAST_PORT = 32_000

_handed_out: set[int] = set()
_handed_out_lock = threading.Lock()
_random = random.SystemRandom()  # processes that run side by side start their search at different places


def free_port() -> int:
    """A port that nothing listens on now, and that this process hasn't been given before.

    Somebody else may still take it before the caller binds it: a server that can't bind is to be started on another.
    Raises `LocalServerError` if no port is free.
    """
    with _handed_out_lock:
        start = _random.randrange(_FIRST_PORT, _LAST_PORT)
        for offset in range(_LAST_PORT - _FIRST_PORT):
            port = _FIRST_PORT + (start - _FIRST_PORT + offset) % (_LAST_PORT - _FIRST_PORT)
            if port not in _handed_out and _can_bind(port):
                _handed_out.add(port)
                return port
    raise LocalServerError(
        f"No TCP port of 127.0.0.1 between {_FIRST_PORT} and {_LAST_PORT} is free.", "End servers that are left over."
    )


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
